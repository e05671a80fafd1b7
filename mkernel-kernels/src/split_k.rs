//! Products whose K is split over the world: `C = sum over ranks of A_r B_r`, the sum scattered or everywhere.
//!
//! Rank r holds columns of A and the same rows of B, so every rank has a part of every element of C. Rows of C are cut
//! into **slices**. On every node each slice has one **collector**, the rank that its rail index folds onto, and one
//! or all nodes are its **home**, where the last sum is taken.
//!
//! - `compute` runs every tile of C over the rank's own K and writes it in f32 straight into the collector's slot.
//! - `reduce` sums the slots of a tile in rank order, as soon as it is whole. For another node the sum is rounded once
//!   (the *partial*) and staged; at home the partials of all nodes are added in node order and rounded once into C.
//! - `send` puts each staged tile to the collector of its home, and later, where C is wanted everywhere, finished rows to
//!   the rails of other nodes.
//! - `intra` copies finished rows to the other ranks of the node.
//!
//! | form | slices | home of a slice | then |
//! |---|---|---|---|
//! | scatter | one per rank | its owner's node | nothing: the owner keeps the rows |
//! | two-step | one per rank | its owner's node | finished rows go to one rank of each node, and spread there |
//! | one-shot | one per GPU of the largest node | every node | each node sums the same rounded partials in the same order |
//!
//! **Byte law.** With `p` bytes per element of a partial and `e` of C, `rows(s)` the rows of slice s and `n` columns,
//! a rank sends over the NIC, per epoch:
//! - partials: `n p` times the sum over slices that it collects of `rows(s)` times the homes of s on other nodes;
//! - finished rows (two-step): `n e (N-1)` times its own rows.
//!
//! With G GPUs on each of N nodes and rows that divide, that is `(N-1)/N C/G` for scatter, twice that for two-step, and
//! `(N-1) C/G` for one-shot, with `C` the bytes of the whole of C. On uneven nodes a smaller node's ranks collect for
//! several ranks of a larger one and send in proportion.
//!
//! **Memory.** Slots take `4 n` bytes per row collected and GPU of the node, some `4 m n` in all; staging and landing
//! at most as many rows as are collected, times the nodes that a home hears of.
//!
//! Slots and landing memory are given back once per epoch, when all sums have read them; writers wait for that before
//! their first write of the next epoch. Rows of C that others write are the host's between launches, so each rank says
//! at the start of a launch that they may come.

mod amounts;
mod cells;
mod layout;
mod roles;
mod spans;

use mkernel_core::{DType, Program, ProgramBuilder, Rank, RoleName, World};

use crate::operator::{PlanError, TensorKind, TensorSpec, check_axis, check_float, ctas_of};
use crate::profile::Profile;
use crate::split::{RoleCtas, split};
use layout::Layout;

/// How a node's share of a sum crosses the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partial {
    /// Rounded once to the element type of C.
    #[default]
    Narrow,
    /// In f32, unrounded.
    F32,
}

impl Partial {
    /// The element type of partials of a result of type `output`.
    pub const fn dtype(self, output: DType) -> DType {
        match self {
            Partial::Narrow => output,
            Partial::F32 => DType::F32,
        }
    }
}

/// Where the sum goes, and by which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Each rank keeps its share of the rows.
    Scatter,
    /// Scatter, then every rank gets all rows.
    TwoStep,
    /// Every node hears every other node's partials.
    OneShot,
}

/// A product with K split over the world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem {
    pub(crate) name: &'static str,
    pub(crate) m: u64,
    pub(crate) n: u64,
    pub(crate) k: u64,
    pub(crate) dtype: DType,
    pub(crate) partial: DType,
    pub(crate) form: Form,
}

impl Problem {
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        for (axis, value) in [("--m", self.m), ("--n", self.n), ("--k", self.k)] {
            check_axis(axis, value)?;
        }
        check_float(self.name, self.dtype)
    }

    pub(crate) fn tensors(&self) -> Vec<TensorSpec> {
        let tensor =
            |name, rows, columns, kind| TensorSpec { name, shape: vec![rows, columns], dtype: self.dtype, kind };
        vec![
            tensor("a", self.m, self.k, TensorKind::Input),
            tensor("b", self.k, self.n, TensorKind::Input),
            tensor("c", self.m, self.n, TensorKind::Output),
        ]
    }

    pub(crate) fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    pub(crate) fn plan(
        &self,
        world: &World,
        rank: Rank,
        profile: &Profile,
        given: &RoleCtas,
    ) -> Result<Program, PlanError> {
        self.check()?;
        let profile = &profile.for_product(self.m, self.n, self.k.div_ceil(u64::from(world.size())));
        let layout = Layout::new(self, world, rank, profile)?;
        let mut builder = ProgramBuilder::new(world, rank);
        layout.declare_memory(&mut builder);
        layout.declare_cells(&mut builder);
        builder.law(layout.law());
        let ctas = split(&layout.work(), given, profile)?;
        let compute = builder.lane(&roles::Compute(&layout), ctas_of(&ctas, RoleName::Compute));
        let reduce = builder.lane(&roles::Reduce(&layout), ctas_of(&ctas, RoleName::Reduce));
        let intra = builder.lane(&roles::Intra(&layout), ctas_of(&ctas, RoleName::Intra));
        let send = builder.lane(&roles::Send(&layout), ctas_of(&ctas, RoleName::Send));
        // Tiles are done long before the last sum: their CTAs help to sum, then to spread.
        builder.then(compute, reduce.or(intra));
        builder.then(send, reduce.or(intra));
        builder.then(reduce, intra);
        crate::operator::finish(builder)
    }
}
