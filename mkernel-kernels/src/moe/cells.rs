//! Cells: ids by formulas that every rank agrees on, and how often each rises.
//!
//! Cells that other ranks raise come first, in blocks of one size on all ranks, so that an id follows from what the cell is
//! for. Which of them are in use on a rank follows from who has tokens and experts.

use mkernel_core::{Born, CellId, Node, ProgramBuilder, Rank};

use super::layout::Layout;
use super::tokens::{Chunk, Tokens};

/// What a cell is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell {
    /// The chunk's rows for this rank are here.
    Here(Chunk),
    /// The chunk's rows for this node are here: it landed on its rail.
    Railed(Chunk),
    /// `reader`, of this node, has given back its slots of tokens.
    PeerCredit(Rank),
    /// The rail on this node has given back its slots of this rank's tokens.
    RailCredit(Node),
    /// The rank of experts has written its sums for the chunk.
    Partial(Chunk, Rank),
    /// `reader`, of this node, has given back its slots of sums.
    PartialCredit(Rank),
    /// The node's sums for an own chunk have come back.
    Returned(Chunk, Node),
    /// The source has given back its slots of returned sums.
    ReturnCredit(Rank),
    /// An own chunk is packed for the node.
    Staged(Chunk, Node),
    /// The index is there.
    Routed,
    /// Tiles that read landed tokens.
    TilesDone,
    /// Puts whose source has been read.
    Sent,
    /// Packs that read what landed from a rail source.
    RailDone(Rank),
    /// That memory has been given back.
    RailFree(Rank),
    /// A tile slot's first products are done.
    Inner(u64),
    /// A tile slot's last product is done.
    Results(u64),
    /// The node's sums for a chunk of a rail source are there.
    Merged(Chunk),
    /// Merges done.
    MergesDone,
    /// The memory of returned sums has been given back.
    ReturnsFree,
}

/// First ids of the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells {
    chunks: u64,
    gpus: u64,
    nodes: u64,
    ranks: u64,
    /// Most chunks of one shard.
    longest: u64,
    slots: u64,
}

impl Cells {
    pub(super) fn new(t: &Tokens<'_>, slots: u64) -> Cells {
        Cells {
            chunks: t.all_chunks(),
            gpus: u64::from(t.world.max_gpus()),
            nodes: u64::from(t.world.node_count()),
            ranks: u64::from(t.world.size()),
            longest: t.chunk_count(Rank(0)),
            slots,
        }
    }

    /// Sizes of the blocks, in the order of [`Cells::place`].
    fn sizes(&self) -> [u64; 14] {
        let Cells { chunks, gpus, nodes, ranks, longest, slots } = *self;
        [
            chunks,
            chunks,
            gpus,
            nodes,
            chunks * gpus,
            gpus,
            longest * nodes,
            ranks,
            longest * nodes,
            5,
            2 * ranks,
            slots,
            slots,
            chunks,
        ]
    }

    /// Block and index within it.
    fn place(&self, cell: Cell, t: &Tokens<'_>) -> (usize, u64) {
        let index = |rank| u64::from(t.world.index_of(rank));
        match cell {
            Cell::Here(chunk) => (0, chunk.number),
            Cell::Railed(chunk) => (1, chunk.number),
            Cell::PeerCredit(reader) => (2, index(reader)),
            Cell::RailCredit(node) => (3, u64::from(node.0)),
            Cell::Partial(chunk, expert) => (4, chunk.number * self.gpus + index(expert)),
            Cell::PartialCredit(reader) => (5, index(reader)),
            Cell::Returned(chunk, node) => (6, chunk.index * self.nodes + u64::from(node.0)),
            Cell::ReturnCredit(source) => (7, u64::from(source.0)),
            Cell::Staged(chunk, node) => (8, chunk.index * self.nodes + u64::from(node.0)),
            Cell::Routed => (9, 0),
            Cell::TilesDone => (9, 1),
            Cell::Sent => (9, 2),
            Cell::MergesDone => (9, 3),
            Cell::ReturnsFree => (9, 4),
            Cell::RailDone(source) => (10, u64::from(source.0)),
            Cell::RailFree(source) => (10, self.ranks + u64::from(source.0)),
            Cell::Inner(slot) => (11, slot),
            Cell::Results(slot) => (12, slot),
            Cell::Merged(chunk) => (13, chunk.number),
        }
    }

    /// The id of a cell; the same on every rank where others raise it.
    pub(super) fn id(&self, cell: Cell, t: &Tokens<'_>) -> CellId {
        let (block, index) = self.place(cell, t);
        let before: u64 = self.sizes()[..block].iter().sum();
        CellId((before + index) as u32)
    }

    /// Numbers of packed rows that a rank keeps: one per own chunk and node, then one per chunk of the world.
    pub(super) fn counts(&self, _: &Tokens<'_>) -> u64 {
        self.longest * self.nodes + self.chunks
    }

    /// The number of rows of an own chunk for `node`.
    pub(super) fn staged_count(&self, chunk: &Chunk, node: Node) -> u64 {
        chunk.index * self.nodes + u64::from(node.0)
    }

    /// The number of rows of the node's sums for a chunk of a rail source.
    pub(super) fn merged_count(&self, chunk: &Chunk) -> u64 {
        self.longest * self.nodes + chunk.number
    }

    /// Adds all cells, then the arrivals of those in use.
    pub(super) fn declare(&self, l: &Layout<'_>, builder: &mut ProgramBuilder) {
        for (block, size) in self.sizes().into_iter().enumerate() {
            let born = if [2, 3, 5, 7].contains(&block) { Born::Full } else { Born::Empty };
            for _ in 0..size {
                builder.cell(0, born);
            }
        }
        let mut set = |cell, arrivals: u64| builder.set_arrivals(self.id(cell, &l.t), arrivals as u32);
        self.dispatch(l, &mut set);
        if l.is_ffn() {
            self.combine(l, &mut set);
        }
    }

    fn dispatch(&self, l: &Layout<'_>, set: &mut dyn FnMut(Cell, u64)) {
        let t = &l.t;
        if l.has_experts() {
            set(Cell::Routed, 1);
            set(Cell::TilesDone, l.first_tiles());
            let others = t.world.ranks().filter(|&r| r != l.rank);
            others.flat_map(|r| t.chunks(r)).for_each(|c| set(Cell::Here(c), 1));
        }
        if t.handles_tokens(l.rank) {
            l.expert_peers().for_each(|p| set(Cell::PeerCredit(p), 1));
        }
        for node in t.expert_nodes(l.rank).filter(|_| t.chunk_count(l.rank) > 0) {
            set(Cell::RailCredit(node), 1);
            t.chunks(l.rank).for_each(|c| set(Cell::Staged(c, node), 1));
        }
        let packs = t.expert_ranks(l.node).count() as u64;
        for source in t.rail_sources(l.rank).filter(|&s| packs > 0 && t.chunk_count(s) > 0) {
            t.chunks(source).for_each(|c| set(Cell::Railed(c), 1));
            set(Cell::RailDone(source), packs * t.chunk_count(source));
            set(Cell::RailFree(source), 1);
        }
        set(Cell::Sent, l.bulk_puts());
    }

    fn combine(&self, l: &Layout<'_>, set: &mut dyn FnMut(Cell, u64)) {
        let t = &l.t;
        for slot in 0..l.slots {
            set(Cell::Inner(slot), l.column_tiles(l.problem().inner).count() as u64);
            set(Cell::Results(slot), l.column_tiles(l.problem().hidden).count() as u64);
        }
        for expert in t.expert_ranks(l.node) {
            t.chunks(l.rank).chain(t.rail_chunks(l.rank)).for_each(|c| set(Cell::Partial(c, expert), 1));
        }
        if l.has_experts() {
            let readers = t.world.node_peers(l.rank).filter(|&p| t.handles_tokens(p));
            readers.for_each(|p| set(Cell::PartialCredit(p), 1));
        }
        for node in t.expert_nodes(l.rank).filter(|_| t.chunk_count(l.rank) > 0) {
            t.chunks(l.rank).for_each(|c| set(Cell::Returned(c, node), 1));
            set(Cell::ReturnsFree, 1);
        }
        for source in t.rail_sources(l.rank).filter(|&s| t.is_expert_node(l.node) && t.chunk_count(s) > 0) {
            set(Cell::ReturnCredit(source), 1);
            t.chunks(source).for_each(|c| set(Cell::Merged(c), 1));
        }
        set(Cell::MergesDone, l.merges());
    }
}
