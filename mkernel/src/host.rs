//! The host executor: picks it and makes sure that its memory exists.

use std::sync::Arc;

use mkernel_core::{Executor, Program, Verified};
use mkernel_kernels::Operator;

use crate::error::Error;
use crate::session::Options;

/// The executor of all ranks of `programs` in this process.
#[cfg(feature = "sim")]
pub(crate) fn executor(programs: Arc<Verified>, options: &Options) -> Result<Box<dyn Executor>, Error> {
    use crate::session::Schedule;
    let mut host = mkernel_sim::Options {
        deadline: options.deadline,
        trace: options.is_traced,
        ..mkernel_sim::Options::default()
    };
    Ok(match options.schedule {
        Schedule::Threads => Box::new(mkernel_sim::Threaded::new(programs, host)?),
        Schedule::Seeded(seed) => {
            host.seed = seed;
            Box::new(mkernel_sim::Seeded::new(programs, host)?)
        }
    })
}

/// The executor of all ranks of `programs` in this process.
#[cfg(not(feature = "sim"))]
pub(crate) fn executor(_programs: Arc<Verified>, _options: &Options) -> Result<Box<dyn Executor>, Error> {
    Err(Error::NoExecutor)
}

/// What of a world the memory of this machine's host holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The regions of all ranks and the global tensors.
    Everything,
    /// The regions of all ranks and the global tensors once per rank.
    EverythingPerProcess,
    /// The global tensors.
    #[cfg(feature = "cuda")]
    Tensors,
}

/// Refuses a world whose part on the host does not fit this machine. `program` is that of rank 0, whose shares are the
/// largest.
pub(crate) fn check_memory(operator: &dyn Operator, program: &Program, holds: Holds) -> Result<(), Error> {
    let Some(available) = available_memory() else { return Ok(()) };
    let rank: u64 = program.regions.iter().map(|r| r.bytes).fold(0, u64::saturating_add);
    let elements = |shape: &[u64]| shape.iter().fold(1u64, |product, &axis| product.saturating_mul(axis));
    let tensors = operator
        .tensors()
        .iter()
        .fold(0u64, |sum, t| sum.saturating_add(elements(&t.shape).saturating_mul(t.dtype.bytes())));
    let ranks = u64::from(program.world.size());
    let (regions, copies) = match holds {
        Holds::Everything => (ranks, 1),
        Holds::EverythingPerProcess => (ranks, ranks),
        #[cfg(feature = "cuda")]
        Holds::Tensors => (0, 1),
    };
    let needed = rank.saturating_mul(regions).saturating_add(tensors.saturating_mul(copies));
    if needed > available { Err(Error::Memory { needed, available }) } else { Ok(()) }
}

/// Bytes that a proof takes for each byte of the programs: the events of three epochs, their marks and claims.
const PROOF: u64 = 4;

/// Refuses a world whose programs do not fit this machine while they are proved. `program` is that of rank 0, and `ranks` are
/// planned.
pub(crate) fn check_plan(program_bytes: u64, ranks: u64) -> Result<(), Error> {
    let Some(available) = available_memory() else { return Ok(()) };
    let needed = program_bytes.saturating_mul(ranks).saturating_mul(PROOF);
    if needed > available { Err(Error::Memory { needed, available }) } else { Ok(()) }
}

/// Bytes that can be allocated without swapping, where the system says so (proc(5), `MemAvailable`).
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
