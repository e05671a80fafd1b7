//! GEMM + ReduceScatter: `C = A B` with K split over the ranks, each rank keeping its share of C's rows.
//!
//! A tile leaves for its owner as soon as it is whole: summed in f32 inside the node in rank order, rounded once, one
//! message per remote node. The owner adds the nodes' partials in node order, its own node's in f32, and rounds once.
//! See [`crate::split_k`] for the plan.

use mkernel_core::{DType, Program, Rank, RoleName, World};

use crate::operator::{Operator, PlanError, TensorSpec};
use crate::profile::Profile;
use crate::split::RoleCtas;
use crate::split_k::{Form, Partial, Problem};

/// GEMM + ReduceScatter of global shapes `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmRs {
    /// Rows of A and C.
    pub m: u64,
    /// Columns of B and C.
    pub n: u64,
    /// Columns of A, rows of B.
    pub k: u64,
    /// Element type of A, B and C: bf16, f16 or f32.
    pub dtype: DType,
    /// How partials cross the NIC.
    pub partial: Partial,
}

impl GemmRs {
    fn problem(&self) -> Problem {
        let GemmRs { m, n, k, dtype, partial } = *self;
        Problem { name: self.name(), m, n, k, dtype, partial: partial.dtype(dtype), form: Form::Scatter }
    }
}

impl Operator for GemmRs {
    fn name(&self) -> &'static str {
        "gemm-rs"
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        self.problem().tensors()
    }

    fn flops(&self) -> f64 {
        self.problem().flops()
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName::Compute, RoleName::Send, RoleName::Reduce]
    }

    fn plan(&self, world: &World, rank: Rank, profile: &Profile, given: &RoleCtas) -> Result<Program, PlanError> {
        self.problem().plan(world, rank, profile, given)
    }
}
