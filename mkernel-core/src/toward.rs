//! What one program has to do with one other rank, as a program.
//!
//! In a large world a rank is proved with the programs of all that raise its cells ([`crate::validate_rank`]). Whole, they
//! would take W programs of O(W) each; cut down, they take what the rank has in common with its peers.
//!
//! Kept is every instruction that touches the rank's memory or raises a cell there; every one that waits for a cell that the rank
//! raises, as all of the next launch comes after it; and every one that lies between: it comes after one of the latter and
//! before one of the former. Of what is kept, waits for anything else are left out. So no access to the rank is lost and no
//! order is made up: whatever is proved with the part holds with the whole.

use crate::builder::{LaneBuilder, ProgramBuilder, Step};
use crate::program::{Instruction, Lane, Op, Program, Put};
use crate::role::{Role, RoleName};
use crate::signal::{CellId, Signal};
use crate::world::Rank;

impl Program {
    /// The part of this program that concerns the rank of `other`.
    ///
    /// # Panics
    /// If a list range of the program lies outside its pool.
    pub fn toward(&self, other: &Program) -> Program {
        let part = Part::new(self, other);
        let mut builder = ProgramBuilder::new(&self.world, self.rank);
        for region in &self.regions {
            builder.region(region.name, region.bytes);
        }
        for cell in &self.cells {
            builder.cell(cell.arrivals, cell.born);
        }
        let mut concerned = &part.concerned[..];
        for lane in &self.lanes {
            let (own, rest) = concerned.split_at(lane.instructions.len());
            builder.lane(&Toward { part: &part, lane, concerned: own }, lane.ctas);
            concerned = rest;
        }
        let mut program = builder.finish();
        let crosses = |p: &&Put| p.target.rank.0 < self.world.size() && !self.world.same_node(self.rank, p.target.rank);
        program.law.inter_out =
            program.puts.iter().filter(crosses).fold(0, |sum, p| sum.saturating_add(p.source.bytes()));
        program
    }
}

/// Which cells of a program stand between one other rank and itself.
struct Part<'a> {
    program: &'a Program,
    rank: Rank,
    /// By instruction, lane by lane: touches memory of the other rank or raises a cell there.
    concerned: Vec<bool>,
    /// By cell: raised by the other rank.
    direct: Vec<bool>,
    /// By cell: raised by the other rank, or by something that waits for such a cell.
    after: Vec<bool>,
    /// By cell: waited for by what concerns the other rank, or by something that raises such a cell.
    before: Vec<bool>,
}

impl<'a> Part<'a> {
    fn new(program: &'a Program, other: &Program) -> Part<'a> {
        let none = vec![false; program.cells.len()];
        let concerned = program.instructions().map(|(_, _, i)| concerns(program, i, other.rank)).collect();
        let mut part =
            Part { program, rank: other.rank, concerned, direct: none.clone(), after: none.clone(), before: none };
        let signals = other.signals.iter().filter(|s| s.rank == program.rank).map(|s| s.cell);
        let puts = other.puts.iter().filter(|p| p.target.rank == program.rank).map(|p| p.cell);
        for cell in signals.chain(puts) {
            mark(&mut part.direct, cell);
        }
        part.after.clone_from(&part.direct);
        while part.spread() {}
        part
    }

    /// Marks what follows from the marks so far; says whether anything did.
    fn spread(&mut self) -> bool {
        let program = self.program;
        let mut grown = false;
        for ((_, _, i), &is_concerned) in program.instructions().zip(&self.concerned) {
            if self.waits_for(&self.after, i) {
                for cell in raised(program, i) {
                    grown |= mark(&mut self.after, cell);
                }
            }
            if is_concerned || raised(program, i).any(|cell| is(&self.before, cell)) {
                for &cell in program.segments(i).iter().flat_map(|s| program.waits(s)) {
                    grown |= mark(&mut self.before, cell);
                }
            }
        }
        grown
    }

    /// Whether an instruction waits for a marked cell.
    fn waits_for(&self, marks: &[bool], i: &Instruction) -> bool {
        self.program.segments(i).iter().flat_map(|s| self.program.waits(s)).any(|&cell| is(marks, cell))
    }

    fn is_kept(&self, i: &Instruction, is_concerned: bool) -> bool {
        let between = || raised(self.program, i).any(|cell| is(&self.before, cell));
        is_concerned || self.waits_for(&self.direct, i) || (self.waits_for(&self.after, i) && between())
    }
}

/// Whether an instruction touches memory of `other` or raises a cell there.
fn concerns(program: &Program, i: &Instruction, other: Rank) -> bool {
    match i.op {
        Op::Put(id) => program.put(id).target.rank == other,
        _ => {
            let reads = program.segments(i).iter().flat_map(|s| program.reads(s));
            let touches = reads.chain(program.writes(i)).any(|s| s.rank == other);
            touches || program.signals(i).iter().any(|s| s.rank == other)
        }
    }
}

/// The cells of its own rank that an instruction, or the transfer that it starts, raises.
fn raised<'a>(program: &'a Program, i: &'a Instruction) -> impl Iterator<Item = CellId> + 'a {
    let retired = match i.op {
        Op::Put(id) => program.put(id).retired,
        _ => None,
    };
    program.signals(i).iter().filter(|s| s.rank == program.rank).map(|s| s.cell).chain(retired)
}

fn is(marks: &[bool], cell: CellId) -> bool {
    marks.get(cell.0 as usize) == Some(&true)
}

/// Marks a cell; says whether it was not marked before.
fn mark(marks: &mut [bool], cell: CellId) -> bool {
    marks.get_mut(cell.0 as usize).is_some_and(|slot| !std::mem::replace(slot, true))
}

/// Refills a lane with what is kept of it.
struct Toward<'a> {
    part: &'a Part<'a>,
    lane: &'a Lane,
    /// [`Part::concerned`] for the lane.
    concerned: &'a [bool],
}

impl Role for Toward<'_> {
    fn name(&self) -> RoleName {
        self.lane.role
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let (part, program) = (self.part, self.part.program);
        let met =
            |waits: &[CellId]| -> Vec<CellId> { waits.iter().copied().filter(|&cell| is(&part.after, cell)).collect() };
        let kept = self
            .lane
            .instructions
            .iter()
            .zip(self.concerned)
            .filter(|&(i, &is_concerned)| part.is_kept(i, is_concerned));
        for (i, _) in kept {
            let waits: Vec<Vec<CellId>> = program.segments(i).iter().map(|s| met(program.waits(s))).collect();
            if let Op::Put(id) = i.op {
                let put = program.put(id);
                let retired = put.retired.filter(|&cell| is(&part.before, cell));
                lane.put(&waits.concat(), Put { retired, ..*put });
                continue;
            }
            let segments = program.segments(i).iter().zip(&waits);
            let steps: Vec<Step<'_>> =
                segments.map(|(s, waits)| Step::new(waits, program.reads(s)).at(s.position)).collect();
            let is_needed = |s: &&Signal| s.rank == part.rank || (s.rank == program.rank && is(&part.before, s.cell));
            let signals: Vec<Signal> = program.signals(i).iter().filter(is_needed).copied().collect();
            lane.push_segments(i.op, &steps, program.writes(i), &signals);
        }
    }
}
