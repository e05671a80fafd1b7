//! Builds a [`Program`] lane by lane.

use crate::program::{Instruction, Lane, LaneId, Law, Op, Placement, Program, Put, PutId, Routed, Segment, Slice};
use crate::region::{Region, RegionId, Span};
use crate::role::Role;
use crate::signal::{Born, Cell, CellId, Signal};
use crate::world::{Rank, World};

/// Collects regions, cells and lanes of one rank's program.
///
/// It checks nothing: [`fn@crate::validate`] is the one place that does.
#[derive(Clone, Debug)]
pub struct ProgramBuilder {
    program: Program,
}

/// Appends instructions to one lane.
#[derive(Debug)]
pub struct LaneBuilder<'a> {
    program: &'a mut Program,
    instructions: Vec<Instruction>,
}

/// What one segment waits for and reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    waits: &'a [CellId],
    picked: Option<&'a Slice>,
    reads: &'a [Span],
    position: u64,
}

impl<'a> Step<'a> {
    /// A segment that reads `reads` once all `waits` hold.
    pub const fn new(waits: &'a [CellId], reads: &'a [Span]) -> Step<'a> {
        Step { waits, picked: None, reads, position: 0 }
    }

    /// Sets [`Segment::position`].
    pub const fn at(self, position: u64) -> Step<'a> {
        Step { position, ..self }
    }

    /// Adds waits of which data picks some, from a list that several segments share ([`LaneBuilder::shared_waits`]).
    pub const fn picking(self, shared: &'a Slice) -> Step<'a> {
        Step { picked: Some(shared), ..self }
    }
}

fn extend<T: Clone>(pool: &mut Vec<T>, items: &[T]) -> Slice {
    let start = pool_index(pool.len());
    pool.extend_from_slice(items);
    start..pool_index(pool.len())
}

fn pool_index(len: usize) -> u32 {
    u32::try_from(len).expect("a program holds fewer than 2^32 list entries: planners bound their work per rank")
}

impl ProgramBuilder {
    /// An empty program for `rank` of `world`.
    pub fn new(world: &World, rank: Rank) -> ProgramBuilder {
        ProgramBuilder {
            program: Program {
                world: world.clone(),
                rank,
                regions: Vec::new(),
                cells: Vec::new(),
                lanes: Vec::new(),
                segments: Vec::new(),
                waits: Vec::new(),
                spans: Vec::new(),
                signals: Vec::new(),
                puts: Vec::new(),
                inputs: Vec::new(),
                outputs: Vec::new(),
                routed: Vec::new(),
                law: Law::default(),
            },
        }
    }

    /// Adds a region; call in the same order on every rank.
    pub fn region(&mut self, name: &'static str, bytes: u64) -> RegionId {
        let id = RegionId(pool_index(self.program.regions.len()));
        self.program.regions.push(Region { name, bytes });
        id
    }

    /// Adds a cell.
    pub fn cell(&mut self, arrivals: u32, born: Born) -> CellId {
        let id = CellId(pool_index(self.program.cells.len()));
        self.program.cells.push(Cell { arrivals, born });
        id
    }

    /// Sets the planned arrivals of a cell, once they are known.
    pub fn set_arrivals(&mut self, cell: CellId, arrivals: u32) {
        self.program.cells[cell.0 as usize].arrivals = arrivals;
    }

    /// Says that the host writes this memory before each launch.
    pub fn input(&mut self, placement: Placement) {
        self.program.inputs.push(placement);
    }

    /// Says that the host reads this memory after each launch.
    pub fn output(&mut self, placement: Placement) {
        self.program.outputs.push(placement);
    }

    /// Says that the host reads this memory after each launch, where data says which rows.
    pub fn routed(&mut self, routed: Routed) {
        self.program.routed.push(routed);
    }

    /// Sets the byte law.
    pub fn law(&mut self, law: Law) {
        self.program.law = law;
    }

    /// Adds the lane of a role with `ctas` home CTAs. A role with nothing to do adds no lane, and so takes no CTA.
    pub fn lane(&mut self, role: &dyn Role, ctas: u32) -> Option<LaneId> {
        let mut lane = LaneBuilder { program: &mut self.program, instructions: Vec::new() };
        role.fill(&mut lane);
        let instructions = lane.instructions;
        if instructions.is_empty() {
            return None;
        }
        let id = LaneId(u16::try_from(self.program.lanes.len()).expect("a program has a handful of lanes"));
        self.program.lanes.push(Lane { role: role.name(), ctas, instructions, next: None });
        Some(id)
    }

    /// Says which lane the CTAs of `lane` help with when it is drained.
    pub fn then(&mut self, lane: Option<LaneId>, next: Option<LaneId>) {
        if let (Some(lane), Some(next)) = (lane, next) {
            self.program.lanes[usize::from(lane.0)].next = Some(next);
        }
    }

    /// The finished program.
    pub fn finish(self) -> Program {
        self.program
    }
}

impl LaneBuilder<'_> {
    /// Stores a list of waits that several segments pick from ([`Step::picking`]).
    pub fn shared_waits(&mut self, waits: &[CellId]) -> Slice {
        extend(&mut self.program.waits, waits)
    }

    /// Appends an instruction of one segment.
    pub fn push(&mut self, op: Op, step: Step<'_>, writes: &[Span], signals: &[Signal]) {
        self.push_segments(op, &[step], writes, signals);
    }

    /// Appends an instruction of several segments.
    pub fn push_segments(&mut self, op: Op, steps: &[Step<'_>], writes: &[Span], signals: &[Signal]) {
        let start = pool_index(self.program.segments.len());
        for step in steps {
            let waits = extend(&mut self.program.waits, step.waits);
            let picked = step.picked.cloned().unwrap_or(0..0);
            let reads = extend(&mut self.program.spans, step.reads);
            self.program.segments.push(Segment { waits, picked, reads, position: step.position });
        }
        let segments = start..pool_index(self.program.segments.len());
        let writes = extend(&mut self.program.spans, writes);
        let signals = extend(&mut self.program.signals, signals);
        self.instructions.push(Instruction { op, segments, writes, signals });
    }

    /// Appends the instruction that hands `put` to the proxy once `waits` hold.
    pub fn put(&mut self, waits: &[CellId], put: Put) {
        let id = PutId(pool_index(self.program.puts.len()));
        self.program.puts.push(put);
        self.push(Op::Put(id), Step::new(waits, &[]), &[], &[]);
    }
}
