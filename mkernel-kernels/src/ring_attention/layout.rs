//! Pieces, chunks, cells and spans of ring attention, each by a formula that every rank agrees on.

use std::ops::Range;

use mkernel_core::world::share;
use mkernel_core::{Born, CellId, Law, Mask, Node, Placement, ProgramBuilder, Rank, RegionId, Span, World};

use super::{Layout, RingAttention};
use crate::gather::{Counts, Gather};
use crate::operator::{PlanError, check_instructions};
use crate::profile::Profile;

const KV: RegionId = RegionId(0);
const Q: RegionId = RegionId(1);
const O: RegionId = RegionId(2);

/// Bytes of K and V in a chunk that the planner aims at: a head's shard is cut only where it is much longer.
const CHUNK_BYTES: u64 = 1 << 20;

/// The plan's geometry as one rank sees it.
pub(super) struct Plan<'a> {
    pub(super) problem: &'a RingAttention,
    pub(super) world: &'a World,
    pub(super) rank: Rank,
    pub(super) node: Node,
    pub(super) profile: &'a Profile,
    chunk_len: u64,
    /// For each piece of the sequence, in order of ranks, the number of chunks of all pieces before it.
    chunks_before: Vec<u64>,
    /// The last position that any query of each node and of each rank has; none for a node or rank with no query.
    node_last: Vec<Option<u64>>,
    rank_last: Vec<Option<u64>>,
    pub(super) amounts: Amounts,
}

/// How much there is to do on this rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Amounts {
    pub(super) tiles: u64,
    pub(super) flops: f64,
    /// Chunks that come from other ranks.
    pub(super) landed: u64,
    /// Copies to node peers, how many of them of landed chunks, and their bytes.
    pub(super) copies: u64,
    pub(super) forwards: u64,
    pub(super) copy_bytes: u64,
    /// Puts with bytes, and credits over the NIC.
    pub(super) puts: u64,
    pub(super) credits: u64,
    law: Law,
}

/// A run of positions of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) source: Rank,
    /// Number over all pieces of all ranks.
    index: u64,
    /// Number within the source's pieces.
    pub(super) order: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        problem: &'a RingAttention,
        world: &'a World,
        rank: Rank,
        profile: &'a Profile,
    ) -> Result<Plan<'a>, PlanError> {
        let row = 2 * problem.dim * problem.dtype.bytes();
        let tile = u64::from(profile.tile_m);
        let mut plan = Plan {
            problem,
            world,
            rank,
            node: world.node_of(rank),
            profile,
            chunk_len: (CHUNK_BYTES / row).next_multiple_of(tile),
            chunks_before: Vec::new(),
            node_last: vec![None; world.node_count() as usize],
            rank_last: Vec::new(),
            amounts: Amounts::default(),
        };
        let mut chunks = 0;
        for rank in world.ranks() {
            let mut last = None;
            for piece in plan.pieces(rank) {
                plan.chunks_before.push(chunks);
                chunks += (piece.end - piece.start).div_ceil(plan.chunk_len);
                last = last.max((piece.end > piece.start).then(|| piece.end - 1));
            }
            plan.rank_last.push(last);
            let node = &mut plan.node_last[world.node_of(rank).0 as usize];
            *node = (*node).max(last);
        }
        plan.chunks_before.push(chunks);
        check_instructions((chunks + 3).saturating_mul(plan.kv_heads()))?;
        plan.amounts = plan.measure()?;
        Ok(plan)
    }

    fn measure(&self) -> Result<Amounts, PlanError> {
        let (p, heads) = (self.problem, self.kv_heads());
        let mut amounts = Amounts::default();
        for piece in self.pieces(self.rank) {
            let tiles = (piece.end - piece.start).div_ceil(u64::from(self.profile.tile_m));
            amounts.tiles += p.batch * p.heads * tiles;
            let pairs = match p.mask {
                Mask::None => (piece.end - piece.start) as f64 * p.seq as f64,
                Mask::Causal => (piece.end - piece.start) as f64 * (piece.start + piece.end + 1) as f64 / 2.0,
            };
            amounts.flops += 4.0 * (p.batch * p.heads * p.dim) as f64 * pairs;
        }
        let own = self.chunks(self.rank);
        let landing = self.world.rail_sources(self.rank).flat_map(|s| self.chunks(s));
        let landing = landing.filter(|c| self.node_needs(self.node, c));
        for (chunk, landed) in own.map(|c| (c, false)).chain(landing.map(|c| (c, true))) {
            let bytes = self.kv(self.rank, 0, &chunk).bytes() * heads;
            let copies = self.world.node_peers(self.rank).filter(|&q| self.needs(q, &chunk)).count() as u64;
            amounts.copies += copies * heads;
            amounts.copy_bytes += copies * bytes;
            if landed {
                amounts.forwards += copies * heads;
                amounts.law.inter_in += bytes;
            } else {
                let nodes = self.world.other_nodes(self.rank).filter(|&n| self.node_needs(n, &chunk)).count() as u64;
                amounts.puts += nodes * heads;
                amounts.law.inter_out += nodes * bytes;
            }
        }
        amounts.landed = self.arrivals().count() as u64 * heads;
        amounts.credits = self.world.rail_sources(self.rank).filter(|&s| self.puts_to(s, self.node)).count() as u64;
        let instructions = amounts.tiles.saturating_mul(self.chunk_count().max(1));
        check_instructions(instructions.saturating_add(amounts.copies).saturating_add(amounts.puts))?;
        Ok(amounts)
    }

    /// Regions, cells, inputs, outputs and the byte law.
    pub(super) fn declare(&self, builder: &mut ProgramBuilder) {
        let p = self.problem;
        let row = p.dim * p.dtype.bytes();
        let own: u64 = self.pieces(self.rank).map(|piece| piece.end - piece.start).sum();
        builder.region("kv", self.kv_heads() * 2 * p.seq * row);
        builder.region("q", p.batch * p.heads * own * row);
        builder.region("o", p.batch * p.heads * own * row);
        self.declare_cells(builder);
        for piece in self.pieces(self.rank).filter(|piece| piece.end > piece.start) {
            for head in 0..self.kv_heads() {
                let [k, v] = self.keys(head, piece.start, piece.end);
                let row = head * p.seq + piece.start;
                builder.input(Placement { tensor: "k", span: k, row, column: 0 });
                builder.input(Placement { tensor: "v", span: v, row, column: 0 });
            }
            for head in 0..p.batch * p.heads {
                let row = head * p.seq + piece.start;
                let [q, o] = self.queries(head, piece.start, piece.end);
                builder.input(Placement { tensor: "q", span: q, row, column: 0 });
                builder.output(Placement { tensor: "o", span: o, row, column: 0 });
            }
        }
        builder.law(self.amounts.law);
    }

    /// Cells: one per head and chunk, then those of [`Gather`].
    fn declare_cells(&self, builder: &mut ProgramBuilder) {
        let arrives: Vec<bool> =
            self.world.ranks().flat_map(|r| self.chunks(r)).map(|c| c.source != self.rank && self.holds(&c)).collect();
        for _ in 0..self.kv_heads() {
            for &arrives in &arrives {
                builder.cell(u32::from(arrives), Born::Empty);
            }
        }
        let Amounts { tiles, forwards, landed, puts, .. } = self.amounts;
        let counts = Counts { reads: tiles + forwards, releases: (landed > 0).into(), puts };
        let (copies_to, puts_to) = (|peer| self.copies_to(self.rank, peer), |node| self.puts_to(self.rank, node));
        self.gather().declare(builder, &counts, copies_to, puts_to);
    }

    // Pieces and chunks.

    /// Heads of K and V over the batch.
    pub(super) fn kv_heads(&self) -> u64 {
        self.problem.batch * self.problem.kv_heads
    }

    /// Pieces per rank.
    fn pieces_per_rank(&self) -> u64 {
        match self.problem.layout {
            Layout::Plain => 1,
            Layout::ZigZag => 2,
        }
    }

    /// The runs of positions that `rank` owns, in order.
    pub(super) fn pieces(&self, rank: Rank) -> impl Iterator<Item = Range<u64>> + use<> {
        let (seq, size, rank) = (self.problem.seq, u64::from(self.world.size()), u64::from(rank.0));
        let zigzag = self.problem.layout == Layout::ZigZag;
        let first = if zigzag { share(seq, 2 * size, rank) } else { share(seq, size, rank) };
        std::iter::once(first).chain(zigzag.then(|| share(seq, 2 * size, 2 * size - 1 - rank)))
    }

    /// The chunks that `source` owns, in order.
    pub(super) fn chunks(&self, source: Rank) -> impl Iterator<Item = Chunk> + '_ {
        let first_piece = u64::from(source.0) * self.pieces_per_rank();
        let first = self.chunks_before[first_piece as usize];
        self.pieces(source).enumerate().flat_map(move |(number, piece)| {
            let before = self.chunks_before[first_piece as usize + number];
            (piece.start..piece.end).step_by(self.chunk_len as usize).enumerate().map(move |(i, start)| {
                let index = before + i as u64;
                Chunk { source, index, order: index - first, start, end: (start + self.chunk_len).min(piece.end) }
            })
        })
    }

    // Who needs what.

    /// Whether a query at `last` or before it sees any key of the chunk.
    fn sees(&self, last: Option<u64>, chunk: &Chunk) -> bool {
        last.is_some_and(|last| self.problem.mask == Mask::None || last >= chunk.start)
    }

    /// Whether queries of `rank` see the chunk.
    pub(super) fn needs(&self, rank: Rank, chunk: &Chunk) -> bool {
        self.sees(self.rank_last[rank.0 as usize], chunk)
    }

    /// Whether queries of any rank of `node` see the chunk.
    pub(super) fn node_needs(&self, node: Node, chunk: &Chunk) -> bool {
        self.sees(self.node_last[node.0 as usize], chunk)
    }

    /// Whether the chunk comes to this rank: for its own queries, or to be passed on in the node.
    fn holds(&self, chunk: &Chunk) -> bool {
        let passes_on = !self.world.same_node(chunk.source, self.rank)
            && self.world.rail(self.node, self.world.index_of(chunk.source)) == self.rank;
        self.needs(self.rank, chunk) || (passes_on && self.node_needs(self.node, chunk))
    }

    /// Chunks that come to this rank from others.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = Chunk> + '_ {
        let others = self.world.ranks().filter(|&r| r != self.rank);
        others.flat_map(|r| self.chunks(r)).filter(|c| self.holds(c))
    }

    /// Whether `writer` copies anything to `reader`, a peer of its node: own chunks or chunks that land on it.
    pub(super) fn copies_to(&self, writer: Rank, reader: Rank) -> bool {
        let sources = std::iter::once(writer).chain(self.world.rail_sources(writer));
        sources.flat_map(|s| self.chunks(s)).any(|c| self.needs(reader, &c))
    }

    /// Whether `writer` puts anything to `node`.
    pub(super) fn puts_to(&self, writer: Rank, node: Node) -> bool {
        self.chunks(writer).any(|c| self.node_needs(node, &c))
    }

    /// Chunks of all pieces of all ranks.
    fn chunk_count(&self) -> u64 {
        self.chunks_before[self.chunks_before.len() - 1]
    }

    /// The cell that says that a head's chunk is here, by the same formula on every rank.
    pub(super) fn here(&self, head: u64, chunk: &Chunk) -> CellId {
        CellId((head * self.chunk_count() + chunk.index) as u32)
    }

    /// The protocol by which chunks travel.
    pub(super) fn gather(&self) -> Gather<'_> {
        let chunk_cells = self.kv_heads() * self.chunk_count();
        Gather { world: self.world, rank: self.rank, profile: self.profile, chunk_cells }
    }

    // Spans.

    /// K and V of one head and chunk on `rank`: two runs, K's and V's.
    pub(super) fn kv(&self, rank: Rank, head: u64, chunk: &Chunk) -> Span {
        let row = self.problem.dim * self.problem.dtype.bytes();
        Span {
            rank,
            region: KV,
            offset: (head * 2 * self.problem.seq + chunk.start) * row,
            rows: 2,
            row_bytes: (chunk.end - chunk.start) * row,
            stride: self.problem.seq * row,
        }
    }

    /// Positions `start..end` of K and of V of one head, as matrices.
    pub(super) fn keys(&self, head: u64, start: u64, end: u64) -> [Span; 2] {
        [0, 1].map(|half| self.matrix(KV, (head * 2 + half) * self.problem.seq + start, end - start))
    }

    /// Positions `start..end`, inside one own piece, of Q and of O of one head.
    pub(super) fn queries(&self, head: u64, start: u64, end: u64) -> [Span; 2] {
        let mut own = 0;
        let mut before = 0;
        for piece in self.pieces(self.rank) {
            if piece.contains(&start) {
                before = own + start - piece.start;
            }
            own += piece.end - piece.start;
        }
        [Q, O].map(|region| self.matrix(region, head * own + before, end - start))
    }

    /// Runs of positions that are not this rank's own, of all heads: where keys and values land.
    pub(super) fn landing(&self) -> impl Iterator<Item = Span> + '_ {
        let mut own: Vec<Range<u64>> = self.pieces(self.rank).filter(|p| p.end > p.start).collect();
        own.push(self.problem.seq..self.problem.seq);
        let row = self.problem.dim * self.problem.dtype.bytes();
        let mut next = 0;
        own.into_iter().filter_map(move |piece| {
            let gap = std::mem::replace(&mut next, piece.end)..piece.start;
            let (offset, row_bytes) = (gap.start * row, (gap.end - gap.start) * row);
            let (rows, stride) = ((self.kv_heads() * 2) as u32, self.problem.seq * row);
            (gap.end > gap.start).then_some(Span { rank: self.rank, region: KV, offset, rows, row_bytes, stride })
        })
    }

    fn matrix(&self, region: RegionId, row: u64, rows: u64) -> Span {
        let row_bytes = self.problem.dim * self.problem.dtype.bytes();
        Span { rank: self.rank, region, offset: row * row_bytes, rows: rows as u32, row_bytes, stride: row_bytes }
    }
}
