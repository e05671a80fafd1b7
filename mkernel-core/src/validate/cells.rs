//! Who raises which cell, and whether it adds up.

use super::find;
use super::structure::at;
use super::violation::{Party, Violation};
use crate::program::{Op, Program};
use crate::signal::CellId;

/// An event that raises a cell: within its program, the event's local number (see [`super::graph`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// Index of the program.
    pub(super) program: u32,
    /// The event within the program: a segment or a transfer.
    pub(super) local: u32,
}

/// For each cell of each program, the events that raise it and what absent ranks must add.
pub(super) struct Contributions {
    /// First cell of each program in the arrays below.
    bases: Vec<u32>,
    /// `starts[c]..starts[c + 1]` are the events of cell c.
    starts: Vec<u32>,
    events: Vec<Event>,
    /// Arrivals per epoch that no program given here contributes.
    absent: Vec<u32>,
}

/// One contribution while collecting.
struct Raise {
    cell: u32,
    event: Event,
    amount: u32,
    party: Party,
    by_put: bool,
}

/// Local number of a program's events: 0 is the host before the launch, then segments, then two for each put: the read of
/// its source, and its landing; then choices.
pub(super) fn segment_event(segment: u32) -> u32 {
    1 + segment
}

/// Local number of the event in which a put's source is read; the put's landing is the next one.
pub(super) fn transfer_event(program: &Program, put: u32) -> u32 {
    1 + program.segments.len() as u32 + 2 * put
}

/// Local number of the first choice; they come last.
pub(super) fn choice_event(program: &Program, choice: u32) -> u32 {
    transfer_event(program, program.puts.len() as u32) + choice
}

impl Contributions {
    /// Collects contributions, and checks sources, sums and waits. Only where a whole world is proved do all have to be
    /// here; where `only` one program is, those of a cell that it has any of.
    pub(super) fn collect(programs: &[Program], only: Option<usize>) -> Result<Contributions, Violation> {
        let mut bases = Vec::with_capacity(programs.len() + 1);
        let mut total = 0u64;
        for program in programs {
            bases.push(total as u32);
            total += program.cells.len() as u64;
        }
        if total > u64::from(u32::MAX) {
            return Err(Violation::TooLarge { events: total });
        }
        bases.push(total as u32);
        let mut raises = Vec::new();
        for (index, program) in programs.iter().enumerate() {
            collect_program(programs, index, program, &bases, &mut raises);
        }
        raises.sort_by_key(|r| r.cell);
        let mut result =
            Contributions { bases, starts: vec![0; total as usize + 1], events: Vec::new(), absent: Vec::new() };
        result.fill(programs, &raises, only)?;
        check_waits(programs)?;
        Ok(result)
    }

    fn fill(&mut self, programs: &[Program], raises: &[Raise], only: Option<usize>) -> Result<(), Violation> {
        let mut rest = raises;
        for (index, program) in programs.iter().enumerate() {
            for (id, cell) in program.cells.iter().enumerate() {
                let flat = self.bases[index] + id as u32;
                let count = rest.iter().take_while(|r| r.cell == flat).count();
                let (own, others) = rest.split_at(count);
                rest = others;
                let cell_id = CellId(id as u32);
                check_sources(program, cell_id, own)?;
                let actual: u64 = own.iter().map(|r| u64::from(r.amount)).sum();
                let planned = u64::from(cell.arrivals);
                let is_due = |actual| only.is_none_or(|only| only == index && actual > 0);
                let by_put = own.iter().any(|r| r.by_put);
                if actual > planned || (actual < planned && is_due(actual)) || (by_put && planned != 1) {
                    let (rank, cell) = (program.rank, cell_id);
                    return Err(Violation::Arrivals { rank, cell, planned: planned as u32, actual });
                }
                self.absent.push((planned - actual) as u32);
                self.events.extend(own.iter().map(|r| r.event));
                self.starts[flat as usize + 1] = self.events.len() as u32;
            }
        }
        Ok(())
    }

    /// The cell's number over all programs.
    pub(super) fn flat(&self, program: u32, cell: CellId) -> u32 {
        self.bases[program as usize] + cell.0
    }

    /// Number of cells over all programs.
    pub(super) fn cells(&self) -> usize {
        self.absent.len()
    }

    /// The events that raise a cell once per epoch each.
    pub(super) fn events(&self, flat: u32) -> &[Event] {
        &self.events[self.starts[flat as usize] as usize..self.starts[flat as usize + 1] as usize]
    }

    /// What absent ranks add to a cell per epoch.
    pub(super) fn absent(&self, flat: u32) -> u32 {
        self.absent[flat as usize]
    }

    /// Whether all contributions to all cells of a program are here.
    pub(super) fn is_closed(&self, program: u32) -> bool {
        let (start, end) = (self.bases[program as usize] as usize, self.bases[program as usize + 1] as usize);
        self.absent[start..end].iter().all(|&a| a == 0)
    }
}

fn collect_program(programs: &[Program], index: usize, program: &Program, bases: &[u32], raises: &mut Vec<Raise>) {
    let flat = |rank, cell: CellId| find(programs, rank).map(|target| bases[target] + cell.0);
    for (lane, i, instruction) in program.instructions() {
        let at = at(program, lane, i);
        let last = Event { program: index as u32, local: segment_event(instruction.segments.end - 1) };
        for signal in program.signals(instruction) {
            if let Some(cell) = flat(signal.rank, signal.cell) {
                let (amount, party) = (signal.amount, Party::Instruction(at));
                raises.push(Raise { cell, event: last, amount, party, by_put: false });
            }
        }
        if let Op::Put(id) = instruction.op {
            let put = program.put(id);
            let event = Event { program: index as u32, local: transfer_event(program, id.0) };
            let landing = Event { local: event.local + 1, ..event };
            let party = Party::Transfer(at);
            if let Some(cell) = flat(put.target.rank, put.cell) {
                raises.push(Raise { cell, event: landing, amount: 1, party, by_put: true });
            }
            if let Some(cell) = put.retired.and_then(|c| flat(program.rank, c)) {
                raises.push(Raise { cell, event, amount: 1, party, by_put: false });
            }
        }
    }
}

/// One source rank per cell; a put's cell has that put alone; a retirement counter has retirements alone.
fn check_sources(program: &Program, cell: CellId, raises: &[Raise]) -> Result<(), Violation> {
    let Some(first) = raises.first() else { return Ok(()) };
    let transfer = |r: &Raise| matches!(r.party, Party::Transfer(_));
    for other in &raises[1..] {
        let one_rank = first.event.program == other.event.program;
        if !one_rank || first.by_put || other.by_put || transfer(first) != transfer(other) {
            let (rank, first, second) = (program.rank, first.party, other.party);
            return Err(Violation::Sources { rank, cell, first, second });
        }
    }
    Ok(())
}

fn check_waits(programs: &[Program]) -> Result<(), Violation> {
    // Many segments may share one long list, so lists are looked through one by one only if a wait is vacuous.
    let is_vacuous = |p: &&Program| p.waits.iter().any(|c| p.cells.get(c.0 as usize).is_none_or(|c| c.arrivals == 0));
    for program in programs.iter().filter(is_vacuous) {
        for (lane, index, instruction) in program.instructions() {
            let waits =
                program.segments(instruction).iter().flat_map(|s| program.waits(s).iter().chain(program.picked(s)));
            if let Some(&cell) = waits.into_iter().find(|&&c| program.cell(c).arrivals == 0) {
                return Err(Violation::VacuousWait { at: at(program, lane, index), cell });
            }
        }
    }
    Ok(())
}
