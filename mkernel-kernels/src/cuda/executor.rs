//! Runs verified programs of a whole world as virtual ranks of one launch on one GPU.
//!
//! One thread does everything: it launches, and while the kernel runs it is the proxy of every rank and the watchdog.
//! It waits for nothing but the kernel, so back-pressure always ends.
//!
//! Why a launch ends: the kernel's waits have deadlines and watch the abort word, which a proxy's fault and the watchdog
//! raise. A kernel that outlives even that is given up as lost: its memory is leaked, not freed under it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaContext;
use mkernel_core::executor::NotResident;
use mkernel_core::{CellId, Executor, Fault, FaultKind, Rank, RoleName, Run, Scope, Span, Transport, Verified};

use super::agent::Agent;
use super::cache::Cache;
use super::error::{Asked, CudaError};
use super::heap::Heap;
use super::module::Module;
use super::nvrtc::Nvrtc;
use super::outcome;
use super::program::{Loaded, Ring};
use super::running::{Ended, Parts};
use crate::device::{self, Specialisation};
use crate::encode::tiles::Engine;
use crate::encode::{Image, encode};

/// Which engines compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compute {
    /// Hopper's for matrix products, where the GPU has it; the portable ones for the rest.
    #[default]
    Tried,
    /// Hopper's for attention too. It is as fast as cuDNN alone, but has not run within the kernel on a GPU yet.
    All,
    /// Those that run everywhere.
    Portable,
}

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
    /// Which engines compute.
    pub compute: Compute,
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
            compute: Compute::Tried,
        }
    }
}

/// Runs a world on one GPU; `T` carries the puts of each rank.
#[derive(Debug)]
pub struct CudaExecutor<T> {
    context: Arc<CudaContext>,
    verified: Arc<Verified>,
    options: Options,
    poisoned: Option<Fault>,
    /// None once the kernel is lost.
    parts: Option<Parts<T>>,
}

impl<T: Transport> CudaExecutor<T> {
    /// Compiles, loads and uploads. `transports` has one per rank, in order; they reach the memory of `heap`.
    ///
    /// # Errors
    /// [`CudaError`] where the GPU, its compiler or the programs do not allow it.
    ///
    /// # Panics
    /// If there is not one transport per rank.
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
        assert_eq!(transports.len(), verified.programs().len(), "one transport per rank");
        let addresses = heap.addresses();
        let (major, minor) = context.compute_capability().asked("tell its compute capability")?;
        let engine = match options.compute {
            Compute::Tried if major == 9 => Engine::for_products(verified.programs(), &addresses),
            Compute::All if major == 9 => Engine::of(verified.programs(), &addresses),
            _ => None,
        };
        let encode = |p| encode(p, &addresses, engine.as_ref());
        let images: Vec<Image> = verified.programs().iter().map(encode).collect::<Result<_, _>>()?;
        let specialisation = Specialisation::of(&images, (major * 10 + minor) as u32, engine);
        let module = Module::load(context, &compile(&specialisation, &options)?, &specialisation)?;
        let mut agents = Vec::new();
        let mut rings = vec![Ring::default(); images.len()];
        for (program, transport) in verified.programs().iter().zip(transports) {
            if program.puts.is_empty() {
                continue;
            }
            let (agent, ring) = Agent::new(context, &verified, program, &addresses, transport, &options)?;
            rings[program.rank.0 as usize] = ring;
            agents.push(agent);
        }
        let loaded = Loaded::new(context, &images, &rings)?;
        module.prove_resident(loaded.cta_count())?;
        let parts = Parts::new(context, heap, module, loaded, agents, &options)?;
        Ok(CudaExecutor { context: Arc::clone(context), verified, options, poisoned: None, parts: Some(parts) })
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
        self.parts.as_ref().map_or(0, |parts| parts.loaded.cta_count())
    }

    fn finish(&mut self, ended: Result<Duration, Fault>) -> Result<Run, Fault> {
        let failed = |_: CudaError| Fault::new(FaultKind::Died, Rank(0));
        let parts = self.parts.as_mut().ok_or(Fault::new(FaultKind::Died, Rank(0)))?;
        match (outcome::fault(&parts.record, &self.verified), ended) {
            // Whoever raised the abort word knows more than those who saw it.
            (Some(fault), Err(host)) if fault.kind == FaultKind::Aborted => Err(host),
            (Some(fault), _) => Err(fault),
            (None, Err(host)) => Err(host),
            (None, Ok(time)) => {
                let totals = parts.loaded.totals().map_err(failed)?;
                let mut run = Run { time_us: time.as_secs_f64() * 1e6, ..Run::default() };
                let programs = self.verified.programs().iter();
                for ((program, ctas), totals) in programs.zip(&parts.loaded.ctas).zip(&totals) {
                    run.lanes.extend(outcome::lane_stats(&self.verified, program.rank, ctas, totals));
                    let (near, far) = parts.put_bytes(program.rank);
                    run.intra_out.push(outcome::peer_bytes(program, totals) + near);
                    run.inter_out.push(far);
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

    fn set_ctas(&mut self, role: RoleName, ctas: NonZeroU32) -> Result<(), NotResident> {
        let Some(parts) = self.parts.as_mut() else { return Ok(()) };
        let mut table = parts.loaded.ctas.clone();
        for (program, lanes) in self.verified.programs().iter().zip(&mut table) {
            for (_, count) in program.lanes.iter().zip(lanes).filter(|(lane, _)| lane.role == role) {
                *count = ctas.get();
            }
        }
        match parts.assign(&self.context, table) {
            Ok(()) => {}
            Err(CudaError::NotResident { asked, sms, per_sm }) => {
                return Err(NotResident { asked, most: sms * per_sm });
            }
            // The driver no longer answers: nothing can be launched.
            Err(_) => self.poisoned = Some(Fault::new(FaultKind::Died, Rank(0))),
        }
        Ok(())
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

/// The kernel's machine code, from the cache if it is there.
fn compile(specialisation: &Specialisation, options: &Options) -> Result<Vec<u8>, CudaError> {
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
