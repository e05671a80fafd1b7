//! Attention over a sequence that is sharded between ranks: keys and values go round, queries stay.
//!
//! Every rank owns pieces of the sequence (Q, K, V and O of its positions, all heads). Keys and values of all pieces
//! that its queries see come to it, once: a piece crosses the NIC once per other node that has a use for it, along the
//! rail, and spreads there. They land in their final place, a full-length `kv` region, so nothing is forwarded twice and
//! the last hop of a ring does not exist. With a causal mask, pieces that no query of a node sees are not sent there.
//!
//! - `send` puts own chunks to the rail of every node that needs them, head after head.
//! - `intra` copies own chunks, and chunks that landed, to the ranks of the node that need them.
//! - `compute` runs one instruction per head and tile of queries, with a segment per chunk in the order of expected
//!   arrival: the running softmax (maximum, sum, output) stays in f32 from the first chunk to the last.
//!
//! A causal sequence cut into plain shares gives the last rank W times the work of the first. [`Layout::ZigZag`] cuts it into
//! 2W pieces and gives rank r the pieces r and 2W-1-r, which balances the work to one piece.

mod layout;
mod roles;

use mkernel_core::{DType, Mask, Program, ProgramBuilder, Rank, RoleName, World};

use crate::gather;
use crate::operator::{Operator, PlanError, TensorKind, TensorSpec, check_axis, check_float};
use crate::profile::Profile;
use crate::split::{RoleCtas, Work, split};

/// How the sequence is divided between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One run of positions per rank.
    Plain,
    /// Two runs per rank, one from each end of the sequence.
    ZigZag,
}

/// Attention of `[batch, heads, seq, dim]` queries over `[batch, kv_heads, seq, dim]` keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingAttention {
    /// Sequences.
    pub batch: u64,
    /// Heads of Q and O.
    pub heads: u64,
    /// Heads of K and V; divides `heads` (grouped queries, down to 1 for multi-query).
    pub kv_heads: u64,
    /// Positions.
    pub seq: u64,
    /// Length of one head's vector: a multiple of 8 from 16 to 256.
    pub dim: u64,
    /// Which keys a query sees.
    pub mask: Mask,
    /// How the sequence is divided.
    pub layout: Layout,
    /// Element type: bf16, f16 or f32.
    pub dtype: DType,
}

impl RingAttention {
    fn check(&self) -> Result<(), PlanError> {
        let axes =
            [("--batch", self.batch), ("--heads", self.heads), ("--kv-heads", self.kv_heads), ("--seq", self.seq)];
        axes.into_iter().try_for_each(|(axis, value)| check_axis(axis, value))?;
        check_float("ring-attention", self.dtype)?;
        if !(16..=256).contains(&self.dim) || !self.dim.is_multiple_of(8) {
            return Err(PlanError::HeadDim { dim: self.dim });
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(PlanError::KvHeads { heads: self.heads, kv_heads: self.kv_heads });
        }
        check_axis("--batch times --heads", self.batch.saturating_mul(self.heads))?;
        check_axis("--batch times --heads times --seq", self.batch * self.heads.saturating_mul(self.seq))
    }
}

impl Operator for RingAttention {
    fn name(&self) -> &'static str {
        "ring-attention"
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let tensor = |name, heads, kind| TensorSpec {
            name,
            shape: vec![self.batch, heads, self.seq, self.dim],
            dtype: self.dtype,
            kind,
        };
        vec![
            tensor("q", self.heads, TensorKind::Input),
            tensor("k", self.kv_heads, TensorKind::Input),
            tensor("v", self.kv_heads, TensorKind::Input),
            tensor("o", self.heads, TensorKind::Output),
        ]
    }

    fn flops(&self) -> f64 {
        let pairs = match self.mask {
            Mask::None => self.seq as f64 * self.seq as f64,
            Mask::Causal => self.seq as f64 * (self.seq as f64 + 1.0) / 2.0,
        };
        4.0 * self.batch as f64 * self.heads as f64 * pairs * self.dim as f64
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName::Compute, RoleName::Intra, RoleName::Send]
    }

    fn plan(&self, world: &World, rank: Rank, profile: &Profile, given: &RoleCtas) -> Result<Program, PlanError> {
        self.check()?;
        let mut builder = ProgramBuilder::new(world, rank);
        let plan = layout::Plan::new(self, world, rank, profile)?;
        plan.declare(&mut builder);
        let mut work = Vec::new();
        if plan.amounts.tiles > 0 || plan.amounts.landed > 0 {
            work.push(Work::flops(RoleName::Compute, plan.amounts.flops, profile));
        }
        if plan.amounts.copies > 0 {
            work.push(Work::copies(RoleName::Intra, plan.amounts.copy_bytes as f64, profile));
        }
        if plan.amounts.puts + plan.amounts.credits > 0 {
            let tickets = plan.amounts.puts + plan.amounts.credits;
            work.push(Work::tickets(RoleName::Send, tickets as f64, profile));
        }
        let ctas = split(&work, given, profile)?;
        let (compute, intra, send) = (roles::Compute(&plan), roles::Intra(&plan), roles::Send(&plan));
        gather::program(builder, &ctas, [&compute, &intra, &send])
    }
}
