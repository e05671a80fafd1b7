//! The threaded executor: one thread per CTA and one per proxy, for the length of a launch.
//!
//! Threads that wait sleep. Whoever makes a wait true wakes its thread; an abort wakes everybody. So no launch hangs:
//! every sleep of a CTA and of the launching thread ends at the deadline at the latest, and the first to see that
//! nothing moves any more records the fault and aborts.

mod cta;
mod proxy;

use std::num::{NonZeroU32, NonZeroUsize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;

use mkernel_core::executor::NotResident;
use mkernel_core::validate::At;
use mkernel_core::{Executor, Fault, FaultKind, LaneId, Program, Rank, RoleName, Run, Span, Verified};

use crate::account::{Busy, Doing, Stage};
use crate::board::NAP;
use crate::cells::Waiter;
use crate::error::SimError;
use crate::hang::{self, State};
use crate::host::Host;
use crate::ops::Kernels;
use crate::options::Options;
use crate::peers::{Look, Peers};
use crate::schedule::{Claims, Cta, Split, at};
use crate::split::FarTransport;
use crate::watch::Watch;
use cta::{Report, Worker};
use proxy::{Bell, ProxyWorker};

/// Looks at a cell, after the first few, between which a thread gives its core away, before it sleeps; where every thread may
/// have a core of its own. Together they take longer than another thread takes to wake up: two that wait for each other would
/// else take turns to sleep. On a core that is shared after all they hold nobody up.
const PATIENT_LOOKS: u32 = 256;

/// Runs verified programs of a whole world on threads of this process.
#[derive(Debug)]
pub struct Threaded {
    host: Arc<Host>,
    /// The other ranks, if this process hosts one rank only.
    peers: Option<Peers>,
    options: Options,
    epoch: u64,
    split: Split,
    ctas: Vec<Cta>,
    proxies: Vec<ProxyWorker>,
    kernels: Vec<Kernels>,
    fault: Option<Fault>,
}

/// What the threads of one launch share.
struct Shared<'a> {
    host: &'a Host,
    peers: Option<&'a Peers>,
    options: &'a Options,
    epoch: u64,
    claims: Claims,
    watch: Watch,
    split: &'a Split,
    ctas: &'a [Cta],
    /// How often a CTA looks at a cell, after the first few times, before it sleeps.
    patient_looks: u32,
    /// What each CTA holds, by its index in `ctas`.
    held: Vec<Held>,
    /// One for each proxy.
    bells: Vec<Bell>,
    /// CTA threads that have not ended.
    active: AtomicUsize,
    launcher: Thread,
}

impl Threaded {
    /// Hosts every rank of `verified`.
    ///
    /// # Errors
    /// [`SimError`] if a rank is missing, memory does not suffice or the ring has an impossible size.
    pub fn new(verified: Arc<Verified>, options: Options) -> Result<Threaded, SimError> {
        let host = Host::new(verified, options.first_epoch, options.poison)?;
        Threaded::with(host, options, None, None)
    }

    /// Hosts every rank, or one rank that has `peers`, those on other nodes reached by `far`.
    pub(crate) fn with(
        host: Host,
        options: Options,
        peers: Option<Peers>,
        mut far: Option<FarTransport>,
    ) -> Result<Threaded, SimError> {
        let host = Arc::new(host);
        let is_here =
            |p: &&Program| peers.as_ref().is_none_or(|peers| p.rank == peers.own()) && !options.network.is_dead(p.rank);
        let programs = || host.verified.programs().iter().filter(is_here);
        let is_far = far.is_some();
        let proxies = programs().filter(|p| is_far || !p.puts.is_empty());
        let proxies =
            proxies.map(|p| ProxyWorker::new(&host, p.rank, &options, far.take())).collect::<Result<_, _>>()?;
        let (epoch, split) = (options.first_epoch, Split::default());
        let (ctas, kernels) = (Vec::new(), Vec::new());
        let mut threaded = Threaded { host, peers, options, epoch, split, ctas, proxies, kernels, fault: None };
        threaded.assign();
        Ok(threaded)
    }

    /// Makes the CTAs of the split.
    fn assign(&mut self) {
        let own = self.peers.as_ref().map(Peers::own);
        let is_here = |p: &&Program| own.is_none_or(|own| p.rank == own) && !self.options.network.is_dead(p.rank);
        let programs = self.host.verified.programs().iter().filter(is_here);
        self.ctas = programs.flat_map(|p| self.split.ctas(p)).collect();
        self.kernels.resize_with(self.ctas.len(), Kernels::default);
    }

    /// The ranks of other processes are on this host too, and have as many threads as their programs say.
    fn patient_looks(&self) -> u32 {
        let threads = |p: &Program| self.split.ctas(p).count() + usize::from(!p.puts.is_empty());
        let threads: usize = self.host.verified.programs().iter().map(threads).sum();
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        if threads <= cores { PATIENT_LOOKS } else { 0 }
    }

    fn run(&mut self) -> Result<Run, Fault> {
        let shared = Shared {
            host: &self.host,
            peers: self.peers.as_ref(),
            options: &self.options,
            epoch: self.epoch,
            claims: Claims::new(&self.host.verified),
            watch: Watch::new(self.options.deadline),
            split: &self.split,
            ctas: &self.ctas,
            patient_looks: self.patient_looks(),
            held: self.ctas.iter().map(|_| Held::default()).collect(),
            bells: self.proxies.iter().map(|_| Bell::default()).collect(),
            active: AtomicUsize::new(self.ctas.len()),
            launcher: thread::current(),
        };
        let mut look = shared.peers.map(Peers::look);
        if let Some(peers) = shared.peers {
            peers.board().launches(&self.host.verified);
        }
        let producers: Vec<_> = self.proxies.iter().map(|p| (p.rank(), p.producer())).collect();
        let reports = thread::scope(|scope| {
            for (index, proxy) in self.proxies.iter_mut().enumerate() {
                let (shared, rank) = (&shared, proxy.rank());
                let body = move || shared.guard(None, || proxy.run(shared, index));
                if thread::Builder::new().spawn_scoped(scope, body).is_err() {
                    shared.abort(Fault::new(FaultKind::Died, rank));
                }
            }
            let mut threads = Vec::new();
            for ((index, cta), kernels) in self.ctas.iter().enumerate().zip(&mut self.kernels) {
                let shared = &shared;
                let producer = producers.iter().position(|(rank, _)| *rank == cta.rank);
                let producer = producer.map(|bell| (bell, producers[bell].1.clone()));
                let body = move || {
                    let mut worker = Worker::new(shared, index, kernels, producer);
                    shared.guard(Some(index), || worker.run());
                    shared.leave();
                    worker.into_report()
                };
                match thread::Builder::new().spawn_scoped(scope, body) {
                    Ok(thread) => threads.push(thread),
                    Err(_) => {
                        shared.abort(Fault::new(FaultKind::Died, cta.rank));
                        shared.leave();
                    }
                }
            }
            shared.await_ctas(look.as_mut());
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        // Other processes are missed when the ranks meet.
        let absence = if look.is_none() { self.options.network.absence(&self.host.verified) } else { None };
        match shared.watch.fault().or(absence) {
            Some(fault) => Err(look.map_or(fault, |mut look| look.blame(fault))),
            None => Ok(self.report(shared.watch.now_us(), reports)),
        }
    }

    fn report(&self, time_us: f64, reports: Vec<Report>) -> Run {
        let mut stats: Vec<_> = self.host.verified.programs().iter().map(|p| self.split.no_stats(p)).collect();
        let mut trace = Vec::new();
        for (cta, report) in self.ctas.iter().zip(reports) {
            for (sum, part) in stats[cta.rank.0 as usize].iter_mut().zip(&report.lanes) {
                sum.tasks += part.tasks;
                sum.busy_us += part.busy_us;
                sum.wait_us += part.wait_us;
            }
            trace.extend(report.trace);
        }
        let (intra_out, inter_out) = self.host.traffic.take();
        Run { time_us, lanes: stats.concat(), intra_out, inter_out, trace }
    }
}

impl Executor for Threaded {
    fn launch(&mut self) -> Result<Run, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let result = self.run();
        self.epoch = self.epoch.wrapping_add(1);
        self.fault = result.as_ref().err().copied();
        result
    }

    fn set_ctas(&mut self, role: RoleName, ctas: NonZeroU32) -> Result<(), NotResident> {
        self.split.set(role, ctas);
        self.assign();
        Ok(())
    }

    fn write(&mut self, span: &Span, bytes: &[u8]) {
        self.host.memory.scatter(span, bytes);
    }

    fn read(&self, span: &Span, bytes: &mut [u8]) {
        self.host.memory.gather(span, bytes);
    }
}

impl Shared<'_> {
    /// Runs a thread's body; if it panics, the thread has died, and everybody stops.
    fn guard(&self, cta: Option<usize>, body: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            let place = cta.and_then(|index| self.held[index].place(self, index).map(|(place, _)| place));
            let rank = cta.map_or(Rank(0), |index| self.ctas[index].rank);
            let died = Fault::new(FaultKind::Died, rank);
            self.abort(place.map_or(died, |place| hang::at_place(FaultKind::Died, place)));
        }
    }

    /// Records `fault` if it is the first, and wakes everybody.
    fn abort(&self, fault: Fault) {
        if !self.watch.is_aborted() {
            // Before anybody stops to wait.
            self.tell();
        }
        self.watch.abort(fault);
        self.host.cells.wake_all();
        self.bells.iter().for_each(Bell::ring);
        self.launcher.unpark();
    }

    /// Nothing has moved for too long: says where the cause shows.
    fn hang(&self) {
        self.abort(self.root());
    }

    /// The wait that is nearest to the cause.
    fn root(&self) -> Fault {
        let held: Vec<_> = self.held.iter().enumerate().filter_map(|(i, h)| h.place(self, i)).collect();
        let state = |rank: Rank, lane: LaneId, index: u32| {
            if self.peers.is_some_and(|peers| peers.own() != rank) {
                // How far it is, only its own process knows.
                State::Running
            } else if !self.claims.is_claimed(rank, lane, index) {
                State::Unclaimed
            } else if held.iter().any(|(p, _)| (p.rank, p.lane, p.instruction) == (rank, lane, index)) {
                State::Running
            } else {
                State::Retired
            }
        };
        let pushing = held.iter().find(|(_, is_pushing)| *is_pushing).map(|(place, _)| *place);
        let own = self.peers.map_or(Rank(0), Peers::own);
        hang::root(
            &self.host.verified,
            hang::waits(self.host),
            &state,
            pushing,
            held.first().map(|(place, _)| *place),
            own,
        )
    }

    /// Says on the board what every CTA of this rank is doing.
    fn tell(&self) {
        let Some(peers) = self.peers else { return };
        let (now_us, waiters) = (self.watch.now_us(), self.host.cells.waiters());
        let cells: Vec<_> = waiters.iter().map(|waiter| (waiter.place.rank, waiter.cell)).collect();
        let raisers = hang::raisers(&self.host.verified, &cells);
        let busy = |(index, held): (usize, &Held)| {
            let (place, is_pushing) = held.place(self, index)?;
            let (doing, since_us) = match waiters.iter().find(|waiter| waiter.place == place) {
                Some(&Waiter { cell, wanted, since_us, .. }) => {
                    let (seen, from) =
                        (self.host.cells.seen(place.rank, cell), raisers.get(&(place.rank, cell)).copied());
                    (Doing::Waits { cell, wanted, seen, from }, since_us)
                }
                None if is_pushing => (Doing::Pushes, held.since_us()),
                None => (Doing::Works, held.since_us()),
            };
            let since = Duration::from_micros((now_us - since_us).max(0.0) as u64);
            Some(Busy { cta: self.ctas[index].number, place, doing, since })
        };
        let busy: Vec<Busy> = self.held.iter().enumerate().filter_map(busy).collect();
        let idle = (self.held.len() - busy.len()) as u32;
        let claimed = self.claims.claimed(&self.host.verified.programs()[peers.own().0 as usize]);
        peers.board().tell(Stage::Launch { claimed, idle, busy });
    }

    /// A CTA thread ends.
    fn leave(&self) {
        if self.active.fetch_sub(1, SeqCst) == 1 {
            self.launcher.unpark();
            self.bells.iter().for_each(Bell::ring);
        }
    }

    /// Sleeps until all CTAs have ended; the deadline also covers a CTA that stands still while nobody waits for it.
    fn await_ctas(&self, mut look: Option<&mut Look<'_>>) {
        while self.active.load(SeqCst) > 0 {
            if self.watch.is_aborted() {
                // Again and again: a thread that was about to sleep has missed the last call.
                self.host.cells.wake_all();
                thread::park_timeout(NAP);
                continue;
            }
            if look.as_mut().is_some_and(|look| look.is_aborted(&self.watch)) {
                self.abort(Fault { kind: FaultKind::Aborted, ..self.root() });
                continue;
            }
            if let Some(fault) = look.as_ref().and_then(|look| look.broken()) {
                self.abort(fault);
                continue;
            }
            if self.peers.is_some_and(|peers| peers.board().is_asked()) {
                self.tell();
            }
            match self.watch.time_left() {
                Ok(left) => thread::park_timeout(if look.is_some() { left.min(NAP) } else { left }),
                Err(_) if self.watch.is_aborted() => {}
                Err(_) => self.hang(),
            }
        }
    }

    /// Whether the proxies must have delivered everything before the launch ends: peers in other processes do not wait
    /// for this process's next launch.
    fn must_drain(&self) -> bool {
        self.peers.is_some()
    }
}

/// The instruction that a CTA holds, in one word, and since when, in microseconds of the launch.
#[derive(Debug, Default)]
struct Held(AtomicU64, AtomicU64);

impl Held {
    const RUNNING: u64 = 1;
    const PUSHING: u64 = 2;

    fn set(&self, place: At, flag: u64, now_us: f64) {
        self.1.store(now_us as u64, SeqCst);
        self.0.store(u64::from(place.lane.0) << 40 | u64::from(place.instruction) << 8 | flag, SeqCst);
    }

    fn since_us(&self) -> f64 {
        self.1.load(SeqCst) as f64
    }

    fn clear(&self) {
        self.0.store(0, SeqCst);
    }

    /// The instruction, and whether the CTA is pushing its ticket.
    fn place(&self, shared: &Shared<'_>, index: usize) -> Option<(At, bool)> {
        let word = self.0.load(SeqCst);
        let program = &shared.host.verified.programs()[shared.ctas[index].rank.0 as usize];
        let (lane, instruction) = (LaneId((word >> 40) as u16), (word >> 8) as u32 as usize);
        (word != 0).then(|| (at(program, lane, instruction).0, word & Held::PUSHING != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Injection, Network};
    use crate::ops::hostile::{GATE, ROUTED, clear, programs, spoil};
    use mkernel_core::signal::reached;
    use mkernel_core::validate;

    #[test]
    fn an_index_that_is_overwritten_during_a_launch_ends_it_with_a_fault_that_names_the_reader() {
        let verified = Arc::new(validate(programs()).unwrap());
        // The rank that opens the gate does not run: the test opens it, once it has overwritten the index.
        let network = Network { injections: vec![Injection::DeadPeer { rank: Rank(1) }], ..Network::default() };
        let mut executor = Threaded::new(verified.clone(), Options { network, ..Options::default() }).unwrap();
        let host = executor.host.clone();
        clear(&host.memory);
        let fault = thread::scope(|scope| {
            let launch = scope.spawn(|| executor.launch().unwrap_err());
            let wanted = verified.programs()[0].cell(ROUTED).threshold(0);
            while !reached(host.cells.seen(Rank(0), ROUTED), wanted) {
                thread::yield_now();
            }
            spoil(&host.memory);
            host.cells.add(Rank(0), GATE, 1);
            launch.join().unwrap()
        });
        assert_eq!((fault.kind, fault.rank, fault.lane), (FaultKind::Index, Rank(0), Some(LaneId(0))), "{fault}");
        assert!(fault.instruction > Some(0), "{fault}");
    }
}
