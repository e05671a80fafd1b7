//! The four roles.

use mkernel_core::builder::Step;
use mkernel_core::{CellId, DType, LaneBuilder, Op, Put, Rank, Role, RoleName, Signal, Span};

use super::Form;
use super::layout::{Block, Layout, Tile};

/// Computes tiles into the slots of their collectors, those for other nodes first.
pub(super) struct Compute<'a>(pub(super) &'a Layout<'a>);

/// Sums tiles that are whole, those for other nodes first, then gives slots and landing memory back.
pub(super) struct Reduce<'a>(pub(super) &'a Layout<'a>);

/// Copies finished rows to the other ranks of the node.
pub(super) struct Intra<'a>(pub(super) &'a Layout<'a>);

/// Puts partials to their homes and finished rows to other nodes; returns credits.
pub(super) struct Send<'a>(pub(super) &'a Layout<'a>);

impl Role for Compute<'_> {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        self.admit(lane);
        for tile in self.0.tiles() {
            self.tile(lane, &tile);
        }
    }
}

impl Compute<'_> {
    /// The host has read C: the ranks of the node may copy to it.
    fn admit(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let peers = l.world.node_peers(l.rank);
        let writers = peers.filter(|&p| l.is_everywhere() && l.collected[l.world.index_of(p) as usize].blocks > 0);
        let signals: Vec<_> = writers.map(|p| Signal { rank: p, cell: l.ready(l.rank), amount: 1 }).collect();
        if !signals.is_empty() {
            lane.push(Op::Release, Step::new(&[], &[]), &[], &signals);
        }
    }

    fn tile(&self, lane: &mut LaneBuilder<'_>, tile: &Tile) {
        let l = self.0;
        let collector = l.collector(l.node, tile.slice);
        let reads = [l.a(tile.rows), l.b(tile.columns)];
        let own = |cell| Signal { rank: l.rank, cell, amount: 1 };
        let mut push = |output, waits: &[CellId], write, signals: &[Signal]| {
            lane.push(Op::Gemm { input: l.problem.dtype, output }, Step::new(waits, &reads), &[write], signals);
        };
        if l.has_slots(tile.slice) {
            let gpu = u64::from(l.world.index_of(l.rank));
            let credit = [l.credit(collector)];
            let waits = if collector == l.rank { &[][..] } else { &credit };
            let part = Signal { rank: collector, cell: l.part(tile, gpu), amount: 1 };
            push(DType::F32, waits, l.slot(tile, gpu), &[part]);
        } else if l.is_staged(tile.slice) {
            push(l.problem.partial, &[], l.staged_tile(tile), &[own(l.staged(tile))]);
        } else {
            // A world of one rank. Where C is wanted everywhere, a cell counts its tiles, and nothing waits for it.
            let finished = l.is_everywhere().then(|| own(l.finished(tile.slice, l.block_of(tile))));
            push(l.problem.dtype, &[], l.c_tile(tile), finished.as_slice());
        }
    }
}

impl Role for Reduce<'_> {
    fn name(&self) -> RoleName {
        RoleName::Reduce
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        if l.reduces() == 0 {
            return;
        }
        for tile in l.collected_tiles().filter(|t| l.is_staged(t.slice) && l.gpus() > 1) {
            self.partial(lane, &tile);
        }
        for tile in l.collected_tiles().filter(|t| l.is_home(l.node, t.slice)) {
            self.finish(lane, &tile);
        }
        self.release(lane);
    }
}

impl Reduce<'_> {
    /// This node's part of a tile, rounded once.
    fn partial(&self, lane: &mut LaneBuilder<'_>, tile: &Tile) {
        let l = self.0;
        let own = |cell| Signal { rank: l.rank, cell, amount: 1 };
        let sources: Vec<_> = (0..l.gpus()).map(|gpu| (l.part(tile, gpu), l.slot(tile, gpu))).collect();
        let signals = [own(l.staged(tile)), own(l.done())];
        sum(lane, (DType::F32, l.problem.partial), &sources, l.staged_tile(tile), &signals);
    }

    /// All nodes' parts of a tile in node order, this node's still in f32 unless it sends the same to others.
    fn finish(&self, lane: &mut LaneBuilder<'_>, tile: &Tile) {
        let l = self.0;
        let mut sources = Vec::new();
        for node in l.world.nodes() {
            if node != l.node {
                sources.push((l.landed(l.rank, node, tile), l.landing(l.rank, node, tile)));
            } else if l.is_staged(tile.slice) {
                sources.push((l.staged(tile), l.staged_tile(tile)));
            } else {
                sources.extend((0..l.gpus()).map(|gpu| (l.part(tile, gpu), l.slot(tile, gpu))));
            }
        }
        let own = |cell| Signal { rank: l.rank, cell, amount: 1 };
        let mut signals = vec![own(l.done())];
        if l.is_everywhere() {
            signals.push(own(l.finished(tile.slice, l.block_of(tile))));
        }
        sum(lane, (l.problem.partial, l.problem.dtype), &sources, l.c_tile(tile), &signals);
    }

    /// Everything has been read: slots and landing memory are free.
    fn release(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let spans: Vec<Span> = [l.own_slots(), l.own_landing()].into_iter().filter(|s| !s.is_empty()).collect();
        let mut signals = vec![Signal { rank: l.rank, cell: l.free(), amount: 1 }];
        let writers = l.world.node_peers(l.rank).filter(|&p| l.is_filled_by(p));
        signals.extend(writers.map(|p| Signal { rank: p, cell: l.credit(l.rank), amount: 1 }));
        lane.push(Op::Release, Step::new(&[l.done()], &[]), &spans, &signals);
    }
}

/// A sum of sources, each with the cell that says that it is here.
fn sum(
    lane: &mut LaneBuilder<'_>,
    (narrow, output): (DType, DType),
    sources: &[(CellId, Span)],
    write: Span,
    signals: &[Signal],
) {
    let steps: Vec<_> =
        sources.iter().map(|(cell, span)| Step::new(std::slice::from_ref(cell), std::slice::from_ref(span))).collect();
    lane.push_segments(Op::Reduce { narrow, output }, &steps, &[write], signals);
}

impl Role for Intra<'_> {
    fn name(&self) -> RoleName {
        RoleName::Intra
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        if !l.is_everywhere() {
            return;
        }
        for block in l.home_slices(l.rank).flat_map(|s| l.blocks(s)) {
            self.spread(lane, &block, l.finished(block.slice, block.index));
        }
        for block in l.landing_blocks() {
            self.spread(lane, &block, l.block_here(l.rank, &block));
        }
        if l.gpus() > 1 {
            // The launch ends here only once all rows of C are here: the host reads them then.
            lane.push(Op::Release, Step::new(&l.arrivals(), &[]), &[], &[]);
        }
    }
}

impl Intra<'_> {
    fn spread(&self, lane: &mut LaneBuilder<'_>, block: &Block, here: CellId) {
        let l = self.0;
        for peer in l.world.node_peers(l.rank) {
            let copied = Signal { rank: peer, cell: l.copied(l.rank), amount: 1 };
            let (read, write) = (l.c_block(l.rank, block), l.c_block(peer, block));
            lane.push(Op::Copy, Step::new(&[here, l.ready(peer)], &[read]), &[write], &[copied]);
        }
    }
}

impl Role for Send<'_> {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        for slice in l.collects().filter(|&s| l.lands_blocks(s) && l.block_count(s) > 0) {
            // The host has read C: the owner of the slice may put its rows here.
            let owner = Rank(slice);
            lane.put(&[], Put::signal(l.rank, owner, l.rail_ready(owner, l.node)));
        }
        for tile in l.collected_tiles().filter(|t| l.is_staged(t.slice)) {
            self.partial(lane, &tile);
        }
        if l.problem.form == Form::TwoStep {
            self.blocks(lane);
        }
        for slice in l.home_slices(l.rank).filter(|&s| l.tile_count(s) > 0) {
            for node in l.world.other_nodes(l.rank) {
                let collector = l.collector(node, slice);
                lane.put(&[l.free()], Put::signal(l.rank, collector, l.route(collector, slice, l.node)));
            }
        }
        self.join(lane);
    }
}

impl Send<'_> {
    fn partial(&self, lane: &mut LaneBuilder<'_>, tile: &Tile) {
        let l = self.0;
        for home in l.other_homes(tile.slice) {
            let target = l.collector(home, tile.slice);
            let put = Put {
                source: l.staged_tile(tile),
                count: None,
                target: l.landing(target, l.node, tile),
                cell: l.landed(target, l.node, tile),
                retired: Some(l.sent()),
            };
            lane.put(&[l.staged(tile), l.route(l.rank, tile.slice, home)], put);
        }
    }

    /// Own finished rows to the rail of every other node.
    fn blocks(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        for block in l.blocks(l.rank.0) {
            for node in l.world.other_nodes(l.rank) {
                let rail = l.collector(node, block.slice);
                let put = Put {
                    source: l.c_block(l.rank, &block),
                    count: None,
                    target: l.c_block(rail, &block),
                    cell: l.block_here(rail, &block),
                    retired: Some(l.sent()),
                };
                lane.put(&[l.finished(block.slice, block.index), l.rail_ready(l.rank, node)], put);
            }
        }
    }

    /// The launch ends here only once the NIC has read every source, and on a node of one GPU, where no role copies, once
    /// all rows of C are here. Then staging is dead.
    fn join(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let mut waits = if l.gpus() > 1 { Vec::new() } else { l.arrivals() };
        let staging = l.own_staging();
        if l.bulk_puts() > 0 {
            waits.push(l.sent());
        }
        if l.problem.form == Form::OneShot && !staging.is_empty() {
            // The last sums read staging too.
            waits.push(l.done());
        }
        let spans = if staging.is_empty() { &[][..] } else { &[staging] };
        if !waits.is_empty() {
            lane.push(Op::Release, Step::new(&waits, &[]), spans, &[]);
        }
    }
}
