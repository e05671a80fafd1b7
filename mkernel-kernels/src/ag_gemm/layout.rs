//! Where everything is: shares, chunks, cells and spans of AG+GEMM, each by a formula that every rank agrees on.

use std::ops::Range;

use mkernel_core::world::share;
use mkernel_core::{Born, CellId, Law, Node, Placement, ProgramBuilder, Rank, RegionId, Span, World};

use super::AgGemm;
use crate::gather::{Counts, Gather};
use crate::operator::{PlanError, check_instructions};
use crate::profile::Profile;

const A: RegionId = RegionId(0);
const B: RegionId = RegionId(1);
const C: RegionId = RegionId(2);

/// Bytes of a chunk that the planner aims at: large enough for full link rate, small enough to overlap.
const CHUNK_BYTES: u64 = 1 << 20;

/// A tile's rows come from at most this many chunks of one shard, so that its waits stay few.
const CHUNKS_PER_TILE: u64 = 8;

/// The plan's geometry as one rank sees it.
pub(super) struct Layout<'a> {
    pub(super) problem: &'a AgGemm,
    pub(super) world: &'a World,
    pub(super) rank: Rank,
    pub(super) node: Node,
    pub(super) profile: &'a Profile,
    chunk_rows: u64,
    /// Rows of a shard: the first `longer` shards have one more.
    floor: u64,
    longer: u64,
    /// Chunks of a shard, and of a longer one.
    chunks: [u64; 2],
    /// This rank's columns of B and C.
    columns: Range<u64>,
}

/// A run of rows of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) source: Rank,
    /// Index within the shard.
    pub(super) index: u64,
    /// First row of A and one past the last.
    pub(super) start: u64,
    pub(super) end: u64,
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        problem: &'a AgGemm,
        world: &'a World,
        rank: Rank,
        profile: &'a Profile,
    ) -> Result<Layout<'a>, PlanError> {
        let size = u64::from(world.size());
        let chunk_rows = chunk_rows(problem.k * problem.dtype.bytes(), u64::from(profile.tile_m));
        let floor = problem.m / size;
        let layout = Layout {
            problem,
            world,
            rank,
            node: world.node_of(rank),
            profile,
            chunk_rows,
            floor,
            longer: problem.m % size,
            chunks: [floor, floor + 1].map(|rows| rows.div_ceil(chunk_rows)),
            columns: share(problem.n, size, u64::from(rank.0)),
        };
        check_instructions(layout.tiles().saturating_add(layout.copies()).saturating_add(layout.sends()))?;
        Ok(layout)
    }

    /// Regions, cells, inputs, outputs and the byte law.
    pub(super) fn declare(&self, builder: &mut ProgramBuilder) {
        let (m, k, element) = (self.problem.m, self.problem.k, self.problem.dtype.bytes());
        let width = self.columns.end - self.columns.start;
        builder.region("a", m * k * element);
        builder.region("b", k * width * element);
        builder.region("c", m * width * element);
        self.declare_cells(builder);
        let own = self.rows(self.rank);
        let first_column = self.columns.start;
        if own.start < own.end {
            let span = self.a_rows(self.rank, own.start, own.end);
            builder.input(Placement { tensor: "a", span, row: own.start, column: 0 });
        }
        if width > 0 {
            builder.input(Placement { tensor: "b", span: self.b(0, width), row: 0, column: first_column });
            builder.output(Placement { tensor: "c", span: self.c(0, m, 0, width), row: 0, column: first_column });
        }
        builder.law(self.law());
    }

    /// Cells: one per chunk, then those of [`Gather`].
    fn declare_cells(&self, builder: &mut ProgramBuilder) {
        for source in self.world.ranks() {
            for _ in 0..self.chunk_count(source) {
                builder.cell(u32::from(source != self.rank), Born::Empty);
            }
        }
        let counts =
            Counts { reads: self.tiles() + self.forwards(), releases: self.lands().into(), puts: self.bulk_puts() };
        let (copies, puts) = (self.writes_to_peers(self.rank), self.chunk_count(self.rank) > 0);
        self.gather().declare(builder, &counts, |_| copies, |_| puts);
    }

    /// NIC bytes by the formula of the operator: each rank's shard once to every other node; a rank receives the shards
    /// whose index folds onto its own.
    fn law(&self) -> Law {
        let row = self.problem.k * self.problem.dtype.bytes();
        let rows = |rank| self.rows(rank).end - self.rows(rank).start;
        let landing: u64 = self.landing_sources().map(rows).sum();
        let others = u64::from(self.world.node_count()) - 1;
        Law { inter_out: others * rows(self.rank) * row, inter_in: landing * row }
    }

    // Shares and chunks.

    /// The rows of A that `rank` owns.
    pub(super) fn rows(&self, rank: Rank) -> Range<u64> {
        let index = u64::from(rank.0);
        let start = index * self.floor + index.min(self.longer);
        start..start + self.floor + u64::from(index < self.longer)
    }

    /// Number of chunks of the shard of `rank`.
    pub(super) fn chunk_count(&self, rank: Rank) -> u64 {
        self.chunks[usize::from(u64::from(rank.0) < self.longer)]
    }

    /// The chunks of the shard of `source`, in order.
    pub(super) fn chunks(&self, source: Rank) -> impl Iterator<Item = Chunk> + use<> {
        let (rows, step) = (self.rows(source), self.chunk_rows);
        (0..self.chunk_count(source)).map(move |index| {
            let start = rows.start + index * step;
            Chunk { source, index, start, end: (start + step).min(rows.end) }
        })
    }

    /// The chunks that hold rows `start..end`.
    pub(super) fn chunks_of_rows(&self, start: u64, end: u64) -> impl Iterator<Item = Chunk> + '_ {
        let (first, last) = (self.owner(start), self.owner(end - 1));
        (first.0..=last.0).map(Rank).flat_map(move |source| {
            let rows = self.rows(source);
            let (from, to) = (start.max(rows.start) - rows.start, end.min(rows.end) - rows.start);
            let step = self.chunk_rows;
            (from / step..to.div_ceil(step)).map(move |index| {
                let begin = rows.start + index * step;
                Chunk { source, index, start: begin, end: (begin + step).min(rows.end) }
            })
        })
    }

    /// The rank that owns row `row`.
    pub(super) fn owner(&self, row: u64) -> Rank {
        let (floor, longer) = (self.floor, self.longer);
        let long_rows = longer * (floor + 1);
        let rank = if row < long_rows { row / (floor + 1) } else { longer + (row - long_rows) / floor };
        Rank(rank as u32)
    }

    /// Sources of other nodes whose chunks land on this rank.
    pub(super) fn landing_sources(&self) -> impl Iterator<Item = Rank> + '_ {
        self.world.rail_sources(self.rank)
    }

    /// The cell that says that `chunk` is here.
    pub(super) fn here(&self, chunk: &Chunk) -> CellId {
        CellId((self.chunks_before(chunk.source) + chunk.index) as u32)
    }

    /// The protocol by which chunks travel.
    pub(super) fn gather(&self) -> Gather<'_> {
        let chunk_cells = self.chunks_before(Rank(self.world.size()));
        Gather { world: self.world, rank: self.rank, profile: self.profile, chunk_cells }
    }

    /// Chunks of all shards before that of `rank`.
    fn chunks_before(&self, rank: Rank) -> u64 {
        let long = u64::from(rank.0).min(self.longer);
        long * self.chunks[1] + (u64::from(rank.0) - long) * self.chunks[0]
    }

    // Spans.

    /// Rows `start..end` of the gathered A on `rank`.
    pub(super) fn a_rows(&self, rank: Rank, start: u64, end: u64) -> Span {
        let row_bytes = self.problem.k * self.problem.dtype.bytes();
        Span { rank, region: A, offset: start * row_bytes, rows: (end - start) as u32, row_bytes, stride: row_bytes }
    }

    /// Columns `start..end` of this rank's B.
    pub(super) fn b(&self, start: u64, end: u64) -> Span {
        self.matrix(B, 0, self.problem.k, start, end)
    }

    /// A rectangle of this rank's C.
    pub(super) fn c(&self, row: u64, row_end: u64, start: u64, end: u64) -> Span {
        self.matrix(C, row, row_end, start, end)
    }

    fn matrix(&self, region: RegionId, row: u64, row_end: u64, start: u64, end: u64) -> Span {
        let element = self.problem.dtype.bytes();
        let stride = (self.columns.end - self.columns.start) * element;
        Span {
            rank: self.rank,
            region,
            offset: row * stride + start * element,
            rows: (row_end - row) as u32,
            row_bytes: (end - start) * element,
            stride,
        }
    }

    // Amounts of work.

    /// This rank's columns of C.
    pub(super) fn width(&self) -> u64 {
        self.columns.end - self.columns.start
    }

    /// Tiles of C on this rank.
    pub(super) fn tiles(&self) -> u64 {
        self.problem.m.div_ceil(u64::from(self.profile.tile_m)) * self.width().div_ceil(u64::from(self.profile.tile_n))
    }

    /// Whether anything lands on this rank: a world of one rank gathers nothing.
    pub(super) fn lands(&self) -> bool {
        self.rows(self.rank) != (0..self.problem.m)
    }

    /// Whether the compute role has anything to do.
    pub(super) fn computes(&self) -> bool {
        self.tiles() > 0 || self.lands()
    }

    /// Whether `rank` copies anything to the peers of its node: own chunks, or chunks that land on it.
    pub(super) fn writes_to_peers(&self, rank: Rank) -> bool {
        let (node, index) = (self.world.node_of(rank), self.world.index_of(rank));
        // Shares never grow with the rank number, so the first rank that folds onto `rank` on each node decides.
        let lands_from = |other: Node| {
            other != node
                && index < self.world.gpus(other)
                && self.chunk_count(Rank(self.world.ranks_of(other).start + index)) > 0
        };
        self.chunk_count(rank) > 0 || self.world.nodes().any(lands_from)
    }

    /// Copies of landed chunks to node peers.
    pub(super) fn forwards(&self) -> u64 {
        self.landed_chunks() * (u64::from(self.world.gpus(self.node)) - 1)
    }

    fn landed_chunks(&self) -> u64 {
        self.landing_sources().map(|s| self.chunk_count(s)).sum()
    }

    /// Copies to node peers.
    pub(super) fn copies(&self) -> u64 {
        self.forwards() + self.chunk_count(self.rank) * (u64::from(self.world.gpus(self.node)) - 1)
    }

    /// Bytes of those copies.
    pub(super) fn copy_bytes(&self) -> u64 {
        let rows = |rank| self.rows(rank).end - self.rows(rank).start;
        let rows: u64 = rows(self.rank) + self.landing_sources().map(rows).sum::<u64>();
        rows * self.problem.k * self.problem.dtype.bytes() * (u64::from(self.world.gpus(self.node)) - 1)
    }

    /// Puts that carry bytes.
    pub(super) fn bulk_puts(&self) -> u64 {
        self.chunk_count(self.rank) * (u64::from(self.world.node_count()) - 1)
    }

    /// All instructions of the send role: puts and credits.
    pub(super) fn sends(&self) -> u64 {
        self.bulk_puts() + self.landing_sources().filter(|&s| self.chunk_count(s) > 0).count() as u64
    }

    /// Floating-point operations of this rank.
    pub(super) fn rank_flops(&self) -> f64 {
        2.0 * self.problem.m as f64 * self.width() as f64 * self.problem.k as f64
    }
}

/// Rows of a chunk: near [`CHUNK_BYTES`], a power of two below a tile's rows, or a multiple of them.
fn chunk_rows(row_bytes: u64, tile_m: u64) -> u64 {
    let rows = (CHUNK_BYTES / row_bytes).max(tile_m.div_ceil(CHUNKS_PER_TILE)).max(1);
    if rows >= tile_m { rows / tile_m * tile_m } else { tile_m >> (tile_m / rows).ilog2() }
}
