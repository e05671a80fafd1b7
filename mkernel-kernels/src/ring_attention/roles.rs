//! The three roles of ring attention.

use mkernel_core::builder::Step;
use mkernel_core::{CellId, LaneBuilder, Mask, Op, Role, RoleName, Span};

use super::layout::{Chunk, Plan};
use crate::gather::by_arrival;

/// Runs every head's tiles of queries over keys in order of arrival, then gives the landing memory back.
pub(super) struct Compute<'a>(pub(super) &'a Plan<'a>);

/// Copies own and landed chunks to the ranks of the node that need them.
pub(super) struct Intra<'a>(pub(super) &'a Plan<'a>);

/// Puts own chunks to the rail of every node that needs them, and returns credits to those who put here.
pub(super) struct Send<'a>(pub(super) &'a Plan<'a>);

impl Role for Compute<'_> {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let (plan, p) = (self.0, self.0.problem);
        let chunks = chunks_by_arrival(plan);
        let tile = u64::from(plan.profile.tile_m);
        for kv_head in 0..plan.kv_heads() {
            for head in kv_head * (p.heads / p.kv_heads)..(kv_head + 1) * (p.heads / p.kv_heads) {
                for piece in plan.pieces(plan.rank) {
                    for start in (piece.start..piece.end).step_by(tile as usize) {
                        self.tile(lane, &chunks, (head, kv_head), (start, (start + tile).min(piece.end)));
                    }
                }
            }
        }
        if plan.amounts.landed > 0 {
            self.release(lane);
        }
    }
}

/// All chunks that this rank's queries see, in the order of expected arrival, own ones first.
fn chunks_by_arrival(plan: &Plan<'_>) -> Vec<Chunk> {
    let chunks = plan.world.ranks().flat_map(|r| plan.chunks(r));
    by_arrival(chunks.filter(|c| plan.needs(plan.rank, c)), |c| arrival(plan, c))
}

/// Modelled seconds after a head's turn begins at which its chunk is here.
fn arrival(plan: &Plan<'_>, chunk: &Chunk) -> f64 {
    plan.gather().arrival(chunk.source, chunk.order, plan.kv(plan.rank, 0, chunk).bytes())
}

impl Compute<'_> {
    fn tile(&self, lane: &mut LaneBuilder<'_>, chunks: &[Chunk], (head, kv_head): (u64, u64), rows: (u64, u64)) {
        let (plan, p) = (self.0, self.0.problem);
        let [query, output] = plan.queries(head, rows.0, rows.1);
        // A causal tile sees no key after its last row: whole chunks are left out, the last one is cut.
        let limit = if p.mask == Mask::Causal { rows.1 } else { p.seq };
        let mut parts: Vec<(Vec<CellId>, Vec<Span>, u64)> = Vec::new();
        for chunk in chunks.iter().filter(|c| c.start < limit) {
            let waits = if chunk.source == plan.rank { Vec::new() } else { vec![plan.here(kv_head, chunk)] };
            let [k, v] = plan.keys(kv_head, chunk.start, chunk.end.min(limit));
            let reads = if parts.is_empty() { vec![query, k, v] } else { vec![k, v] };
            parts.push((waits, reads, chunk.start));
        }
        let steps: Vec<Step<'_>> = parts.iter().map(|(w, r, position)| Step::new(w, r).at(*position)).collect();
        let op = Op::Attention { dtype: p.dtype, mask: p.mask, query: rows.0 };
        lane.push_segments(op, &steps, &[output], &[plan.gather().read()]);
    }

    /// Once everything has landed and every tile and copy has read it: each arrival is read by one, so `done` says both.
    fn release(&self, lane: &mut LaneBuilder<'_>) {
        let plan = self.0;
        let spans: Vec<Span> = plan.landing().collect();
        let writers = plan.world.node_peers(plan.rank).filter(|&w| plan.copies_to(w, plan.rank));
        plan.gather().release(lane, &[plan.gather().done()], &spans, writers);
    }
}

impl Role for Intra<'_> {
    fn name(&self) -> RoleName {
        RoleName::Intra
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let plan = self.0;
        let landing = plan.world.rail_sources(plan.rank).flat_map(|s| plan.chunks(s));
        let landed = by_arrival(landing.filter(|c| plan.node_needs(plan.node, c)), |c| arrival(plan, c));
        for head in 0..plan.kv_heads() {
            for chunk in plan.chunks(plan.rank).chain(landed.iter().copied()) {
                for peer in plan.world.node_peers(plan.rank).filter(|&q| plan.needs(q, &chunk)) {
                    let [read, write] = [plan.rank, peer].map(|rank| plan.kv(rank, head, &chunk));
                    plan.gather().copy(lane, chunk.source, plan.here(head, &chunk), read, write);
                }
            }
        }
    }
}

impl Role for Send<'_> {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let plan = self.0;
        for head in 0..plan.kv_heads() {
            for chunk in plan.chunks(plan.rank) {
                for node in plan.world.other_nodes(plan.rank).filter(|&n| plan.node_needs(n, &chunk)) {
                    plan.gather().put(lane, node, plan.here(head, &chunk), |rank| plan.kv(rank, head, &chunk));
                }
            }
        }
        let writers = plan.world.rail_sources(plan.rank).filter(|&s| plan.puts_to(s, plan.node));
        plan.gather().finish_sends(lane, writers, plan.amounts.puts);
    }
}
