//! The state machines of rank 0 and of members, joined by a network in memory that cuts and delays bytes as it likes.

mod strangers;

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use fastrand::Rng;

use super::auth::{Side, prove};
use super::hub::{Action, Hub};
use super::member::{Failure, Member};
use super::*;

const START: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_secs(5);
/// Any moment before every deadline.
const NOW: Duration = Duration::from_secs(1);

fn setup(rank: u32, nodes: &[u32]) -> Setup {
    let locals = nodes.iter().flat_map(|size| (0..*size).map(|local| (local, *size)));
    let (local_rank, local_world_size) = locals.clone().nth(rank as usize).unwrap();
    Setup {
        place: Place { rank, world_size: nodes.iter().sum(), local_rank, local_world_size },
        job: "job".into(),
        secret: Secret::new(b"a secret of the tests").unwrap(),
        host: "127.0.0.1".into(),
        ports: vec![1],
        start_deadline: START,
        step_deadline: STEP,
    }
}

fn joined(nodes: &[u32]) -> Event {
    Event::Joined { world: World::new(nodes).unwrap() }
}

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 9).into()
}

/// Rank 0 and members by connection, with the bytes on their way.
struct Net {
    rng: Rng,
    now: Duration,
    hub: Hub,
    members: BTreeMap<u64, Member>,
    to_hub: BTreeMap<u64, VecDeque<u8>>,
    to_member: BTreeMap<u64, VecDeque<u8>>,
    closing: Vec<u64>,
    hub_events: Vec<Event>,
    events: BTreeMap<u64, Vec<Event>>,
}

impl Net {
    fn new(seed: u64, nodes: &[u32]) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            now: NOW,
            hub: Hub::new(setup(0, nodes)),
            members: BTreeMap::new(),
            to_hub: BTreeMap::new(),
            to_member: BTreeMap::new(),
            closing: Vec::new(),
            hub_events: Vec::new(),
            events: BTreeMap::new(),
        }
    }

    /// A job whose ranks have all joined. Rank r is connection r.
    fn joined(seed: u64, nodes: &[u32]) -> Self {
        println!("seed {seed}");
        Self::joined_quietly(seed, nodes)
    }

    fn joined_quietly(seed: u64, nodes: &[u32]) -> Self {
        let mut net = Self::new(seed, nodes);
        let mut ranks: Vec<_> = (1..nodes.iter().sum()).collect();
        net.rng.shuffle(&mut ranks);
        for rank in ranks {
            net.connect(rank.into(), setup(rank, nodes));
            net.run();
        }
        assert_eq!(net.take(0), [joined(nodes)]);
        for rank in 1..nodes.iter().sum::<u32>() {
            assert_eq!(net.take(rank.into()), [joined(nodes)], "rank {rank}");
        }
        net
    }

    fn connect(&mut self, connection: u64, setup: Setup) {
        let member = Member::new(setup, [connection as u8; PROOF_BYTES], self.now);
        self.members.insert(connection, member);
        self.open(connection);
    }

    fn open(&mut self, connection: u64) {
        assert!(self.hub.has_room(self.now));
        self.hub.opened(connection, address(), [connection as u8 ^ 0xff; PROOF_BYTES], self.now);
        self.to_hub.entry(connection).or_default();
        self.to_member.entry(connection).or_default();
    }

    /// Bytes that no member sent.
    fn inject(&mut self, connection: u64, bytes: &[u8]) {
        self.to_hub.entry(connection).or_default().extend(bytes);
    }

    fn collect(&mut self) {
        for (connection, member) in &mut self.members {
            while let Some(bytes) = member.next_output() {
                self.to_hub.entry(*connection).or_default().extend(bytes);
            }
            while let Some(event) = member.next_event() {
                self.events.entry(*connection).or_default().push(event);
            }
        }
        while let Some(action) = self.hub.next_action() {
            match action {
                Action::Send(connection, bytes) => {
                    self.to_member.entry(connection).or_default().extend(bytes.iter());
                }
                Action::Close(connection) => self.closing.push(connection),
            }
        }
        while let Some(event) = self.hub.next_event() {
            self.hub_events.push(event);
        }
    }

    /// Delivers everything that is on its way, in random pieces and order.
    fn run(&mut self) {
        loop {
            self.collect();
            let up =
                self.to_hub.iter().filter(|(_, bytes)| !bytes.is_empty()).map(|(connection, _)| (*connection, true));
            let down = self.to_member.iter().filter(|(_, bytes)| !bytes.is_empty());
            let all: Vec<_> = up.chain(down.map(|(connection, _)| (*connection, false))).collect();
            let Some((connection, is_up)) = self.rng.choice(all) else { return };
            let way = if is_up { &mut self.to_hub } else { &mut self.to_member };
            let queue = way.get_mut(&connection).unwrap();
            let count = self.rng.usize(1..=queue.len().min(200));
            let bytes: Vec<_> = queue.drain(..count).collect();
            if is_up {
                if !self.closing.contains(&connection) {
                    self.hub.received(connection, &bytes, self.now);
                }
            } else if let Some(member) = self.members.get_mut(&connection) {
                member.received(&bytes);
            }
        }
    }

    /// Events of a rank (or connection) so far; 0 is rank 0.
    fn take(&mut self, connection: u64) -> Vec<Event> {
        self.collect();
        if connection == 0 {
            std::mem::take(&mut self.hub_events)
        } else {
            self.events.remove(&connection).unwrap_or_default()
        }
    }

    fn lose(&mut self, connection: u64) {
        self.members.remove(&connection);
        self.to_hub.remove(&connection);
        self.hub.closed(connection);
        self.run();
    }
}

fn fault(fault: JobFault) -> Vec<Event> {
    vec![Event::Fault(fault)]
}

#[test]
fn ranks_join_in_any_order_with_bytes_cut_anywhere() {
    for (seed, nodes) in [vec![1], vec![2], vec![3, 2], vec![1, 1, 5], vec![7], vec![8, 8, 8]].iter().enumerate() {
        Net::joined(seed as u64, nodes);
    }
}

#[test]
fn an_exchange_gives_every_rank_the_blob_of_every_rank_round_after_round() {
    let mut net = Net::joined(1, &[3, 2]);
    for round in 0..3u8 {
        let blobs: Vec<Vec<u8>> = (0..5u8).map(|rank| vec![round * 10 + rank; rank as usize * 300]).collect();
        let mut order = [0, 1, 2, 3, 4];
        net.rng.shuffle(&mut order);
        for rank in order {
            match net.members.get_mut(&rank) {
                Some(member) => member.share(blobs[rank as usize].clone(), NOW),
                None => net.hub.share(blobs[0].clone(), NOW),
            }
            net.run();
        }
        for rank in 0..5 {
            assert_eq!(net.take(rank), [Event::Shared { blobs: blobs.clone() }], "rank {rank} round {round}");
        }
    }
}

#[test]
fn a_raised_fault_reaches_every_rank_and_only_the_first_counts() {
    let mut net = Net::joined(2, &[4]);
    net.members.get_mut(&2).unwrap().raise(b"first".to_vec());
    net.run();
    net.members.get_mut(&3).unwrap().raise(b"second".to_vec());
    net.hub.raise(b"third".to_vec());
    net.lose(1);
    for rank in [0, 2, 3] {
        assert_eq!(net.take(rank), fault(JobFault::Raised { rank: 2, record: b"first".to_vec() }), "rank {rank}");
    }
}

#[test]
fn a_lost_connection_is_a_fault_on_every_other_rank() {
    let mut net = Net::joined(3, &[2, 2]);
    net.lose(3);
    for rank in 0..3 {
        assert_eq!(net.take(rank), fault(JobFault::Lost { rank: 3 }), "rank {rank}");
    }
    net.members.get_mut(&1).unwrap().closed();
    assert_eq!(net.take(1), [], "one fault a job");
}

#[test]
fn a_member_that_loses_rank_0_says_so() {
    let mut net = Net::joined(4, &[2]);
    net.members.get_mut(&1).unwrap().closed();
    assert_eq!(net.take(1), fault(JobFault::Lost { rank: 0 }));
}

#[test]
fn farewell_comes_after_every_rank_has_left() {
    let mut net = Net::joined(5, &[3]);
    net.hub.leave(NOW);
    net.members.get_mut(&1).unwrap().leave(NOW);
    net.run();
    assert_eq!(net.take(1), []);
    assert_eq!(net.take(0), [Event::Left { rank: 1 }]);
    net.members.get_mut(&2).unwrap().leave(NOW);
    net.run();
    assert_eq!(net.take(0), [Event::Left { rank: 2 }, Event::Closed]);
    assert_eq!(net.take(1), [Event::Closed]);
    assert_eq!(net.take(2), [Event::Closed]);
    assert_eq!(net.closing, [1, 2]);
}

#[test]
fn a_rank_that_left_and_closed_is_not_lost() {
    let mut net = Net::joined(6, &[3]);
    net.members.get_mut(&1).unwrap().leave(NOW);
    net.run();
    net.lose(1);
    assert_eq!(net.take(0), [Event::Left { rank: 1 }]);
    assert_eq!(net.take(2), []);
}

#[test]
fn ranks_that_stay_past_the_deadline_of_leaving_are_named_to_those_who_left() {
    let mut net = Net::joined(7, &[3]);
    net.hub.leave(NOW);
    net.members.get_mut(&1).unwrap().leave(NOW);
    net.run();
    net.take(0);
    net.hub.tick(NOW + START - Duration::from_millis(1));
    assert_eq!(net.take(0), []);
    net.hub.tick(NOW + START);
    net.run();
    let late = JobFault::Late { step: Step::Leave, ranks: vec![2] };
    assert_eq!(net.take(0), [Event::Fault(late.clone()), Event::Closed]);
    assert_eq!(net.take(1), [Event::Fault(late.clone()), Event::Closed]);
    assert_eq!(net.take(2), fault(late));
}

#[test]
fn missing_ranks_are_named_to_those_who_came() {
    let mut net = Net::new(8, &[3, 2]);
    net.connect(2, setup(2, &[3, 2]));
    net.run();
    net.hub.tick(START);
    net.run();
    let missing = JobFault::Missing { ranks: vec![1, 3, 4] };
    assert_eq!(net.take(0), fault(missing.clone()));
    assert_eq!(net.take(2), fault(missing));
    // Too late to be one of them, it hears the same.
    net.connect(1, setup(1, &[3, 2]));
    net.run();
    assert_eq!(net.take(1), fault(JobFault::Missing { ranks: vec![1, 3, 4] }));
}

#[test]
fn ranks_that_arrive_after_a_rank_was_lost_hear_who_it_was() {
    let mut net = Net::new(8, &[3, 2]);
    net.connect(2, setup(2, &[3, 2]));
    net.run();
    assert!(!net.hub.has_untold(), "there is nothing to tell");
    net.hub.closed(2);
    net.run();
    let lost = JobFault::Lost { rank: 2 };
    assert_eq!(net.take(0), fault(lost.clone()));
    for late in [4u32, 1, 3] {
        assert!(net.hub.has_untold(), "rank {late} is on its way");
        net.connect(late.into(), setup(late, &[3, 2]));
        net.run();
        assert_eq!(net.take(late.into()), fault(lost.clone()));
    }
    assert!(!net.hub.has_untold(), "all have been told");
}

#[test]
fn ranks_that_miss_an_exchange_are_named() {
    let mut net = Net::joined(9, &[4]);
    net.members.get_mut(&2).unwrap().share(vec![1], NOW);
    net.run();
    net.hub.tick(NOW + STEP - Duration::from_millis(1));
    assert_eq!(net.take(0), []);
    net.hub.tick(NOW + STEP);
    net.run();
    let late = JobFault::Late { step: Step::Exchange, ranks: vec![0, 1, 3] };
    for rank in 0..4 {
        assert_eq!(net.take(rank), fault(late.clone()), "rank {rank}");
    }
}

#[test]
fn a_member_does_not_wait_for_ever_for_a_silent_rank_0() {
    let nodes = [2];
    let mut greeting = Member::new(setup(1, &nodes), [0; PROOF_BYTES], NOW);
    greeting.tick(NOW + STEP);
    assert_eq!(greeting.failure(), Some(Failure::Silent));

    let mut net = Net::new(10, &[3]);
    net.connect(1, setup(1, &[3]));
    net.run();
    net.members.get_mut(&1).unwrap().tick(NOW + START + STEP);
    assert_eq!(net.take(1), fault(JobFault::Late { step: Step::Start, ranks: vec![0] }));

    let mut net = Net::joined(11, &nodes);
    let member = net.members.get_mut(&1).unwrap();
    member.share(vec![], NOW);
    member.tick(NOW + STEP * 2);
    assert_eq!(net.take(1), fault(JobFault::Late { step: Step::Exchange, ranks: vec![0] }));

    let mut net = Net::joined(12, &nodes);
    let member = net.members.get_mut(&1).unwrap();
    member.leave(NOW);
    member.tick(NOW + START + STEP);
    let late = JobFault::Late { step: Step::Leave, ranks: vec![0] };
    assert_eq!(net.take(1), [Event::Fault(late), Event::Closed]);
}

#[test]
fn ranks_dealt_round_robin_over_nodes_fail_before_anything_runs() {
    let mut net = Net::new(18, &[2, 2]);
    net.connect(1, Setup { place: Place { rank: 1, ..setup(2, &[2, 2]).place }, ..setup(1, &[2, 2]) });
    net.connect(2, Setup { place: Place { rank: 2, ..setup(1, &[2, 2]).place }, ..setup(2, &[2, 2]) });
    net.connect(3, setup(3, &[2, 2]));
    net.run();
    for rank in 0..4 {
        assert_eq!(net.take(rank), fault(JobFault::Layout { rank: 1 }), "rank {rank}");
    }
}

#[test]
fn a_member_that_answers_for_another_or_out_of_turn_is_garbled() {
    let raised = Message::Fault(JobFault::Raised { rank: 2, record: vec![] });
    let early = Message::Share { round: 1, blob: vec![] };
    for message in [raised, early, Message::Farewell, Message::Welcome { gpus: vec![3] }] {
        let mut net = Net::joined(20, &[3]);
        net.inject(1, &message.encode());
        net.run();
        assert_eq!(net.take(0), fault(JobFault::Garbled { rank: 1 }), "{message:?}");
    }
}

#[test]
fn a_member_takes_no_table_that_it_did_not_ask_for() {
    let mut net = Net::joined(21, &[2]);
    net.members.get_mut(&1).unwrap().received(&Message::Shared { round: 0, rank: 0, blob: vec![] }.encode());
    assert_eq!(net.take(1), [Event::Fault(JobFault::Garbled { rank: 0 }), Event::Closed]);
}

#[test]
fn a_fault_during_the_abort_path_changes_nothing() {
    let mut net = Net::joined(23, &[4]);
    net.lose(3);
    net.members.get_mut(&2).unwrap().leave(NOW);
    net.run();
    net.lose(1);
    net.inject(2, b"garbage");
    net.run();
    net.hub.leave(NOW);
    net.run();
    let closed = [Event::Fault(JobFault::Lost { rank: 3 }), Event::Left { rank: 2 }, Event::Closed];
    assert_eq!(net.take(0), closed);
    assert_eq!(net.take(2), [Event::Fault(JobFault::Lost { rank: 3 }), Event::Closed]);
}

#[test]
fn a_member_takes_a_table_in_rank_order_only() {
    let mut net = Net::joined(25, &[2]);
    let member = net.members.get_mut(&1).unwrap();
    member.share(vec![], NOW);
    member.received(&Message::Shared { round: 0, rank: 1, blob: vec![] }.encode());
    assert_eq!(net.take(1), [Event::Fault(JobFault::Garbled { rank: 0 }), Event::Closed]);
}

#[test]
fn any_messages_of_proven_members_end_in_one_fault_at_most_and_never_in_a_panic() {
    for seed in 0..2_000 {
        let mut net = Net::joined_quietly(seed, &[2, 2]);
        for _ in 0..net.rng.usize(1..30) {
            let connection = net.rng.u64(1..4);
            let message = match net.rng.u8(0..9) {
                0 => Message::Share { round: net.rng.u32(0..2), blob: vec![1] },
                1 => Message::Leave,
                2 => Message::Fault(JobFault::Raised { rank: net.rng.u32(0..4), record: vec![2] }),
                3 => {
                    net.hub.share(vec![3], NOW);
                    continue;
                }
                4 => {
                    net.hub.closed(connection);
                    continue;
                }
                5 => {
                    net.hub.leave(NOW);
                    continue;
                }
                6 => {
                    net.hub.raise(vec![4]);
                    continue;
                }
                7 => Message::Farewell,
                _ => {
                    net.hub.tick(NOW + START);
                    continue;
                }
            };
            net.hub.received(connection, &message.encode(), NOW);
        }
        let events = net.take(0);
        let faults = events.iter().filter(|event| matches!(event, Event::Fault(_))).count();
        let ends = events.iter().filter(|event| **event == Event::Closed).count();
        assert!(faults <= 1 && ends <= 1, "seed {seed}: {events:?}");
    }
}
