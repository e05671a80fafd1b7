//! Merge: packed partial rows of tokens, summed in f32 in segment order and rounded once.

use mkernel_core::{DType, Experts, Op, Span};

use super::table::{Rows, ids, put_count};
use super::{Kernel, Task, Unplanned};

/// One sum for every token of the run, and which tokens have rows.
#[derive(Debug, Default)]
pub(super) struct Merge {
    sums: Vec<f32>,
    values: Vec<f32>,
    table: Vec<i32>,
    rows: Rows,
}

fn parts(op: &Op) -> (Experts, DType, DType) {
    match *op {
        Op::Merge { experts, narrow, output } => (experts, narrow, output),
        _ => panic!("the merge kernel is only looked up for merge"),
    }
}

/// Elements of one row.
fn columns(task: &Task<'_>) -> usize {
    (task.writes[0].row_bytes / parts(task.op).2.bytes()) as usize
}

impl Kernel for Merge {
    fn begin(&mut self, task: &Task<'_>) {
        self.sums.clear();
        self.sums.resize(task.writes[0].rows as usize * columns(task), 0.0);
    }

    fn segment(&mut self, task: &Task<'_>, index: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let (experts, narrow, _) = parts(task.op);
        let (source, columns) = (&reads[0], columns(task));
        let end = task.segments.get(index + 1).map_or(experts.end, |next| next.position as u32);
        let held = Experts { first: task.segments[index].position as u32, end };
        let wide = source.row_bytes == columns as u64 * DType::F32.bytes();
        let dtype = if wide { DType::F32 } else { narrow };
        self.table = ids(task, &reads[1]);
        self.values.resize(columns, 0.0);
        let topk = (reads[1].row_bytes / 4).max(1) as usize;
        let tokens = self.table.chunks_exact(topk).zip(self.sums.chunks_exact_mut(columns.max(1)));
        for (row, (_, sum)) in (0..).zip(tokens.filter(|(slots, _)| held.wants(slots))) {
            self.rows.load(task, dtype, source, row, &mut self.values);
            sum.iter_mut().zip(&self.values).for_each(|(s, v)| *s += v);
        }
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let (experts, _, output) = parts(task.op);
        let (target, columns) = (&task.writes[0], columns(task));
        let topk = (self.table.len() / (target.rows as usize).max(1)).max(1);
        let is_packed = task.writes.len() > 1;
        let tokens = self.table.chunks_exact(topk).zip(self.sums.chunks_exact(columns.max(1)));
        let mut count = 0;
        for (_, sum) in tokens.filter(|(slots, _)| !is_packed || experts.wants(slots)) {
            self.rows.store(task, output, target, count, sum);
            count += 1;
        }
        put_count(task, count);
    }
}
