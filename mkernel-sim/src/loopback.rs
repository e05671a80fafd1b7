//! The transport between ranks whose memory this process maps, in the same process or others: it delivers as badly as the
//! network says and the contract allows.
//!
//! A put in flight is a list of deliveries still to be made: its pieces, its signal, its completion. Each poll makes
//! some, chosen by the seed. The only orders kept are those of the contract: the signal after the last piece, and no
//! read of the source after its completion (what has not landed by then is held as the wire would hold it). A transport
//! that states [`Ordering::InOrder`] also lands pieces and signals in the order of the posts.

use std::sync::Arc;

use mkernel_core::transport::{Contract, Ordering, Post, PostError, Signalling, Transport, TransportError};
use mkernel_core::{PutId, Rank};

use crate::host::Host;
use crate::network::{Injection, Network};

/// The status of injected errors: remote operation error, as in `IBV_WC_REM_OP_ERR`.
const STATUS: u32 = 11;

/// One rank's end of the loopback transport.
#[derive(Debug)]
pub(crate) struct Loopback {
    host: Arc<Host>,
    rank: Rank,
    network: Network,
    random: fastrand::Rng,
    flights: Vec<Flight>,
    posted: u64,
    /// How often an injection has refused the next post.
    refused: u64,
    /// What may be delivered next; kept for its memory alone.
    options: Vec<(usize, Delivery)>,
}

/// One put in flight.
#[derive(Debug)]
struct Flight {
    post: Post,
    /// Payload ranges that have not landed, in any order.
    pieces: Vec<(u64, u64)>,
    /// The payload, once the source has been read but not all has landed.
    wire: Option<Vec<u8>>,
    is_signalled: bool,
    is_retired: bool,
    /// Lands and completes never.
    is_lost: bool,
    fails: bool,
    /// Completes once more than it should.
    is_doubled: bool,
    /// Polls until it may complete.
    late: u64,
}

/// One delivery of one flight.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    Land,
    Signal,
    Retire,
}

impl Loopback {
    pub(crate) fn new(host: Arc<Host>, rank: Rank, network: &Network, seed: u64) -> Loopback {
        let random = fastrand::Rng::with_seed(seed ^ u64::from(rank.0).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (flights, options) = (Vec::new(), Vec::new());
        Loopback { host, rank, network: network.clone(), random, flights, posted: 0, refused: 0, options }
    }

    /// Whether another step of the proxy may do something: deliver, or post what waits if anything `waits`.
    pub(crate) fn can_go_on(&self, waits: bool) -> bool {
        let has_room = self.flights.len() < self.network.depth.max(1);
        let is_closed = self.network.refusals(self.rank, self.posted) == u64::MAX;
        waits && has_room && !is_closed || self.flights.iter().any(|f| !f.is_lost)
    }

    fn has(&self, injection: Injection) -> bool {
        self.network.injections.contains(&injection)
    }

    fn split(&mut self, bytes: u64) -> Vec<(u64, u64)> {
        if bytes == 0 {
            return Vec::new();
        }
        let mut cuts: Vec<u64> = (1..self.random.u32(1..=self.network.pieces.max(1)))
            .map(|_| self.random.u64(0..bytes))
            .chain([0, bytes])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|w| (w[0], w[1])).collect()
    }

    /// Picks one delivery that the contract allows now; `None` if every flight is lost.
    fn choose(&mut self) -> Option<(usize, Delivery)> {
        let in_order = self.network.ordering == Ordering::InOrder;
        let is_held = !in_order || self.network.pieces > 1;
        let next = self.flights.iter().position(|f| !f.is_lost && !f.is_signalled);
        let options = &mut self.options;
        options.clear();
        for (index, flight) in self.flights.iter().enumerate().filter(|(_, f)| !f.is_lost) {
            if !flight.is_signalled && (!in_order || next == Some(index)) {
                options.push((index, if flight.pieces.is_empty() { Delivery::Signal } else { Delivery::Land }));
            }
            if !flight.is_retired && flight.late == 0 && (is_held || flight.pieces.is_empty()) {
                options.push((index, Delivery::Retire));
            }
        }
        self.random.choice(options.iter().copied())
    }

    fn deliver(&mut self, index: usize, delivery: Delivery, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        let flight = &mut self.flights[index];
        let Post { token, source, target, cell, value } = flight.post;
        if flight.fails {
            return Err(TransportError { token, peer: target.rank.0, status: STATUS });
        }
        match delivery {
            Delivery::Land => {
                let piece = match self.network.ordering {
                    Ordering::InOrder => flight.pieces.remove(0),
                    Ordering::Unordered => flight.pieces.swap_remove(self.random.usize(0..flight.pieces.len())),
                };
                self.land(index, piece);
            }
            Delivery::Signal => {
                flight.is_signalled = true;
                let put = PutId(token as u32);
                if !self.has(Injection::WithholdSignal { rank: self.rank, put }) {
                    self.host.cells.fill(target.rank, cell, value);
                }
            }
            Delivery::Retire => {
                flight.is_retired = !std::mem::take(&mut flight.is_doubled);
                if !flight.pieces.is_empty() && flight.wire.is_none() {
                    let mut wire = vec![0; source.bytes() as usize];
                    self.host.memory.gather(&source, &mut wire);
                    flight.wire = Some(wire);
                }
                retired.push(token);
            }
        }
        if self.flights[index].is_signalled && self.flights[index].is_retired {
            self.flights.remove(index);
        }
        Ok(())
    }

    /// Moves payload bytes `from..to`, row run by row run.
    fn land(&mut self, index: usize, (from, to): (u64, u64)) {
        let flight = &self.flights[index];
        let (source, target) = (&flight.post.source, &flight.post.target);
        let mut at = from;
        while at < to {
            let (row, skip) = ((at / source.row_bytes) as u32, at % source.row_bytes);
            let len = (source.row_bytes - skip).min(to - at);
            match &flight.wire {
                Some(wire) => self.host.memory.store(target, row, skip, &wire[at as usize..(at + len) as usize]),
                None => self.host.memory.carry(source, target, row, skip, len),
            }
            at += len;
        }
        self.host.traffic.count(self.rank, target.rank, to - from);
    }
}

impl Transport for Loopback {
    fn contract(&self) -> Contract {
        Contract::new(self.network.ordering, Signalling::Counter).expect("a counter is sound under either ordering")
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        let peer = post.target.rank;
        if self.flights.len() >= self.network.depth.max(1) {
            return Err(PostError::Full);
        }
        let number = self.posted;
        if self.refused < self.network.refusals(self.rank, number) {
            self.refused += 1;
            return Err(PostError::Full);
        }
        self.refused = 0;
        self.posted += 1;
        if self.has(Injection::RefusePost { rank: self.rank, post: number }) {
            return Err(TransportError { token: post.token, peer: peer.0, status: STATUS }.into());
        }
        assert_eq!(
            (post.source.rows, post.source.row_bytes),
            (post.target.rows, post.target.row_bytes),
            "a put has one shape"
        );
        let flight = Flight {
            post: *post,
            pieces: self.split(post.source.bytes()),
            wire: None,
            is_signalled: false,
            is_retired: false,
            is_lost: self.network.is_dead(peer),
            fails: self.has(Injection::FailCompletion { rank: self.rank, post: number }),
            is_doubled: self.has(Injection::DuplicateCompletion { rank: self.rank, post: number }),
            late: self.network.lateness(self.rank, number),
        };
        self.flights.push(flight);
        Ok(())
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        self.flights.iter_mut().for_each(|flight| flight.late = flight.late.saturating_sub(1));
        if self.random.u8(..) < self.network.idle {
            return Ok(());
        }
        for _ in 0..self.random.u32(1..=self.network.deliveries.max(1)) {
            let Some((index, delivery)) = self.choose() else { break };
            self.deliver(index, delivery, retired)?;
        }
        Ok(())
    }
}
