//! The abstract run: one CTA per lane, no data. It ends if and only if no run can hang.

use std::collections::HashMap;

use super::cells::Contributions;
use super::structure::at;
use super::violation::Violation;
use super::{EPOCHS, find};
use crate::program::{LaneId, Op, Program, Segment, Slice};
use crate::signal::{CellId, reached};
use crate::world::Rank;

/// Where one lane is.
#[derive(Clone, Copy)]
struct Position {
    epoch: u32,
    instruction: u32,
    segment: u32,
}

struct Run<'a> {
    programs: &'a [Program],
    contributions: &'a Contributions,
    /// Value of every cell, over all programs.
    values: Vec<u64>,
    /// Lanes waiting for a cell, by cell.
    waiting: Vec<Vec<(u32, u16)>>,
    positions: Vec<Vec<Position>>,
    /// By program: of each list that data picks from, the epoch that last looked at it and how many of its cells it found full,
    /// from the first on. Counters only rise, so they stay full, and those that share a list go on from there.
    picked: Vec<HashMap<Slice, (u32, usize)>>,
    /// Lanes of each program that have not ended the running epoch.
    running: Vec<usize>,
    /// Lanes that can go on.
    ready: Vec<(u32, u16)>,
}

/// Runs all lanes of all programs through the unrolled epochs.
pub(super) fn check(programs: &[Program], contributions: &Contributions) -> Result<(), Violation> {
    let mut run = Run::new(programs, contributions);
    while let Some((program, lane)) = run.ready.pop() {
        run.advance(program, lane);
    }
    run.stuck()
}

impl<'a> Run<'a> {
    fn new(programs: &'a [Program], contributions: &'a Contributions) -> Run<'a> {
        let mut values = Vec::with_capacity(contributions.cells());
        for (index, program) in programs.iter().enumerate() {
            for (id, cell) in program.cells.iter().enumerate() {
                let absent = contributions.absent(contributions.flat(index as u32, CellId(id as u32)));
                values.push(cell.initial(0) + u64::from(absent) * u64::from(EPOCHS));
            }
        }
        let start = Position { epoch: 0, instruction: 0, segment: 0 };
        Run {
            programs,
            contributions,
            waiting: vec![Vec::new(); values.len()],
            values,
            positions: programs.iter().map(|p| vec![start; p.lanes.len()]).collect(),
            picked: vec![HashMap::new(); programs.len()],
            running: programs.iter().map(|p| p.lanes.len()).collect(),
            ready: (0..programs.len() as u32)
                .flat_map(|p| (0..programs[p as usize].lanes.len() as u16).map(move |l| (p, l)))
                .collect(),
        }
    }

    /// Runs one lane until it waits or its epoch ends.
    fn advance(&mut self, index: u32, lane: u16) {
        let program = &self.programs[index as usize];
        let instructions = &program.lanes[usize::from(lane)].instructions;
        loop {
            let position = self.positions[index as usize][usize::from(lane)];
            let Some(instruction) = instructions.get(position.instruction as usize) else {
                return self.end_lane(index);
            };
            let segment = &program.segments(instruction)[position.segment as usize];
            if let Some(cell) = self.unmet(index, segment, position.epoch) {
                let flat = self.contributions.flat(index, cell);
                return self.waiting[flat as usize].push((index, lane));
            }
            let place = &mut self.positions[index as usize][usize::from(lane)];
            place.segment += 1;
            if place.segment < instruction.segments.end - instruction.segments.start {
                continue;
            }
            place.segment = 0;
            place.instruction += 1;
            for signal in program.signals(instruction) {
                self.raise(signal.rank, signal.cell, signal.amount);
            }
            if let Op::Put(id) = instruction.op {
                let put = program.put(id);
                self.raise(put.target.rank, put.cell, 1);
                if let Some(cell) = put.retired {
                    self.raise(program.rank, cell, 1);
                }
            }
        }
    }

    /// The first unmet wait of a segment.
    fn unmet(&mut self, index: u32, segment: &Segment, epoch: u32) -> Option<CellId> {
        let program = &self.programs[index as usize];
        let is_full = |cell: CellId| {
            let value = self.values[self.contributions.flat(index, cell) as usize];
            reached(value, program.cell(cell).threshold(u64::from(epoch)))
        };
        let unmet = program.waits(segment).iter().copied().find(|&cell| !is_full(cell));
        if unmet.is_some() || segment.picked.is_empty() {
            return unmet;
        }
        let list = program.picked(segment);
        let (last, full) = self.picked[index as usize].entry(segment.picked.clone()).or_default();
        if *last != epoch {
            (*last, *full) = (epoch, 0);
        }
        *full += list[*full..].iter().take_while(|&&cell| is_full(cell)).count();
        list.get(*full).copied()
    }

    fn raise(&mut self, rank: Rank, cell: CellId, amount: u32) {
        let Some(target) = find(self.programs, rank) else { return };
        let flat = self.contributions.flat(target as u32, cell) as usize;
        self.values[flat] += u64::from(amount);
        self.ready.append(&mut self.waiting[flat]);
    }

    /// A launch ends when all lanes have; then all of them start on the next epoch.
    fn end_lane(&mut self, index: u32) {
        let lanes = &mut self.positions[index as usize];
        self.running[index as usize] -= 1;
        if self.running[index as usize] > 0 {
            return;
        }
        let epoch = lanes[0].epoch + 1;
        if epoch == EPOCHS {
            return;
        }
        lanes.fill(Position { epoch, instruction: 0, segment: 0 });
        self.running[index as usize] = lanes.len();
        self.ready.extend((0..lanes.len() as u16).map(|l| (index, l)));
    }

    /// The first lane that has not ended, if any.
    fn stuck(&mut self) -> Result<(), Violation> {
        for (index, program) in self.programs.iter().enumerate() {
            for lane in 0..program.lanes.len() {
                let position = self.positions[index][lane];
                let Some(instruction) = program.lanes[lane].instructions.get(position.instruction as usize) else {
                    continue;
                };
                let segment = &program.segments(instruction)[position.segment as usize];
                let Some(cell) = self.unmet(index as u32, segment, position.epoch) else { continue };
                let epoch = u64::from(position.epoch);
                return Err(Violation::Deadlock {
                    at: at(program, LaneId(lane as u16), position.instruction),
                    epoch,
                    cell,
                    wanted: program.cell(cell).threshold(epoch),
                    seen: self.values[self.contributions.flat(index as u32, cell) as usize],
                });
            }
        }
        Ok(())
    }
}
