//! Random small programs: copies, puts and joins with random waits and signals. Some are sound, the rest deadlock, race or
//! count wrongly; which is for the judges to say.
//!
//! Every instruction leaves eight bytes in a slot of its own. Slots hold copies of other slots or of their rank's input, so
//! the right contents of every slot follow from the program.

use mkernel_core::builder::Step;
use mkernel_core::{
    Born, Cell, CellId, Executor, Fault, Instruction, LaneBuilder, Law, Op, Placement, Program, ProgramBuilder, Put,
    Rank, RegionId, Role, RoleName, Signal, Span, Verified, World,
};

use crate::mutate::balance;

/// Bytes of a slot.
pub const SLOT: u64 = 8;
const SLOTS: RegionId = RegionId(0);
const INPUT: RegionId = RegionId(1);

/// An instruction while it is drawn.
#[derive(Clone, Debug)]
struct Draft {
    rank: Rank,
    lane: usize,
    /// Its place in the lane, among those of the lane.
    time: f64,
    what: What,
    waits: Vec<CellId>,
    /// Waits that order what this instruction reads, and nothing after it.
    picked: Vec<CellId>,
    signals: Vec<Signal>,
    reads: Span,
    retired: Option<CellId>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Join,
    Copy { to: Rank },
    Put { to: Rank, cell: CellId, has_bytes: bool },
}

struct Drawing {
    random: fastrand::Rng,
    world: World,
    drafts: Vec<Draft>,
    cells: Vec<Vec<Cell>>,
}

/// The slot that instruction `draft` leaves its bytes in, on `rank`.
fn slot(rank: Rank, draft: usize) -> Span {
    Span::flat(rank, SLOTS, draft as u64 * SLOT, SLOT)
}

fn input(rank: Rank) -> Span {
    Span::flat(rank, INPUT, 0, SLOT)
}

/// Draws programs of a world of one to three ranks.
pub fn programs(seed: u64) -> Vec<Program> {
    let mut random = fastrand::Rng::with_seed(seed);
    let worlds: [&[u32]; 5] = [&[1], &[2], &[1, 1], &[2, 1], &[3]];
    let world = World::new(worlds[random.usize(0..worlds.len())]).expect("a test world is sound");
    let cells = vec![Vec::new(); world.size() as usize];
    let mut drawing = Drawing { random, world, drafts: Vec::new(), cells };
    drawing.draw_instructions();
    drawing.draw_edges();
    drawing.build()
}

impl Drawing {
    fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(0..100) < percent
    }

    /// Whether an instruction is a put, which raises nothing on its own rank.
    fn is_put(&self, draft: usize) -> bool {
        matches!(self.drafts[draft].what, What::Put { .. })
    }

    fn cell(&mut self, rank: Rank, born: Born) -> CellId {
        let cells = &mut self.cells[rank.0 as usize];
        cells.push(Cell { arrivals: 1, born });
        CellId(cells.len() as u32 - 1)
    }

    fn push(&mut self, rank: Rank, lane: usize, what: What) -> usize {
        let (time, reads) = (self.random.f64(), input(rank));
        self.drafts.push(Draft {
            rank,
            lane,
            time,
            what,
            waits: Vec::new(),
            picked: Vec::new(),
            signals: Vec::new(),
            reads,
            retired: None,
        });
        self.drafts.len() - 1
    }

    fn draw_instructions(&mut self) {
        let has_memory = self.chance(70);
        for rank in self.world.ranks() {
            for lane in 0..self.random.usize(1..=2) {
                for _ in 0..self.random.usize(1..=3) {
                    let to = Rank(self.random.u32(0..self.world.size()));
                    let what = if to != rank && self.chance(50) {
                        let cell = self.cell(to, Born::Empty);
                        What::Put { to, cell, has_bytes: has_memory }
                    } else if has_memory && self.world.same_node(rank, to) && self.chance(80) {
                        What::Copy { to }
                    } else {
                        What::Join
                    };
                    self.push(rank, lane, what);
                }
            }
        }
    }

    /// Lets instructions of one node wait for each other, and for puts. Most waits look ahead in time; those that look
    /// back may deadlock.
    fn draw_edges(&mut self) {
        let count = self.drafts.len();
        for _ in 0..self.random.usize(0..=count) {
            let (x, y) = (self.random.usize(0..count), self.random.usize(0..count));
            let is_ahead = self.drafts[x].time < self.drafts[y].time;
            let (x, y) = if is_ahead || self.chance(6) { (x, y) } else { (y, x) };
            if x != y && !self.is_put(x) && self.world.same_node(self.drafts[x].rank, self.drafts[y].rank) {
                let cell = self.signal(x, y, Born::Empty);
                self.follow(x, y);
                if self.drafts[x].rank != self.drafts[y].rank && !self.is_put(y) && self.chance(85) {
                    self.signal(y, x, Born::Full);
                }
                // Sometimes another instruction of the rank raises the same cell.
                let other = self.random.usize(0..count);
                let is_peer = self.drafts[other].rank == self.drafts[x].rank && other != y && !self.is_put(other);
                if is_peer && self.chance(15) {
                    let rank = self.drafts[y].rank;
                    self.drafts[other].signals.push(Signal { rank, cell, amount: 1 });
                }
            }
        }
        for x in 0..count {
            if self.is_put(x) && self.chance(60) {
                self.draw_retirement(x);
            }
            if let What::Put { to, cell, .. } = self.drafts[x].what {
                self.draw_receiver(x, to, cell);
            }
        }
    }

    /// `y` waits for a signal of `x`.
    fn signal(&mut self, x: usize, y: usize, born: Born) -> CellId {
        let rank = self.drafts[y].rank;
        let cell = self.cell(rank, born);
        self.drafts[x].signals.push(Signal { rank, cell, amount: 1 });
        let is_picked = !self.is_put(y) && born == Born::Empty && self.chance(20);
        let draft = &mut self.drafts[y];
        if is_picked { &mut draft.picked } else { &mut draft.waits }.push(cell);
        cell
    }

    /// `y` may read what `x` leaves.
    fn follow(&mut self, x: usize, y: usize) {
        let left = match self.drafts[x].what {
            What::Join | What::Put { has_bytes: false, .. } => return,
            What::Copy { to } | What::Put { to, .. } => to,
        };
        let reaches =
            self.world.same_node(left, self.drafts[y].rank) && (!self.is_put(y) || left == self.drafts[y].rank);
        if reaches && self.chance(80) {
            self.drafts[y].reads = slot(left, x);
        }
    }

    /// Some instruction of the target waits for put `x`, and most times gives a credit back.
    fn draw_receiver(&mut self, x: usize, to: Rank, cell: CellId) {
        if self.chance(10) {
            return;
        }
        let of_target = |&y: &usize| self.drafts[y].rank == to && !self.is_put(y);
        let receivers: Vec<usize> = (0..self.drafts.len()).filter(of_target).collect();
        let y = self.random.choice(receivers).unwrap_or_else(|| self.push(to, 0, What::Join));
        self.drafts[y].waits.push(cell);
        self.follow(x, y);
        let from = self.drafts[x].rank;
        if self.chance(85) {
            let credit = self.cell(from, Born::Full);
            let back = self.push(to, 0, What::Put { to: from, cell: credit, has_bytes: false });
            self.drafts[back].time += 1.0;
            self.drafts[x].waits.push(credit);
            self.signal(y, back, Born::Empty);
        }
    }

    /// Some instruction waits until the source of put `x` has been read.
    fn draw_retirement(&mut self, x: usize) {
        let rank = self.drafts[x].rank;
        let own: Vec<usize> = (0..self.drafts.len()).filter(|&y| y != x && self.drafts[y].rank == rank).collect();
        let cell = self.cell(rank, Born::Empty);
        let y = self.random.choice(own).unwrap_or_else(|| self.push(rank, 0, What::Join));
        self.drafts[y].time = self.drafts[y].time.max(self.drafts[x].time + 0.01);
        self.drafts[y].waits.push(cell);
        self.drafts[x].retired = Some(cell);
    }

    fn build(self) -> Vec<Program> {
        let mut programs: Vec<_> = self.world.ranks().map(|rank| self.build_rank(rank)).collect();
        balance(&mut programs);
        programs
    }

    fn build_rank(&self, rank: Rank) -> Program {
        let mut builder = ProgramBuilder::new(&self.world, rank);
        builder.region("slots", self.drafts.len() as u64 * SLOT);
        builder.region("input", SLOT);
        builder.law(Law::default());
        for cell in &self.cells[rank.0 as usize] {
            builder.cell(cell.arrivals, cell.born);
        }
        builder.input(Placement { tensor: "in", span: input(rank), row: 0, column: 0 });
        let own = |d: &&(usize, &Draft)| d.1.rank == rank;
        let drafts: Vec<(usize, &Draft)> = self.drafts.iter().enumerate().collect();
        for (id, draft) in drafts.iter().filter(own) {
            if draft.what == (What::Copy { to: rank }) {
                let span = slot(rank, *id);
                builder.output(Placement { tensor: "out", span, row: *id as u64, column: 0 });
            }
        }
        for lane in 0..=1 {
            let mut own: Vec<_> = drafts.iter().filter(own).filter(|d| d.1.lane == lane).copied().collect();
            own.sort_by(|a, b| a.1.time.total_cmp(&b.1.time));
            builder.lane(&Script(&own), 1);
        }
        builder.finish()
    }
}

struct Script<'a>(&'a [(usize, &'a Draft)]);

impl Role for Script<'_> {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        for (id, draft) in self.0 {
            let picked = lane.shared_waits(&draft.picked);
            match draft.what {
                What::Join => {
                    let step = Step::new(&draft.waits, &[]).picking(&picked);
                    lane.push(Op::Release, step, &[], &draft.signals);
                }
                What::Copy { to } => {
                    let reads = [draft.reads];
                    let step = Step::new(&draft.waits, &reads).picking(&picked);
                    lane.push(Op::Copy, step, &[slot(to, *id)], &draft.signals);
                }
                What::Put { to, cell, has_bytes } => {
                    let (source, target) = (draft.reads, slot(to, *id));
                    let put = Put { source, target, cell, count: None, retired: draft.retired };
                    let bare = Put { retired: draft.retired, ..Put::signal(draft.rank, to, cell) };
                    lane.put(&draft.waits, if has_bytes { put } else { bare });
                }
            }
        }
    }
}

/// The rank whose input ends up in a span of random programs, or of mutants of them that the checkers accept.
fn origin(programs: &[Program], span: &Span) -> Option<Rank> {
    let mut span = *span;
    // A chain of copies is no longer than there are instructions.
    for _ in 0..100 {
        if span.region == INPUT && span.offset == 0 {
            return Some(span.rank);
        }
        let copied = |p: &Program, i: &Instruction| match i.op {
            Op::Copy if p.writes(i).first() == Some(&span) => p.reads(&p.segments(i)[0]).first().copied(),
            Op::Put(id) if p.put(id).target == span => Some(p.put(id).source),
            _ => None,
        };
        span = programs.iter().find_map(|p| p.instructions().find_map(|(_, _, i)| copied(p, i)))?;
    }
    None
}

/// Whether every output of a mutant holds the same rank's input as before, be it by another way.
pub fn has_same_origins(original: &[Program], mutant: &[Program]) -> bool {
    let origins = |programs: &[Program]| -> Vec<_> {
        programs.iter().flat_map(|p| &p.outputs).map(|output| origin(programs, &output.span)).collect()
    };
    origins(original) == origins(mutant)
}

/// Runs one epoch with fresh inputs; the outputs must be what `original` says.
///
/// # Errors
/// The fault of the launch.
pub fn is_right(
    original: &[Program],
    verified: &Verified,
    executor: &mut dyn Executor,
    seed: u64,
) -> Result<bool, Fault> {
    let value = |rank: Rank| (seed << 8 | u64::from(rank.0)).to_le_bytes();
    for placement in verified.programs().iter().flat_map(|p| &p.inputs) {
        executor.write(&placement.span, &value(placement.span.rank));
    }
    executor.launch()?;
    let outputs = verified.programs().iter().zip(original).flat_map(|(p, o)| p.outputs.iter().zip(&o.outputs));
    Ok(outputs.into_iter().all(|(placement, planned)| {
        let mut bytes = [0; SLOT as usize];
        executor.read(&placement.span, &mut bytes);
        origin(original, &planned.span).is_some_and(|rank| bytes == value(rank))
    }))
}
