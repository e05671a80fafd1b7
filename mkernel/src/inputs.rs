//! Inputs from a seed: the same seed, epoch and tensor always give the same values.

use mkernel_core::DType;
use mkernel_kernels::{Operator, TensorKind, TensorSpec};

use crate::tensor::{Tensor, Tensors};

/// What the elements are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// Uniform in [-1, 1), rounded once to the element type.
    Real,
    /// Values for which every step of every operator is exact as long as sums fit 24 bits, so results compare bit for bit:
    /// integers from -1 to 1, and where a function is taken of a sum, sums that are far enough apart for its limits. The
    /// exponential of a difference of scores is 0 or 1, and `silu` of a gate is the gate itself or 0.
    Exact,
}

/// New values for every input of `operator`.
pub fn inputs(operator: &dyn Operator, fill: Fill, seed: u64, epoch: u64) -> Tensors {
    let mut tensors = Tensors::new();
    for (index, spec) in operator.tensors().iter().enumerate() {
        let random = stream(seed, epoch, index as u64);
        match spec.kind {
            TensorKind::Input => tensors.insert(spec.name, input(spec, fill, random)),
            TensorKind::Ids { limit } => tensors.insert(spec.name, table(spec, limit, random)),
            TensorKind::Output => {}
        }
    }
    tensors
}

/// A generator of its own for each tensor and epoch.
fn stream(seed: u64, epoch: u64, index: u64) -> fastrand::Rng {
    // Odd multipliers keep distinct (epoch, index) pairs on distinct seeds; the generator mixes the bits.
    fastrand::Rng::with_seed(
        seed ^ epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03),
    )
}

fn input(spec: &TensorSpec, fill: Fill, mut random: fastrand::Rng) -> Tensor {
    let elements: u64 = spec.shape.iter().product();
    let values: Vec<f32> = match (fill, spec.dtype) {
        (Fill::Exact, _) | (_, DType::I32) => exact(spec, elements, random),
        (Fill::Real, DType::Bf16 | DType::F16 | DType::F32) => {
            (0..elements).map(|_| random.f32() * 2.0 - 1.0).collect()
        }
    };
    Tensor::from_f32(spec.shape.clone(), spec.dtype, &values).expect("as many values as the shape has elements")
}

/// See [`Fill::Exact`].
fn exact(spec: &TensorSpec, elements: u64, mut random: fastrand::Rng) -> Vec<f32> {
    let scale = match spec.name {
        // One element of a query is not zero, so that a score is one product: 0 or 4096 over at most 16.
        "q" => return one_of_each_row(spec, random),
        "k" => 64.0,
        // Multiples of 128: exp(-g) is 0, or infinite, or 1 where g is 0.
        "w_gate" => 128.0,
        // These keep a product of both inside the range of f16.
        "w_up" => 1.0 / 16.0,
        "w_down" => 1.0 / 128.0,
        _ => 1.0,
    };
    let value = |_| scale * f32::from(random.i8(-1..=1));
    (0..elements).map(value).collect()
}

/// Rows of zeros with one element of 64 or -64.
fn one_of_each_row(spec: &TensorSpec, mut random: fastrand::Rng) -> Vec<f32> {
    let (rows, columns) = spec.matrix();
    let mut values = vec![0.0; (rows * columns) as usize];
    for row in values.chunks_exact_mut(columns as usize) {
        row[random.usize(0..columns as usize)] = if random.bool() { 64.0 } else { -64.0 };
    }
    values
}

/// Any id, and one slot in sixteen dropped.
fn table(spec: &TensorSpec, limit: u64, mut random: fastrand::Rng) -> Tensor {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let elements: u64 = spec.shape.iter().product();
    let id = |_| if random.u8(0..16) == 0 { -1 } else { random.i32(0..limit) };
    let bytes = (0..elements).map(id).flat_map(i32::to_le_bytes).collect();
    Tensor::new(spec.shape.clone(), spec.dtype, bytes).expect("as many values as the shape has elements")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_kernels::AgGemm;

    #[test]
    fn values_follow_from_the_seed_and_change_with_epoch_and_tensor() {
        let operator = AgGemm { m: 16, n: 16, k: 16, dtype: DType::Bf16 };
        let of = |seed, epoch| inputs(&operator, Fill::Real, seed, epoch);
        assert_eq!(of(1, 0), of(1, 0));
        assert_ne!(of(1, 0), of(1, 1));
        assert_ne!(of(1, 0), of(2, 0));
        let one = of(1, 0);
        assert_ne!(one.get("a"), one.get("b"));
    }
}
