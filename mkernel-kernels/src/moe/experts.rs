//! The compute role, and the amounts of its work.

use mkernel_core::builder::Step;
use mkernel_core::program::Slice;
use mkernel_core::{CellId, DType, LaneBuilder, Op, Rank, Role, RoleName, Signal, Span, Stage};

use super::cells::Cell;
use super::layout::Layout;

/// Works out the index, runs tiles slot after slot, then gives the slots of tokens back.
pub(super) struct Compute<'a>(pub(super) &'a Layout<'a>);

impl Role for Compute<'_> {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        if !l.has_experts() {
            return;
        }
        self.route(lane);
        let here: Vec<_> = l.landings().into_iter().map(|c| l.id(Cell::Here(c))).collect();
        let landings = lane.shared_waits(&here);
        // A slot's last product comes this many slots after its first ones, so that as many tiles lie between as run at once.
        let lag = if l.is_ffn() { l.lag() } else { l.slots };
        for step in 0..l.slots + lag {
            if step < l.slots {
                self.first(lane, step, &landings);
            }
            if let Some(slot) = step.checked_sub(lag).filter(|_| l.is_ffn()) {
                self.last(lane, slot);
            }
        }
        if !here.is_empty() {
            self.release(lane, &here);
        }
    }
}

impl Compute<'_> {
    fn route(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        let own = l.t.rows(l.rank);
        let landings = l.landings().into_iter().map(|c| (c.start, c.end));
        let runs: Vec<(u64, [Span; 1])> = std::iter::once((own.start, own.end))
            .chain(landings)
            .map(|(start, end)| (start, [l.ids(start, end)]))
            .collect();
        let steps: Vec<Step<'_>> = runs.iter().map(|(start, reads)| Step::new(&[], reads).at(*start)).collect();
        let op = Op::Route { experts: l.experts(), tile: l.profile.tile_m };
        let writes = [l.tile_entries(), l.pair_rows(), l.places(0, l.problem().tokens)];
        lane.push_segments(op, &steps, &writes, &[l.signal(Cell::Routed)]);
    }

    /// The first products of a slot.
    fn first(&self, lane: &mut LaneBuilder<'_>, slot: u64, landings: &Slice) {
        let l = self.0;
        let dtype = l.problem().dtype;
        for (start, end) in l.column_tiles(l.problem().inner) {
            let mut reads = vec![l.tile_entry(slot), l.pair_rows(), l.all_x(), l.up(start, end)];
            let mut signals = vec![l.signal(Cell::TilesDone)];
            let mut stage = Stage::Up;
            if l.is_ffn() {
                stage = Stage::Gated;
                reads.push(l.second(start, end));
                signals.push(l.signal(Cell::Inner(slot)));
            }
            let waits = [l.id(Cell::Routed)];
            let step = Step::new(&waits, &reads).picking(landings);
            let op = Op::Expert { stage, input: dtype, output: dtype };
            lane.push(op, step, &[l.inner(slot, (start, end))], &signals);
        }
    }

    /// The last product of a slot, left in f32.
    fn last(&self, lane: &mut LaneBuilder<'_>, slot: u64) {
        let l = self.0;
        for (start, end) in l.column_tiles(l.problem().hidden) {
            let reads = [l.tile_entry(slot), l.inner(slot, (0, l.problem().inner)), l.down(start, end)];
            let op = Op::Expert { stage: Stage::Down, input: l.problem().dtype, output: DType::F32 };
            let waits = [l.id(Cell::Inner(slot))];
            let (writes, signals) = ([l.results(slot, (start, end))], [l.signal(Cell::Results(slot))]);
            lane.push(op, Step::new(&waits, &reads), &writes, &signals);
        }
    }

    /// Once every tile has read and every chunk has landed: gives the slots of tokens back to those who write here. A tile
    /// waits only for the chunks that it reads, so the release waits for all of them itself.
    fn release(&self, lane: &mut LaneBuilder<'_>, here: &[CellId]) {
        let l = self.0;
        let mut waits = vec![l.id(Cell::TilesDone)];
        waits.extend_from_slice(here);
        let own = l.t.rows(l.rank);
        let spans = [l.x(l.rank, 0, own.start), l.x(l.rank, own.end, l.problem().tokens)];
        let spans: Vec<Span> = spans.into_iter().filter(|s| !s.is_empty()).collect();
        let writers = l.t.world.node_peers(l.rank).filter(|&p| l.t.handles_tokens(p));
        let signals: Vec<Signal> = writers.map(|p| l.signal_at(p, Cell::PeerCredit(l.rank))).collect();
        lane.push(Op::Release, Step::new(&waits, &[]), &spans, &signals);
    }
}

impl Layout<'_> {
    /// The id of a cell.
    pub(super) fn id(&self, cell: Cell) -> CellId {
        self.cells.id(cell, &self.t)
    }

    /// Raises a cell of this rank by one.
    pub(super) fn signal(&self, cell: Cell) -> Signal {
        self.signal_at(self.rank, cell)
    }

    /// Raises a cell of `rank` by one.
    pub(super) fn signal_at(&self, rank: Rank, cell: Cell) -> Signal {
        Signal { rank, cell: self.id(cell), amount: 1 }
    }

    /// The other ranks of this node with experts.
    pub(super) fn expert_peers(&self) -> impl Iterator<Item = Rank> + '_ {
        self.t.world.node_peers(self.rank).filter(|&p| self.t.is_expert(p))
    }

    /// Tiles that read tokens.
    pub(super) fn first_tiles(&self) -> u64 {
        self.slots.saturating_mul(self.problem().inner.div_ceil(u64::from(self.profile.tile_n)))
    }

    /// All tiles.
    pub(super) fn tiles(&self) -> u64 {
        let last = self.slots.saturating_mul(self.problem().hidden.div_ceil(u64::from(self.profile.tile_n)));
        self.first_tiles().saturating_add(if self.is_ffn() { last } else { 0 })
    }

    /// Slots between a slot's first products and its last.
    fn lag(&self) -> u64 {
        let columns = self.column_tiles(self.problem().inner).count() as u64;
        u64::from(self.profile.sms).div_ceil(columns)
    }

    /// This rank's share of all operations.
    pub(super) fn flops(&self) -> f64 {
        let p = self.problem();
        let products = if self.is_ffn() { 6.0 } else { 2.0 };
        let share = f64::from(self.experts().len()) / p.experts as f64;
        products * p.slots() * share * p.hidden as f64 * p.inner as f64
    }
}
