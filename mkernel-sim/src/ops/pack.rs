//! Pack: the rows of tokens with an expert in a range, in order.

use mkernel_core::{Op, Span};

use super::table::{Rows, ids, put_count};
use super::{Kernel, Task, Unplanned};

/// The rows to be written, one after the other.
#[derive(Debug, Default)]
pub(super) struct Pack {
    packed: Vec<u8>,
    rows: Rows,
}

impl Kernel for Pack {
    fn begin(&mut self, _: &Task<'_>) {
        self.packed.clear();
    }

    fn segment(&mut self, task: &Task<'_>, _: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let Op::Pack { held, wanted } = *task.op else { panic!("the pack kernel is only looked up for pack") };
        let (source, table) = (&reads[0], ids(task, &reads[1]));
        let topk = (reads[1].row_bytes / 4).max(1) as usize;
        let mut row = 0;
        for slots in table.chunks_exact(topk) {
            let is_held = held.is_none_or(|h| h.wants(slots));
            if is_held && wanted.wants(slots) {
                self.packed.extend_from_slice(self.rows.raw(task, source, row));
            }
            row += u32::from(is_held);
        }
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let target = &task.writes[0];
        let rows = self.packed.chunks_exact(target.row_bytes.max(1) as usize);
        put_count(task, rows.len() as u32);
        rows.enumerate().for_each(|(row, bytes)| task.store(target, row as u32, bytes));
    }
}
