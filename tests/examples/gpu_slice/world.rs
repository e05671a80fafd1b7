//! A world of virtual ranks on the GPU.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use mkernel_core::{DType, Program, Rank, Transport, Verified, World, validate};
use mkernel_kernels::cuda::{CudaExecutor, Heap, Options};
use mkernel_kernels::{AgGemm, Operator, Profile, RoleCtas};
use mkernel_nvlink::{CopyEngine, Engines};
use mkernel_tests::ag_gemm::Case;

/// Groups of puts under way at once, per rank.
const GROUPS: usize = 3;

/// A case planned with a profile.
pub(crate) struct Planned {
    pub(crate) case: Case,
    pub(crate) verified: Arc<Verified>,
}

impl Planned {
    /// Plans `m x n x k` for a world, the GPU's SMs shared evenly by its ranks.
    pub(crate) fn new(gpus: &[u32], (m, n, k): (u64, u64, u64), dtype: DType, profile: &Profile) -> Planned {
        let op = AgGemm { m, n, k, dtype };
        let world = World::new(gpus).expect("a sound world");
        let profile = Profile { sms: profile.sms / world.size(), ..*profile };
        let plan = |rank: Rank| op.plan(&world, rank, &profile, &RoleCtas::default()).expect("a sound problem");
        let programs: Vec<Program> = world.ranks().map(plan).collect();
        let verified = validate(programs).unwrap_or_else(|violation| panic!("{op:?} {world}: {violation}"));
        Planned { case: Case { gpus: gpus.to_vec(), op, roles: RoleCtas::default() }, verified: Arc::new(verified) }
    }
}

/// The folder of compiled kernels of this run.
pub(crate) fn options() -> Options {
    let cache = std::env::temp_dir().join("mkernel-gpu-slice");
    Options { cache: Some(cache), poison: true, ..Options::default() }
}

/// The copy-engine transport of one rank.
pub(crate) fn engine(engines: &Arc<Engines>, heap: &Heap, program: &Program) -> CopyEngine {
    let largest = program.puts.iter().map(|p| p.source.bytes()).max().unwrap_or(0);
    let groups = if program.puts.is_empty() { 1 } else { GROUPS };
    // SAFETY: the heap holds every span and cell of a verified program, and the executor that takes both drops its
    // transports before its heap.
    unsafe { CopyEngine::new(engines, heap.addresses(), groups, largest) }.expect("events and pinned memory")
}

/// An executor whose transports are made from the copy engines' by `wrap`.
pub(crate) fn executor<T: Transport>(
    context: &Arc<CudaContext>,
    verified: &Arc<Verified>,
    options: Options,
    wrap: impl Fn(Rank, CopyEngine) -> T,
) -> CudaExecutor<T> {
    let heap = Heap::new(context, verified, options.first_epoch).expect("device memory");
    let engines = Engines::new(context).expect("streams");
    let transports = verified.programs().iter().map(|p| wrap(p.rank, engine(&engines, &heap, p))).collect::<Vec<T>>();
    CudaExecutor::new(context, verified.clone(), heap, transports, options).unwrap_or_else(|error| panic!("{error}"))
}
