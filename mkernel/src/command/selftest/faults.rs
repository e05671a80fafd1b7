//! What goes wrong ends in the typed error, in time, and the GPU is usable afterwards in the same process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mkernel::gpu::GpuOptions;
use mkernel::{AgGemm, DType, Error, Fault, FaultKind, Gpu, Operator, Options, Rank, RoleCtas, World};
use mkernel_core::transport::{Contract, Post, PostError, TransportError};
use mkernel_core::{Executor, Transport, validate};

use super::Tally;

/// What goes wrong with the puts of rank 0.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    /// One put is retired and never arrives.
    Withheld,
    /// The transport takes nothing any more: the ring of tickets fills up.
    Stuck,
    /// The transport reports an error.
    Broken,
}

/// A transport that does one harm.
struct Faulty<T> {
    inner: T,
    harm: Option<Harm>,
    dropped: Vec<u64>,
}

impl<T: Transport> Transport for Faulty<T> {
    fn contract(&self) -> Contract {
        self.inner.contract()
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        let (token, peer) = (post.token, post.target.rank.0);
        match self.harm {
            Some(Harm::Withheld) if token == 0 => {
                self.dropped.push(token);
                Ok(())
            }
            Some(Harm::Stuck) => Err(PostError::Full),
            Some(Harm::Broken) if token == 1 => Err(TransportError { token, peer, status: 12 }.into()),
            _ => self.inner.post(post),
        }
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        retired.append(&mut self.dropped);
        self.inner.poll(retired)
    }
}

/// Every harm, and after each a launch without one.
pub(super) fn test(gpu: &Gpu, tally: &mut Tally) {
    for harm in [Harm::Withheld, Harm::Stuck, Harm::Broken] {
        tally.cases += 1;
        tally.launches += 2;
        let wrong = match provoke(gpu, Some(harm)) {
            Ok(Some(fault)) => check(harm, &fault).or_else(|| match provoke(gpu, None) {
                Ok(None) => None,
                other => Some(format!("the launch after {fault} gave {other:?}")),
            }),
            Ok(None) => Some("it went unnoticed".to_owned()),
            Err(error) => Some(error),
        };
        tally.failures.extend(wrong.map(|wrong| format!("{harm:?}: {wrong}")));
    }
}

/// What is wrong with the fault, if anything.
fn check(harm: Harm, fault: &Fault) -> Option<String> {
    let is_right = match harm {
        // Whichever wait began first expires first: a tile's for the chunk, or one that waits for the tile.
        Harm::Withheld => fault.kind == FaultKind::Deadline && fault.role.is_some() && fault.seen < fault.wanted,
        // The ring of rank 0 is full, and rank 1 misses what it carries: whichever deadline comes first.
        Harm::Stuck => matches!(fault.kind, FaultKind::FifoFull | FaultKind::Deadline),
        Harm::Broken => (fault.kind, fault.rank, fault.peer) == (FaultKind::Transport, Rank(0), Some(Rank(1))),
    };
    (!is_right).then(|| fault.to_string())
}

/// Launches a 2x1 world of many small puts; the fault of its launch, if there is one.
fn provoke(gpu: &Gpu, harm: Option<Harm>) -> Result<Option<Fault>, String> {
    let world = World::uniform(2, 1).expect("two ranks");
    let operator = AgGemm { m: 1000, n: 64, k: 65, dtype: DType::Bf16 };
    let profile = mkernel::Profile { tile_m: 16, ..gpu.profile(8) };
    let plan = |rank| operator.plan(&world, rank, &profile, &RoleCtas::default());
    let programs = world.ranks().map(plan).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let programs = Arc::new(validate(programs).map_err(|e| e.to_string())?);
    let deadline = Duration::from_millis(300);
    let options = Options { deadline, ..Options::default() };
    let gpu = gpu.with(GpuOptions { fifo_slots: 2, ..gpu.options().clone() });
    let wrap = |rank, inner| {
        let harm = harm.filter(|_| rank == Rank(0));
        Faulty { inner, harm, dropped: Vec::new() }
    };
    let mut executor = gpu.executor(programs, &options, wrap).map_err(|e: Error| e.to_string())?;
    let started = Instant::now();
    let Err(fault) = executor.launch() else { return Ok(None) };
    if started.elapsed() > 6 * deadline {
        return Err(format!("it took {:?}", started.elapsed()));
    }
    match executor.launch() {
        Err(again) if again == fault => Ok(Some(fault)),
        _ => Err("the executor is not poisoned".to_owned()),
    }
}
