//! A proxy with its thread's loop. It sleeps when there is no ticket and nothing in flight that it could deliver.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use mkernel_core::fifo::{self, Consumer, Producer};
use mkernel_core::{CellId, Fault, Proxy, Rank};

use super::Shared;
use crate::error::SimError;
use crate::host::Host;
use crate::loopback::Loopback;
use crate::options::Options;
use crate::split::{FarTransport, Split};

/// How often a proxy looks for what other nodes have written, when it has nothing else to do.
const LOOK: Duration = Duration::from_micros(20);

/// One rank's proxy, its ring and its transport.
#[derive(Debug)]
pub(super) struct ProxyWorker {
    rank: Rank,
    proxy: Proxy<Split>,
    producer: Producer,
    consumer: Consumer,
    popped: u64,
    stops_after: Option<u64>,
}

/// Wakes a proxy that sleeps.
///
/// The proxy says that it is about to sleep and then looks at its ring once more; a producer fills the ring and then
/// looks whether the proxy sleeps. The fences put both pairs into one order, so one of the two sees the other.
#[derive(Debug, Default)]
pub(super) struct Bell {
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Bell {
    /// Wakes the proxy if it sleeps or is about to.
    pub(super) fn ring(&self) {
        fence(SeqCst);
        if self.is_asleep.load(SeqCst)
            && self.is_asleep.swap(false, SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

impl ProxyWorker {
    pub(super) fn new(
        host: &Arc<Host>,
        rank: Rank,
        options: &Options,
        far: Option<FarTransport>,
    ) -> Result<ProxyWorker, SimError> {
        let near = Loopback::new(host.clone(), rank, &options.network, options.seed);
        let transport = Split::new(host.clone(), rank, near, far);
        let proxy = Proxy::new(&host.verified, rank, options.first_epoch, transport)?;
        let (producer, consumer) = fifo::channel(options.ring)?;
        let stops_after = options.network.proxy_stops_after(rank);
        Ok(ProxyWorker { rank, proxy, producer, consumer, popped: 0, stops_after })
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn producer(&self) -> Producer {
        self.producer.clone()
    }

    /// Steps until all CTAs have ended or the launch is aborted. What is in flight then goes on in the next launch, unless
    /// other processes wait for it.
    pub(super) fn run(&mut self, shared: &Shared<'_>, index: usize) {
        let bell = &shared.bells[index];
        bell.thread.get_or_init(thread::current);
        let mut retired: Vec<CellId> = Vec::new();
        while !shared.watch.is_aborted() {
            let is_last = shared.active.load(SeqCst) == 0;
            let is_announced = bell.is_asleep.load(SeqCst);
            let (popped, goes_on) = match self.step(shared, &mut retired) {
                Ok(done) => done,
                Err(fault) => return shared.abort(fault),
            };
            if popped == 0 && is_last && !(goes_on && shared.must_drain()) {
                return;
            }
            if self.proxy.transport().is_far() {
                // Nobody rings when a NIC writes here: it looks again and again.
                shared.host.cells.rouse(self.rank);
                if goes_on {
                    thread::yield_now();
                } else {
                    thread::park_timeout(LOOK);
                }
            } else if goes_on {
                bell.is_asleep.store(false, SeqCst);
                thread::yield_now();
            } else if is_announced {
                thread::park();
            } else {
                bell.is_asleep.store(true, SeqCst);
                fence(SeqCst);
            }
        }
    }

    /// Steps once; answers the tickets popped and whether the next step may do something without a new ticket.
    fn step(&mut self, shared: &Shared<'_>, retired: &mut Vec<CellId>) -> Result<(u32, bool), Fault> {
        let room = self.stops_after.map_or(u64::MAX, |after| after.saturating_sub(self.popped));
        if room == 0 {
            return Ok((0, false));
        }
        let (consumer, mut left) = (&mut self.consumer, room);
        let next = || {
            let ticket = if left > 0 { consumer.pop() } else { None };
            left -= u64::from(ticket.is_some());
            ticket
        };
        let progress = self.proxy.step(next, retired)?;
        self.popped += u64::from(progress.popped);
        if progress.popped > 0 || !retired.is_empty() {
            shared.watch.moved(shared.watch.now_us());
        }
        for cell in retired.drain(..) {
            shared.host.cells.add(self.rank, cell, 1);
        }
        let goes_on = progress.popped > 0 || self.proxy.transport().can_go_on(progress.is_held);
        Ok((progress.popped, goes_on))
    }
}
