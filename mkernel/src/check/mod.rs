//! Checks results against an f64 reference on the host, one element at a time.
//!
//! Every operator says in a file of its own how an element follows from the inputs ([`Reference`]); what counts as right
//! is decided here, once:
//!
//! - **Exact.** Where all terms of a sum are integers and the sum of their magnitudes is at most 2^24, every partial sum
//!   is an integer that f32 represents, in any order. Then the result is the reference rounded once, bit for bit (zeros
//!   of either sign are equal).
//! - **Bound.** Otherwise the error is at most `gamma_k S + u (|r| + gamma_k S) + tiny`, where `r` is the reference,
//!   `S = sum |a||b|`, `gamma_k = k u32 / (1 - k u32)` with the unit roundoff of f32 (Higham, Accuracy and Stability of
//!   Numerical Algorithms, 2nd ed., section 3.1: it holds for any order of summation), `u` the unit roundoff of the
//!   output type for the one rounding at the end, and `tiny` what is lost to underflow. The reference's own error, the
//!   same formula with u64 for u32, is added.
//! - **Partials.** Where partial sums are rounded to a type of unit roundoff `v` on their way, the error before the last
//!   rounding grows by `v (S + gamma_k S)`: the partials' magnitudes add up to no more. Sums of integers are exact then
//!   only up to `1 / v`.
//! - **Special values.** A NaN in the reference must be a NaN in the result and nowhere else; an infinity must be the
//!   same infinity. A result may overflow only where its bound reaches the end of the output type's range. Where `S` is
//!   beyond f32, or beyond the type of partials, a partial sum may overflow, and the element is not judged.
//!
//! Up to [`SAMPLING_FLOPS`] every element is checked, beyond it a seeded sample with one element of every tile.

mod ag_gemm;
mod attention;
mod bound;
mod matmul;
mod moe;
mod product;
mod split_k;

use mkernel_core::DType;
use mkernel_kernels::Operator;

use crate::tensor::Tensors;

pub use bound::{Judge, Term};

/// Beyond this many floating-point operations a sample is checked: the reference is as much work as the run itself.
pub const SAMPLING_FLOPS: f64 = (1u64 << 37) as f64;

/// How much was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Every element.
    All,
    /// One element of every tile.
    Sampled,
    /// Nothing.
    None,
}

impl Extent {
    /// The extent that fits the size of `operator`.
    pub fn of(operator: &dyn Operator) -> Extent {
        if operator.flops() > SAMPLING_FLOPS { Extent::Sampled } else { Extent::All }
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Extent::All => "all",
            Extent::Sampled => "sampled",
            Extent::None => "none",
        }
    }
}

/// A rectangle of an output that one instruction writes, in rows and columns of the global tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// The output.
    pub tensor: &'static str,
    /// First row.
    pub row: u64,
    /// First column.
    pub column: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of columns.
    pub columns: u64,
}

/// One element of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// The output.
    pub tensor: &'static str,
    /// Its row in the global tensor.
    pub row: u64,
    /// Its column.
    pub column: u64,
}

/// An operator that can be checked.
pub trait Reference: Operator {
    /// Judges every element of the outputs.
    ///
    /// # Errors
    /// The first element that is wrong, as [`Failure`].
    fn check_all(&self, inputs: &Tensors, outputs: &Tensors, judge: &mut Judge) -> Result<(), Failure>;

    /// Judges the given elements.
    ///
    /// # Errors
    /// As [`Reference::check_all`].
    fn check_some(
        &self,
        inputs: &Tensors,
        outputs: &Tensors,
        elements: &[Element],
        judge: &mut Judge,
    ) -> Result<(), Failure>;
}

/// What a check found on results that hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Elements judged.
    pub elements: u64,
    /// Elements compared bit for bit.
    pub exact: u64,
    /// Largest error.
    pub max_abs: f64,
    /// Largest error relative to the reference, over elements whose reference is not zero.
    pub max_rel: f64,
    /// Largest error as a part of its bound.
    pub max_of_bound: f64,
}

impl Errors {
    /// Both together: counts add up, errors are the larger.
    pub fn worst(&self, other: &Errors) -> Errors {
        Errors {
            elements: self.elements + other.elements,
            exact: self.exact + other.exact,
            max_abs: self.max_abs.max(other.max_abs),
            max_rel: self.max_rel.max(other.max_rel),
            max_of_bound: self.max_of_bound.max(other.max_of_bound),
        }
    }
}

/// A result that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// An element is not what the inputs say.
    #[error(
        "the result is wrong: `{tensor}` [{row}, {column}] is {found:e}, but must be within {bound:e} of {wanted:e}"
    )]
    Element {
        /// The output.
        tensor: &'static str,
        /// Its row.
        row: u64,
        /// Its column.
        column: u64,
        /// The value found.
        found: f64,
        /// The reference.
        wanted: f64,
        /// The error allowed.
        bound: f64,
    },
    /// Ranks that must hold the same hold different bits.
    #[error("the result is wrong: `{tensor}` [{row}, {column}] on rank {rank} is not what a rank before it holds")]
    Replica {
        /// The output.
        tensor: &'static str,
        /// Its row.
        row: u64,
        /// Its column.
        column: u64,
        /// The second of the two ranks.
        rank: u32,
    },
    /// The place of a row is beyond the memory where rows are.
    #[error(
        "the result is wrong: row {row} of `{tensor}` is said to be in place {place} of rank {rank}, which has none"
    )]
    Place {
        /// The output.
        tensor: &'static str,
        /// Its row.
        row: u64,
        /// The place.
        place: u32,
        /// The rank.
        rank: u32,
    },
    /// A rank sent other than what the law says.
    #[error("rank {rank} sent {found} bytes over the NIC, but the law says {wanted}")]
    Bytes {
        /// The rank.
        rank: u32,
        /// Bytes sent.
        found: u64,
        /// Bytes that the law says.
        wanted: u64,
    },
}

/// One element of every tile, from a seed.
pub fn sample(tiles: &[Tile], seed: u64) -> Vec<Element> {
    let mut random = fastrand::Rng::with_seed(seed);
    let pick = |tile: &Tile| Element {
        tensor: tile.tensor,
        row: tile.row + random.u64(0..tile.rows),
        column: tile.column + random.u64(0..tile.columns),
    };
    tiles.iter().filter(|t| t.rows > 0 && t.columns > 0).map(pick).collect()
}

/// Checks as much of `outputs` as `extent` says.
///
/// # Errors
/// The first element that is wrong, as [`Failure`].
///
/// # Panics
/// If a tensor of the operator is missing or of another shape: they come from a run of this operator.
pub fn check<O: Reference + ?Sized>(
    operator: &O,
    inputs: &Tensors,
    outputs: &Tensors,
    extent: Extent,
    tiles: &[Tile],
    seed: u64,
) -> Result<Errors, Failure> {
    let mut judge = Judge::default();
    match extent {
        Extent::All => operator.check_all(inputs, outputs, &mut judge)?,
        Extent::Sampled => operator.check_some(inputs, outputs, &sample(tiles, seed), &mut judge)?,
        Extent::None => {}
    }
    Ok(judge.errors())
}

/// Rounds an integer of at most 2^24 once to `dtype`.
fn round_integer(value: f64, dtype: DType) -> f64 {
    // An integer of at most 2^24 is a f32, so the conversion to f32 does not round and there is one rounding in all.
    let single = value as f32;
    match dtype {
        DType::Bf16 => half::bf16::from_f32(single).to_f64(),
        DType::F16 => half::f16::from_f32(single).to_f64(),
        DType::F32 | DType::I32 => value,
    }
}
