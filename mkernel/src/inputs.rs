//! Inputs from a seed: the same seed, epoch and tensor always give the same values.

use mkernel_core::DType;
use mkernel_kernels::{Operator, TensorKind, TensorSpec};

use crate::tensor::{Tensor, Tensors};

/// What the elements are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// Uniform in [-1, 1), rounded once to the element type.
    Real,
    /// Integers from -1 to 1: sums of up to 2^24 products are exact in f32, so results compare bit for bit.
    Integers,
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
    let value = |random: &mut fastrand::Rng| match (fill, spec.dtype) {
        (Fill::Real, DType::Bf16 | DType::F16 | DType::F32) => random.f32() * 2.0 - 1.0,
        (Fill::Integers, _) | (_, DType::I32) => random.i8(-1..=1).into(),
    };
    let values: Vec<f32> = (0..elements).map(|_| value(&mut random)).collect();
    Tensor::from_f32(spec.shape.clone(), spec.dtype, &values).expect("as many values as the shape has elements")
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
