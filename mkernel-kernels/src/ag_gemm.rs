//! AllGather + GEMM: `C = A B`, with A sharded by rows and B, C by columns.
//!
//! Rank r owns a share of A's rows and of B's columns; every rank computes its columns of C for all rows, so every rank
//! needs all of A. A is gathered in place: region `a` holds all M rows on every rank, the rank's own rows are its input
//! and the others land beside them. Shards travel in **chunks** of rows.
//!
//! - `send` puts each own chunk once to every other node, to the rank of the same index there (the rail).
//! - `intra` copies own chunks, and chunks that landed over the NIC, to the other ranks of the node.
//! - `compute` runs tiles of C in the order in which their rows are expected.
//!
//! So a chunk crosses the NIC once per other node: (N-1) times a rank's shard, the least that reaches every node.
//!
//! One cell per chunk says that it is here; the tiles that read it wait for it. How landing memory is given back to those
//! who write there is the same as for ring attention: `gather` says it.

mod layout;
mod roles;

use mkernel_core::{DType, Program, ProgramBuilder, Rank, RoleName, World};

use crate::gather;
use crate::operator::{Operator, PlanError, TensorKind, TensorSpec, check_axis, check_float};
use crate::profile::Profile;
use crate::split::{RoleCtas, Work, split};
use layout::Layout;

/// AllGather + GEMM of global shapes `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgGemm {
    /// Rows of A and C.
    pub m: u64,
    /// Columns of B and C.
    pub n: u64,
    /// Columns of A, rows of B.
    pub k: u64,
    /// Element type of A, B and C: bf16, f16 or f32.
    pub dtype: DType,
}

impl Operator for AgGemm {
    fn name(&self) -> &'static str {
        "ag-gemm"
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let tensor =
            |name, rows, columns, kind| TensorSpec { name, shape: vec![rows, columns], dtype: self.dtype, kind };
        vec![
            tensor("a", self.m, self.k, TensorKind::Input),
            tensor("b", self.k, self.n, TensorKind::Input),
            tensor("c", self.m, self.n, TensorKind::Output),
        ]
    }

    fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName::Compute, RoleName::Intra, RoleName::Send]
    }

    fn plan(&self, world: &World, rank: Rank, profile: &Profile, given: &RoleCtas) -> Result<Program, PlanError> {
        for (axis, value) in [("--m", self.m), ("--n", self.n), ("--k", self.k)] {
            check_axis(axis, value)?;
        }
        check_float("ag-gemm", self.dtype)?;
        let mut builder = ProgramBuilder::new(world, rank);
        // By the widest share, so that every rank takes the same.
        let profile = &profile.for_product(self.m, self.n.div_ceil(u64::from(world.size())), self.k);
        let layout = Layout::new(self, world, rank, profile)?;
        layout.declare(&mut builder);
        let ctas = split(&work(&layout, profile), given, profile)?;
        let (compute, intra, send) = (roles::Compute(&layout), roles::Intra(&layout), roles::Send(&layout));
        gather::program(builder, &ctas, [&compute, &intra, &send])
    }
}

/// The modelled work of this rank's roles.
fn work(layout: &Layout<'_>, profile: &Profile) -> Vec<Work> {
    let mut work = Vec::new();
    if layout.computes() {
        work.push(Work::flops(RoleName::Compute, layout.rank_flops(), profile));
    }
    if layout.copies() > 0 {
        work.push(Work::copies(RoleName::Intra, layout.copy_bytes() as f64, profile));
    }
    if layout.sends() > 0 {
        work.push(Work::tickets(RoleName::Send, layout.sends() as f64, profile));
    }
    work
}
