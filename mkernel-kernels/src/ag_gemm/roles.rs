//! The three roles of AG+GEMM.

use mkernel_core::builder::Step;
use mkernel_core::{LaneBuilder, Op, Put, Rank, Role, RoleName, Signal, Span};

use super::layout::{Chunk, Layout};

/// Runs tiles in the order in which their rows are expected, then gives the landing memory back.
pub(super) struct Compute<'a>(pub(super) &'a Layout<'a>);

/// Copies own and landed chunks to the other ranks of the node.
pub(super) struct Intra<'a>(pub(super) &'a Layout<'a>);

/// Puts own chunks to the rail of every other node, and returns credits to those who put here.
pub(super) struct Send<'a>(pub(super) &'a Layout<'a>);

impl Role for Compute<'_> {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let (tile_m, tile_n) = (u64::from(l.profile.tile_m), u64::from(l.profile.tile_n));
        if l.width() > 0 {
            for start in rows_by_arrival(l) {
                let end = (start + tile_m).min(l.problem.m);
                for column in (0..l.width()).step_by(tile_n as usize) {
                    self.tile(lane, (start, end), (column, (column + tile_n).min(l.width())));
                }
            }
        }
        if l.lands() {
            self.release(lane);
        }
    }
}

/// First rows of all tile rows, in the order in which the last of their chunks is expected.
fn rows_by_arrival(l: &Layout<'_>) -> Vec<u64> {
    let tile_m = u64::from(l.profile.tile_m);
    let mut rows: Vec<(f64, u64)> = (0..l.problem.m)
        .step_by(tile_m as usize)
        .map(|start| {
            let chunks = l.chunks_of_rows(start, (start + tile_m).min(l.problem.m));
            (chunks.map(|c| arrival(l, &c)).fold(0.0, f64::max), start)
        })
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    rows.into_iter().map(|(_, start)| start).collect()
}

/// Modelled seconds after launch at which `chunk` is here, if every link runs at its rate.
fn arrival(l: &Layout<'_>, chunk: &Chunk) -> f64 {
    if chunk.source == l.rank {
        return 0.0;
    }
    let bytes = l.a_rows(l.rank, chunk.start, chunk.end).bytes() as f64;
    let peers = f64::from(l.world.gpus(l.node)) - 1.0;
    let position = chunk.index as f64 + 1.0;
    if l.world.same_node(chunk.source, l.rank) {
        return position * peers * bytes / l.profile.link;
    }
    let (nodes, source_node) = (l.world.node_count(), l.world.node_of(chunk.source).0);
    let step = (l.node.0 + nodes - source_node) % nodes;
    let landed = (chunk.index as f64 * (f64::from(nodes) - 1.0) + f64::from(step)) * bytes / l.profile.nic;
    let forwarded = l.world.rail(l.node, l.world.index_of(chunk.source)) != l.rank;
    landed + if forwarded { peers * bytes / l.profile.link } else { 0.0 }
}

impl Compute<'_> {
    fn tile(&self, lane: &mut LaneBuilder<'_>, rows: (u64, u64), columns: (u64, u64)) {
        let l = self.0;
        let waits: Vec<_> =
            l.chunks_of_rows(rows.0, rows.1).filter(|c| c.source != l.rank).map(|c| l.here(&c)).collect();
        let reads = [l.a_rows(l.rank, rows.0, rows.1), l.b(columns.0, columns.1)];
        let op = Op::Gemm { input: l.problem.dtype, output: l.problem.dtype };
        let done = Signal { rank: l.rank, cell: l.done(), amount: 1 };
        lane.push(op, Step::new(&waits, &reads), &[l.c(rows.0, rows.1, columns.0, columns.1)], &[done]);
    }

    /// Once every tile and forward has read the landing memory and everything has landed: gives it back, with a credit
    /// to each rank of the node that writes here; `free` lets the send role do the same for other nodes.
    fn release(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let mut waits = Vec::new();
        if l.tiles() + l.forwards() > 0 {
            waits.push(l.done());
        }
        if l.tiles() == 0 {
            // With tiles, `done` implies every arrival. A rank with no columns has none: the release itself waits.
            let others = l.world.ranks().filter(|&r| r != l.rank);
            waits.extend(others.flat_map(|r| l.chunks(r)).map(|c| l.here(&c)));
        }
        let own = l.rows(l.rank);
        let spans = [l.a_rows(l.rank, 0, own.start), l.a_rows(l.rank, own.end, l.problem.m)];
        let spans: Vec<Span> = spans.into_iter().filter(|s| !s.is_empty()).collect();
        let mut signals = vec![Signal { rank: l.rank, cell: l.free(), amount: 1 }];
        let writers = l.world.node_peers(l.rank).filter(|&p| l.writes_to_peers(p));
        signals.extend(writers.map(|p| Signal { rank: p, cell: l.peer_credit(l.rank), amount: 1 }));
        lane.push(Op::Release, Step::new(&waits, &[]), &spans, &signals);
    }
}

impl Role for Intra<'_> {
    fn name(&self) -> RoleName {
        RoleName::Intra
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        for chunk in l.chunks(l.rank) {
            for peer in l.world.node_peers(l.rank) {
                self.copy(lane, &chunk, peer);
            }
        }
        let mut landed: Vec<(f64, Chunk)> =
            l.landing_sources().flat_map(|s| l.chunks(s)).map(|c| (arrival(l, &c), c)).collect();
        landed.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, chunk) in landed {
            for peer in l.world.node_peers(l.rank) {
                self.copy(lane, &chunk, peer);
            }
        }
    }
}

impl Intra<'_> {
    fn copy(&self, lane: &mut LaneBuilder<'_>, chunk: &Chunk, peer: Rank) {
        let l = self.0;
        let here = Signal { rank: peer, cell: l.here(chunk), amount: 1 };
        let (read, write) = (l.a_rows(l.rank, chunk.start, chunk.end), l.a_rows(peer, chunk.start, chunk.end));
        if chunk.source == l.rank {
            lane.push(Op::Copy, Step::new(&[l.peer_credit(peer)], &[read]), &[write], &[here]);
        } else {
            let done = Signal { rank: l.rank, cell: l.done(), amount: 1 };
            let waits = [l.peer_credit(peer), l.here(chunk)];
            lane.push(Op::Copy, Step::new(&waits, &[read]), &[write], &[here, done]);
        }
    }
}

impl Role for Send<'_> {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let index = l.world.index_of(l.rank);
        for chunk in l.chunks(l.rank) {
            for node in l.world.other_nodes(l.rank) {
                let target = l.world.rail(node, index);
                let put = Put {
                    source: l.a_rows(l.rank, chunk.start, chunk.end),
                    target: l.a_rows(target, chunk.start, chunk.end),
                    cell: l.here(&chunk),
                    count: None,
                    retired: Some(l.sent()),
                };
                lane.put(&[l.rail_credit(l.rank, node)], put);
            }
        }
        for source in l.landing_sources().filter(|&s| l.chunk_count(s) > 0) {
            let cell = l.rail_credit(source, l.node);
            let put = Put::signal(l.rank, source, cell);
            lane.put(&[l.free()], put);
        }
        if l.bulk_puts() > 0 {
            // The launch ends here only once the NIC has read every source: the host may rewrite A then.
            lane.push(Op::Release, Step::new(&[l.sent()], &[]), &[], &[]);
        }
    }
}
