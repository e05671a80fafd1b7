//! Where bytes are. Slots, staging and landing memory hold tile after tile, each in one piece: a put is one message.

use mkernel_core::{DType, Node, Placement, ProgramBuilder, Rank, RegionId, Span};

use super::Form;
use super::layout::{Base, Block, Layout, Tile};

const A: RegionId = RegionId(0);
const B: RegionId = RegionId(1);
const C: RegionId = RegionId(2);
const SLOTS: RegionId = RegionId(3);
const STAGING: RegionId = RegionId(4);
const LANDING: RegionId = RegionId(5);

impl Layout<'_> {
    /// Regions, inputs and outputs.
    pub(super) fn declare_memory(&self, builder: &mut ProgramBuilder) {
        let (m, n, element) = (self.problem.m, self.problem.n, self.problem.dtype.bytes());
        let (depth, own) = (self.depth.end - self.depth.start, self.c_rows(self.rank));
        builder.region("a", m * depth * element);
        builder.region("b", depth * n * element);
        builder.region("c", (own.1 - own.0) * n * element);
        builder.region("slots", self.own_slots().bytes());
        builder.region("staging", self.own_staging().bytes());
        builder.region("landing", self.own_landing().bytes());
        if depth > 0 {
            let column = self.depth.start;
            builder.input(Placement { tensor: "a", span: self.a((0, m)), row: 0, column });
            builder.input(Placement { tensor: "b", span: self.b((0, n)), row: column, column: 0 });
        }
        if own.0 < own.1 {
            builder.output(Placement { tensor: "c", span: self.c(self.rank, own, (0, n)), row: own.0, column: 0 });
        }
    }

    /// Rows of C on `rank`.
    fn c_rows(&self, rank: Rank) -> (u64, u64) {
        match self.problem.form {
            Form::Scatter => {
                let rows = self.rows(rank.0);
                (rows.start, rows.end)
            }
            Form::TwoStep | Form::OneShot => (0, self.problem.m),
        }
    }

    /// Rows of this rank's A.
    pub(super) fn a(&self, rows: (u64, u64)) -> Span {
        let row_bytes = (self.depth.end - self.depth.start) * self.problem.dtype.bytes();
        let rows_here = (rows.1 - rows.0) as u32;
        Span { rank: self.rank, region: A, offset: rows.0 * row_bytes, rows: rows_here, row_bytes, stride: row_bytes }
    }

    /// Columns of this rank's B.
    pub(super) fn b(&self, columns: (u64, u64)) -> Span {
        let element = self.problem.dtype.bytes();
        Span {
            rank: self.rank,
            region: B,
            offset: columns.0 * element,
            rows: (self.depth.end - self.depth.start) as u32,
            row_bytes: (columns.1 - columns.0) * element,
            stride: self.problem.n * element,
        }
    }

    /// A rectangle of C on `rank`.
    fn c(&self, rank: Rank, rows: (u64, u64), columns: (u64, u64)) -> Span {
        let (element, first) = (self.problem.dtype.bytes(), self.c_rows(rank).0);
        let stride = self.problem.n * element;
        Span {
            rank,
            region: C,
            offset: (rows.0 - first) * stride + columns.0 * element,
            rows: (rows.1 - rows.0) as u32,
            row_bytes: (columns.1 - columns.0) * element,
            stride,
        }
    }

    /// A tile of C on this rank.
    pub(super) fn c_tile(&self, tile: &Tile) -> Span {
        self.c(self.rank, tile.rows, tile.columns)
    }

    /// A block of C on `rank`.
    pub(super) fn c_block(&self, rank: Rank, block: &Block) -> Span {
        self.c(rank, block.rows, (0, self.problem.n))
    }

    /// The slot that rank number `gpu` of this node fills for a tile, on the tile's collector.
    pub(super) fn slot(&self, tile: &Tile, gpu: u64) -> Span {
        let first = self.gpus() * (self.slots[tile.slice as usize].rows * self.problem.n + self.before(tile));
        let collector = self.collector(self.node, tile.slice);
        packed(collector, SLOTS, first + gpu * area(tile), tile, DType::F32)
    }

    /// Where this rank stages a tile.
    pub(super) fn staged_tile(&self, tile: &Tile) -> Span {
        let first = self.staging[tile.slice as usize].rows * self.problem.n + self.before(tile);
        packed(self.rank, STAGING, first, tile, self.problem.partial)
    }

    /// Where the partial of node `from` lands on `home`, which takes the last sum.
    pub(super) fn landing(&self, home: Rank, from: Node, tile: &Tile) -> Span {
        let home_node = self.world.node_of(home);
        let position = u64::from(from.0) - u64::from(from > home_node);
        let rows = (self.nodes() - 1) * self.home_before(home, tile.slice).rows + position * self.row_count(tile.slice);
        packed(home, LANDING, rows * self.problem.n + self.before(tile), tile, self.problem.partial)
    }

    /// Rows and tiles of the home slices of `home` before `slice`.
    pub(super) fn home_before(&self, home: Rank, slice: u32) -> Base {
        let slices = self.home_slices(home).take_while(|&s| s < slice);
        slices.fold(Base::default(), |b, s| Base {
            rows: b.rows + self.row_count(s),
            tiles: b.tiles + self.tile_count(s),
        })
    }

    /// Elements of a slice's tiles before this one.
    fn before(&self, tile: &Tile) -> u64 {
        (tile.rows.0 - self.rows(tile.slice).start) * self.problem.n + (tile.rows.1 - tile.rows.0) * tile.columns.0
    }

    /// All slots of this rank.
    pub(super) fn own_slots(&self) -> Span {
        let rows = self.collected[self.world.index_of(self.rank) as usize].slots.rows;
        Span::flat(self.rank, SLOTS, 0, rows * self.gpus() * self.problem.n * DType::F32.bytes())
    }

    /// All staging of this rank.
    pub(super) fn own_staging(&self) -> Span {
        let rows = self.collected[self.world.index_of(self.rank) as usize].staging.rows;
        Span::flat(self.rank, STAGING, 0, rows * self.problem.n * self.problem.partial.bytes())
    }

    /// All landing memory of this rank.
    pub(super) fn own_landing(&self) -> Span {
        let rows = self.home_before(self.rank, self.slices().end).rows * (self.nodes() - 1);
        Span::flat(self.rank, LANDING, 0, rows * self.problem.n * self.problem.partial.bytes())
    }
}

fn area(tile: &Tile) -> u64 {
    (tile.rows.1 - tile.rows.0) * (tile.columns.1 - tile.columns.0)
}

/// A tile in one piece, `first` elements into a region.
fn packed(rank: Rank, region: RegionId, first: u64, tile: &Tile, dtype: DType) -> Span {
    let row_bytes = (tile.columns.1 - tile.columns.0) * dtype.bytes();
    Span {
        rank,
        region,
        offset: first * dtype.bytes(),
        rows: (tile.rows.1 - tile.rows.0) as u32,
        row_bytes,
        stride: row_bytes,
    }
}
