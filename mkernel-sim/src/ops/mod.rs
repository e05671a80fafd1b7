//! Reference semantics of every instruction: one file per family, one arm in [`Kernels::of`].
//!
//! Both executors run an instruction as `begin`, its segments in order, `finish`. What was read stays in the kernel's
//! own buffers in between, as it stays in registers and shared memory on a device, so that an executor may do other
//! things between any two of these steps.

mod attention;
mod combine;
mod copy;
mod expert;
mod float;
mod gemm;
#[cfg(test)]
pub(crate) mod hostile;
mod merge;
mod pack;
pub(crate) mod put;
mod reduce;
mod release;
mod route;
mod table;

use mkernel_core::{CellId, Op, Program, Rank, Segment, Span};

use crate::host::Host;

/// What an instruction works on.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) host: &'a Host,
    pub(crate) rank: Rank,
    pub(crate) op: &'a Op,
    pub(crate) segments: &'a [Segment],
    pub(crate) writes: &'a [Span],
}

/// A number read from memory is beyond what was planned; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unplanned;

/// One family of operations with its buffers.
pub(crate) trait Kernel {
    /// Starts an instruction.
    fn begin(&mut self, task: &Task<'_>);

    /// Says which of the `count` waits that data may leave out a segment needs; its other waits hold. The same until the
    /// segment is read. All picks are below `count`.
    fn picks(
        &mut self,
        _task: &Task<'_>,
        _index: usize,
        _reads: &[Span],
        count: usize,
    ) -> Result<Vec<usize>, Unplanned> {
        Ok((0..count).collect())
    }

    /// Reads and digests one segment, whose waits hold.
    fn segment(&mut self, task: &Task<'_>, index: usize, reads: &[Span]) -> Result<(), Unplanned>;

    /// Writes the results; the executor raises the signals afterwards.
    fn finish(&mut self, task: &Task<'_>);
}

/// One kernel of each family: what one instruction in progress needs. Buffers are kept from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    attention: attention::Attention,
    copy: copy::Copy,
    gemm: gemm::Gemm,
    reduce: reduce::Reduce,
    release: release::Release,
    pack: pack::Pack,
    route: route::Route,
    expert: expert::Expert,
    combine: combine::Combine,
    merge: merge::Merge,
}

impl Kernels {
    /// The kernel of an operation; none for a put, which is the executor's to push.
    pub(crate) fn of(&mut self, op: &Op) -> Option<&mut dyn Kernel> {
        match op {
            Op::Put(_) => None,
            Op::Copy => Some(&mut self.copy),
            Op::Attention { .. } => Some(&mut self.attention),
            Op::Gemm { .. } => Some(&mut self.gemm),
            Op::Reduce { .. } => Some(&mut self.reduce),
            Op::Release => Some(&mut self.release),
            Op::Pack { .. } => Some(&mut self.pack),
            Op::Route { .. } => Some(&mut self.route),
            Op::Expert { .. } => Some(&mut self.expert),
            Op::Combine { .. } => Some(&mut self.combine),
            Op::Merge { .. } => Some(&mut self.merge),
        }
    }

    /// The cells that a segment waits for because of data, once its other waits hold.
    pub(crate) fn picks(&mut self, task: &Task<'_>, program: &Program, index: usize) -> Result<Vec<CellId>, Unplanned> {
        let segment = &task.segments[index];
        let cells = program.picked(segment);
        match self.of(task.op) {
            Some(kernel) if !cells.is_empty() => {
                let picks = kernel.picks(task, index, program.reads(segment), cells.len())?;
                Ok(picks.into_iter().map(|i| cells[i]).collect())
            }
            _ => Ok(cells.to_vec()),
        }
    }
}

impl<'a> Task<'a> {
    /// The task of one instruction of `program`.
    pub(crate) fn new(host: &'a Host, program: &'a Program, instruction: &'a mkernel_core::Instruction) -> Task<'a> {
        let (segments, writes) = (program.segments(instruction), program.writes(instruction));
        Task { host, rank: program.rank, op: &instruction.op, segments, writes }
    }

    /// Writes one run of bytes and counts it if it leaves the rank.
    fn store(&self, span: &Span, row: u32, bytes: &[u8]) {
        self.host.memory.store(span, row, 0, bytes);
        self.host.traffic.count(self.rank, span.rank, bytes.len() as u64);
    }
}
