//! Inputs from a seed: the same seed, epoch and tensor always give the same values.

use mkernel_core::DType;
use mkernel_kernels::{Operator, TensorKind, TensorSpec};

use crate::tensor::{Tensor, TensorError, Tensors};

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
    match (fill, spec.dtype) {
        (Fill::Real, DType::Bf16 | DType::F16 | DType::F32) => Tensor::fill(spec, || random.f32() * 2.0 - 1.0),
        (Fill::Exact, _) | (_, DType::I32) => exact(spec, random),
    }
}

/// See [`Fill::Exact`].
fn exact(spec: &TensorSpec, mut random: fastrand::Rng) -> Result<Tensor, TensorError> {
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
    Tensor::fill(spec, || scale * f32::from(random.i8(-1..=1)))
}

/// Rows of zeros with one element of 64 or -64.
fn one_of_each_row(spec: &TensorSpec, mut random: fastrand::Rng) -> Result<Tensor, TensorError> {
    let columns = spec.matrix().1.max(1);
    let (mut column, mut chosen) = (0, 0);
    Tensor::fill(spec, || {
        if column == 0 {
            chosen = random.u64(0..columns);
        }
        let value = if column != chosen {
            0.0
        } else if random.bool() {
            64.0
        } else {
            -64.0
        };
        column = (column + 1) % columns;
        value
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
