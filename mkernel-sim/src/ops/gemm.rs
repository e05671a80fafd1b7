//! Gemm: a tile of a matrix product, summed in f32 over segments in order, rounded once.
//!
//! The same tile gives the same bits whoever runs it and whenever: the sum is taken in blocks of [`BLOCK`] along K from
//! each segment's start, and each block's order of additions depends on its shape alone.

use mkernel_core::{DType, Op, Span};

use super::{Kernel, Task, Unplanned, float};
use crate::sgemm::add_product;

/// Length of a block along K: A and B blocks of a usual tile stay in the second-level cache.
const BLOCK: usize = 256;

/// The running sum and blocks of A and B in f32.
#[derive(Debug, Default)]
pub(super) struct Gemm {
    sum: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    row: Vec<u8>,
    bits: Vec<u16>,
}

fn dtypes(op: &Op) -> (DType, DType) {
    match *op {
        Op::Gemm { input, output } => (input, output),
        _ => panic!("the gemm kernel is only looked up for gemm"),
    }
}

/// Rows and columns of a span of elements.
fn shape(span: &Span, dtype: DType) -> (usize, usize) {
    (span.rows as usize, (span.row_bytes / dtype.bytes()) as usize)
}

impl Gemm {
    /// Converts the columns `columns` of the rows `rows` of a span.
    fn load(&mut self, task: &Task<'_>, span: &Span, rows: (usize, usize), columns: (usize, usize), is_a: bool) {
        let dtype = dtypes(task.op).0;
        let (element, width) = (dtype.bytes(), columns.1 - columns.0);
        let out = if is_a { &mut self.a } else { &mut self.b };
        out.resize((rows.1 - rows.0) * width, 0.0);
        self.row.resize(width * element as usize, 0);
        if width == 0 {
            return;
        }
        for (row, out) in (rows.0..rows.1).zip(out.chunks_exact_mut(width)) {
            task.host.memory.load(span, row as u32, columns.0 as u64 * element, &mut self.row);
            float::widen(dtype, &self.row, &mut self.bits, out);
        }
    }
}

impl Kernel for Gemm {
    fn begin(&mut self, task: &Task<'_>) {
        let (m, n) = shape(&task.writes[0], dtypes(task.op).1);
        self.sum.clear();
        self.sum.resize(m * n, 0.0);
    }

    fn segment(&mut self, task: &Task<'_>, _: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let (input, output) = dtypes(task.op);
        let (a, b) = (&reads[0], &reads[1]);
        let ((m, k), (depth, n)) = (shape(a, input), shape(b, input));
        assert_eq!(((m, n), k), (shape(&task.writes[0], output), depth), "product of {a} and {b}");
        for start in (0..k).step_by(BLOCK) {
            let end = (start + BLOCK).min(k);
            self.load(task, a, (0, m), (start, end), true);
            self.load(task, b, (start, end), (0, n), false);
            add_product((m, n, end - start), &self.a, &self.b, &mut self.sum);
        }
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let (output, target) = (dtypes(task.op).1, &task.writes[0]);
        let (_, n) = shape(target, output);
        for (row, values) in self.sum.chunks_exact(n.max(1)).enumerate() {
            float::narrow(output, values, &mut self.bits, &mut self.row);
            task.store(target, row as u32, &self.row);
        }
    }
}
