//! One GPU that plays all ranks of a world.

use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use mkernel_core::{Program, Rank, RoleName, Transport, Verified};
use mkernel_kernels::Profile;
use mkernel_kernels::cuda::{self, Compute, CudaError, CudaExecutor, Heap};
use mkernel_nvlink::{CopyEngine, CopyEngineError, Engines};

use crate::error::Error;
use crate::session::Options;

/// Groups of puts that the copy engines have under way at once, per rank.
const GROUPS: usize = 3;

/// How much longer than a wait a whole launch may take.
const LAUNCH_WAITS: u32 = 4;

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The GPU, its driver, its compiler or the program.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The copy engines.
    #[error(transparent)]
    CopyEngine(#[from] CopyEngineError),
}

impl From<GpuError> for Error {
    fn from(error: GpuError) -> Error {
        Error::Gpu(error.into())
    }
}

/// How programs run on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// Slots of each rank's ring of tickets, a power of two.
    pub fifo_slots: usize,
    /// Whether memory that is given back is filled with NaN, so that a stale read shows.
    pub poison: bool,
    /// The folder of compiled kernels; none: compile every time.
    pub cache: Option<PathBuf>,
    /// Which engines compute.
    pub compute: Compute,
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions { fifo_slots: 1024, poison: true, cache: crate::config::cache_folder(), compute: Compute::Tried }
    }
}

/// A GPU of this machine.
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    sms: u32,
    options: GpuOptions,
}

impl Gpu {
    /// Opens the first GPU that this process sees.
    ///
    /// # Errors
    /// [`Error::Gpu`] if there is no driver or no GPU.
    pub fn open(options: GpuOptions) -> Result<Gpu, Error> {
        let context = cuda::gpu::open(0).map_err(GpuError::from)?;
        let sms = cuda::gpu::sms(&context).map_err(GpuError::from)?;
        Ok(Gpu { context, sms, options })
    }

    /// The same GPU with other options.
    pub fn with(&self, options: GpuOptions) -> Gpu {
        Gpu { options, ..self.clone() }
    }

    /// The options.
    pub fn options(&self) -> &GpuOptions {
        &self.options
    }

    /// Streaming multiprocessors.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    /// What a planner should believe of one of `ranks` ranks on this GPU: an even share of its SMs, but one for every role.
    pub fn profile(&self, ranks: u32) -> Profile {
        let sms = (self.sms / ranks.max(1)).max(RoleName::ALL.len() as u32);
        Profile { sms, ..Profile::H200 }
    }

    /// An executor of all ranks on this GPU. What goes between nodes travels over its copy engines; `wrap` may put something
    /// around the transport of a rank, such as faults.
    ///
    /// # Errors
    /// [`Error::Gpu`] where the GPU, its compiler or the programs do not allow it.
    pub fn executor<T: Transport>(
        &self,
        programs: Arc<Verified>,
        options: &Options,
        wrap: impl Fn(Rank, CopyEngine) -> T,
    ) -> Result<CudaExecutor<T>, Error> {
        let gpu = cuda::Options {
            deadline: options.deadline,
            launch_deadline: options.deadline.saturating_mul(LAUNCH_WAITS),
            fifo_slots: self.options.fifo_slots,
            poison: self.options.poison,
            cache: self.options.cache.clone(),
            first_epoch: 0,
            compute: self.options.compute,
        };
        let heap = Heap::new(&self.context, &programs, gpu.first_epoch).map_err(GpuError::from)?;
        let engines = Engines::new(&self.context).map_err(GpuError::from)?;
        let mut transports = Vec::new();
        for program in programs.programs() {
            transports.push(wrap(program.rank, engine(&engines, &heap, program)?));
        }
        Ok(CudaExecutor::new(&self.context, programs, heap, transports, gpu).map_err(GpuError::from)?)
    }
}

/// The copy-engine transport of one rank.
fn engine(engines: &Arc<Engines>, heap: &Heap, program: &Program) -> Result<CopyEngine, GpuError> {
    let largest = program.puts.iter().map(|p| p.source.bytes()).max().unwrap_or(0);
    let groups = if program.puts.is_empty() { 1 } else { GROUPS };
    // SAFETY: the heap holds every span and cell of a verified program, and the executor that takes both drops its
    // transports before its heap.
    unsafe { CopyEngine::new(engines, heap.addresses(), groups, largest) }.map_err(GpuError::from)
}
