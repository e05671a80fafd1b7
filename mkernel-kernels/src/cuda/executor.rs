//! Runs verified programs of a whole world as virtual ranks of one launch on one GPU.
//!
//! One thread does everything: it launches, and while the kernel runs it is the proxy of every rank and the watchdog.
//! It waits for nothing but the kernel, so back-pressure always ends.
//!
//! Why a launch ends: the kernel's waits have deadlines and watch the abort word, which a proxy's fault and the watchdog
//! raise. A kernel that outlives even that is given up as lost: its memory is leaked, not freed under it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use mkernel_core::fifo::{Consumer, HEADER_WORDS, channel_over};
use mkernel_core::proxy::Proxy;
use mkernel_core::{CellId, Executor, Fault, FaultKind, Rank, Run, Scope, Span, Transport, Verified};

use super::cache::Cache;
use super::error::{Asked, CudaError};
use super::heap::Heap;
use super::memory::{Buffer, Pinned};
use super::module::Module;
use super::nvrtc::Nvrtc;
use super::outcome;
use super::program::{Loaded, Ring};
use super::stream::WordWriter;
use crate::device::{self, Specialisation};
use crate::encode::layout::LaunchEntry;
use crate::encode::{Image, encode};

/// How an executor behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The longest time in which no CTA retires an instruction while one waits. It must exceed the time of one segment.
    pub deadline: Duration,
    /// How long a whole launch may take before the watchdog ends it.
    pub launch_deadline: Duration,
    /// Slots of each rank's ring of tickets, a power of two.
    pub fifo_slots: usize,
    /// Whether released memory is filled with NaN.
    pub poison: bool,
    /// The folder of compiled kernels; none: compile every time.
    pub cache: Option<std::path::PathBuf>,
    /// The epoch of the first launch.
    pub first_epoch: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            deadline: Duration::from_secs(10),
            launch_deadline: Duration::from_secs(60),
            fifo_slots: 1024,
            poison: false,
            cache: None,
            first_epoch: 0,
        }
    }
}

/// Runs a world on one GPU; `T` carries the puts of each rank.
#[derive(Debug)]
pub struct CudaExecutor<T> {
    verified: Arc<Verified>,
    options: Options,
    poisoned: Option<Fault>,
    /// None once the kernel is lost.
    parts: Option<Parts<T>>,
}

/// Everything that a running kernel touches or that serves it.
#[derive(Debug)]
struct Parts<T> {
    stream: Arc<CudaStream>,
    start: CudaEvent,
    end: CudaEvent,
    module: Module,
    loaded: Loaded,
    /// The epoch, the progress, and the claim of the fault record.
    _counters: [Buffer; 3],
    record: Pinned,
    /// Word 0: not 0 once the launch is to unwind.
    abort: Pinned,
    entry: LaunchEntry,
    agents: Vec<Agent<T>>,
    words: WordWriter,
    heap: Heap,
}

/// The host's half of one rank: its ring, its proxy, and how far its cells of retired sources are.
#[derive(Debug)]
struct Agent<T> {
    rank: Rank,
    puts: u64,
    popped: u64,
    in_flight: u64,
    consumer: Consumer<Pinned>,
    proxy: Proxy<T>,
    /// Address and value of each cell of the rank.
    cells: Vec<(u64, u64)>,
    retired: Vec<CellId>,
}

impl<T: Transport> CudaExecutor<T> {
    /// Compiles, loads and uploads. `transports` has one per rank, in order; they reach the memory of `heap`.
    ///
    /// # Errors
    /// [`CudaError`] where the GPU, its compiler or the programs do not allow it.
    pub fn new(
        context: &Arc<CudaContext>,
        verified: Arc<Verified>,
        heap: Heap,
        transports: Vec<T>,
        options: Options,
    ) -> Result<CudaExecutor<T>, CudaError> {
        if verified.scope() != Scope::World {
            let (present, ranks) = (verified.programs().len(), verified.world().size());
            return Err(CudaError::PartialWorld { present, ranks });
        }
        let addresses = heap.addresses();
        let images: Vec<Image> = verified.programs().iter().map(|p| encode(p, &addresses)).collect::<Result<_, _>>()?;
        let module = Module::load(context, &compile(context, &images, &options)?)?;
        let mut agents = Vec::new();
        let mut rings = vec![Ring::default(); images.len()];
        for (program, transport) in verified.programs().iter().zip(transports) {
            if program.puts.is_empty() {
                continue;
            }
            let words = Pinned::new(context, HEADER_WORDS + options.fifo_slots)?;
            let shift = options.fifo_slots.trailing_zeros();
            rings[program.rank.0 as usize] = Ring { address: words.address(), shift };
            let (_, consumer) = channel_over(words, 0)?;
            let proxy = Proxy::new(&verified, program.rank, options.first_epoch, transport)
                .expect("a verified world has every program");
            let address = |cell| addresses.cell(program.rank, cell).expect("the heap maps every rank");
            let cells = program.cells.iter().enumerate();
            let cells = cells.map(|(i, c)| (address(CellId(i as u32)), c.initial(options.first_epoch))).collect();
            let (rank, puts) = (program.rank, program.puts.len() as u64);
            let agent = Agent { rank, puts, popped: 0, in_flight: 0, consumer, proxy, cells, retired: Vec::new() };
            agents.push(agent);
        }
        let loaded = Loaded::new(context, &images, &rings)?;
        module.prove_resident(loaded.ctas)?;
        let parts = Parts::new(context, heap, module, loaded, agents, &options)?;
        Ok(CudaExecutor { verified, options, poisoned: None, parts: Some(parts) })
    }

    /// The value of a cell between launches.
    ///
    /// # Errors
    /// The driver's, or none if the kernel was lost.
    pub fn cell(&self, rank: Rank, cell: CellId) -> Result<Option<u64>, CudaError> {
        self.parts.as_ref().map(|parts| parts.heap.cell(rank, cell)).transpose()
    }

    /// Home CTAs of a launch, over all ranks.
    pub fn ctas(&self) -> u32 {
        self.parts.as_ref().map_or(0, |parts| parts.loaded.ctas)
    }

    fn finish(&mut self, ended: Result<Duration, Fault>) -> Result<Run, Fault> {
        let failed = |_: CudaError| Fault::new(FaultKind::Died, Rank(0));
        let parts = self.parts.as_ref().ok_or(Fault::new(FaultKind::Died, Rank(0)))?;
        match (outcome::fault(&parts.record, &self.verified), ended) {
            // Whoever raised the abort word knows more than those who saw it.
            (Some(fault), Err(host)) if fault.kind == FaultKind::Aborted => Err(host),
            (Some(fault), _) => Err(fault),
            (None, Err(host)) => Err(host),
            (None, Ok(time)) => {
                let totals = parts.loaded.totals().map_err(failed)?;
                let mut run = Run { time_us: time.as_secs_f64() * 1e6, ..Run::default() };
                for (program, totals) in self.verified.programs().iter().zip(&totals) {
                    run.lanes.extend(outcome::lane_stats(&self.verified, program.rank, totals));
                    let (intra, inter) = program.bytes_out();
                    run.intra_out.push(intra);
                    run.inter_out.push(inter);
                }
                Ok(run)
            }
        }
    }
}

impl<T: Transport> Executor for CudaExecutor<T> {
    fn launch(&mut self) -> Result<Run, Fault> {
        if let Some(fault) = self.poisoned {
            return Err(fault);
        }
        let parts = self.parts.as_mut().expect("a lost kernel poisons the executor");
        let ended = parts.run(&self.options);
        if let Err(Ended::Lost) = ended {
            // Freed memory under a running kernel could become somebody else's.
            std::mem::forget(self.parts.take());
            let fault = Fault::new(FaultKind::Died, Rank(0));
            self.poisoned = Some(fault);
            return Err(fault);
        }
        let ended = ended.map_err(|ended| match ended {
            Ended::Fault(fault) => fault,
            Ended::Lost => Fault::new(FaultKind::Died, Rank(0)),
        });
        let run = self.finish(ended);
        self.poisoned = run.as_ref().err().copied();
        run
    }

    fn write(&mut self, span: &Span, bytes: &[u8]) {
        let Some(parts) = self.parts.as_mut() else { return };
        if parts.heap.write(span, bytes).is_err() {
            self.poisoned = Some(Fault::new(FaultKind::Died, span.rank));
        }
    }

    fn read(&self, span: &Span, bytes: &mut [u8]) {
        let parts = self.parts.as_ref().expect("outputs are read after a launch that succeeded");
        parts.heap.read(span, bytes).expect("the GPU answers after a launch that succeeded");
    }
}

/// How a launch ended that did not succeed.
enum Ended {
    /// It has unwound.
    Fault(Fault),
    /// The kernel does not end.
    Lost,
}

impl<T: Transport> Parts<T> {
    fn new(
        context: &Arc<CudaContext>,
        heap: Heap,
        module: Module,
        loaded: Loaded,
        agents: Vec<Agent<T>>,
        options: &Options,
    ) -> Result<Parts<T>, CudaError> {
        let event = || context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).asked("make an event");
        let epoch = Buffer::of(context, &[options.first_epoch.wrapping_sub(1)])?;
        let (progress, fault_claim) = (Buffer::of(context, &[0u64])?, Buffer::of(context, &[0u32])?);
        let (record, abort) = (Pinned::new(context, outcome::FAULT_WORDS)?, Pinned::new(context, 1)?);
        let entry = LaunchEntry {
            ranks: loaded.ranks.address(),
            homes: loaded.homes.address(),
            epoch: epoch.address(),
            fault: record.address(),
            fault_claim: fault_claim.address(),
            abort: abort.address(),
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
            _counters: [epoch, progress, fault_claim],
            record,
            abort,
            entry,
            agents,
            words: WordWriter::new(context)?,
            heap,
        })
    }

    /// One launch to its end, serving tickets meanwhile; the time between its events.
    fn run(&mut self, options: &Options) -> Result<Duration, Ended> {
        outcome::clear(&self.record);
        self.agents.iter_mut().for_each(|agent| agent.popped = 0);
        self.start.record(&self.stream).map_err(died)?;
        // SAFETY: all that `entry` leads to is owned by `self`, which outlives the launch: it is awaited below, or
        // leaked if it is lost.
        unsafe { self.module.launch(&self.stream, self.loaded.ctas, &self.entry) }.map_err(died)?;
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

impl<T: Transport> Agent<T> {
    /// One step of the proxy; raises the cells of retired sources. Whether nothing of this epoch is left to do.
    fn step(&mut self, words: &WordWriter) -> Result<bool, Fault> {
        let progress = self.proxy.step(|| self.consumer.pop(), &mut self.retired)?;
        self.popped += u64::from(progress.popped);
        self.in_flight = progress.in_flight;
        for cell in self.retired.drain(..) {
            let (address, value) = &mut self.cells[cell.0 as usize];
            *value = value.wrapping_add(1);
            // SAFETY: the cell lives in the heap, which outlives the launch; `finish` awaits the write.
            unsafe { words.write(*address, *value) }.map_err(|_| Fault::new(FaultKind::Died, self.rank))?;
        }
        Ok(self.popped == self.puts && self.in_flight == 0 && !progress.is_held)
    }
}

/// The kernel's machine code for what `images` use, from the cache if it is there.
fn compile(context: &CudaContext, images: &[Image], options: &Options) -> Result<Vec<u8>, CudaError> {
    let (major, minor) = context.compute_capability().asked("tell its compute capability")?;
    let specialisation = Specialisation::of(images, (major * 10 + minor) as u32);
    let (nvrtc, source, flags) = (Nvrtc::find()?, device::source(), specialisation.options());
    let make = || Ok(nvrtc.compile(&source, &flags)?.cubin);
    let (major, minor) = nvrtc.version();
    match &options.cache {
        Some(folder) => {
            Cache::new(folder.clone()).get_or(&format!("nvrtc {major}.{minor}\n{}\n{source}", flags.join("\n")), make)
        }
        None => make(),
    }
}
