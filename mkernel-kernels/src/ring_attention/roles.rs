//! The three roles of ring attention.

use mkernel_core::builder::Step;
use mkernel_core::{CellId, LaneBuilder, Mask, Op, Put, Rank, Role, RoleName, Signal, Span};

use super::layout::{Chunk, Plan};

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
    let mut chunks: Vec<(f64, Chunk)> = plan
        .world
        .ranks()
        .flat_map(|r| plan.chunks(r))
        .filter(|c| plan.needs(plan.rank, c))
        .map(|c| (arrival(plan, &c), c))
        .collect();
    chunks.sort_by(|a, b| a.0.total_cmp(&b.0));
    chunks.into_iter().map(|(_, c)| c).collect()
}

/// Modelled seconds after a head's turn begins at which its chunk is here, if every link runs at its rate.
fn arrival(plan: &Plan<'_>, chunk: &Chunk) -> f64 {
    let (world, rank) = (plan.world, plan.rank);
    if chunk.source == rank {
        return 0.0;
    }
    let bytes = plan.kv(rank, 0, chunk).bytes() as f64;
    let peers = f64::from(world.gpus(plan.node)) - 1.0;
    let spread = peers * bytes / plan.profile.link;
    if world.same_node(chunk.source, rank) {
        return (chunk.order as f64 + 1.0) * spread;
    }
    let (nodes, source) = (world.node_count(), world.node_of(chunk.source).0);
    let step = (plan.node.0 + nodes - source) % nodes;
    let landed = (chunk.order as f64 * (f64::from(nodes) - 1.0) + f64::from(step)) * bytes / plan.profile.nic;
    let forwarded = world.rail(plan.node, world.index_of(chunk.source)) != rank;
    landed + if forwarded { spread } else { 0.0 }
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
        let done = Signal { rank: plan.rank, cell: plan.done(), amount: 1 };
        let op = Op::Attention { dtype: p.dtype, mask: p.mask, query: rows.0 };
        lane.push_segments(op, &steps, &[output], &[done]);
    }

    /// Once every tile and forward has read the landing memory: gives it back, with a credit to each rank of the node that
    /// writes here; `free` lets the send role do the same for other nodes. Every arrival is read by a tile or a forward,
    /// so `done` implies that all have arrived.
    fn release(&self, lane: &mut LaneBuilder<'_>) {
        let plan = self.0;
        let spans: Vec<Span> = plan.landing().collect();
        let mut signals = vec![Signal { rank: plan.rank, cell: plan.free(), amount: 1 }];
        let writers = plan.world.node_peers(plan.rank).filter(|&w| plan.copies_to(w, plan.rank));
        signals.extend(writers.map(|w| Signal { rank: w, cell: plan.peer_credit(plan.rank), amount: 1 }));
        lane.push(Op::Release, Step::new(&[plan.done()], &[]), &spans, &signals);
    }
}

impl Role for Intra<'_> {
    fn name(&self) -> RoleName {
        RoleName::Intra
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let plan = self.0;
        let landing = plan.world.rail_sources(plan.rank).flat_map(|s| plan.chunks(s));
        let mut landed: Vec<(f64, Chunk)> =
            landing.filter(|c| plan.node_needs(plan.node, c)).map(|c| (arrival(plan, &c), c)).collect();
        landed.sort_by(|a, b| a.0.total_cmp(&b.0));
        for head in 0..plan.kv_heads() {
            for chunk in plan.chunks(plan.rank).chain(landed.iter().map(|(_, c)| *c)) {
                for peer in plan.world.node_peers(plan.rank).filter(|&q| plan.needs(q, &chunk)) {
                    self.copy(lane, head, &chunk, peer);
                }
            }
        }
    }
}

impl Intra<'_> {
    fn copy(&self, lane: &mut LaneBuilder<'_>, head: u64, chunk: &Chunk, peer: Rank) {
        let plan = self.0;
        let here = Signal { rank: peer, cell: plan.here(head, chunk), amount: 1 };
        let (read, write) = (plan.kv(plan.rank, head, chunk), plan.kv(peer, head, chunk));
        if chunk.source == plan.rank {
            lane.push(Op::Copy, Step::new(&[plan.peer_credit(peer)], &[read]), &[write], &[here]);
        } else {
            let done = Signal { rank: plan.rank, cell: plan.done(), amount: 1 };
            let waits = [plan.peer_credit(peer), plan.here(head, chunk)];
            lane.push(Op::Copy, Step::new(&waits, &[read]), &[write], &[here, done]);
        }
    }
}

impl Role for Send<'_> {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let plan = self.0;
        let index = plan.world.index_of(plan.rank);
        for head in 0..plan.kv_heads() {
            for chunk in plan.chunks(plan.rank) {
                for node in plan.world.other_nodes(plan.rank).filter(|&n| plan.node_needs(n, &chunk)) {
                    let put = Put {
                        source: plan.kv(plan.rank, head, &chunk),
                        count: None,
                        target: plan.kv(plan.world.rail(node, index), head, &chunk),
                        cell: plan.here(head, &chunk),
                        retired: Some(plan.sent()),
                    };
                    lane.put(&[plan.rail_credit(plan.rank, node)], put);
                }
            }
        }
        for source in plan.world.rail_sources(plan.rank).filter(|&s| plan.puts_to(s, plan.node)) {
            lane.put(&[plan.free()], Put::signal(plan.rank, source, plan.rail_credit(source, plan.node)));
        }
        if plan.amounts.puts > 0 {
            // The launch ends here only once the NIC has read every source: the host may rewrite K and V then.
            lane.push(Op::Release, Step::new(&[plan.sent()], &[]), &[], &[]);
        }
    }
}
