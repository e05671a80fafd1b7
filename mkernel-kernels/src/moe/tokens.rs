//! Who owns which tokens and experts, and in which chunks tokens travel: formulas that every rank agrees on.

use std::ops::Range;

use mkernel_core::world::share;
use mkernel_core::{Experts, Node, Rank, World};

use super::{Kind, Problem};
use crate::profile::Profile;

/// Bytes of a chunk that the planner aims at if every token is wanted; routing leaves a part of them.
const CHUNK_BYTES: u64 = 1 << 20;

/// Tokens and experts of a world.
pub(super) struct Tokens<'a> {
    pub(super) problem: &'a Problem,
    pub(super) world: &'a World,
    pub(super) chunk_rows: u64,
}

/// A run of tokens of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) source: Rank,
    /// Index within the source's shard.
    pub(super) index: u64,
    /// Number over all shards.
    pub(super) number: u64,
    /// First token and one past the last.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Bytes that each rank must send over the NIC: every own token once to every other node with one of its experts; with a
/// combine, every sum back the same way.
pub(super) fn needed(problem: &Problem, world: &World, ids: &[i32]) -> Vec<u64> {
    let t = Tokens { problem, world, chunk_rows: 1 };
    let row = problem.hidden * problem.dtype.bytes();
    let mut bytes = vec![0; world.size() as usize];
    for source in world.ranks() {
        let (start, end) = (t.rows(source).start * problem.topk, t.rows(source).end * problem.topk);
        let table = &ids[start as usize..end as usize];
        for node in t.expert_nodes(source) {
            let wanted = t.node_experts(node);
            let rows = table.chunks_exact(problem.topk as usize).filter(|slots| wanted.wants(slots)).count() as u64;
            bytes[source.0 as usize] += rows * row;
            if problem.kind == Kind::Ffn {
                bytes[t.rail(node, source).0 as usize] += rows * row;
            }
        }
    }
    bytes
}

impl<'a> Tokens<'a> {
    pub(super) fn new(problem: &'a Problem, world: &'a World, profile: &Profile) -> Tokens<'a> {
        let row = problem.hidden * problem.dtype.bytes();
        let chunk_rows = (CHUNK_BYTES / row).clamp(1, u64::from(profile.tile_m));
        Tokens { problem, world, chunk_rows }
    }

    fn size(&self) -> u64 {
        u64::from(self.world.size())
    }

    /// The tokens that `rank` owns.
    pub(super) fn rows(&self, rank: Rank) -> Range<u64> {
        share(self.problem.tokens, self.size(), u64::from(rank.0))
    }

    /// How many tokens `rank` owns.
    pub(super) fn row_count(&self, rank: Rank) -> u64 {
        let rows = self.rows(rank);
        rows.end - rows.start
    }

    /// The experts of `rank`.
    pub(super) fn experts(&self, rank: Rank) -> Experts {
        let experts = share(self.problem.experts, self.size(), u64::from(rank.0));
        Experts { first: experts.start as u32, end: experts.end as u32 }
    }

    /// Whether `rank` has an expert.
    pub(super) fn is_expert(&self, rank: Rank) -> bool {
        !self.experts(rank).is_empty()
    }

    /// The experts of the ranks of `node`.
    pub(super) fn node_experts(&self, node: Node) -> Experts {
        let ranks = self.world.ranks_of(node);
        Experts { first: self.experts(Rank(ranks.start)).first, end: self.experts(Rank(ranks.end - 1)).end }
    }

    /// Whether any rank of `node` has an expert.
    pub(super) fn is_expert_node(&self, node: Node) -> bool {
        !self.node_experts(node).is_empty()
    }

    /// The other nodes with experts, starting after the node of `rank`.
    pub(super) fn expert_nodes(&self, rank: Rank) -> impl Iterator<Item = Node> + '_ {
        self.world.other_nodes(rank).filter(|&n| self.is_expert_node(n))
    }

    /// The ranks of `node` with experts, in order.
    pub(super) fn expert_ranks(&self, node: Node) -> impl Iterator<Item = Rank> + '_ {
        self.world.ranks_of(node).map(Rank).filter(|&r| self.is_expert(r))
    }

    /// Number of chunks of the shard of `rank`; never grows with the rank.
    pub(super) fn chunk_count(&self, rank: Rank) -> u64 {
        self.row_count(rank).div_ceil(self.chunk_rows)
    }

    /// The chunks of the shard of `source`, in order.
    pub(super) fn chunks(&self, source: Rank) -> impl Iterator<Item = Chunk> + use<> {
        let (rows, step, before) = (self.rows(source), self.chunk_rows, self.chunks_before(source));
        (0..self.chunk_count(source)).map(move |index| {
            let start = rows.start + index * step;
            Chunk { source, index, number: before + index, start, end: (start + step).min(rows.end) }
        })
    }

    /// Chunks of all shards.
    pub(super) fn all_chunks(&self) -> u64 {
        self.chunks_before(Rank(self.world.size()))
    }

    /// Chunks of all shards before that of `rank`.
    fn chunks_before(&self, rank: Rank) -> u64 {
        let (floor, longer) = (self.problem.tokens / self.size(), self.problem.tokens % self.size());
        let long = u64::from(rank.0).min(longer);
        long * (floor + 1).div_ceil(self.chunk_rows) + (u64::from(rank.0) - long) * floor.div_ceil(self.chunk_rows)
    }

    /// The rank of `node` that talks over the NIC with `source`, a rank of another node.
    pub(super) fn rail(&self, node: Node, source: Rank) -> Rank {
        self.world.rail(node, self.world.index_of(source))
    }

    /// The rank of `node` where what belongs to the tokens of `source` meets: the source itself, or its rail.
    pub(super) fn meeting(&self, node: Node, source: Rank) -> Rank {
        if self.world.node_of(source) == node { source } else { self.rail(node, source) }
    }

    /// Sources of other nodes whose rail on its node is `rank`, in order.
    pub(super) fn rail_sources(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        let (node, index) = (self.world.node_of(rank), self.world.index_of(rank));
        let gpus = self.world.gpus(node);
        self.world.nodes().filter(move |&n| n != node).flat_map(move |n| {
            let ranks = self.world.ranks_of(n);
            (index..ranks.end - ranks.start).step_by(gpus as usize).map(move |i| Rank(ranks.start + i))
        })
    }

    /// Rows of all rail sources of `rank`.
    pub(super) fn rail_rows(&self, rank: Rank) -> u64 {
        self.rail_sources(rank).map(|s| self.row_count(s)).sum()
    }

    /// Rows of the rail sources of `rank` before `source`, one of them.
    pub(super) fn rail_rows_before(&self, rank: Rank, source: Rank) -> u64 {
        self.rail_sources(rank).take_while(|&s| s < source).map(|s| self.row_count(s)).sum()
    }

    /// Chunks of all rail sources of `rank`, in order of sources.
    pub(super) fn rail_chunks(&self, rank: Rank) -> impl Iterator<Item = Chunk> + '_ {
        self.rail_sources(rank).flat_map(|s| self.chunks(s))
    }

    /// Whether tokens pass through `rank`: its own, or those of a rail source. Shares never grow with the rank, so the first
    /// source of each node decides.
    pub(super) fn handles_tokens(&self, rank: Rank) -> bool {
        self.chunk_count(rank) > 0 || self.rail_sources(rank).any(|s| self.chunk_count(s) > 0)
    }

    /// Modelled seconds after launch at which the rows of `chunk` are on `rank`, if every link runs at its rate and every
    /// row is wanted.
    pub(super) fn arrival(&self, rank: Rank, chunk: &Chunk, profile: &Profile) -> f64 {
        if chunk.source == rank {
            return 0.0;
        }
        let node = self.world.node_of(rank);
        let bytes = ((chunk.end - chunk.start) * self.problem.hidden * self.problem.dtype.bytes()) as f64;
        let spread = f64::from(self.world.gpus(node)) * bytes / profile.link;
        if self.world.same_node(chunk.source, rank) {
            return (chunk.index + 1) as f64 * spread;
        }
        let (nodes, from) = (self.world.node_count(), self.world.node_of(chunk.source).0);
        let step = (node.0 + nodes - from) % nodes;
        (chunk.index as f64 * f64::from(nodes - 1) + f64::from(step)) * bytes / profile.nic + spread
    }
}
