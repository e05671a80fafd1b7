//! Copy: every segment's bytes to the span of the same index.

use mkernel_core::Span;

use super::{Kernel, Task, Unplanned};

/// Bytes read so far, segment after segment.
#[derive(Debug, Default)]
pub(super) struct Copy {
    bytes: Vec<u8>,
}

impl Kernel for Copy {
    fn begin(&mut self, _: &Task<'_>) {
        self.bytes.clear();
    }

    fn segment(&mut self, task: &Task<'_>, index: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let (source, target) = (&reads[0], &task.writes[index]);
        assert_eq!((source.rows, source.row_bytes), (target.rows, target.row_bytes), "copy of {source} to {target}");
        let start = self.bytes.len();
        self.bytes.resize(start + source.bytes() as usize, 0);
        task.host.memory.gather(source, &mut self.bytes[start..]);
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let mut rest = self.bytes.as_slice();
        for span in task.writes {
            let (bytes, after) = rest.split_at(span.bytes() as usize);
            task.host.memory.scatter(span, bytes);
            task.host.traffic.count(task.rank, span.rank, span.bytes());
            rest = after;
        }
    }
}
