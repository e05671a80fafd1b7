//! Cells, by formulas that every rank agrees on: first those that other ranks raise, then a rank's own.

use mkernel_core::{Born, CellId, Node, ProgramBuilder, Rank};

use super::Form;
use super::layout::{Block, Layout, Tile};

/// First cell of each kind on one rank, after three of each rank of the node: credits, leave to copy, and copies.
struct Starts {
    /// Raised by each home of each slice: its landing memory is free.
    route: u64,
    /// Raised by the rail of each node: it may be put to.
    rail_ready: u64,
    /// Raised by the owner of each block.
    block: u64,
    /// Raised by each other node, tile by tile of the home slices.
    landed: u64,
}

impl Layout<'_> {
    fn starts(&self, rank: Rank) -> Starts {
        let gpus = u64::from(self.world.gpus(self.world.node_of(rank)));
        let route = 3 * gpus;
        let rail_ready = route + self.routes();
        let two_step = self.problem.form == Form::TwoStep && self.nodes() > 1;
        let block = rail_ready + if two_step { self.nodes() } else { 0 };
        let landed = block + if two_step { self.blocks_before(self.slices().end) } else { 0 };
        Starts { route, rail_ready, block, landed }
    }

    /// First of the cells that the ranks of the node raise, tile by tile of the slices collected, on a rank of this node.
    fn first_part(&self, rank: Rank) -> u64 {
        self.starts(rank).landed + self.nodes() * self.home_before(rank, self.slices().end).tiles
    }

    /// First of this rank's own cells.
    fn first_own(&self) -> u64 {
        self.first_part(self.rank) + self.own_collected().slots.tiles * self.gpus()
    }

    /// Pairs of a slice and a home of it.
    fn routes(&self) -> u64 {
        match self.problem.form {
            Form::Scatter | Form::TwoStep => u64::from(self.slices().end),
            Form::OneShot => u64::from(self.slices().end) * self.nodes(),
        }
    }

    /// On ranks of this node: the credit that `collector`, of this node too, raises once its slots are free.
    pub(super) fn credit(&self, collector: Rank) -> CellId {
        cell(u64::from(self.world.index_of(collector)))
    }

    /// On ranks of this node: `reader`, of this node too, may be copied to.
    pub(super) fn ready(&self, reader: Rank) -> CellId {
        cell(self.gpus() + u64::from(self.world.index_of(reader)))
    }

    /// On ranks of this node: counts copies by `writer`, of this node too.
    pub(super) fn copied(&self, writer: Rank) -> CellId {
        cell(2 * self.gpus() + u64::from(self.world.index_of(writer)))
    }

    /// On `collector`: the landing memory of a slice on the node `home` is free.
    pub(super) fn route(&self, collector: Rank, slice: u32, home: Node) -> CellId {
        let index = match self.problem.form {
            Form::Scatter | Form::TwoStep => u64::from(slice),
            Form::OneShot => u64::from(slice) * self.nodes() + u64::from(home.0),
        };
        cell(self.starts(collector).route + index)
    }

    /// On the owner of blocks: its rail on `node` may be put to.
    pub(super) fn rail_ready(&self, owner: Rank, node: Node) -> CellId {
        cell(self.starts(owner).rail_ready + u64::from(node.0))
    }

    /// On the rail of its owner: a block is here.
    pub(super) fn block_here(&self, rail: Rank, block: &Block) -> CellId {
        cell(self.starts(rail).block + block.index)
    }

    /// On `home`: the partial of node `from` for a tile is here.
    pub(super) fn landed(&self, home: Rank, from: Node, tile: &Tile) -> CellId {
        let before = self.nodes() * self.home_before(home, tile.slice).tiles;
        let index = before + u64::from(from.0) * self.tile_count(tile.slice) + tile.index;
        cell(self.starts(home).landed + index)
    }

    /// On the collector of a tile on this node: the part of rank number `gpu` of the node is in its slot.
    pub(super) fn part(&self, tile: &Tile, gpu: u64) -> CellId {
        let collector = self.collector(self.node, tile.slice);
        let index = (self.slots[tile.slice as usize].tiles + tile.index) * self.gpus() + gpu;
        cell(self.first_part(collector) + index)
    }

    /// What says that rows of C that others write are here: blocks from other nodes, and copies within the node.
    pub(super) fn arrivals(&self) -> Vec<CellId> {
        if !self.is_everywhere() {
            return Vec::new();
        }
        let peers = self.world.node_peers(self.rank);
        let writers = peers.filter(|&p| self.collected[self.world.index_of(p) as usize].blocks > 0);
        let copies = writers.map(|p| self.copied(p));
        copies.chain(self.landing_blocks().map(|b| self.block_here(self.rank, &b))).collect()
    }

    // This rank's own.

    /// Counts sums that have read slots, landing memory or staging.
    pub(super) fn done(&self) -> CellId {
        cell(self.first_own())
    }

    /// Says that slots and landing memory are given back.
    pub(super) fn free(&self) -> CellId {
        cell(self.first_own() + 1)
    }

    /// Counts puts whose source has been read.
    pub(super) fn sent(&self) -> CellId {
        cell(self.first_own() + 2)
    }

    /// Says that a tile is staged.
    pub(super) fn staged(&self, tile: &Tile) -> CellId {
        cell(self.first_own() + 3 + self.staging[tile.slice as usize].tiles + tile.index)
    }

    /// Counts the finished tiles of a block of a home slice.
    pub(super) fn finished(&self, slice: u32, block: u64) -> CellId {
        let staged = self.own_collected().staging.tiles;
        let home = self.home_before(self.rank, slice).tiles / self.tile_columns();
        cell(self.first_own() + 3 + staged + home + block - self.blocks_before(slice))
    }

    /// Declares this rank's cells, in the order of the formulas above.
    pub(super) fn declare_cells(&self, builder: &mut ProgramBuilder) {
        self.declare_node_cells(builder);
        self.declare_rail_cells(builder);
        let own = self.own_collected();
        for _ in 0..own.slots.tiles * self.gpus() {
            builder.cell(1, Born::Empty);
        }
        builder.cell(self.reduces() as u32, Born::Empty);
        builder.cell(u32::from(self.reduces() > 0), Born::Empty);
        builder.cell(self.bulk_puts() as u32, Born::Empty);
        for _ in 0..own.staging.tiles {
            builder.cell(1, Born::Empty);
        }
        if self.is_everywhere() {
            for _ in self.home_slices(self.rank).flat_map(|s| self.blocks(s)) {
                builder.cell(self.tile_columns() as u32, Born::Empty);
            }
        }
    }

    fn declare_node_cells(&self, builder: &mut ProgramBuilder) {
        let peers = || self.world.ranks_of(self.node).map(Rank).zip(&self.collected);
        for (peer, collected) in peers() {
            builder.cell(u32::from(peer != self.rank && collected.slots.tiles > 0), Born::Full);
        }
        for (peer, _) in peers() {
            let copies = self.is_everywhere() && peer != self.rank && self.own_collected().blocks > 0;
            builder.cell(u32::from(copies), Born::Empty);
        }
        for (peer, collected) in peers() {
            let copies = self.is_everywhere() && peer != self.rank;
            builder.cell(if copies { collected.blocks as u32 } else { 0 }, Born::Empty);
        }
    }

    fn declare_rail_cells(&self, builder: &mut ProgramBuilder) {
        for slice in self.slices() {
            let collects = self.collector(self.node, slice) == self.rank && self.tile_count(slice) > 0;
            let puts_to = |home| collects && home != self.node && self.is_home(home, slice);
            if self.problem.form == Form::OneShot {
                self.world.nodes().for_each(|home| _ = builder.cell(u32::from(puts_to(home)), Born::Full));
            } else {
                builder.cell(u32::from(puts_to(self.world.node_of(Rank(slice)))), Born::Full);
            }
        }
        if self.problem.form == Form::TwoStep && self.nodes() > 1 {
            for node in self.world.nodes() {
                let puts = node != self.node && self.block_count(self.rank.0) > 0;
                builder.cell(u32::from(puts), Born::Empty);
            }
            for slice in self.slices() {
                let lands = self.lands_blocks(slice);
                self.blocks(slice).for_each(|_| _ = builder.cell(u32::from(lands), Born::Empty));
            }
        }
        for slice in self.home_slices(self.rank) {
            for node in self.world.nodes() {
                for _ in 0..self.tile_count(slice) {
                    builder.cell(u32::from(node != self.node), Born::Empty);
                }
            }
        }
    }
}

fn cell(index: u64) -> CellId {
    CellId(u32::try_from(index).expect("cells number fewer than instructions, which check_instructions bounds"))
}
