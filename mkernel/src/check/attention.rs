//! The reference of ring attention: `o = softmax(q k^T / sqrt(dim)) v`, row by row in f64.
//!
//! The error of one element, with `s` a score, `p = exp(s - max)` and sums over the keys that the row sees: a score is
//! a sum of `dim` products in f32, so it errs by at most `delta = gamma_{dim+4} |q| max|k| / sqrt(dim)` (norms bound the
//! sum of magnitudes), and every weight by the factor `exp(2 delta)`. Sums run in blocks of 32 to 128 keys, so their
//! error grows with a block and with the number of blocks, not with the number of keys; each block adds one exponential and
//! one rescaling. Both numerator and denominator carry that relative error. Tensor cores take the numerator's weights in
//! the element type: relative to a largest weight of 1, each is rounded once, by its unit roundoff or, near zero, by half of
//! the smallest number. Then comes one rounding to the output type.

use std::ops::Range;

use mkernel_core::{DType, Mask};
use mkernel_kernels::{Operator, RingAttention};

use super::bound::{gamma, tiny};
use super::matmul::accumulate;
use super::{Element, Failure, Judge, Reference};
use crate::tensor::{Tensor, Tensors};

/// Rows of queries whose scores are held at once.
const ROWS: u64 = 64;

impl Reference for RingAttention {
    fn check_all(&self, inputs: &Tensors, outputs: &Tensors, judge: &mut Judge) -> Result<(), Failure> {
        (0..self.batch * self.heads).try_for_each(|head| {
            let keys = Head::new(self, inputs, head);
            (0..self.seq).step_by(ROWS as usize).try_for_each(|start| {
                let rows = start..(start + ROWS).min(self.seq);
                let columns = 0..self.dim;
                keys.judge(self, inputs, outputs, rows, columns, judge)
            })
        })
    }

    fn check_some(
        &self,
        inputs: &Tensors,
        outputs: &Tensors,
        elements: &[Element],
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        let mut sorted = elements.to_vec();
        sorted.sort_by_key(|e| e.row);
        sorted.chunk_by(|a, b| a.row / self.seq == b.row / self.seq).try_for_each(|group| {
            let keys = Head::new(self, inputs, group[0].row / self.seq);
            group.iter().try_for_each(|at| {
                let (row, column) = (at.row % self.seq, at.column);
                keys.judge(self, inputs, outputs, row..row + 1, column..column + 1, judge)
            })
        })
    }
}

/// Keys and values of one head of queries, in f64.
struct Head {
    /// Over batch and heads of queries.
    index: u64,
    /// Keys, `[dim, seq]`.
    keys: Vec<f64>,
    /// Values, `[seq, dim]`.
    values: Vec<f64>,
    /// The largest norm of a key up to each position.
    norms: Vec<f64>,
}

impl Head {
    fn new(problem: &RingAttention, inputs: &Tensors, index: u64) -> Head {
        let (seq, dim) = (problem.seq as usize, problem.dim as usize);
        let group = problem.heads / problem.kv_heads;
        let first = index / group * problem.seq * problem.dim;
        let (k, v) = (tensor(problem, inputs, 1), tensor(problem, inputs, 2));
        let mut keys = vec![0.0; seq * dim];
        let mut norms = Vec::with_capacity(seq);
        let mut largest = 0.0f64;
        for position in 0..seq {
            let mut square = 0.0;
            for column in 0..dim {
                let value = k.at(first + (position * dim + column) as u64);
                keys[column * seq + position] = value;
                square += value * value;
            }
            largest = largest.max(square.sqrt());
            norms.push(largest);
        }
        let values = (0..(seq * dim) as u64).map(|i| v.at(first + i)).collect();
        Head { index, keys, values, norms }
    }

    /// Judges a rectangle of this head's output.
    fn judge(
        &self,
        problem: &RingAttention,
        inputs: &Tensors,
        outputs: &Tensors,
        rows: Range<u64>,
        columns: Range<u64>,
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        let (seq, dim) = (problem.seq as usize, problem.dim as usize);
        let (q, o) = (tensor(problem, inputs, 0), tensor(problem, outputs, 3));
        let first = (self.index * problem.seq + rows.start) * problem.dim;
        let count = (rows.end - rows.start) as usize;
        let query: Vec<f64> = (0..(count * dim) as u64).map(|i| q.at(first + i)).collect();
        let mut scores = vec![0.0; count * seq];
        accumulate((count as u64, problem.dim, problem.seq), &query, &self.keys, &mut scores);
        for (row, position) in rows.enumerate() {
            let seen = if problem.mask == Mask::Causal { position as usize + 1 } else { seq };
            let query = &query[row * dim..][..dim];
            let weights = weights(&mut scores[row * seq..][..seen], problem.dim);
            let relative = self.relative_error(query, seen);
            for column in columns.clone() {
                let values = self.values.iter().skip(column as usize).step_by(dim);
                let (mut value, mut magnitude, mut all) = (0.0, 0.0, 0.0);
                for (weight, v) in weights.iter().zip(values) {
                    value += weight * v;
                    magnitude += weight * v.abs();
                    all += v.abs();
                }
                let output = problem.dtype;
                let rounded = match output {
                    DType::F32 => 0.0,
                    _ => (output.unit_roundoff() * magnitude + tiny(output) * all) * (1.0 + relative),
                };
                let partial = (magnitude + value.abs()) * relative + rounded;
                let bound =
                    partial + output.unit_roundoff() * (value.abs() + partial) + tiny(output) + tiny(DType::F32);
                let at = Element { tensor: "o", row: self.index * problem.seq + position, column };
                judge.within(at, o.at(at.row * problem.dim + column), value, bound, output)?;
            }
        }
        Ok(())
    }

    /// The relative error of numerator and denominator of a row that sees `seen` keys.
    fn relative_error(&self, query: &[f64], seen: usize) -> f64 {
        let unit = DType::F32.unit_roundoff();
        let dim = query.len() as u64;
        let norm = query.iter().map(|q| q * q).sum::<f64>().sqrt();
        let delta = gamma(dim + 4, unit) * norm * self.norms[seen - 1] / (dim as f64).sqrt();
        let sums = gamma(128 + 4 * (seen as u64).div_ceil(32) + 16, unit);
        (2.0 * delta).exp_m1() + sums * (2.0 * delta).exp()
    }
}

/// Turns products of a row into weights that sum to one.
fn weights(scores: &mut [f64], dim: u64) -> &[f64] {
    let scale = 1.0 / (dim as f64).sqrt();
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max) * scale;
    scores.iter_mut().for_each(|s| *s = (*s * scale - maximum).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|s| *s /= sum);
    scores
}

fn tensor<'a>(problem: &RingAttention, tensors: &'a Tensors, index: usize) -> &'a Tensor {
    tensors.expect(&problem.tensors()[index]).expect("tensors of a run have the operator's shapes")
}
