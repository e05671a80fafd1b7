//! The transport: puts onto queue pairs, completions into retired puts.
//!
//! A put goes to one queue pair as a whole. Where it has more requests than there is room for, the rest follows as room
//! comes; until then the queue pair takes no other put. Requests are collected and posted by [`Rdma::poll`], one chain for
//! each queue pair, of which only the last asks for a completion where order is kept.
//!
//! After the first failure every call answers with it. What was flushed is no cause: it is reported only if none
//! comes up within [`GRACE`], such as a link whose loss the system notices later than the NIC does.

use std::time::{Duration, Instant};

use mkernel_core::nic::{Chain, Completion, Limits, Nic, Payload, Piece, Refused, Request};
use mkernel_core::route::Routes;
use mkernel_core::transport::{
    Contract, Ordering, Post, PostError, STATUS_FLUSHED, STATUS_LENGTH, STATUS_NO_PEER, STATUS_REFUSED, Signalling,
    Transport, TransportError,
};
use mkernel_core::{CellId, Rank};

use crate::exposed::Exposed;
use crate::immediate::{self, Arrivals};
use crate::window::Window;
use crate::writes::Writes;

/// Refusals in a row, with nothing on its way that could make room, after which a queue pair has failed.
const MAX_REFUSALS: u32 = 1 << 16;

/// How long a cause may come after its consequences.
pub const GRACE: Duration = Duration::from_secs(2);

/// What a transport is made over.
#[derive(Clone, Debug)]
pub struct Links {
    /// How order is kept and signals follow bytes.
    pub contract: Contract,
    /// Which queue pair carries what.
    pub routes: Routes,
    /// This rank's memory, with local keys.
    pub own: Exposed,
    /// Memory of the ranks reached, by rank, with remote keys. The NIC's queue pairs lead to them in this order,
    /// [`Routes::per_peer`] for each.
    pub peers: Vec<Option<Exposed>>,
}

/// Carries puts over a NIC.
#[derive(Debug)]
pub struct Rdma<N> {
    nic: N,
    links: Links,
    limits: Limits,
    /// First queue pair of each peer, by rank.
    first: Vec<u32>,
    queues: Vec<Queue>,
    /// Queue pairs with requests to post, and those with a rest that waits for room.
    dirty: Vec<u32>,
    resting: Vec<u32>,
    completions: Vec<Completion>,
    arrivals: Arrivals,
    landed: Vec<CellId>,
    /// A failure that is a consequence, its queue pair, and since when it is known.
    suspect: Option<(TransportError, u32, Instant)>,
    failure: Option<TransportError>,
}

#[derive(Debug)]
struct Queue {
    peer: Rank,
    window: Window,
    chain: Chain,
    rest: Option<Job>,
    refusals: u32,
}

/// A put of which requests are still to be made.
#[derive(Clone, Copy, Debug)]
struct Job {
    token: u64,
    writes: Writes,
    local_key: u32,
    remote_key: u32,
    signal: Signal,
}

#[derive(Clone, Copy, Debug)]
enum Signal {
    /// A last write: address, key and value.
    Write { target: u64, key: u32, value: u64 },
    /// With every message; a put of no bytes is one message.
    Immediate { immediate: u32, is_empty: bool, target: u64 },
}

impl Job {
    fn new(post: &Post, links: &Links, peer: &Exposed, rail: u32, limits: &Limits) -> Option<Job> {
        let (source, local_key) = links.own.span(&post.source, rail);
        let (target, remote_key) = peer.span(&post.target, rail);
        let writes = Writes::new((source, &post.source), (target, &post.target));
        let signal = match links.contract.signalling() {
            Signalling::WriteAfterWrite => {
                let (target, key) = peer.cell(post.cell, rail);
                Signal::Write { target, key, value: post.value }
            }
            Signalling::Immediate | Signalling::Counter => {
                let immediate = immediate::encode(post.cell, writes.count(limits).max(1))?;
                Signal::Immediate { immediate, is_empty: writes.is_done(), target }
            }
        };
        Some(Job { token: post.token, writes, local_key, remote_key, signal })
    }

    /// Appends the next request; answers `None` if there is none left, else whether it is the put's last.
    #[inline]
    fn next(&mut self, limits: &Limits, chain: &mut Chain) -> Option<bool> {
        let first = chain.pieces.len() as u32;
        let (key, pieces) = (self.local_key, &mut chain.pieces);
        let write = self.writes.next(limits, |address, bytes| pieces.push(Piece { address, bytes, key }));
        let count = pieces.len() as u32 - first;
        let payload = Payload::Pieces { first, count };
        let mut request =
            Request { id: 0, payload, target: 0, key: self.remote_key, immediate: None, is_signalled: false };
        let is_last = match (write, &mut self.signal) {
            (Some(write), Signal::Write { .. }) => {
                request.target = write.target;
                false
            }
            (None, &mut Signal::Write { target, key, value }) => {
                (request.target, request.key, request.payload) = (target, key, Payload::Value(value));
                true
            }
            (Some(write), &mut Signal::Immediate { immediate, .. }) => {
                (request.target, request.immediate) = (write.target, Some(immediate));
                self.writes.is_done()
            }
            (None, &mut Signal::Immediate { immediate, target, ref mut is_empty }) => {
                if !std::mem::replace(is_empty, false) {
                    return None;
                }
                (request.target, request.immediate) = (target, Some(immediate));
                true
            }
        };
        chain.requests.push(request);
        Some(is_last)
    }
}

impl Queue {
    /// Turns a put into requests as far as there is room; answers what is left of it.
    #[inline]
    fn feed(&mut self, mut job: Job, limits: &Limits, ordering: Ordering) -> Option<Job> {
        loop {
            if self.window.is_full() {
                return Some(job);
            }
            let is_last = job.next(limits, &mut self.chain)?;
            let request = self.chain.requests.last_mut().expect("a request was just made");
            request.id = self.window.enter(job.token, is_last);
            request.is_signalled = ordering == Ordering::Unordered;
            if is_last {
                return None;
            }
        }
    }
}

impl<N: Nic> Rdma<N> {
    /// A transport over `nic`, whose queue pairs lead to the peers of `links`.
    pub fn new(nic: N, links: Links) -> Rdma<N> {
        let limits = nic.limits();
        let (mut first, mut queues) = (Vec::new(), Vec::new());
        for (rank, peer) in (0..).zip(&links.peers) {
            first.push(queues.len() as u32);
            let count = if peer.is_some() { links.routes.per_peer() } else { 0 };
            queues.extend((0..count).map(|_| Queue {
                peer: Rank(rank),
                window: Window::new(limits.requests),
                chain: Chain::default(),
                rest: None,
                refusals: 0,
            }));
        }
        let (dirty, resting, completions, landed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let arrivals = Arrivals::default();
        Rdma {
            nic,
            links,
            limits,
            first,
            queues,
            dirty,
            resting,
            completions,
            arrivals,
            landed,
            suspect: None,
            failure: None,
        }
    }

    /// The NIC.
    pub fn nic(&self) -> &N {
        &self.nic
    }

    fn fail(&mut self, token: u64, peer: Rank, status: u32) -> TransportError {
        *self.failure.get_or_insert(TransportError { token, peer: peer.0, status })
    }

    /// Posts what has been collected.
    fn flush(&mut self) -> Result<(), TransportError> {
        let mut dirty = std::mem::take(&mut self.dirty);
        let mut failed = None;
        dirty.retain(|&index| {
            let queue = &mut self.queues[index as usize];
            if let Some(last) = queue.chain.requests.last_mut() {
                last.is_signalled = true;
            }
            match self.nic.post(index, &queue.chain) {
                Ok(()) => {
                    queue.chain.clear();
                    queue.refusals = 0;
                    false
                }
                Err(refused) => {
                    failed = failed.or(queue.keep(&refused));
                    true
                }
            }
        });
        self.dirty = dirty;
        match failed {
            Some((token, peer)) => Err(self.fail(token, peer, STATUS_REFUSED)),
            None => Ok(()),
        }
    }

    /// Puts the rests of puts into the room that has come.
    fn refill(&mut self) {
        let ordering = self.links.contract.ordering();
        let mut resting = std::mem::take(&mut self.resting);
        resting.retain(|&index| {
            let queue = &mut self.queues[index as usize];
            if queue.window.is_full() {
                return true;
            }
            let job = queue.rest.take().expect("a queue pair rests because of a rest");
            if queue.chain.requests.is_empty() {
                self.dirty.push(index);
            }
            queue.rest = queue.feed(job, &self.limits, ordering);
            queue.rest.is_some()
        });
        self.resting = resting;
    }

    /// Takes in completions. The first cause of a failure is one that is not the consequence of another.
    fn reap(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        self.completions.clear();
        let polled = self.nic.poll(&mut self.completions);
        let ordering = self.links.contract.ordering();
        let mut cause: Option<TransportError> = None;
        for completion in &self.completions {
            match *completion {
                Completion::Sent { queue, id, status: 0 } => {
                    self.queues[queue as usize].window.complete(id, ordering, retired);
                }
                Completion::Sent { queue: index, id, status } => {
                    let status = self.nic.cause(index, status);
                    let queue = &self.queues[index as usize];
                    let token = queue.window.token(id).unwrap_or(u64::MAX);
                    let error = TransportError { token, peer: queue.peer.0, status };
                    if status == STATUS_FLUSHED {
                        self.suspect.get_or_insert_with(|| (error, index, Instant::now()));
                    } else {
                        cause = cause.or(Some(error));
                    }
                }
                Completion::Landed { immediate } => self.landed.extend(self.arrivals.count(immediate)),
            }
        }
        let broken = polled.err().map(|_| TransportError { token: u64::MAX, peer: u32::MAX, status: STATUS_REFUSED });
        let cause = cause.or(broken).or_else(|| self.judge());
        match cause {
            Some(error) => Err(*self.failure.get_or_insert(error)),
            None => Ok(()),
        }
    }
}

impl<N: Nic> Rdma<N> {
    /// The failure of what was flushed, once its cause is known or is not waited for any longer.
    fn judge(&self) -> Option<TransportError> {
        let (error, queue, since) = self.suspect?;
        let status = self.nic.cause(queue, error.status);
        (status != error.status || since.elapsed() >= GRACE).then_some(TransportError { status, ..error })
    }
}

impl Queue {
    /// Keeps what was not posted for another try; answers the put and the peer if there is no use in that.
    fn keep(&mut self, refused: &Refused) -> Option<(u64, Rank)> {
        self.chain.remove_first(refused.posted);
        // What is on its way makes room when it completes.
        let is_idle = self.window.len() == self.chain.requests.len();
        self.refusals = if is_idle { self.refusals + 1 } else { 0 };
        let first = self.chain.requests.first().map(|r| r.id);
        let token = first.and_then(|id| self.window.token(id)).unwrap_or(u64::MAX);
        let is_over = !refused.is_temporary || self.refusals >= MAX_REFUSALS;
        is_over.then_some((token, self.peer))
    }
}

impl<N: Nic> Transport for Rdma<N> {
    fn contract(&self) -> Contract {
        self.links.contract
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        let rank = post.target.rank;
        let Some(peer) = self.links.peers.get(rank.0 as usize).and_then(Option::as_ref) else {
            return Err(self.fail(post.token, rank, STATUS_NO_PEER).into());
        };
        let route = self.links.routes.of(post.cell);
        let index = self.first[rank.0 as usize] + self.links.routes.index(route);
        let queue = &mut self.queues[index as usize];
        if queue.rest.is_some() || queue.window.is_full() {
            return Err(PostError::Full);
        }
        let Some(job) = Job::new(post, &self.links, peer, route.rail, &self.limits) else {
            return Err(self.fail(post.token, rank, STATUS_LENGTH).into());
        };
        if queue.chain.requests.is_empty() {
            self.dirty.push(index);
        }
        queue.rest = queue.feed(job, &self.limits, self.links.contract.ordering());
        if queue.rest.is_some() {
            self.resting.push(index);
        }
        Ok(())
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.flush()?;
        self.reap(retired)?;
        if self.resting.is_empty() {
            return Ok(());
        }
        self.refill();
        self.flush()
    }

    fn landed(&mut self, cells: &mut Vec<CellId>) {
        cells.append(&mut self.landed);
    }
}
