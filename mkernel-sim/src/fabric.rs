//! A model of NICs, down to writes in memory: it does what real ones may do and soft ones never do.
//!
//! Requests of a queue pair take effect in order or in any order, each in pieces in any order; completions come late,
//! before or after the bytes, some twice; posts are refused in the middle of a chain. Kept are the promises of a
//! reliable NIC: an immediate follows the bytes of its request, where order is kept a write follows those posted before it,
//! and a source is not read after its completion.
//!
//! The model checks its user: a post beyond the limits of a queue pair, or more completions than the completion queue was
//! made for, is a panic.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mkernel_core::Rank;
use mkernel_core::nic::{Chain, Completion, Limits, Nic, Payload, QueueEnd, Refused, Request};
use mkernel_core::transport::{Ordering, STATUS_FLUSHED};

/// `IBV_WC_REM_ACCESS_ERR`.
const REMOTE_ACCESS: u32 = 10;
/// `EAGAIN`.
const AGAIN: i32 = 11;
/// Distance between the memories of two ranks.
const RANK_SHIFT: u32 = 40;

/// How NICs behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Whether requests of a queue pair take effect in order.
    pub ordering: Ordering,
    /// What each queue pair takes.
    pub limits: Limits,
    /// Requests of one rank on their way beyond which posts are refused for now.
    pub in_flight: u32,
    /// Messages with immediates that a rank has room for until it polls; at least 1.
    pub receives: u32,
    /// Chance in 256 that a request of a chain is refused for now.
    pub refuse: u8,
    /// Chance in 256 that a completion comes twice.
    pub repeat: u8,
    /// Most steps of one poll; at least 1.
    pub steps: u32,
    /// The request of each rank, counted from 0, that fails, with its status.
    pub fails: Option<(u64, u32)>,
    /// Decides everything else.
    pub seed: u64,
}

impl Weather {
    /// Bad weather, with no failure.
    pub fn bad(ordering: Ordering, seed: u64) -> Weather {
        let limits = Limits { requests: 6, pieces: 3, message: 64 };
        Weather { ordering, limits, in_flight: 9, receives: 4, refuse: 40, repeat: 60, steps: 5, fails: None, seed }
    }
}

/// The NICs of all ranks and the memory behind them.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    weather: Weather,
    random: fastrand::Rng,
    ranks: Vec<RankState>,
}

#[derive(Debug, Default)]
struct RankState {
    memory: Vec<u8>,
    queues: Vec<Queue>,
    ready: Vec<Completion>,
    landed: VecDeque<u32>,
    posted: u64,
}

#[derive(Debug)]
struct Queue {
    peer: Rank,
    flights: VecDeque<Flight>,
    /// Slots of the send queue that are taken: freed when a completion is polled.
    taken: VecDeque<u64>,
    has_failed: bool,
}

#[derive(Debug)]
struct Flight {
    request: Request,
    /// Source addresses and lengths, then the bytes once read.
    pieces: Vec<(u64, u32)>,
    wire: Option<Vec<u8>>,
    /// Parts of the wire that have not landed.
    parts: Vec<(usize, usize)>,
    has_landed: bool,
    is_reported: bool,
    status: u32,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fabric {
    /// NICs of `ranks` ranks with `bytes` bytes of memory each, all zero.
    pub fn new(ranks: u32, bytes: usize, weather: Weather) -> Fabric {
        let random = fastrand::Rng::with_seed(weather.seed);
        let rank = |_| RankState { memory: vec![0; bytes], ..RankState::default() };
        Fabric(Arc::new(Mutex::new(State { weather, random, ranks: (0..ranks).map(rank).collect() })))
    }

    /// Where the memory of a rank begins.
    pub fn address(rank: Rank) -> u64 {
        (u64::from(rank.0) + 1) << RANK_SHIFT
    }

    /// The key of a rank's memory on a rail: another for each.
    pub fn key(rank: Rank, rail: u32) -> u32 {
        rank.0 << 8 | rail << 4 | 5
    }

    /// The NIC of a rank, with queue pairs to these ends.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn nic(&self, rank: Rank, ends: &[QueueEnd]) -> FabricNic {
        let queue = |end: &QueueEnd| Queue {
            peer: end.peer,
            flights: VecDeque::new(),
            taken: VecDeque::new(),
            has_failed: false,
        };
        lock(&self.0).ranks[rank.0 as usize].queues = ends.iter().map(queue).collect();
        FabricNic { fabric: self.clone(), rank }
    }

    /// Reads memory of a rank, from `offset`.
    ///
    /// # Panics
    /// If it is out of bounds.
    pub fn read(&self, rank: Rank, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&lock(&self.0).ranks[rank.0 as usize].memory[offset..offset + bytes.len()]);
    }

    /// Writes memory of a rank, from `offset`.
    ///
    /// # Panics
    /// If it is out of bounds.
    pub fn write(&self, rank: Rank, offset: usize, bytes: &[u8]) {
        lock(&self.0).ranks[rank.0 as usize].memory[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// The NIC of one rank.
#[derive(Debug)]
pub struct FabricNic {
    fabric: Fabric,
    rank: Rank,
}

impl Nic for FabricNic {
    fn limits(&self) -> Limits {
        lock(&self.fabric.0).weather.limits
    }

    fn post(&mut self, queue: u32, chain: &Chain) -> Result<(), Refused> {
        let mut state = lock(&self.fabric.0);
        for (posted, request) in chain.requests.iter().enumerate() {
            let on_way: usize = state.ranks[self.rank.0 as usize].queues.iter().map(|q| q.flights.len()).sum();
            if on_way >= state.weather.in_flight as usize || state.random.u8(..) < state.weather.refuse {
                return Err(Refused { posted, error: AGAIN, is_temporary: true });
            }
            state.accept(self.rank, queue as usize, request, chain);
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), i32> {
        let mut state = lock(&self.fabric.0);
        let most = state.weather.steps.max(1);
        for _ in 0..state.random.u32(1..=most) {
            state.step(self.rank);
        }
        state.hand_over(self.rank, completions);
        Ok(())
    }
}

impl State {
    fn accept(&mut self, rank: Rank, index: usize, request: &Request, chain: &Chain) {
        let Limits { requests, pieces, message } = self.weather.limits;
        let own = &mut self.ranks[rank.0 as usize];
        let number = own.posted;
        own.posted += 1;
        let status = self.weather.fails.filter(|(n, _)| *n == number).map_or(0, |(_, status)| status);
        let queue = &mut own.queues[index];
        let peer = queue.peer;
        assert!(queue.taken.len() < requests as usize, "the send queue of {rank} overflows");
        queue.taken.push_back(request.id);
        let read = chain.pieces(request);
        let bytes = read.iter().map(|p| u64::from(p.bytes)).sum::<u64>();
        assert!(read.len() <= pieces as usize && bytes <= message, "a request of {rank} is beyond the limits");
        let wire = match request.payload {
            Payload::Value(value) => Some(value.to_le_bytes().to_vec()),
            Payload::Pieces { .. } => None,
        };
        let pieces = read.iter().map(|p| (p.address, p.bytes)).collect();
        let bytes = if wire.is_some() { 8 } else { bytes };
        let parts = split(&mut self.random, bytes as usize, wire.is_some());
        let flight = Flight { request: *request, pieces, wire, parts, has_landed: false, is_reported: false, status };
        queue.flights.push_back(flight);
        let end = request.target.checked_sub(Fabric::address(peer)).and_then(|at| at.checked_add(bytes));
        let is_inside = end.is_some_and(|end| end <= self.ranks[peer.0 as usize].memory.len() as u64);
        if !is_inside || !(0..16).any(|rail| Fabric::key(peer, rail) == request.key) {
            let flights = &mut self.ranks[rank.0 as usize].queues[index].flights;
            flights.back_mut().expect("it was just pushed").status = REMOTE_ACCESS;
        }
    }

    /// Makes one step of one request of a rank, if one can be made.
    fn step(&mut self, rank: Rank) {
        let own = &mut self.ranks[rank.0 as usize];
        let busy: Vec<usize> = (0..own.queues.len()).filter(|&q| !own.queues[q].flights.is_empty()).collect();
        let Some(&queue) = busy.get(self.random.usize(..busy.len().max(1))) else { return };
        let in_order = self.weather.ordering == Ordering::InOrder;
        let own = &mut self.ranks[rank.0 as usize];
        let flights = &own.queues[queue].flights;
        let index = self.random.usize(..flights.len());
        let first_on_way = flights.iter().position(|f| !f.has_landed);
        let first_silent = flights.iter().position(|f| !f.is_reported);
        let may_land = !flights[index].has_landed && (!in_order || first_on_way == Some(index));
        let may_report = !flights[index].is_reported && (!in_order || first_silent == Some(index));
        if may_report && self.random.bool() {
            self.report(rank, queue, index);
        } else if may_land {
            self.land(rank, queue, index);
        }
        self.ranks[rank.0 as usize].queues[queue].flights.retain(|f| !(f.has_landed && f.is_reported));
    }

    fn report(&mut self, rank: Rank, queue: usize, index: usize) {
        self.fetch(rank, queue, index);
        let own = &mut self.ranks[rank.0 as usize];
        let pair = &mut own.queues[queue];
        let has_failed = pair.has_failed;
        let flight = &mut pair.flights[index];
        flight.is_reported = true;
        let status = if has_failed { STATUS_FLUSHED } else { flight.status };
        if status != 0 {
            (flight.has_landed, pair.has_failed) = (true, true);
        }
        if flight.request.is_signalled || status != 0 {
            let sent = Completion::Sent { queue: queue as u32, id: flight.request.id, status };
            let repeats = if self.random.u8(..) < self.weather.repeat { 2 } else { 1 };
            own.ready.extend(std::iter::repeat_n(sent, repeats));
        }
        let most = own.queues.len() * self.weather.limits.requests as usize * 2;
        assert!(own.ready.len() <= most, "the completion queue of {rank} overflows");
    }

    /// Reads the source, if that has not been done.
    fn fetch(&mut self, rank: Rank, queue: usize, index: usize) {
        let own = &mut self.ranks[rank.0 as usize];
        let flight = &mut own.queues[queue].flights[index];
        if flight.wire.is_none() {
            let base = Fabric::address(rank);
            let read = flight.pieces.iter().flat_map(|&(address, bytes)| {
                let from = (address - base) as usize;
                own.memory[from..from + bytes as usize].iter().copied()
            });
            flight.wire = Some(read.collect());
        }
    }

    fn land(&mut self, rank: Rank, queue: usize, index: usize) {
        self.fetch(rank, queue, index);
        let pair = &mut self.ranks[rank.0 as usize].queues[queue];
        let (peer, has_failed) = (pair.peer, pair.has_failed);
        let flight = &mut pair.flights[index];
        if has_failed || flight.status != 0 {
            return;
        }
        let wire = flight.wire.as_ref().expect("the source was just read");
        let part = if flight.parts.is_empty() { (0, 0) } else { flight.parts[self.random.usize(..flight.parts.len())] };
        flight.parts.retain(|p| *p != part);
        let at = (flight.request.target - Fabric::address(peer)) as usize + part.0;
        let bytes = wire[part.0..part.1].to_vec();
        let (immediate, is_last) = (flight.request.immediate, flight.parts.is_empty());
        let target = &mut self.ranks[peer.0 as usize];
        target.memory[at..at + bytes.len()].copy_from_slice(&bytes);
        // A message without room at the receiver waits for it.
        let is_whole = is_last && (immediate.is_none() || target.landed.len() < self.weather.receives.max(1) as usize);
        target.landed.extend(immediate.filter(|_| is_whole));
        self.ranks[rank.0 as usize].queues[queue].flights[index].has_landed = is_whole;
    }

    /// Hands completions over and frees slots of send queues.
    fn hand_over(&mut self, rank: Rank, completions: &mut Vec<Completion>) {
        let in_order = self.weather.ordering == Ordering::InOrder;
        let own = &mut self.ranks[rank.0 as usize];
        let count = self.random.usize(..=own.ready.len());
        for completion in own.ready.drain(..count) {
            if let Completion::Sent { queue, id, .. } = completion {
                own.queues[queue as usize].taken.retain(|&t| if in_order { t > id } else { t != id });
            }
            completions.push(completion);
        }
        completions.extend(own.landed.drain(..).map(|immediate| Completion::Landed { immediate }));
    }
}

/// Cuts `len` bytes into up to three parts; a value lands as one.
fn split(random: &mut fastrand::Rng, len: usize, is_whole: bool) -> Vec<(usize, usize)> {
    if len == 0 {
        return Vec::new();
    }
    let mut cuts = vec![0, len];
    if !is_whole {
        cuts.extend((0..random.u32(..3)).map(|_| random.usize(..len)));
    }
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|w| (w[0], w[1])).collect()
}
