//! A launch on the GPU: everything that a running kernel touches, and the loop that serves it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use mkernel_core::{Fault, FaultKind, Rank, Transport};

use super::agent::Agent;
use super::error::{Asked, CudaError};
use super::executor::Options;
use super::heap::Heap;
use super::memory::{Buffer, Pinned};
use super::module::Module;
use super::outcome;
use super::program::Loaded;
use super::stream::WordWriter;
use crate::encode::layout::LaunchEntry;

/// Everything that a running kernel touches or that serves it.
#[derive(Debug)]
pub(super) struct Parts<T> {
    stream: Arc<CudaStream>,
    start: CudaEvent,
    end: CudaEvent,
    module: Module,
    pub(super) loaded: Loaded,
    /// The epoch, the progress, the claim of the fault record and the exits.
    _counters: [Buffer; 4],
    pub(super) record: Pinned,
    /// Word 0: not 0 once the launch is to unwind.
    abort: Pinned,
    entry: LaunchEntry,
    agents: Vec<Agent<T>>,
    words: WordWriter,
    pub(super) heap: Heap,
}

/// How a launch ended that did not succeed.
pub(super) enum Ended {
    /// It has unwound.
    Fault(Fault),
    /// The kernel does not end.
    Lost,
}

impl<T: Transport> Parts<T> {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        heap: Heap,
        module: Module,
        loaded: Loaded,
        agents: Vec<Agent<T>>,
        options: &Options,
    ) -> Result<Parts<T>, CudaError> {
        let event = || context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).asked("make an event");
        let epoch = Buffer::of(context, &[options.first_epoch])?;
        let progress = Buffer::of(context, &[0u64])?;
        let (fault_claim, exits) = (Buffer::of(context, &[0u32])?, Buffer::of(context, &[0u32])?);
        let (record, abort) = (Pinned::new(context, outcome::FAULT_WORDS)?, Pinned::new(context, 1)?);
        let entry = LaunchEntry {
            ranks: loaded.ranks.address(),
            homes: loaded.homes.address(),
            epoch: epoch.address(),
            fault: record.address(),
            fault_claim: fault_claim.address(),
            abort: abort.address(),
            exits: exits.address(),
            progress: progress.address(),
            deadline_ns: u64::try_from(options.deadline.as_nanos()).unwrap_or(u64::MAX),
            rank_count: loaded.rank_count(),
            poison: u32::from(options.poison),
        };
        Ok(Parts {
            // The lowest priority, which is 0: streams that serve the kernel have the highest and other queues.
            stream: context.new_stream().asked("make a stream")?,
            start: event()?,
            end: event()?,
            module,
            loaded,
            _counters: [epoch, progress, fault_claim, exits],
            record,
            abort,
            entry,
            agents,
            words: WordWriter::new(context)?,
            heap,
        })
    }

    /// Gives the lanes of every rank other numbers of home CTAs, if all of them are resident at once.
    pub(super) fn assign(&mut self, context: &Arc<CudaContext>, ctas: Vec<Vec<u32>>) -> Result<(), CudaError> {
        self.module.prove_resident(ctas.iter().flatten().fold(0, |sum: u32, &c| sum.saturating_add(c)))?;
        self.loaded.assign(context, ctas)?;
        self.entry.homes = self.loaded.homes.address();
        Ok(())
    }

    /// Payload bytes that puts of `rank` carried in the last launch: to peers of the node, and to others.
    pub(super) fn put_bytes(&self, rank: Rank) -> (u64, u64) {
        self.agents.iter().find(|agent| agent.rank() == rank).map_or((0, 0), Agent::bytes)
    }

    /// One launch to its end, serving tickets meanwhile; the time between its events.
    pub(super) fn run(&mut self, options: &Options) -> Result<Duration, Ended> {
        outcome::clear(&self.record);
        self.agents.iter_mut().for_each(Agent::begin);
        self.start.record(&self.stream).map_err(died)?;
        // SAFETY: all that `entry` leads to is owned by `self`, which outlives the launch: it is awaited below, or
        // leaked if it is lost.
        unsafe { self.module.launch(&self.stream, self.loaded.cta_count(), &self.entry) }.map_err(died)?;
        self.end.record(&self.stream).map_err(died)?;
        self.serve(options)?;
        let milliseconds = self.start.elapsed_ms(&self.end).map_err(died)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }

    /// Steps every proxy until the kernel has ended and no source is being read any more.
    fn serve(&mut self, options: &Options) -> Result<(), Ended> {
        let started = Instant::now();
        let grace = options.launch_deadline + options.deadline.saturating_mul(2);
        let mut fault = None;
        loop {
            let is_idle = self.step(&mut fault);
            if fault.is_some() {
                self.abort.halves(0)[0].store(1, Relaxed);
            }
            let has_ended = self.end.try_is_complete().map_err(died)?;
            let is_aborted = self.abort.halves(0)[0].load(Relaxed) != 0;
            if has_ended && (is_idle || is_aborted) {
                break;
            }
            if started.elapsed() > options.launch_deadline {
                fault = fault.or(Some(Fault::new(FaultKind::Deadline, Rank(0))));
            }
            if started.elapsed() > grace {
                return Err(Ended::Lost);
            }
            std::thread::yield_now();
        }
        self.words.finish().map_err(died)?;
        fault.map_or(Ok(()), |fault| Err(Ended::Fault(fault)))
    }

    /// Some steps of every proxy, since a look at the kernel costs more than one; whether all were idle in the last.
    fn step(&mut self, fault: &mut Option<Fault>) -> bool {
        const STEPS: u32 = 32;
        let mut is_idle = true;
        for _ in 0..STEPS {
            is_idle = true;
            for agent in &mut self.agents {
                match agent.step(&self.words) {
                    Ok(idle) => is_idle &= idle,
                    Err(found) => {
                        *fault = fault.or(Some(found));
                        return false;
                    }
                }
            }
        }
        is_idle
    }
}

/// A fault of the GPU or its driver.
fn died<E>(_: E) -> Ended {
    Ended::Fault(Fault::new(FaultKind::Died, Rank(0)))
}
