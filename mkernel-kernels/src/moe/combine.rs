//! From results back to tokens: sums of each rank, of each node, and of the world.

use mkernel_core::builder::Step;
use mkernel_core::{CellId, DType, Experts, LaneBuilder, Op, Role, RoleName, Signal, Span};

use super::cells::Cell;
use super::layout::Layout;
use super::tokens::Chunk;

/// Sums over the node for chunks of other nodes, then over everything for own chunks, then gives memory back.
pub(super) struct Reduce<'a>(pub(super) &'a Layout<'a>);

/// This rank's weighted sums for every chunk, each to where the node's sums for it meet.
pub(super) fn fill(l: &Layout<'_>, lane: &mut LaneBuilder<'_>) {
    let results: Vec<CellId> = (0..l.slots).map(|slot| l.id(Cell::Results(slot))).collect();
    let results = lane.shared_waits(&results);
    let op = Op::Combine { tile: l.profile.tile_m };
    for chunk in l.t.chunks(l.rank).chain(l.landings()) {
        let home = l.t.meeting(l.node, chunk.source);
        let mut waits = vec![l.id(Cell::Routed)];
        if home != l.rank {
            waits.push(l.id(Cell::PartialCredit(home)));
        }
        let reads = [l.places(chunk.start, chunk.end), l.weights(&chunk), l.all_results()];
        let step = Step::new(&waits, &reads).picking(&results);
        let signals = [l.signal_at(home, Cell::Partial(chunk, l.rank))];
        lane.push(op, step, &[l.partial(&chunk, l.rank)], &signals);
    }
}

/// One source of a sum: the cell that says it is there, its rows, and its first expert.
type Source = (CellId, Span, u32);

impl Role for Reduce<'_> {
    fn name(&self) -> RoleName {
        RoleName::Reduce
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        if !l.is_ffn() {
            return;
        }
        for chunk in l.serving_sources().flat_map(|s| l.t.chunks(s)) {
            let writes = [l.merged(&chunk), l.count(l.cells.merged_count(&chunk))];
            let signals = [l.signal(Cell::Merged(chunk)), l.signal(Cell::MergesDone)];
            self.merge(lane, &chunk, l.t.node_experts(l.node), &self.node_sources(&chunk), &writes, &signals);
        }
        let all = Experts { first: 0, end: l.problem().experts as u32 };
        for chunk in l.t.chunks(l.rank) {
            let writes = [l.y(chunk.start, chunk.end)];
            self.merge(lane, &chunk, all, &self.world_sources(&chunk), &writes, &[l.signal(Cell::MergesDone)]);
        }
        if l.merges() > 0 {
            self.release(lane);
        }
    }
}

impl Reduce<'_> {
    /// The sums of the ranks of this node, in order.
    fn node_sources(&self, chunk: &Chunk) -> Vec<Source> {
        let l = self.0;
        let source = |q| (l.id(Cell::Partial(*chunk, q)), l.partial(chunk, q), l.t.experts(q).first);
        l.t.expert_ranks(l.node).map(source).collect()
    }

    /// The sums of all nodes in order, those of this node rank by rank.
    fn world_sources(&self, chunk: &Chunk) -> Vec<Source> {
        let l = self.0;
        let nodes = l.t.world.nodes().filter(|&n| l.t.is_expert_node(n));
        nodes
            .flat_map(|node| match node == l.node {
                true => self.node_sources(chunk),
                false => {
                    let cell = l.id(Cell::Returned(*chunk, node));
                    vec![(cell, l.returned(chunk, node), l.t.node_experts(node).first)]
                }
            })
            .collect()
    }

    fn merge(
        &self,
        lane: &mut LaneBuilder<'_>,
        chunk: &Chunk,
        experts: Experts,
        sources: &[Source],
        writes: &[Span],
        signals: &[Signal],
    ) {
        let l = self.0;
        let table = l.ids(chunk.start, chunk.end);
        let parts: Vec<_> = sources.iter().map(|&(cell, rows, first)| ([cell], [rows, table], first)).collect();
        let steps: Vec<Step<'_>> =
            parts.iter().map(|(waits, reads, first)| Step::new(waits, reads).at(u64::from(*first))).collect();
        let op = Op::Merge { experts, narrow: l.problem().dtype, output: l.problem().dtype };
        lane.push_segments(op, &steps, writes, signals);
    }

    /// Once everything has been summed: gives the memory of sums back to those who write it.
    fn release(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let spans = [l.all_partials(), l.all_returned()];
        let spans: Vec<Span> = spans.into_iter().filter(|s| !s.is_empty()).collect();
        let mut signals: Vec<Signal> = l.expert_peers().map(|q| l.signal_at(q, Cell::PartialCredit(l.rank))).collect();
        if l.t.chunk_count(l.rank) > 0 && l.t.expert_nodes(l.rank).next().is_some() {
            signals.push(l.signal(Cell::ReturnsFree));
        }
        lane.push(Op::Release, Step::new(&[l.id(Cell::MergesDone)], &[]), &spans, &signals);
    }
}

impl Layout<'_> {
    /// Instructions that sum results of this rank.
    pub(super) fn combines(&self) -> u64 {
        if self.is_ffn() && self.has_experts() { self.t.all_chunks() } else { 0 }
    }

    /// Instructions that sum over ranks and nodes.
    pub(super) fn merges(&self) -> u64 {
        if self.is_ffn() { self.t.chunk_count(self.rank) + self.serving_chunks() } else { 0 }
    }

    /// Bytes that the reduce role reads if every row is there.
    pub(super) fn merge_bytes(&self) -> f64 {
        let (own, sources) = (self.t.chunk_count(self.rank), self.t.expert_ranks(self.node).count() as f64);
        let wide = (self.serving_chunks() + own) as f64 * sources * DType::F32.bytes() as f64;
        let back = (own * self.t.expert_nodes(self.rank).count() as u64 * self.problem().dtype.bytes()) as f64;
        (wide + back) * (self.t.chunk_rows * self.problem().hidden) as f64
    }
}
