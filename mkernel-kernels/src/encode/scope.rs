//! Which memory scope an edge has: the one place that decides it.
//!
//! A signal is an edge from the instruction that raises it to the instructions that wait for its cell. Where both ends
//! are CTAs of one rank they share one GPU, and the GPU's scope is enough. Anything else - another rank (even one that
//! happens to be on the same GPU, perhaps in another process), a proxy, a copy engine, a NIC, the CPU - takes the scope
//! of the system. A release and its acquire may name different scopes as long as each includes the other end; here the
//! wait takes the furthest of its sources.

use mkernel_core::{CellId, Program, Rank, Signal};

use super::layout::EdgeScope;

/// The scope between CTAs of `own` and whatever acts for `other`; `None` is a proxy, an engine or the CPU.
fn between(own: Rank, other: Option<Rank>) -> EdgeScope {
    if other == Some(own) { EdgeScope::Gpu } else { EdgeScope::System }
}

/// The scope at which an instruction of `program` releases `signal`.
pub(super) fn of_signal(program: &Program, signal: &Signal) -> EdgeScope {
    between(program.rank, Some(signal.rank))
}

/// The scope at which waits acquire each cell of `program`.
///
/// A cell is near if this rank's own instructions raise all that arrives there in an epoch; whoever raises the rest
/// (another rank, or a transport, which no instruction names) is far.
pub(super) fn of_waits(program: &Program) -> Vec<EdgeScope> {
    let mut own = vec![0u64; program.cells.len()];
    for (_, _, instruction) in program.instructions() {
        for signal in program.signals(instruction).iter().filter(|s| s.rank == program.rank) {
            if let Some(sum) = own.get_mut(signal.cell.0 as usize) {
                *sum += u64::from(signal.amount);
            }
        }
    }
    let source = |cell: usize| {
        let planned = u64::from(program.cell(CellId(cell as u32)).arrivals);
        (own[cell] == planned).then_some(program.rank)
    };
    (0..own.len()).map(|cell| between(program.rank, source(cell))).collect()
}
