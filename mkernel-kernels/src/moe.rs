//! Mixture of experts: tokens sharded by rows, experts by number; who needs whom is data.
//!
//! Rank r owns a share of the tokens and a share of the experts. The table of chosen experts is small and given to every
//! rank, so everyone knows who is where ([`mkernel_core::routing`]) and only rows travel. Tokens travel in **chunks** of a
//! source's shard; every chunk has a slot of its own wherever it may go, and data says how many rows are in it.
//!
//! - `intra` packs the rows of a chunk that a node needs; `send` puts them there once, to the rank of the same index
//!   (the rail). There, and on the source's own node, `intra` packs for each rank the rows that it needs, straight into that
//!   rank's slot.
//! - `compute` works out its own index, then multiplies tile after tile of each expert's rows, gathered from the slots. A
//!   tile waits for the chunks that hold its rows and for no others; tiles come in the order in which they get whole.
//! - With a combine, each rank of experts sums its weighted results for a chunk in f32 and writes them to the chunk's
//!   source, or on another node to the rail (`intra`); the rail sums over the ranks of its node, rounds once and puts one
//!   row per token to the source; the source sums over its own node's ranks and the others' rows (`reduce`), all in the
//!   order of experts. A chunk is combined when the tiles with its tokens are done.
//!
//! So a token crosses the NIC once to each node with one of its experts, and once back.
//!
//! # Memory per rank
//! With T tokens, `p = T min(topk, own experts)` pairs at most, rows of H and I elements: T rows of H for what lands and the
//! rank's own, T / G for the rail, as much for staging; `p` and one tile per expert rows of I for products. The combine adds
//! as many rows of H in f32, T rows of H in f32 for partials, and staging and landing again. Nothing grows with the square
//! of the world.

mod cells;
mod combine;
mod dispatch;
mod experts;
mod layout;
mod tokens;

use mkernel_core::{DType, Program, ProgramBuilder, Rank, RoleName, World};

use crate::operator::{Operator, PlanError, TensorKind, TensorSpec, check_axis, check_float, ctas_of};
use crate::profile::Profile;
use crate::split::{RoleCtas, Work, split};
use layout::Layout;

/// Dispatch and one product: `y[t, j] = x[t] w1[topk_ids[t, j]]`, zeros where the slot is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoeDispatchGemm {
    /// Tokens of the whole world.
    pub tokens: u64,
    /// Columns of `x`, rows of an expert's `w1`.
    pub hidden: u64,
    /// Columns of `w1` and `y`.
    pub inner: u64,
    /// Experts of the whole world.
    pub experts: u64,
    /// Slots of a token, at most as many as experts. Two slots may name one expert: both get its result.
    pub topk: u64,
    /// Element type of `x`, `w1` and `y`: bf16, f16 or f32.
    pub dtype: DType,
}

/// The whole feed-forward layer: `y[t] = sum_j topk_weights[t, j] (silu(x w_gate) * (x w_up)) w_down`, with the weights of
/// expert `topk_ids[t, j]`; dropped slots count nothing, repeated ones each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoeFfn {
    /// Tokens of the whole world.
    pub tokens: u64,
    /// Columns of `x` and `y`.
    pub hidden: u64,
    /// Columns of `w_gate` and `w_up`, rows of `w_down`.
    pub inner: u64,
    /// Experts of the whole world.
    pub experts: u64,
    /// Slots of a token, at most as many as experts.
    pub topk: u64,
    /// Element type of everything but the table and its weights (f32): bf16, f16 or f32.
    pub dtype: DType,
}

/// What follows the dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One product.
    Gemm,
    /// Two products, a third, and the combine.
    Ffn,
}

/// Both operators' shape.
#[derive(Clone, Copy, Debug)]
struct Problem {
    kind: Kind,
    tokens: u64,
    hidden: u64,
    inner: u64,
    experts: u64,
    topk: u64,
    dtype: DType,
}

impl MoeDispatchGemm {
    fn problem(&self) -> Problem {
        let MoeDispatchGemm { tokens, hidden, inner, experts, topk, dtype } = *self;
        Problem { kind: Kind::Gemm, tokens, hidden, inner, experts, topk, dtype }
    }
}

impl MoeFfn {
    fn problem(&self) -> Problem {
        let MoeFfn { tokens, hidden, inner, experts, topk, dtype } = *self;
        Problem { kind: Kind::Ffn, tokens, hidden, inner, experts, topk, dtype }
    }
}

impl Operator for MoeDispatchGemm {
    fn name(&self) -> &'static str {
        "moe-dispatch-gemm"
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let MoeDispatchGemm { tokens, hidden, inner, experts, topk, dtype } = *self;
        let mut tensors = self.problem().inputs();
        tensors.push(tensor("w1", [experts, hidden, inner], dtype, TensorKind::Input));
        tensors.push(tensor("y", [tokens, topk, inner], dtype, TensorKind::Output));
        tensors
    }

    fn flops(&self) -> f64 {
        2.0 * self.problem().slots() * self.hidden as f64 * self.inner as f64
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName::Compute, RoleName::Intra, RoleName::Send]
    }

    fn routed_law(&self, world: &World, ids: &[i32]) -> Option<Vec<u64>> {
        Some(tokens::needed(&self.problem(), world, ids))
    }

    fn plan(&self, world: &World, rank: Rank, profile: &Profile, given: &RoleCtas) -> Result<Program, PlanError> {
        plan(self.name(), &self.problem(), world, rank, profile, given)
    }
}

impl Operator for MoeFfn {
    fn name(&self) -> &'static str {
        "moe-ffn"
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let MoeFfn { tokens, hidden, inner, experts, topk, dtype } = *self;
        let mut tensors = self.problem().inputs();
        tensors.push(tensor("topk_weights", [tokens, topk], DType::F32, TensorKind::Input));
        tensors.push(tensor("w_gate", [experts, hidden, inner], dtype, TensorKind::Input));
        tensors.push(tensor("w_up", [experts, hidden, inner], dtype, TensorKind::Input));
        tensors.push(tensor("w_down", [experts, inner, hidden], dtype, TensorKind::Input));
        tensors.push(tensor("y", [tokens, hidden], dtype, TensorKind::Output));
        tensors
    }

    fn flops(&self) -> f64 {
        6.0 * self.problem().slots() * self.hidden as f64 * self.inner as f64
    }

    fn roles(&self) -> &'static [RoleName] {
        &RoleName::ALL
    }

    fn routed_law(&self, world: &World, ids: &[i32]) -> Option<Vec<u64>> {
        Some(tokens::needed(&self.problem(), world, ids))
    }

    fn plan(&self, world: &World, rank: Rank, profile: &Profile, given: &RoleCtas) -> Result<Program, PlanError> {
        plan(self.name(), &self.problem(), world, rank, profile, given)
    }
}

fn tensor<const N: usize>(name: &'static str, shape: [u64; N], dtype: DType, kind: TensorKind) -> TensorSpec {
    TensorSpec { name, shape: shape.to_vec(), dtype, kind }
}

impl Problem {
    /// The inputs of both operators.
    fn inputs(&self) -> Vec<TensorSpec> {
        let kind = TensorKind::Ids { limit: self.experts };
        vec![
            tensor("x", [self.tokens, self.hidden], self.dtype, TensorKind::Input),
            tensor("topk_ids", [self.tokens, self.topk], DType::I32, kind),
        ]
    }

    /// Slots of the table.
    fn slots(&self) -> f64 {
        self.tokens as f64 * self.topk as f64
    }

    fn check(&self, name: &'static str) -> Result<(), PlanError> {
        let axes = [("--tokens", self.tokens), ("--hidden", self.hidden), ("--inner", self.inner)];
        for (axis, value) in axes.into_iter().chain([("--experts", self.experts), ("--topk", self.topk)]) {
            check_axis(axis, value)?;
        }
        if self.topk > self.experts {
            return Err(PlanError::Axis { axis: "--topk", value: self.topk, max: self.experts });
        }
        // Rows of weights are numbered in u32, on the one rank of a world of one too.
        let max = u64::from(u32::MAX) / self.hidden.max(self.inner);
        if self.experts > max {
            return Err(PlanError::Axis { axis: "--experts", value: self.experts, max });
        }
        check_float(name, self.dtype)
    }
}

fn plan(
    name: &'static str,
    problem: &Problem,
    world: &World,
    rank: Rank,
    profile: &Profile,
    given: &RoleCtas,
) -> Result<Program, PlanError> {
    problem.check(name)?;
    let layout = Layout::new(problem, world, rank, profile)?;
    let mut builder = ProgramBuilder::new(world, rank);
    layout.declare(&mut builder);
    let ctas = split(&work(&layout, profile), given, profile)?;
    let compute = builder.lane(&experts::Compute(&layout), ctas_of(&ctas, RoleName::Compute));
    let intra = builder.lane(&dispatch::Intra(&layout), ctas_of(&ctas, RoleName::Intra));
    let send = builder.lane(&dispatch::Send(&layout), ctas_of(&ctas, RoleName::Send));
    let reduce = builder.lane(&combine::Reduce(&layout), ctas_of(&ctas, RoleName::Reduce));
    // Where results are summed, the lane that sums ends after the tiles, so those who computed tiles help it.
    let chain = if layout.is_ffn() { [compute, intra, reduce] } else { [reduce, intra, compute] };
    let [first, second, third] = chain;
    builder.then(first, second.or(third));
    builder.then(second, third);
    builder.then(send, compute.or(intra).or(reduce));
    crate::operator::finish(builder)
}

/// The modelled work of this rank's roles: its share of what the table may hold.
fn work(layout: &Layout<'_>, profile: &Profile) -> Vec<Work> {
    let mut work = Vec::new();
    if layout.has_experts() {
        work.push(Work::flops(RoleName::Compute, layout.flops(), profile));
    }
    if layout.packs() + layout.combines() > 0 {
        work.push(Work::copies(RoleName::Intra, layout.intra_bytes(), profile));
    }
    if layout.sends() > 0 {
        work.push(Work::tickets(RoleName::Send, layout.sends() as f64, profile));
    }
    if layout.merges() > 0 {
        work.push(Work::copies(RoleName::Reduce, layout.merge_bytes(), profile));
    }
    work
}
