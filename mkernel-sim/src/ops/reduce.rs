//! Reduce: sources summed in f32 in segment order, rounded once.

use mkernel_core::{DType, Op, Span};

use super::{Kernel, Task, Unplanned, float};

/// The running sum, row after row.
#[derive(Debug, Default)]
pub(super) struct Reduce {
    sum: Vec<f32>,
    values: Vec<f32>,
    row: Vec<u8>,
    bits: Vec<u16>,
}

fn dtypes(op: &Op) -> (DType, DType) {
    match *op {
        Op::Reduce { narrow, output } => (narrow, output),
        _ => panic!("the reduce kernel is only looked up for reduce"),
    }
}

/// Elements of one row of the written span.
fn columns(task: &Task<'_>) -> usize {
    (task.writes[0].row_bytes / dtypes(task.op).1.bytes()) as usize
}

impl Kernel for Reduce {
    fn begin(&mut self, _: &Task<'_>) {
        self.sum.clear();
    }

    fn segment(&mut self, task: &Task<'_>, index: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let (source, columns) = (&reads[0], columns(task));
        let wide = source.row_bytes == columns as u64 * DType::F32.bytes();
        let dtype = if wide { DType::F32 } else { dtypes(task.op).0 };
        self.row.resize(source.row_bytes as usize, 0);
        self.values.resize(columns, 0.0);
        for row in 0..source.rows {
            task.host.memory.load(source, row, 0, &mut self.row);
            float::widen(dtype, &self.row, &mut self.bits, &mut self.values);
            if index == 0 {
                self.sum.extend_from_slice(&self.values);
            } else {
                let sum = &mut self.sum[row as usize * columns..][..columns];
                sum.iter_mut().zip(&self.values).for_each(|(s, v)| *s += v);
            }
        }
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let columns = columns(task);
        for (row, values) in self.sum.chunks_exact(columns.max(1)).enumerate() {
            float::narrow(dtypes(task.op).1, values, &mut self.bits, &mut self.row);
            task.store(&task.writes[0], row as u32, &self.row);
        }
    }
}
