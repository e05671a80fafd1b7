//! Copy: every segment's bytes to the span of the same index.
//!
//! Bytes move once, when the instruction is about to retire: who overwrites a source waits for the instruction's signals.

use mkernel_core::Span;

use super::{Kernel, Task, Unplanned};

/// What the segments read, in order.
#[derive(Debug, Default)]
pub(super) struct Copy {
    sources: Vec<Span>,
}

impl Kernel for Copy {
    fn begin(&mut self, _: &Task<'_>) {
        self.sources.clear();
    }

    fn segment(&mut self, task: &Task<'_>, index: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let (source, target) = (&reads[0], &task.writes[index]);
        assert_eq!((source.rows, source.row_bytes), (target.rows, target.row_bytes), "copy of {source} to {target}");
        self.sources.push(*source);
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        for (source, target) in self.sources.iter().zip(task.writes) {
            for row in 0..if source.is_empty() { 0 } else { source.rows } {
                task.host.memory.carry(source, target, row, 0, source.row_bytes);
            }
            task.host.traffic.count(task.rank, target.rank, target.bytes());
        }
    }
}
