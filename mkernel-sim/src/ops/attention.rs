//! Attention: a tile of queries against keys that come in segments, with a running softmax in f32.
//!
//! Per row the state is the maximum score so far, the sum of exponentials relative to it, and the output relative to
//! it; a new block of keys rescales all three when the maximum rises (online softmax: Milakov and Gimelshein 2018, as in
//! FlashAttention, Dao et al. 2022). The maximum is subtracted before every exponential, so no score overflows. Blocks
//! are cut from each segment's start and never cross the mask inside a row's visible keys, so the order of operations
//! follows from the plan alone.

use mkernel_core::{DType, Mask, Op, Span};

use super::{Kernel, Task, Unplanned, float};
use crate::sgemm::{add_product, add_product_with_transpose};

/// Keys of a block.
const BLOCK: usize = 128;

/// State of one tile, row after row.
#[derive(Debug, Default)]
pub(super) struct Attention {
    query: Vec<f32>,
    maximum: Vec<f32>,
    sum: Vec<f32>,
    output: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    row: Vec<u8>,
    bits: Vec<u16>,
}

/// The parts of the operation, with the element type.
fn parts(op: &Op) -> (DType, Mask, u64) {
    match *op {
        Op::Attention { dtype, mask, query } => (dtype, mask, query),
        _ => panic!("the attention kernel is only looked up for attention"),
    }
}

/// Loads rows `start..end` of a matrix as f32.
fn load(
    task: &Task<'_>,
    span: &Span,
    rows: (usize, usize),
    scratch: (&mut Vec<u8>, &mut Vec<u16>),
    out: &mut Vec<f32>,
) {
    let dtype = parts(task.op).0;
    let width = (span.row_bytes / dtype.bytes()) as usize;
    let (bytes, bits) = scratch;
    out.resize((rows.1 - rows.0) * width, 0.0);
    bytes.resize(span.row_bytes as usize, 0);
    for (row, values) in (rows.0..rows.1).zip(out.chunks_exact_mut(width)) {
        task.host.memory.load(span, row as u32, 0, bytes);
        float::widen(dtype, bytes, bits, values);
    }
}

impl Attention {
    /// Digests one block of keys, the first of which stands at `position`.
    fn block(&mut self, dim: usize, visible: impl Fn(usize) -> usize) {
        let (rows, keys) = (self.maximum.len(), self.keys.len() / dim);
        self.scores.clear();
        self.scores.resize(rows * keys, 0.0);
        add_product_with_transpose((rows, keys, dim), &self.query, &self.keys, &mut self.scores);
        let is_full = (0..rows).all(|row| visible(row) >= keys);
        for row in 0..rows {
            // Masked keys take no part at all: a zero weight would still carry a NaN of their values.
            let seen = visible(row).min(keys);
            if seen == 0 {
                continue;
            }
            let scores = &mut self.scores[row * keys..row * keys + seen];
            let maximum = scores.iter().copied().fold(self.maximum[row], f32::max);
            // Rows that have seen nothing but -inf have no finite maximum to subtract.
            let origin = if maximum == f32::NEG_INFINITY { 0.0 } else { maximum };
            let rescale = (self.maximum[row] - origin).exp();
            scores.iter_mut().for_each(|s| *s = (*s - origin).exp());
            self.sum[row] = self.sum[row] * rescale + scores.iter().sum::<f32>();
            self.maximum[row] = maximum;
            let output = &mut self.output[row * dim..][..dim];
            output.iter_mut().for_each(|o| *o *= rescale);
            if !is_full {
                add_product((1, dim, seen), scores, &self.values[..seen * dim], output);
            }
        }
        if is_full {
            add_product((rows, dim, keys), &self.scores, &self.values, &mut self.output);
        }
    }
}

impl Kernel for Attention {
    fn begin(&mut self, task: &Task<'_>) {
        let (rows, dim) = (task.writes[0].rows as usize, task.writes[0].row_bytes / parts(task.op).0.bytes());
        self.query.clear();
        self.maximum.clear();
        self.maximum.resize(rows, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(rows, 0.0);
        self.output.clear();
        self.output.resize(rows * dim as usize, 0.0);
    }

    fn segment(&mut self, task: &Task<'_>, index: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let (dtype, mask, first_row) = parts(task.op);
        let dim = (task.writes[0].row_bytes / dtype.bytes()) as usize;
        let reads = match reads {
            [query, keys @ ..] if index == 0 => {
                let scratch = (&mut self.row, &mut self.bits);
                load(task, query, (0, query.rows as usize), scratch, &mut self.query);
                let scale = 1.0 / (dim as f32).sqrt();
                self.query.iter_mut().for_each(|q| *q *= scale);
                keys
            }
            keys => keys,
        };
        let (keys, position) = (reads[0].rows as usize, task.segments[index].position);
        for start in (0..keys).step_by(BLOCK) {
            let rows = (start, (start + BLOCK).min(keys));
            load(task, &reads[0], rows, (&mut self.row, &mut self.bits), &mut self.keys);
            load(task, &reads[1], rows, (&mut self.row, &mut self.bits), &mut self.values);
            let first_key = position + start as u64;
            self.block(dim, |row| match mask {
                Mask::None => BLOCK,
                Mask::Causal => (first_row + row as u64 + 1).saturating_sub(first_key) as usize,
            });
        }
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let dtype = parts(task.op).0;
        let dim = (task.writes[0].row_bytes / dtype.bytes()) as usize;
        for (row, values) in self.output.chunks_exact_mut(dim).enumerate() {
            values.iter_mut().for_each(|v| *v /= self.sum[row]);
            float::narrow(dtype, values, &mut self.bits, &mut self.row);
            task.store(&task.writes[0], row as u32, &self.row);
        }
    }
}
