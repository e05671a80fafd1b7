//! The three roles of AG+GEMM.

use mkernel_core::builder::Step;
use mkernel_core::{LaneBuilder, Op, Role, RoleName, Span};

use super::layout::{Chunk, Layout};
use crate::gather::by_arrival;

/// Runs tiles in the order in which their rows are expected, then gives the landing memory back.
pub(super) struct Compute<'a>(pub(super) &'a Layout<'a>);

/// Copies own and landed chunks to the other ranks of the node.
pub(super) struct Intra<'a>(pub(super) &'a Layout<'a>);

/// Puts own chunks to the rail of every other node, and returns credits to those who put here.
pub(super) struct Send<'a>(pub(super) &'a Layout<'a>);

/// Modelled seconds after launch at which `chunk` is here.
fn arrival(l: &Layout<'_>, chunk: &Chunk) -> f64 {
    let bytes = l.a_rows(l.rank, chunk.start, chunk.end).bytes();
    l.gather().arrival(chunk.source, chunk.index, bytes)
}

impl Role for Compute<'_> {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let (tile_m, tile_n) = (u64::from(l.profile.tile_m), u64::from(l.profile.tile_n));
        if l.width() > 0 {
            let rows = rows_by_arrival(l);
            // A strip: rows that come from one rank, so that none holds the others up.
            for strip in rows
                .chunk_by(|a, b| l.owner(*a) == l.owner(*b))
                .flat_map(|rows| rows.chunks(l.profile.strip() as usize))
            {
                for column in (0..l.width()).step_by(tile_n as usize) {
                    for &start in strip {
                        let end = (start + tile_m).min(l.problem.m);
                        self.tile(lane, (start, end), (column, (column + tile_n).min(l.width())));
                    }
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
    by_arrival((0..l.problem.m).step_by(tile_m as usize), |&start| {
        let chunks = l.chunks_of_rows(start, (start + tile_m).min(l.problem.m));
        chunks.map(|c| arrival(l, &c)).fold(0.0, f64::max)
    })
}

impl Compute<'_> {
    fn tile(&self, lane: &mut LaneBuilder<'_>, rows: (u64, u64), columns: (u64, u64)) {
        let l = self.0;
        let waits: Vec<_> =
            l.chunks_of_rows(rows.0, rows.1).filter(|c| c.source != l.rank).map(|c| l.here(&c)).collect();
        let reads = [l.a_rows(l.rank, rows.0, rows.1), l.b(columns.0, columns.1)];
        let op = Op::Gemm { input: l.problem.dtype, output: l.problem.dtype };
        let write = l.c(rows.0, rows.1, columns.0, columns.1);
        lane.push(op, Step::new(&waits, &reads), &[write], &[l.gather().read()]);
    }

    /// Once everything has landed and every tile and copy has read it.
    fn release(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let mut waits = Vec::new();
        if l.tiles() + l.forwards() > 0 {
            waits.push(l.gather().done());
        }
        if l.tiles() == 0 {
            // With tiles, `done` implies every arrival. A rank with no columns has none: the release itself waits.
            let others = l.world.ranks().filter(|&r| r != l.rank);
            waits.extend(others.flat_map(|r| l.chunks(r)).map(|c| l.here(&c)));
        }
        let own = l.rows(l.rank);
        let spans = [l.a_rows(l.rank, 0, own.start), l.a_rows(l.rank, own.end, l.problem.m)];
        let spans: Vec<Span> = spans.into_iter().filter(|s| !s.is_empty()).collect();
        let writers = l.world.node_peers(l.rank).filter(|&p| l.writes_to_peers(p));
        l.gather().release(lane, &waits, &spans, writers);
    }
}

impl Role for Intra<'_> {
    fn name(&self) -> RoleName {
        RoleName::Intra
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        if l.world.node_peers(l.rank).next().is_none() {
            return;
        }
        let landed = by_arrival(l.landing_sources().flat_map(|s| l.chunks(s)), |c| arrival(l, c));
        for chunk in l.chunks(l.rank).chain(landed) {
            for peer in l.world.node_peers(l.rank) {
                let [read, write] = [l.rank, peer].map(|rank| l.a_rows(rank, chunk.start, chunk.end));
                l.gather().copy(lane, chunk.source, l.here(&chunk), read, write);
            }
        }
    }
}

impl Role for Send<'_> {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        for chunk in l.chunks(l.rank) {
            for node in l.world.other_nodes(l.rank) {
                l.gather().put(lane, node, l.here(&chunk), |rank| l.a_rows(rank, chunk.start, chunk.end));
            }
        }
        let writers = l.landing_sources().filter(|&s| l.chunk_count(s) > 0);
        l.gather().finish_sends(lane, writers, l.bulk_puts());
    }
}
