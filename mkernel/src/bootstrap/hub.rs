//! Rank 0 as a state machine: bytes and times in, actions and events out; no socket, no clock, no randomness of its own.
//!
//! Invariants:
//! - A seat is taken only by a connection that proved it holds the secret, and only once. Everything said before the
//!   proof can change nothing but its own connection.
//! - The first fault is the job's fault; it goes to every seat once, and later ones change nothing.
//! - A connection has at most four frames queued: a welcome, one table (the next exchange cannot complete without this
//!   member's blob), one fault, one farewell. So queues need no other bound.
//! - Connections in handshake are at most the empty seats plus [`SPARE_HANDSHAKES`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::auth::{PROOF_BYTES, Side, is_proved, prove};
use super::fault::{JobFault, Step};
use super::frame::{Decoder, FrameError, Hello, Message, Reason};
use super::setup::{Place, Setup, gpus, world};
use super::{Event, Refusal, Refusals};

/// Handshakes in progress beyond the empty seats: room for strangers.
const SPARE_HANDSHAKES: usize = 64;

/// With all room taken, a handshake this old gives way to a new one. An honest one takes milliseconds, and tries again.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(200);

/// A connection, numbered by the socket layer and never reused.
pub(crate) type Connection = u64;

/// What the socket layer has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Queue these bytes.
    Send(Connection, Arc<[u8]>),
    /// Send what is queued, then close. Nothing more is heard of this connection.
    Close(Connection),
}

#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    since: Duration,
    challenge: [u8; PROOF_BYTES],
    decoder: Decoder,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Greeting,
    Proving(Hello),
    Seated(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Empty,
    Taken(Connection),
    /// Said that it leaves; waits for the farewell.
    Leaving(Connection),
    Gone,
}

#[derive(Debug)]
enum Phase {
    Gathering,
    Running,
    /// Rank 0 leaves, since this time.
    Leaving(Duration),
    Ended,
}

#[derive(Debug)]
struct Round {
    number: u32,
    since: Option<Duration>,
    blobs: Vec<Option<Vec<u8>>>,
}

/// Rank 0.
#[derive(Debug)]
pub(crate) struct Hub {
    setup: Setup,
    phase: Phase,
    peers: BTreeMap<Connection, Peer>,
    /// Seat and place of each rank but 0, at `rank - 1`.
    seats: Vec<(Seat, Place)>,
    round: Round,
    fault: Option<JobFault>,
    /// Ranks that have said what they were doing.
    accounts: BTreeSet<u32>,
    refusals: Refusals,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
}

impl Hub {
    pub(crate) fn new(setup: Setup) -> Self {
        let ranks = setup.place.world_size as usize;
        let seats = vec![(Seat::Empty, setup.place); ranks - 1];
        let round = Round { number: 0, since: None, blobs: vec![None; ranks] };
        let mut hub = Self {
            setup,
            phase: Phase::Gathering,
            peers: BTreeMap::new(),
            seats,
            round,
            fault: None,
            accounts: BTreeSet::new(),
            refusals: Refusals::default(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
        };
        hub.start_if_complete();
        hub
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn is_gathering(&self) -> bool {
        matches!(self.phase, Phase::Gathering)
    }

    /// Ranks but 0 that have neither left nor been lost.
    pub(crate) fn staying(&self) -> usize {
        self.seats.iter().filter(|(seat, _)| matches!(seat, Seat::Taken(_))).count()
    }

    /// Whether ranks that are still on their way should be told why there is no job. At the start deadline they have had
    /// their time.
    pub(crate) fn has_untold(&self) -> bool {
        let is_early = matches!(&self.fault, Some(fault) if !matches!(fault, JobFault::Missing { .. }));
        self.is_gathering() && is_early && self.empty_seats().next().is_some()
    }

    /// Whether one more connection may be opened. Makes room by refusing the oldest handshake if it had its time.
    pub(crate) fn has_room(&mut self, now: Duration) -> bool {
        let handshakes = self.peers.iter().filter(|(_, peer)| !matches!(peer.stage, Stage::Seated(_)));
        // Connections are numbered in order, so the first is the oldest.
        let oldest = handshakes.clone().next().map(|(connection, peer)| (*connection, peer.since));
        if handshakes.count() < self.empty_seats().count() + SPARE_HANDSHAKES {
            return true;
        }
        match oldest {
            Some((connection, since)) if now.saturating_sub(since) >= HANDSHAKE_GRACE => {
                self.refuse(connection, Reason::Slow);
                true
            }
            _ => false,
        }
    }

    /// A connection was accepted; `challenge` is fresh.
    pub(crate) fn opened(
        &mut self,
        connection: Connection,
        address: SocketAddr,
        challenge: [u8; PROOF_BYTES],
        now: Duration,
    ) {
        let peer = Peer { address, since: now, challenge, decoder: Decoder::default(), stage: Stage::Greeting };
        self.peers.insert(connection, peer);
    }

    pub(crate) fn received(&mut self, connection: Connection, bytes: &[u8], now: Duration) {
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        peer.decoder.push(bytes);
        while let Some(peer) = self.peers.get_mut(&connection) {
            match peer.decoder.next_message() {
                Ok(Some(message)) => self.handle(connection, message, now),
                Ok(None) => return,
                Err(FrameError::Version(_)) => self.break_off(connection, Reason::Version),
                Err(_) => self.break_off(connection, Reason::Protocol),
            }
        }
    }

    pub(crate) fn closed(&mut self, connection: Connection) {
        let Some(peer) = self.peers.remove(&connection) else { return };
        if let Stage::Seated(rank) = peer.stage {
            let seat = self.seat(rank);
            let was_leaving = matches!(seat, Seat::Leaving(_));
            *seat = Seat::Gone;
            if !was_leaving {
                self.fail(JobFault::Lost { rank });
            }
            self.finish_if_all_left();
        }
    }

    /// Looks at every deadline.
    pub(crate) fn tick(&mut self, now: Duration) {
        let Setup { start_deadline, step_deadline, .. } = self.setup;
        let is_past = |since: Duration, limit| now.saturating_sub(since) >= limit;
        let is_late = |since| is_past(since, step_deadline);
        let handshakes = self.peers.iter().filter(|(_, peer)| !matches!(peer.stage, Stage::Seated(_)));
        let slow: Vec<_> = handshakes.filter(|(_, peer)| is_late(peer.since)).map(|(number, _)| *number).collect();
        slow.into_iter().for_each(|connection| self.refuse(connection, Reason::Slow));
        if self.fault.is_some() {
            return;
        }
        match self.phase {
            Phase::Gathering if now >= start_deadline => {
                let ranks = self.empty_seats().collect();
                self.fail(JobFault::Missing { ranks });
            }
            // Ranks end as far apart as they start: one may still write what all have computed.
            Phase::Leaving(since) if is_past(since, start_deadline) => {
                let staying = |(_, (seat, _)): &(u32, &(Seat, Place))| matches!(seat, Seat::Taken(_));
                let ranks = (1..).zip(&self.seats).filter(staying).map(|(rank, _)| rank).collect();
                self.fail(JobFault::Late { step: Step::Leave, ranks });
            }
            _ if self.round.since.is_some_and(is_late) => {
                let missing = (0..).zip(&self.round.blobs).filter(|(_, blob)| blob.is_none());
                let ranks = missing.map(|(rank, _)| rank).collect();
                self.fail(JobFault::Late { step: Step::Exchange, ranks });
            }
            _ => {}
        }
    }

    /// Rank 0's own blob.
    pub(crate) fn share(&mut self, blob: Vec<u8>, now: Duration) {
        if self.fault.is_none() {
            self.take_blob(0, blob, now);
        }
    }

    /// Rank 0's own fault.
    pub(crate) fn raise(&mut self, record: Vec<u8>) {
        self.fail(JobFault::Raised { rank: 0, record });
    }

    /// Rank 0 needs nobody any more.
    pub(crate) fn leave(&mut self, now: Duration) {
        if !matches!(self.phase, Phase::Gathering | Phase::Running) {
            return;
        }
        self.phase = Phase::Leaving(now);
        if self.fault.is_some() {
            self.end();
        } else {
            self.finish_if_all_left();
        }
    }

    fn handle(&mut self, connection: Connection, message: Message, now: Duration) {
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        match (&peer.stage, message) {
            (Stage::Greeting, Message::Hello(hello)) => self.challenge(connection, hello),
            (Stage::Proving(hello), Message::Proof { proof }) => {
                let place = hello.place;
                if is_proved(&self.setup.secret, Side::Member, hello, &peer.challenge, &proof) {
                    self.seat_member(connection, place);
                } else {
                    self.refuse(connection, Reason::Secret);
                }
            }
            // The member found that this side does not hold its secret.
            (Stage::Proving(_), Message::Refused(Reason::Secret)) => self.refuse(connection, Reason::Secret),
            (Stage::Seated(rank), message) => {
                let rank = *rank;
                self.handle_member(connection, rank, message, now);
            }
            _ => self.refuse(connection, Reason::Protocol),
        }
    }

    fn handle_member(&mut self, connection: Connection, rank: u32, message: Message, now: Duration) {
        let has_stayed = *self.seat(rank) == Seat::Taken(connection);
        let is_running = has_stayed && !self.is_gathering();
        match message {
            // It had not seen the fault yet.
            Message::Share { .. } if self.fault.is_some() => {}
            Message::Share { round, blob } if is_running && self.expects(rank, round) => {
                self.take_blob(rank, blob, now);
            }
            Message::Fault(fault @ JobFault::Raised { rank: from, .. }) if from == rank && is_running => {
                self.fail(fault)
            }
            // At most one, since a rank leaves after it: else it could fill rank 0's memory.
            Message::Account { blob } if is_running && self.fault.is_some() && self.accounts.insert(rank) => {
                self.events.push_back(Event::Account { rank, blob });
            }
            Message::Leave if is_running => {
                *self.seat(rank) = Seat::Leaving(connection);
                self.events.push_back(Event::Left { rank });
                self.finish_if_all_left();
            }
            _ => self.break_off(connection, Reason::Protocol),
        }
    }

    fn challenge(&mut self, connection: Connection, hello: Hello) {
        if hello.job != self.setup.job {
            return self.refuse(connection, Reason::Job);
        }
        if !self.is_gathering() {
            return self.refuse(connection, Reason::Ended);
        }
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        let proof = prove(&self.setup.secret, Side::Hub, &hello, &hello.challenge);
        let message = Message::Challenge { challenge: peer.challenge, proof };
        peer.stage = Stage::Proving(hello);
        self.send(connection, message);
    }

    fn seat_member(&mut self, connection: Connection, place: Place) {
        if place.world_size != self.setup.place.world_size {
            return self.refuse(connection, Reason::WorldSize);
        }
        if place.rank == 0 || place.rank >= place.world_size {
            return self.refuse(connection, Reason::NoSuchRank);
        }
        if *self.seat(place.rank) != Seat::Empty {
            return self.refuse(connection, Reason::Duplicate);
        }
        if let Some(fault) = self.fault.clone() {
            // It hears what all ranks report, and there is nothing else for it to do here.
            *self.seat(place.rank) = Seat::Gone;
            self.peers.remove(&connection);
            self.send(connection, Message::Fault(fault));
            return self.actions.push_back(Action::Close(connection));
        }
        self.seats[place.rank as usize - 1] = (Seat::Taken(connection), place);
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        peer.stage = Stage::Seated(place.rank);
        peer.decoder.trust();
        self.start_if_complete();
    }

    fn start_if_complete(&mut self) {
        if !self.is_gathering() || self.fault.is_some() || self.empty_seats().next().is_some() {
            return;
        }
        let places: Vec<_> =
            std::iter::once(self.setup.place).chain(self.seats.iter().map(|(_, place)| *place)).collect();
        match world(&places) {
            Ok(world) => {
                self.phase = Phase::Running;
                self.broadcast(&Message::Welcome { gpus: gpus(&world) });
                self.events.push_back(Event::Joined { world });
            }
            Err(rank) => self.fail(JobFault::Layout { rank }),
        }
    }

    fn expects(&self, rank: u32, round: u32) -> bool {
        round == self.round.number && self.round.blobs[rank as usize].is_none()
    }

    fn take_blob(&mut self, rank: u32, blob: Vec<u8>, now: Duration) {
        self.round.since.get_or_insert(now);
        self.round.blobs[rank as usize] = Some(blob);
        if self.round.blobs.iter().any(Option::is_none) {
            return;
        }
        let empty = vec![None; self.round.blobs.len()];
        let blobs: Vec<_> = std::mem::replace(&mut self.round.blobs, empty).into_iter().flatten().collect();
        let mut table = Vec::new();
        for (rank, blob) in (0..).zip(&blobs) {
            Message::Shared { round: self.round.number, rank, blob: blob.clone() }.encode_into(&mut table);
        }
        self.round.since = None;
        self.round.number += 1;
        self.broadcast_bytes(table.into());
        self.events.push_back(Event::Shared { blobs });
    }

    /// Drops a peer that does not keep to the protocol; if it has a seat that is a fault of the job.
    fn break_off(&mut self, connection: Connection, reason: Reason) {
        let stage = self.peers.get(&connection).map(|peer| &peer.stage);
        if let Some(Stage::Seated(rank)) = stage {
            let rank = *rank;
            // The rank hears of its own fault, then its connection closes.
            self.fail(JobFault::Garbled { rank });
            *self.seat(rank) = Seat::Gone;
            self.peers.remove(&connection);
            self.actions.push_back(Action::Close(connection));
        } else {
            self.refuse(connection, reason);
        }
    }

    fn refuse(&mut self, connection: Connection, reason: Reason) {
        let Some(peer) = self.peers.remove(&connection) else { return };
        let rank = match &peer.stage {
            Stage::Proving(hello) => Some(hello.place.rank),
            Stage::Greeting | Stage::Seated(_) => None,
        };
        self.refusals.add(Refusal { address: peer.address, claimed_rank: rank, reason });
        self.send(connection, Message::Refused(reason));
        self.actions.push_back(Action::Close(connection));
    }

    fn fail(&mut self, fault: JobFault) {
        if self.fault.is_some() {
            return;
        }
        self.fault = Some(fault.clone());
        self.broadcast(&Message::Fault(fault.clone()));
        self.events.push_back(Event::Fault(fault));
        if matches!(self.phase, Phase::Leaving(_)) {
            self.end();
        }
    }

    fn finish_if_all_left(&mut self) {
        let is_staying = |(seat, _): &(Seat, Place)| matches!(seat, Seat::Taken(_));
        if matches!(self.phase, Phase::Leaving(_)) && self.fault.is_none() && !self.seats.iter().any(is_staying) {
            self.broadcast(&Message::Farewell);
            self.end();
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Ended;
        let connections = std::mem::take(&mut self.peers).into_keys();
        self.actions.extend(connections.map(Action::Close));
        self.events.push_back(Event::Closed);
    }

    fn seat(&mut self, rank: u32) -> &mut Seat {
        &mut self.seats[rank as usize - 1].0
    }

    fn empty_seats(&self) -> impl Iterator<Item = u32> {
        (1..).zip(&self.seats).filter(|(_, (seat, _))| *seat == Seat::Empty).map(|(rank, _)| rank)
    }

    fn send(&mut self, connection: Connection, message: Message) {
        self.actions.push_back(Action::Send(connection, message.encode().into()));
    }

    fn broadcast(&mut self, message: &Message) {
        self.broadcast_bytes(message.encode().into());
    }

    fn broadcast_bytes(&mut self, bytes: Arc<[u8]>) {
        for (seat, _) in &self.seats {
            if let Seat::Taken(connection) | Seat::Leaving(connection) = seat {
                self.actions.push_back(Action::Send(*connection, bytes.clone()));
            }
        }
    }
}
