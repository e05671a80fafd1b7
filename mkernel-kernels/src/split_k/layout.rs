//! Slices, blocks, tiles, and who collects them: by formulas that every rank agrees on.

use std::ops::Range;

use mkernel_core::world::share;
use mkernel_core::{Node, Rank, World};

use super::{Form, Problem};
use crate::operator::{PlanError, check_instructions};
use crate::profile::Profile;

/// The plan's geometry as one rank sees it.
pub(super) struct Layout<'a> {
    pub(super) problem: &'a Problem,
    pub(super) world: &'a World,
    pub(super) rank: Rank,
    pub(super) node: Node,
    pub(super) profile: &'a Profile,
    /// This rank's columns of A and rows of B.
    pub(super) depth: Range<u64>,
    /// For each slice, where its slots begin on its collector of this node.
    pub(super) slots: Vec<Base>,
    /// For each slice that this rank stages, where its staging begins.
    pub(super) staging: Vec<Base>,
    /// What each rank of this node collects.
    pub(super) collected: Vec<Collected>,
}

/// Rows and tiles of the slices before one, in the memory of its collector.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Base {
    pub(super) rows: u64,
    pub(super) tiles: u64,
}

impl Base {
    fn add(&mut self, rows: u64, tiles: u64) {
        self.rows += rows;
        self.tiles += tiles;
    }
}

/// What one rank of this node collects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Collected {
    /// Through slots.
    pub(super) slots: Base,
    /// Staged for other nodes.
    pub(super) staging: Base,
    /// Blocks of all its slices: what it spreads in its node where C is wanted everywhere.
    pub(super) blocks: u64,
}

/// A tile of C: part of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) slice: u32,
    /// Index within the slice; columns first.
    pub(super) index: u64,
    /// First row of C and one past the last.
    pub(super) rows: (u64, u64),
    /// First column and one past the last.
    pub(super) columns: (u64, u64),
}

/// All columns of the rows that a row of tiles of a slice covers: what spreads as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) slice: u32,
    /// Index over all slices.
    pub(super) index: u64,
    /// First row of C and one past the last.
    pub(super) rows: (u64, u64),
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        problem: &'a Problem,
        world: &'a World,
        rank: Rank,
        profile: &'a Profile,
    ) -> Result<Layout<'a>, PlanError> {
        let node = world.node_of(rank);
        let mut layout = Layout {
            problem,
            world,
            rank,
            node,
            profile,
            depth: share(problem.k, u64::from(world.size()), u64::from(rank.0)),
            slots: Vec::new(),
            staging: Vec::new(),
            collected: vec![Collected::default(); world.gpus(node) as usize],
        };
        layout.place();
        let tiles: u64 = layout.slices().map(|s| layout.tile_count(s)).sum();
        check_instructions(tiles.saturating_add(layout.reduces()).saturating_add(layout.sends()))?;
        check_instructions(layout.copies())?;
        Ok(layout)
    }

    /// Lays the slices of every rank of this node one after the other.
    fn place(&mut self) {
        for slice in self.slices() {
            let index = self.world.index_of(self.collector(self.node, slice)) as usize;
            let (rows, tiles, blocks) = (self.row_count(slice), self.tile_count(slice), self.block_count(slice));
            let (slotted, staged) = (self.has_slots(slice), self.is_staged(slice));
            let collected = &mut self.collected[index];
            self.slots.push(collected.slots);
            self.staging.push(collected.staging);
            if slotted {
                collected.slots.add(rows, tiles);
            }
            if staged {
                collected.staging.add(rows, tiles);
            }
            collected.blocks += blocks;
        }
    }

    // Slices.

    /// All slices.
    pub(super) fn slices(&self) -> Range<u32> {
        match self.problem.form {
            Form::Scatter | Form::TwoStep => 0..self.world.size(),
            Form::OneShot => 0..self.world.max_gpus(),
        }
    }

    /// Rows of C of a slice.
    pub(super) fn rows(&self, slice: u32) -> Range<u64> {
        share(self.problem.m, u64::from(self.slices().end), u64::from(slice))
    }

    pub(super) fn row_count(&self, slice: u32) -> u64 {
        let rows = self.rows(slice);
        rows.end - rows.start
    }

    /// The rank of `node` where the node's part of a slice comes together.
    pub(super) fn collector(&self, node: Node, slice: u32) -> Rank {
        match self.problem.form {
            Form::Scatter | Form::TwoStep => self.world.rail(node, self.world.index_of(Rank(slice))),
            Form::OneShot => self.world.rail(node, slice),
        }
    }

    /// The slices that this rank collects.
    pub(super) fn collects(&self) -> impl Iterator<Item = u32> + '_ {
        self.slices().filter(|&s| self.collector(self.node, s) == self.rank)
    }

    /// Whether the last sum of a slice is taken on `node`.
    pub(super) fn is_home(&self, node: Node, slice: u32) -> bool {
        match self.problem.form {
            Form::Scatter | Form::TwoStep => self.world.node_of(Rank(slice)) == node,
            Form::OneShot => true,
        }
    }

    /// The slices whose last sum `rank` takes.
    pub(super) fn home_slices(&self, rank: Rank) -> impl Iterator<Item = u32> + '_ {
        let node = self.world.node_of(rank);
        let candidates = match self.problem.form {
            Form::Scatter | Form::TwoStep => rank.0..rank.0 + 1,
            Form::OneShot => self.slices(),
        };
        candidates.filter(move |&s| self.collector(node, s) == rank)
    }

    /// Other nodes that are home to a slice, this node's followers first.
    pub(super) fn other_homes(&self, slice: u32) -> impl Iterator<Item = Node> + '_ {
        self.world.other_nodes(self.rank).filter(move |&n| self.is_home(n, slice))
    }

    /// Whether this node's part of a slice is rounded and staged: another node adds it. One-shot adds what it sends, so
    /// that all nodes add the same.
    pub(super) fn is_staged(&self, slice: u32) -> bool {
        let is_shared = self.world.node_count() > 1;
        is_shared && (self.problem.form == Form::OneShot || !self.is_home(self.node, slice))
    }

    /// Whether tiles of a slice come together in slots on this node. A node of one GPU stages them as they are; a world
    /// of one rank writes C itself.
    pub(super) fn has_slots(&self, slice: u32) -> bool {
        self.world.size() > 1 && (self.gpus() > 1 || !self.is_staged(slice))
    }

    /// GPUs of this node.
    pub(super) fn gpus(&self) -> u64 {
        u64::from(self.world.gpus(self.node))
    }

    pub(super) fn nodes(&self) -> u64 {
        u64::from(self.world.node_count())
    }

    /// Whether C is wanted on every rank.
    pub(super) fn is_everywhere(&self) -> bool {
        self.problem.form != Form::Scatter
    }

    // Blocks and tiles.

    /// Tiles side by side.
    pub(super) fn tile_columns(&self) -> u64 {
        self.problem.n.div_ceil(u64::from(self.profile.tile_n))
    }

    pub(super) fn block_count(&self, slice: u32) -> u64 {
        self.row_count(slice).div_ceil(u64::from(self.profile.tile_m))
    }

    pub(super) fn tile_count(&self, slice: u32) -> u64 {
        self.block_count(slice) * self.tile_columns()
    }

    /// Blocks of all slices before `slice`, which may be one past the last.
    pub(super) fn blocks_before(&self, slice: u32) -> u64 {
        let (slices, step) = (u64::from(self.slices().end), u64::from(self.profile.tile_m));
        let (floor, longer) = (self.problem.m / slices, self.problem.m % slices);
        let long = u64::from(slice).min(longer);
        long * (floor + 1).div_ceil(step) + (u64::from(slice) - long) * floor.div_ceil(step)
    }

    /// The blocks of a slice.
    pub(super) fn blocks(&self, slice: u32) -> impl Iterator<Item = Block> + use<> {
        let (rows, step, first) = (self.rows(slice), u64::from(self.profile.tile_m), self.blocks_before(slice));
        (0..self.block_count(slice)).map(move |i| {
            let start = rows.start + i * step;
            Block { slice, index: first + i, rows: (start, (start + step).min(rows.end)) }
        })
    }

    /// Blocks that land here from other nodes, finished.
    pub(super) fn landing_blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.collects().filter(|&s| self.lands_blocks(s)).flat_map(|s| self.blocks(s))
    }

    /// The block that a tile is part of.
    pub(super) fn block_of(&self, tile: &Tile) -> u64 {
        self.blocks_before(tile.slice) + tile.index / self.tile_columns()
    }

    fn tile(&self, slice: u32, index: u64) -> Tile {
        let (rows, across) = (self.rows(slice), self.tile_columns());
        let (tile_m, tile_n) = (u64::from(self.profile.tile_m), u64::from(self.profile.tile_n));
        let (row, column) = (rows.start + index / across * tile_m, index % across * tile_n);
        let columns = (column, (column + tile_n).min(self.problem.n));
        Tile { slice, index, rows: (row, (row + tile_m).min(rows.end)), columns }
    }

    /// All tiles in the order in which this rank computes them.
    ///
    /// Slices of other nodes first, as the NIC is slow: the next node's before those further on, so that no two nodes
    /// send to the same one at a time. Within a node the slices take turns tile by tile, from this rank's own index on:
    /// the ranks of a node write to different collectors at a time, yet finish a tile within one turn of each other, and
    /// all rails are fed alike.
    pub(super) fn tiles(&self) -> impl Iterator<Item = Tile> + '_ {
        self.groups().into_iter().flat_map(move |group| {
            let longest = group.iter().map(|&s| self.tile_count(s)).max().unwrap_or(0);
            let height = (self.profile.strip() / group.len() as u64).max(1);
            (0..longest).flat_map(move |turn| {
                let slices = group.clone().into_iter().filter(move |&s| turn < self.tile_count(s));
                slices.map(move |s| self.tile(s, self.in_strips(s, turn, height)))
            })
        })
    }

    /// The index of the tile that comes at `turn` where tiles of a slice go in strips of `height` rows of tiles, column by
    /// column: rows that read the same columns of B while these are in the L2.
    fn in_strips(&self, slice: u32, turn: u64, height: u64) -> u64 {
        let (high, across) = (self.block_count(slice), self.tile_columns());
        let first = turn / (height * across) * height;
        let (in_strip, height) = (turn % (height * across), height.min(high - first));
        (first + in_strip % height) * across + in_strip / height
    }

    /// The tiles that this rank collects, in the order in which they come.
    pub(super) fn collected_tiles(&self) -> impl Iterator<Item = Tile> + '_ {
        self.tiles().filter(|t| self.collector(self.node, t.slice) == self.rank)
    }

    /// Slices that take turns.
    fn groups(&self) -> Vec<Vec<u32>> {
        let mut groups: Vec<Vec<u32>> = match self.problem.form {
            Form::Scatter | Form::TwoStep => {
                let nodes = self.world.other_nodes(self.rank).chain([self.node]);
                nodes.map(|n| self.world.ranks_of(n).collect()).collect()
            }
            Form::OneShot => vec![self.slices().collect()],
        };
        let index = self.world.index_of(self.rank) as usize;
        for group in &mut groups {
            let length = group.len();
            group.rotate_left(index % length);
        }
        groups
    }
}
