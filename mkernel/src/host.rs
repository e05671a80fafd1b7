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

/// Refuses a world whose regions and global tensors do not fit this machine. `program` is that of rank 0, whose shares
/// are the largest. Where ranks are processes, each has the global tensors.
pub(crate) fn check_memory(operator: &dyn Operator, program: &Program, are_processes: bool) -> Result<(), Error> {
    let Some(available) = available_memory() else { return Ok(()) };
    let rank: u64 = program.regions.iter().map(|r| r.bytes).fold(0, u64::saturating_add);
    let elements = |shape: &[u64]| shape.iter().fold(1u64, |product, &axis| product.saturating_mul(axis));
    let tensors = operator
        .tensors()
        .iter()
        .fold(0u64, |sum, t| sum.saturating_add(elements(&t.shape).saturating_mul(t.dtype.bytes())));
    let ranks = u64::from(program.world.size());
    let copies = if are_processes { ranks } else { 1 };
    let needed = rank.saturating_mul(ranks).saturating_add(tensors.saturating_mul(copies));
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
