//! Where everything is on a rank: regions, spans, inputs, outputs and the byte law.

use mkernel_core::routing::{Tile, most_pairs, most_tiles};
use mkernel_core::{DType, Experts, Law, Node, Placement, ProgramBuilder, Rank, RegionId, Routed, Span, World};

use super::cells::Cells;
use super::tokens::{Chunk, Tokens};
use super::{Kind, Problem};
use crate::operator::{PlanError, check_instructions};
use crate::profile::Profile;

const IDS: RegionId = RegionId(0);
/// Row t belongs to token t: own rows in place, others packed from the first row of their chunk.
const X: RegionId = RegionId(1);
/// What lands over the NIC, by rail source.
const RAIL: RegionId = RegionId(2);
/// What leaves over the NIC: a copy of the shard for each other node.
const STAGING: RegionId = RegionId(3);
/// Numbers of packed rows.
const COUNTS: RegionId = RegionId(4);
const INDEX: RegionId = RegionId(5);
const UP: RegionId = RegionId(6);
/// Results of the first products, tile slot after tile slot.
const INNER: RegionId = RegionId(7);
const SECOND: RegionId = RegionId(8);
const DOWN: RegionId = RegionId(9);
/// Results of the last product in f32, tile slot after tile slot.
const RESULTS: RegionId = RegionId(10);
const WEIGHTS: RegionId = RegionId(11);
/// Sums of each rank of the node in f32: rank after rank; own tokens, then those of rail sources.
const PARTIALS: RegionId = RegionId(12);
/// Sums of the node for rail sources, on their way back.
const MERGED: RegionId = RegionId(13);
/// What other nodes send back: a copy of the shard from each.
const RETURNED: RegionId = RegionId(14);
const Y: RegionId = RegionId(15);

/// The plan's geometry as one rank sees it.
pub(super) struct Layout<'a> {
    pub(super) t: Tokens<'a>,
    pub(super) rank: Rank,
    pub(super) node: Node,
    pub(super) profile: &'a Profile,
    pub(super) cells: Cells,
    /// Tile slots of this rank.
    pub(super) slots: u64,
    pairs: u64,
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        problem: &'a Problem,
        world: &'a World,
        rank: Rank,
        profile: &'a Profile,
    ) -> Result<Layout<'a>, PlanError> {
        let t = Tokens::new(problem, world, profile);
        let own = u64::from(t.experts(rank).len());
        let (pairs, tile) = (most_pairs(problem.tokens, problem.topk, own), u64::from(profile.tile_m));
        let slots = most_tiles(problem.tokens, problem.topk, own, tile);
        // Rows of results are numbered in u32, with the last number for none.
        check_instructions(slots.saturating_mul(tile) >> 5)?;
        let cells = Cells::new(&t, slots);
        let layout = Layout { t, rank, node: world.node_of(rank), profile, cells, slots, pairs };
        let counts = [layout.tiles(), layout.packs(), layout.combines(), layout.sends(), layout.merges()];
        check_instructions(counts.into_iter().fold(0, u64::saturating_add))?;
        Ok(layout)
    }

    /// Regions, cells, inputs, outputs and the byte law.
    pub(super) fn declare(&self, builder: &mut ProgramBuilder) {
        let Problem { tokens, hidden, inner, topk, dtype, .. } = *self.problem();
        let (own, others) = (self.own_rows(), u64::from(self.t.world.node_count()) - 1);
        let (h, i, rail) = (hidden * dtype.bytes(), inner * dtype.bytes(), self.t.rail_rows(self.rank));
        let (experts, rows) = (u64::from(self.experts().len()), self.slots * self.tile());
        let index = self.slots * Tile::WORDS as u64 + self.pairs + tokens * topk;
        builder.region("topk_ids", tokens * topk * 4);
        builder.region("x", tokens * h);
        builder.region("rail", rail * h);
        builder.region("staging", own * others * h);
        builder.region("counts", 8 * self.cells.counts(&self.t));
        builder.region("index", index * 4);
        builder.region("up", experts * hidden * i);
        builder.region("inner", rows * i);
        if self.is_ffn() {
            let (wide, passing) = (hidden * 4, own + rail);
            builder.region("second", experts * hidden * i);
            builder.region("down", experts * inner * h);
            builder.region("results", rows * wide);
            builder.region("topk_weights", tokens * topk * 4);
            builder.region("partials", u64::from(self.t.world.gpus(self.node)) * passing * wide);
            builder.region("merged", rail * h);
            builder.region("returned", own * others * h);
            builder.region("y", own * h);
        }
        self.cells.declare(self, builder);
        self.declare_tensors(builder);
        builder.law(self.law());
    }

    fn declare_tensors(&self, builder: &mut ProgramBuilder) {
        let Problem { tokens, hidden, inner, topk, .. } = *self.problem();
        let first = u64::from(self.experts().first);
        let own = self.t.rows(self.rank);
        let mut input = |tensor, span: Span, row| {
            if !span.is_empty() {
                builder.input(Placement { tensor, span, row, column: 0 });
            }
        };
        input("topk_ids", self.table(IDS, 0, tokens), 0);
        input("x", self.x(self.rank, own.start, own.end), own.start);
        match self.problem().kind {
            Kind::Gemm => input("w1", self.up(0, inner), first * hidden),
            Kind::Ffn => {
                input("topk_weights", self.table(WEIGHTS, 0, tokens), 0);
                input("w_gate", self.up(0, inner), first * hidden);
                input("w_up", self.second(0, inner), first * hidden);
                input("w_down", self.down(0, hidden), first * inner);
            }
        }
        if self.is_ffn() {
            let span = self.y(own.start, own.end);
            if !span.is_empty() {
                builder.output(Placement { tensor: "y", span, row: own.start, column: 0 });
            }
        } else if self.has_experts() {
            let span = self.matrix(INNER, self.slots * self.tile(), inner * self.problem().dtype.bytes());
            let places = self.places(0, tokens);
            let rows = Span { rows: 1, row_bytes: tokens * topk * 4, stride: tokens * topk * 4, ..places };
            builder.routed(Routed { tensor: "y", span, rows });
        }
    }

    /// At most each own row to every other node with experts, and with a combine back the same way.
    fn law(&self) -> Law {
        let row = self.problem().hidden * self.problem().dtype.bytes();
        let away = self.own_rows() * self.t.expert_nodes(self.rank).count() as u64 * row;
        let rail = if self.t.is_expert_node(self.node) { self.t.rail_rows(self.rank) * row } else { 0 };
        match self.problem().kind {
            Kind::Gemm => Law { inter_out: away, inter_in: rail },
            Kind::Ffn => Law { inter_out: away + rail, inter_in: rail + away },
        }
    }

    // What this rank is.

    pub(super) fn problem(&self) -> &'a Problem {
        self.t.problem
    }

    pub(super) fn is_ffn(&self) -> bool {
        self.problem().kind == Kind::Ffn
    }

    pub(super) fn experts(&self) -> Experts {
        self.t.experts(self.rank)
    }

    pub(super) fn has_experts(&self) -> bool {
        self.t.is_expert(self.rank)
    }

    pub(super) fn own_rows(&self) -> u64 {
        self.t.row_count(self.rank)
    }

    pub(super) fn tile(&self) -> u64 {
        u64::from(self.profile.tile_m)
    }

    /// First and last columns of the tiles of a row of `columns` columns.
    pub(super) fn column_tiles(&self, columns: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let step = u64::from(self.profile.tile_n);
        (0..columns.div_ceil(step)).map(move |i| (i * step, ((i + 1) * step).min(columns)))
    }

    /// The chunks of all other ranks in the order in which they are expected here.
    pub(super) fn landings(&self) -> Vec<Chunk> {
        let others = self.t.world.ranks().filter(|&r| r != self.rank);
        let mut chunks: Vec<(f64, Chunk)> =
            others.flat_map(|r| self.t.chunks(r)).map(|c| (self.t.arrival(self.rank, &c, self.profile), c)).collect();
        chunks.sort_by(|a, b| a.0.total_cmp(&b.0));
        chunks.into_iter().map(|(_, c)| c).collect()
    }

    // Spans.

    fn rows(rank: Rank, region: RegionId, first: u64, rows: u64, row_bytes: u64) -> Span {
        let (offset, rows) = (first * row_bytes, rows as u32);
        Span { rank, region, offset, rows, row_bytes, stride: row_bytes }
    }

    fn matrix(&self, region: RegionId, rows: u64, row_bytes: u64) -> Span {
        Layout::rows(self.rank, region, 0, rows, row_bytes)
    }

    /// Columns of rows of a matrix with `width` columns of `element` bytes.
    fn block(&self, region: RegionId, rows: (u64, u64), columns: (u64, u64), width: u64, element: u64) -> Span {
        Span {
            rank: self.rank,
            region,
            offset: (rows.0 * width + columns.0) * element,
            rows: (rows.1 - rows.0) as u32,
            row_bytes: (columns.1 - columns.0) * element,
            stride: width * element,
        }
    }

    fn table(&self, region: RegionId, start: u64, end: u64) -> Span {
        Layout::rows(self.rank, region, start, end - start, self.problem().topk * 4)
    }

    fn row_bytes(&self) -> u64 {
        self.problem().hidden * self.problem().dtype.bytes()
    }

    /// The table of tokens `start..end`.
    pub(super) fn ids(&self, start: u64, end: u64) -> Span {
        self.table(IDS, start, end)
    }

    /// The weights of a chunk's slots.
    pub(super) fn weights(&self, chunk: &Chunk) -> Span {
        self.table(WEIGHTS, chunk.start, chunk.end)
    }

    /// Rows `start..end` of the gathered tokens on `rank`.
    pub(super) fn x(&self, rank: Rank, start: u64, end: u64) -> Span {
        Layout::rows(rank, X, start, end - start, self.row_bytes())
    }

    /// All rows of the gathered tokens.
    pub(super) fn all_x(&self) -> Span {
        self.x(self.rank, 0, self.problem().tokens)
    }

    /// Where `chunk` lands on its rail `rank`.
    pub(super) fn rail(&self, rank: Rank, chunk: &Chunk) -> Span {
        let first = self.t.rail_rows_before(rank, chunk.source) + chunk.start - self.t.rows(chunk.source).start;
        Layout::rows(rank, RAIL, first, chunk.end - chunk.start, self.row_bytes())
    }

    /// Where everything of `source` lands on this rank.
    pub(super) fn rail_of(&self, source: Rank) -> Span {
        let (first, rows) = (self.t.rail_rows_before(self.rank, source), self.t.row_count(source));
        Layout::rows(self.rank, RAIL, first, rows, self.row_bytes())
    }

    /// First row of `chunk` in a copy of its source's shard for or from `node`, another node.
    fn copy_row(&self, chunk: &Chunk, node: Node) -> u64 {
        let own = self.t.world.node_of(chunk.source);
        let copy = u64::from(node.0) - u64::from(node > own);
        copy * self.t.row_count(chunk.source) + chunk.start - self.t.rows(chunk.source).start
    }

    /// The rows of an own chunk on their way to `node`.
    pub(super) fn staging(&self, chunk: &Chunk, node: Node) -> Span {
        Layout::rows(self.rank, STAGING, self.copy_row(chunk, node), chunk.end - chunk.start, self.row_bytes())
    }

    /// The rows of `chunk` that come back from `node`.
    pub(super) fn returned(&self, chunk: &Chunk, node: Node) -> Span {
        Layout::rows(chunk.source, RETURNED, self.copy_row(chunk, node), chunk.end - chunk.start, self.row_bytes())
    }

    /// All that comes back.
    pub(super) fn all_returned(&self) -> Span {
        let others = u64::from(self.t.world.node_count()) - 1;
        self.matrix(RETURNED, self.own_rows() * others, self.row_bytes())
    }

    /// A number of packed rows; see [`Cells`] for who has which.
    pub(super) fn count(&self, index: u64) -> Span {
        Span::flat(self.rank, COUNTS, index * 8, 8)
    }

    /// The entries of all tile slots.
    pub(super) fn tile_entries(&self) -> Span {
        self.matrix(INDEX, self.slots, Tile::WORDS as u64 * 4)
    }

    /// The entry of one tile slot.
    pub(super) fn tile_entry(&self, slot: u64) -> Span {
        Layout::rows(self.rank, INDEX, slot, 1, Tile::WORDS as u64 * 4)
    }

    /// The row of every pair.
    pub(super) fn pair_rows(&self) -> Span {
        Span::flat(self.rank, INDEX, self.slots * Tile::WORDS as u64 * 4, self.pairs * 4)
    }

    /// The places of the results of tokens `start..end`.
    pub(super) fn places(&self, start: u64, end: u64) -> Span {
        let before = self.slots * Tile::WORDS as u64 * 4 + self.pairs * 4;
        let span = self.table(INDEX, start, end);
        Span { offset: before + span.offset, ..span }
    }

    /// Columns `start..end` of the first product's weights.
    pub(super) fn up(&self, start: u64, end: u64) -> Span {
        self.expert_weights(UP, (self.problem().hidden, self.problem().inner), (start, end))
    }

    /// Columns of the weights that go beside them.
    pub(super) fn second(&self, start: u64, end: u64) -> Span {
        self.expert_weights(SECOND, (self.problem().hidden, self.problem().inner), (start, end))
    }

    /// Columns of the last product's weights.
    pub(super) fn down(&self, start: u64, end: u64) -> Span {
        self.expert_weights(DOWN, (self.problem().inner, self.problem().hidden), (start, end))
    }

    fn expert_weights(&self, region: RegionId, (depth, width): (u64, u64), columns: (u64, u64)) -> Span {
        let rows = u64::from(self.experts().len()) * depth;
        self.block(region, (0, rows), columns, width, self.problem().dtype.bytes())
    }

    /// Columns of a tile slot's results of the first products.
    pub(super) fn inner(&self, slot: u64, columns: (u64, u64)) -> Span {
        let rows = (slot * self.tile(), (slot + 1) * self.tile());
        self.block(INNER, rows, columns, self.problem().inner, self.problem().dtype.bytes())
    }

    /// Columns of a tile slot's results of the last product.
    pub(super) fn results(&self, slot: u64, columns: (u64, u64)) -> Span {
        let rows = (slot * self.tile(), (slot + 1) * self.tile());
        self.block(RESULTS, rows, columns, self.problem().hidden, DType::F32.bytes())
    }

    /// All results of the last product.
    pub(super) fn all_results(&self) -> Span {
        self.matrix(RESULTS, self.slots * self.tile(), self.problem().hidden * DType::F32.bytes())
    }

    /// What `expert`, a rank of this node, adds up for `chunk`, on the rank of this node where the chunk's sums meet.
    pub(super) fn partial(&self, chunk: &Chunk, expert: Rank) -> Span {
        let home = self.t.meeting(self.node, chunk.source);
        let passing = self.t.row_count(home) + self.t.rail_rows(home);
        let before = match home == chunk.source {
            true => 0,
            false => self.t.row_count(home) + self.t.rail_rows_before(home, chunk.source),
        };
        let row = before + chunk.start - self.t.rows(chunk.source).start;
        let first = u64::from(self.t.world.index_of(expert)) * passing + row;
        let row_bytes = self.problem().hidden * DType::F32.bytes();
        Layout::rows(home, PARTIALS, first, chunk.end - chunk.start, row_bytes)
    }

    /// All sums of ranks of this node.
    pub(super) fn all_partials(&self) -> Span {
        let passing = self.own_rows() + self.t.rail_rows(self.rank);
        let rows = u64::from(self.t.world.gpus(self.node)) * passing;
        self.matrix(PARTIALS, rows, self.problem().hidden * DType::F32.bytes())
    }

    /// The node's sums for a chunk of a rail source.
    pub(super) fn merged(&self, chunk: &Chunk) -> Span {
        Span { region: MERGED, ..self.rail(self.rank, chunk) }
    }

    /// Own tokens `start..end` of the output.
    pub(super) fn y(&self, start: u64, end: u64) -> Span {
        let own = self.t.rows(self.rank).start;
        Layout::rows(self.rank, Y, start - own, end - start, self.row_bytes())
    }
}
