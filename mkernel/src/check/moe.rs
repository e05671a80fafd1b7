//! The references of the mixture of experts, expert by expert in f64.
//!
//! The dispatched product is one sum per element. For the layer an error bound is carried along: the errors of gate and
//! second product move the activation by at most `1.1 = max |silu'|` times the one and `|silu(g)|` times the other; it is
//! rounded once; the last product carries those errors on and adds its own; then come sums in f32, one rounding per node
//! and one of the output.

use mkernel_core::DType;
use mkernel_kernels::{MoeDispatchGemm, MoeFfn};

use super::bound::tiny;
use super::matmul::{Matrix, accumulate};
use super::{Element, Failure, Judge, Reference, Term};
use crate::tensor::{Tensor, Tensors};

/// Rows that are multiplied at once.
const ROWS: usize = 256;

/// Unit roundoff of f32.
const UNIT: f64 = 1.0 / 16_777_216.0;

/// The largest finite f32, nearly: what is beyond it may overflow on the way.
const LARGE: f64 = 1e38;

/// A product and the product of magnitudes, row-major.
struct Product {
    value: Vec<f64>,
    magnitude: Vec<f64>,
}

/// One expert's weights in f64.
struct Weights {
    depth: u64,
    columns: u64,
    value: Vec<f64>,
    magnitude: Vec<f64>,
}

impl Weights {
    /// Columns `columns` of expert `expert` of a tensor `[experts, depth, width]`.
    fn of(tensor: &Tensor, expert: u64, columns: std::ops::Range<u64>) -> Weights {
        let &[_, depth, width] = tensor.shape() else { panic!("weights of a run have the operator's shape") };
        let mut value = Vec::new();
        Matrix { tensor, columns: width }.unpack(&(expert * depth..(expert + 1) * depth), &columns, &mut value);
        let magnitude = value.iter().map(|v| v.abs()).collect();
        Weights { depth, columns: columns.end - columns.start, value, magnitude }
    }

    fn all(tensor: &Tensor, expert: u64) -> Weights {
        Weights::of(tensor, expert, 0..tensor.shape()[2])
    }

    /// Rows of `depth` elements, times the weights.
    fn product(&self, rows: &[f64]) -> Product {
        let magnitudes: Vec<f64> = rows.iter().map(|v| v.abs()).collect();
        Product { value: self.plain(rows, &self.value), magnitude: self.plain(&magnitudes, &self.magnitude) }
    }

    fn plain(&self, rows: &[f64], weights: &[f64]) -> Vec<f64> {
        let m = rows.len() as u64 / self.depth;
        let mut sum = vec![0.0; (m * self.columns) as usize];
        accumulate((m, self.depth, self.columns), rows, weights, &mut sum);
        sum
    }
}

/// The tensor of a run.
fn tensor<'a>(tensors: &'a Tensors, name: &str) -> &'a Tensor {
    tensors.get(name).expect("a run has all tensors of its operator")
}

/// Rows of a tensor taken as a matrix, in f64.
fn rows_of(tensor: &Tensor, rows: &[u64]) -> Vec<f64> {
    let columns = *tensor.shape().last().expect("no tensor of an operator is a scalar");
    rows.iter().flat_map(|row| (0..columns).map(move |c| tensor.at(row * columns + c))).collect()
}

/// The slots of the table that name each expert.
fn slots_by_expert(ids: &[i32], experts: u64) -> Vec<Vec<u64>> {
    let mut slots = vec![Vec::new(); experts as usize];
    for (slot, &id) in (0..).zip(ids) {
        if let Ok(id) = usize::try_from(id) {
            slots[id].push(slot);
        }
    }
    slots
}

fn are_integers(tensor: &Tensor) -> bool {
    let elements = tensor.bytes().len() as u64 / tensor.dtype().bytes();
    (0..elements).all(|i| tensor.at(i).fract() == 0.0)
}

impl Reference for MoeDispatchGemm {
    fn check_all(&self, inputs: &Tensors, outputs: &Tensors, judge: &mut Judge) -> Result<(), Failure> {
        let (x, w1, y) = (tensor(inputs, "x"), tensor(inputs, "w1"), tensor(outputs, "y"));
        let ids = tensor(inputs, "topk_ids").to_i32();
        let is_integer = are_integers(x) && are_integers(w1);
        let mut judge_row = |slot: u64, values: &[f64], magnitudes: &[f64]| {
            (0..).zip(values.iter().zip(magnitudes)).try_for_each(|(column, (&value, &magnitude))| {
                let term = Term { value, magnitude, length: self.hidden, is_integer, partial: None };
                let at = Element { tensor: "y", row: slot, column };
                judge.element(at, y.at(slot * self.inner + column), &term, self.dtype)
            })
        };
        for (expert, slots) in (0..).zip(slots_by_expert(&ids, self.experts)) {
            let weights = if slots.is_empty() { continue } else { Weights::all(w1, expert) };
            for slots in slots.chunks(ROWS) {
                let tokens: Vec<u64> = slots.iter().map(|slot| slot / self.topk).collect();
                let product = weights.product(&rows_of(x, &tokens));
                let width = self.inner as usize;
                let rows = product.value.chunks_exact(width).zip(product.magnitude.chunks_exact(width));
                slots.iter().zip(rows).try_for_each(|(&slot, (v, m))| judge_row(slot, v, m))?;
            }
        }
        let zeros = vec![0.0; self.inner as usize];
        let dropped = (0..).zip(&ids).filter(|(_, id)| **id < 0);
        dropped.into_iter().try_for_each(|(slot, _)| judge_row(slot, &zeros, &zeros))
    }

    fn check_some(
        &self,
        inputs: &Tensors,
        outputs: &Tensors,
        elements: &[Element],
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        let (x, w1, y) = (tensor(inputs, "x"), tensor(inputs, "w1"), tensor(outputs, "y"));
        let ids = tensor(inputs, "topk_ids").to_i32();
        for &at in elements {
            let mut term = Term { value: 0.0, magnitude: 0.0, length: self.hidden, is_integer: true, partial: None };
            if let Ok(expert) = u64::try_from(ids[at.row as usize]) {
                for i in 0..self.hidden {
                    let a = x.at(at.row / self.topk * self.hidden + i);
                    let b = w1.at((expert * self.hidden + i) * self.inner + at.column);
                    term.value += a * b;
                    term.magnitude += (a * b).abs();
                    term.is_integer &= a.fract() == 0.0 && b.fract() == 0.0;
                }
            }
            judge.element(at, y.at(at.row * self.inner + at.column), &term, self.dtype)?;
        }
        Ok(())
    }
}

/// Sums of the layer with the error that each may have.
struct Sums {
    value: Vec<f64>,
    bound: Vec<f64>,
}

/// Activations of some rows with the error that each may have.
fn activations(operator: &MoeFfn, gate: &Product, up: &Product) -> (Vec<f64>, Vec<f64>) {
    let (gamma, dtype) = ((operator.hidden as f64 + 4.0) * UNIT, operator.dtype);
    let one = |i: usize| {
        let (g, u) = (gate.value[i], up.value[i]);
        let (g_error, u_error) = (gamma * gate.magnitude[i], gamma * up.magnitude[i]);
        let silu = g / (1.0 + (-g).exp());
        let error = 1.1 * g_error * (u.abs() + u_error) + silu.abs() * (u_error + 8.0 * UNIT * u.abs());
        let value = silu * u;
        let bound = error + dtype.unit_roundoff() * (value.abs() + error) + tiny(dtype);
        let overflows = gate.magnitude[i] > LARGE || value.abs() + bound > largest(dtype);
        (value, if overflows { f64::INFINITY } else { bound })
    };
    (0..gate.value.len()).map(one).unzip()
}

impl Sums {
    /// Adds what one expert gives for some slots to `rows`, for the columns of the last of its weights.
    fn add(&mut self, operator: &MoeFfn, inputs: &Tensors, weights: [&Weights; 3], slots: &[u64], rows: &[u64]) {
        let [gate, up, down] = weights;
        let tokens: Vec<u64> = slots.iter().map(|slot| slot / operator.topk).collect();
        let x = rows_of(tensor(inputs, "x"), &tokens);
        let (a, error) = activations(operator, &gate.product(&x), &up.product(&x));
        let value = down.plain(&a, &down.value);
        let depth = (operator.inner as f64 + 4.0) * UNIT;
        let moved: Vec<f64> = a.iter().zip(&error).map(|(a, e)| e + depth * (a.abs() + e)).collect();
        let moved = down.plain(&moved, &down.magnitude);
        let later = 1.01 * (2.0 * operator.dtype.unit_roundoff() + (operator.topk as f64 + 8.0) * UNIT);
        let width = down.columns as usize;
        for (i, (&slot, &row)) in slots.iter().zip(rows).enumerate() {
            let weight = tensor(inputs, "topk_weights").at(slot);
            for column in 0..width {
                let (from, to) = (i * width + column, row as usize * width + column);
                self.value[to] += weight * value[from];
                self.bound[to] += weight.abs() * (moved[from] + later * (value[from].abs() + moved[from]));
            }
        }
    }
}

/// Judges one sum; one that may overflow on the way is not judged.
fn judge_sum(
    judge: &mut Judge,
    at: Element,
    found: f64,
    (value, bound): (f64, f64),
    dtype: DType,
) -> Result<(), Failure> {
    if !value.is_finite() || !bound.is_finite() {
        return Ok(());
    }
    judge.within(at, found, value, bound + tiny(dtype), dtype)
}

/// The largest finite number of a type.
fn largest(dtype: DType) -> f64 {
    if dtype == DType::F16 { 65504.0 } else { LARGE }
}

impl Reference for MoeFfn {
    fn check_all(&self, inputs: &Tensors, outputs: &Tensors, judge: &mut Judge) -> Result<(), Failure> {
        let ids = tensor(inputs, "topk_ids").to_i32();
        let zeros = vec![0.0; (self.tokens * self.hidden) as usize];
        let mut sums = Sums { value: zeros.clone(), bound: zeros };
        for (expert, slots) in (0..).zip(slots_by_expert(&ids, self.experts)) {
            if slots.is_empty() {
                continue;
            }
            let [gate, up, down] = ["w_gate", "w_up", "w_down"].map(|name| Weights::all(tensor(inputs, name), expert));
            for slots in slots.chunks(ROWS) {
                let rows: Vec<u64> = slots.iter().map(|slot| slot / self.topk).collect();
                sums.add(self, inputs, [&gate, &up, &down], slots, &rows);
            }
        }
        let y = tensor(outputs, "y");
        (0..).zip(sums.value.iter().zip(&sums.bound)).try_for_each(|(i, (&value, &bound))| {
            let at = Element { tensor: "y", row: i / self.hidden, column: i % self.hidden };
            judge_sum(judge, at, y.at(i), (value, bound), self.dtype)
        })
    }

    fn check_some(
        &self,
        inputs: &Tensors,
        outputs: &Tensors,
        elements: &[Element],
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        let (ids, y) = (tensor(inputs, "topk_ids").to_i32(), tensor(outputs, "y"));
        for &at in elements {
            let mut sums = Sums { value: vec![0.0], bound: vec![0.0] };
            for slot in at.row * self.topk..(at.row + 1) * self.topk {
                let Ok(expert) = u64::try_from(ids[slot as usize]) else { continue };
                let [gate, up] = ["w_gate", "w_up"].map(|name| Weights::all(tensor(inputs, name), expert));
                let down = Weights::of(tensor(inputs, "w_down"), expert, at.column..at.column + 1);
                sums.add(self, inputs, [&gate, &up, &down], &[slot], &[0]);
            }
            let found = y.at(at.row * self.hidden + at.column);
            judge_sum(judge, at, found, (sums.value[0], sums.bound[0]), self.dtype)?;
        }
        Ok(())
    }
}
