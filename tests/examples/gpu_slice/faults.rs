//! Faults end in the typed error, in time, and the GPU is usable afterwards in the same process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use mkernel_core::transport::{Contract, Post, PostError, TransportError};
use mkernel_core::{DType, Executor, Fault, FaultKind, Rank, Transport};
use mkernel_kernels::Profile;
use mkernel_kernels::cuda::{CudaError, CudaExecutor, Heap, Options};
use mkernel_nvlink::{CopyEngine, Engines};

use crate::world::{Planned, engine, executor, options};

/// What goes wrong with the puts of rank 0.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    /// One put is retired and never arrives.
    Withheld,
    /// The transport takes nothing any more.
    Stuck,
    /// The transport reports an error.
    Broken,
}

struct Faulty {
    inner: CopyEngine,
    harm: Option<Harm>,
    dropped: Vec<u64>,
}

impl Transport for Faulty {
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

/// Runs a 2x1 world of many small puts until the harm strikes.
fn provoke(context: &Arc<CudaContext>, harm: Option<Harm>) -> Result<Fault, String> {
    let planned = Planned::new(&[1, 1], (1000, 64, 65), DType::Bf16, &Profile { sms: 8, tile_m: 16, ..Profile::H200 });
    let deadline = Duration::from_millis(300);
    let options = Options { deadline, fifo_slots: 2, ..options() };
    let mut gpu = executor(context, &planned.verified, options, |rank, inner| {
        let harm = harm.filter(|_| rank == Rank(0));
        Faulty { inner, harm, dropped: Vec::new() }
    });
    let inputs = planned.case.inputs(1);
    planned.case.write(&mut gpu, &planned.verified, &inputs);
    let started = Instant::now();
    let fault = match gpu.launch() {
        Ok(_) if harm.is_none() => {
            let same = planned.case.read(&gpu, &planned.verified) == planned.case.oracle(&inputs);
            return if same { Ok(Fault::new(FaultKind::Aborted, Rank(0))) } else { Err("wrong afterwards".to_owned()) };
        }
        Ok(_) => return Err(format!("{harm:?} went unnoticed")),
        Err(fault) => fault,
    };
    if started.elapsed() > 4 * deadline {
        return Err(format!("{harm:?} took {:?}", started.elapsed()));
    }
    if gpu.launch() != Err(fault) {
        return Err("the executor is not poisoned".to_owned());
    }
    Ok(fault)
}

/// More CTAs than the GPU holds at once are refused before anything is launched.
fn refuse_too_many(context: &Arc<CudaContext>) -> Result<String, String> {
    let profile = Profile { sms: 4000, ..Profile::H200 };
    let planned = Planned::new(&[1], (1024, 1024, 16), DType::Bf16, &profile);
    let heap = Heap::new(context, &planned.verified, 0).map_err(|e| e.to_string())?;
    let engines = Engines::new(context).map_err(|e| e.to_string())?;
    let transports = vec![engine(&engines, &heap, &planned.verified.programs()[0])];
    match CudaExecutor::new(context, planned.verified.clone(), heap, transports, options()) {
        Err(CudaError::NotResident { asked, sms, per_sm }) if asked > sms * per_sm => {
            Ok(format!("{asked} CTAs refused on {sms} SMs of {per_sm}"))
        }
        Err(other) => Err(other.to_string()),
        Ok(_) => Err("too many CTAs were accepted".to_owned()),
    }
}

pub(crate) fn every_fault_is_typed_and_the_gpu_survives(context: &Arc<CudaContext>) -> Result<String, String> {
    let mut seen = vec![refuse_too_many(context)?];
    for harm in [Harm::Withheld, Harm::Stuck, Harm::Broken] {
        let fault = provoke(context, Some(harm))?;
        let is_right = match harm {
            // Whichever wait began first expires first: a tile's for the chunk, or one that waits for the tile.
            Harm::Withheld => fault.kind == FaultKind::Deadline && fault.role.is_some() && fault.seen < fault.wanted,
            // The ring of rank 0 is full, and rank 1 misses what it carries: whichever deadline comes first.
            Harm::Stuck => matches!(fault.kind, FaultKind::FifoFull | FaultKind::Deadline),
            Harm::Broken => (fault.kind, fault.rank, fault.peer) == (FaultKind::Transport, Rank(0), Some(Rank(1))),
        };
        if !is_right {
            return Err(format!("{harm:?} gave {fault}"));
        }
        seen.push(fault.to_string());
        provoke(context, None)?;
    }
    Ok(seen.join("; "))
}
