//! Inputs from a seed: the same seed, epoch and tensor always give the same values.

use mkernel_core::DType;
use mkernel_kernels::{Operator, TensorKind, TensorSpec};

use crate::tensor::{Tensor, TensorError, Tensors};

/// What the elements are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// Uniform in [-1, 1), rounded once to the element type.
    Real,
    /// Integers from -1 to 1: sums of up to 2^24 products are exact in f32, so results compare bit for bit.
    Integers,
}

/// New values for every input of `operator`.
///
/// # Errors
/// [`TensorError::TooLarge`] for a shape that memory cannot hold.
pub fn inputs(operator: &dyn Operator, fill: Fill, seed: u64, epoch: u64) -> Result<Tensors, TensorError> {
    let mut tensors = Tensors::new();
    for (index, spec) in operator.tensors().iter().enumerate() {
        let random = stream(seed, epoch, index as u64);
        match spec.kind {
            TensorKind::Input => tensors.insert(spec.name, input(spec, fill, random)?),
            TensorKind::Ids { limit } => tensors.insert(spec.name, table(spec, limit, random)?),
            TensorKind::Output => {}
        }
    }
    Ok(tensors)
}

/// A generator of its own for each tensor and epoch.
fn stream(seed: u64, epoch: u64, index: u64) -> fastrand::Rng {
    // Odd multipliers keep distinct (epoch, index) pairs on distinct seeds; the generator mixes the bits.
    fastrand::Rng::with_seed(
        seed ^ epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03),
    )
}

fn input(spec: &TensorSpec, fill: Fill, mut random: fastrand::Rng) -> Result<Tensor, TensorError> {
    Tensor::fill(spec, || match (fill, spec.dtype) {
        (Fill::Real, DType::Bf16 | DType::F16 | DType::F32) => random.f32() * 2.0 - 1.0,
        (Fill::Integers, _) | (_, DType::I32) => random.i8(-1..=1).into(),
    })
}

/// Any id, and one slot in sixteen dropped.
fn table(spec: &TensorSpec, limit: u64, mut random: fastrand::Rng) -> Result<Tensor, TensorError> {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    Tensor::ids(spec, || if random.u8(0..16) == 0 { -1 } else { random.i32(0..limit) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use mkernel_kernels::{AgGemm, MoeDispatchGemm};

    #[test]
    fn values_follow_from_the_seed_and_change_with_epoch_and_tensor() {
        let operator = AgGemm { m: 16, n: 16, k: 16, dtype: DType::Bf16 };
        let of = |seed, epoch| inputs(&operator, Fill::Real, seed, epoch).unwrap();
        assert_eq!(of(1, 0), of(1, 0));
        assert_ne!(of(1, 0), of(1, 1));
        assert_ne!(of(1, 0), of(2, 0));
        let one = of(1, 0);
        assert_ne!(one.get("a"), one.get("b"));
    }

    #[test]
    fn shapes_that_no_memory_holds_are_refused_by_name() {
        let most = u64::MAX;
        let product = AgGemm { m: most, n: 2, k: most, dtype: DType::F32 };
        let experts = MoeDispatchGemm { tokens: 1 << 60, hidden: 1, inner: 1, experts: 1, topk: 4, dtype: DType::Bf16 };
        for (operator, name) in [(&product as &dyn Operator, "a"), (&experts, "x")] {
            let refused = inputs(operator, Fill::Real, 1, 0).unwrap_err();
            assert!(matches!(refused, TensorError::TooLarge { name: found, .. } if found == name), "{refused}");
            let zeros: Vec<_> = operator.tensors().iter().map(Tensor::zeros).filter(Result::is_err).collect();
            assert!(!zeros.is_empty(), "{name}");
        }
    }
}
