//! The graph of events of an epoch and the next, and what comes directly before each.
//!
//! Events of a program in one epoch: the **host** before the launch (0), one per **segment** (its reads; the last one of
//! an instruction also its writes and signals), two per **transfer** (the read of the put's source, with `retired`; its
//! landing, with the put's signal), and one per **choice**: the reads by which a segment chooses what it waits for and
//! gathers. Edges:
//! - host -> every first segment of the launch; every last segment -> the host before the next launch. A transfer is not
//!   among them: it may outlive its launch unless something waits for it.
//! - a segment -> the next of its instruction; a put's last segment -> its read -> its landing; a choice -> its segment.
//! - every event that raises a cell -> the cell -> every segment that waits for it: waits are for full counts, so the count
//!   cannot be reached without any one of them. A wait that data may leave out orders the reads of that segment
//!   alone: the edge counts only where a path ends, in a read.
//!
//! The order of a lane is no edge. Cells are places of the graph too, so that a cell with many events and many waiters has
//! as many edges as both together.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::Malformed;
use super::cells::{Contributions, Event, choice_event, segment_event, transfer_event};
use super::structure::at;
use super::violation::{Party, Violation};
use crate::program::{Op, Program, Segment, Slice};
use crate::signal::{Born, CellId};
use crate::world::Rank;

/// A place in the graph, and its epoch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// An event.
    Event(Event, u32),
    /// A cell, by its number over all programs, with all contributions of the epoch.
    Cell(u32, u32),
}

/// Epochs of the graph: no claim needs more ([`super::claims`]).
const LAUNCHES: usize = 2;

/// What the events of one program hang on, by segment or put.
struct Structure {
    /// For each segment, whether it is the first of its instruction.
    first: Vec<bool>,
    /// Last segments of all instructions.
    last: Vec<u32>,
    /// For each put, the last segment of the instruction that posts it.
    posted_by: Vec<u32>,
    /// Segments with a choice, in order.
    choosers: Vec<u32>,
    /// For each segment that is its instruction's last, the instruction's signals.
    signals: Vec<Slice>,
}

/// Events of all programs over all epochs.
pub(super) struct Graph<'a> {
    pub(super) programs: &'a [Program],
    pub(super) contributions: &'a Contributions,
    /// The one program whose memory is proved; none: all of them.
    only: Option<usize>,
    structures: Vec<Structure>,
    /// Every long list of waits, sorted, by program and place.
    lists: HashMap<(u32, Slice), Vec<CellId>>,
    /// First event of each program within an epoch.
    bases: Vec<u32>,
    /// Events per epoch.
    stride: u32,
}

/// Where on a path an event stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Something else follows it on the path.
    Middle,
    /// The path ends here, in what the event reads.
    End,
}

/// Lists of waits no longer than this are looked through as they are.
const SHORT: u32 = 16;

impl<'a> Graph<'a> {
    pub(super) fn new(
        programs: &'a [Program],
        contributions: &'a Contributions,
        only: Option<usize>,
    ) -> Result<Graph<'a>, Violation> {
        let mut bases = Vec::with_capacity(programs.len());
        let mut events = 0u64;
        let structures: Vec<Structure> = programs.iter().map(structure).collect::<Result<_, _>>()?;
        for (program, structure) in programs.iter().zip(&structures) {
            bases.push(events as u32);
            events += u64::from(choice_event(program, structure.choosers.len() as u32));
        }
        let all = (events + contributions.cells() as u64) * LAUNCHES as u64;
        u32::try_from(all).map_err(|_| Violation::TooLarge { events: all })?;
        let lists = long_lists(programs);
        Ok(Graph { programs, contributions, only, structures, lists, bases, stride: events as u32 })
    }

    /// Whether the memory and the cells of a program are to be proved.
    pub(super) fn is_proved(&self, program: usize) -> bool {
        self.only.is_none_or(|only| only == program)
    }

    /// Number of events of an epoch.
    pub(super) fn events(&self) -> usize {
        self.stride as usize
    }

    /// Number of places.
    pub(super) fn places(&self) -> usize {
        LAUNCHES * (self.events() + self.contributions.cells())
    }

    /// The number of an event within its epoch.
    pub(super) fn number(&self, event: Event) -> usize {
        (self.bases[event.program as usize] + event.local) as usize
    }

    /// The number of a place; in the first epoch an event's own.
    pub(super) fn slot(&self, place: Place) -> usize {
        match place {
            Place::Event(event, epoch) => epoch as usize * self.events() + self.number(event),
            Place::Cell(flat, epoch) => {
                LAUNCHES * self.events() + epoch as usize * self.contributions.cells() + flat as usize
            }
        }
    }

    /// Names an event.
    pub(super) fn party_of(&self, event: Event) -> Party {
        let program = &self.programs[event.program as usize];
        if event.local == 0 {
            return Party::Host(program.rank);
        }
        let transfers = transfer_event(program, 0);
        let segment = self.segment_of(event);
        for (lane, index, instruction) in program.instructions() {
            let at = at(program, lane, index);
            match instruction.op {
                Op::Put(id) if segment.is_none() && id.0 == (event.local - transfers) / 2 => {
                    return Party::Transfer(at);
                }
                _ if segment.is_some_and(|s| instruction.segments.contains(&s)) => return Party::Instruction(at),
                _ => {}
            }
        }
        Party::Host(program.rank)
    }

    /// The segment of a segment's or a choice's event.
    fn segment_of(&self, event: Event) -> Option<u32> {
        let program = &self.programs[event.program as usize];
        let (transfers, choices) = (transfer_event(program, 0), choice_event(program, 0));
        match event.local {
            0 => None,
            local if local < transfers => Some(local - 1),
            local if local < choices => None,
            local => Some(self.structures[event.program as usize].choosers[(local - choices) as usize]),
        }
    }

    /// The choice of a segment, if it has one.
    pub(super) fn choice(&self, program: u32, segment: u32) -> Option<Event> {
        let choice = self.structures[program as usize].choosers.binary_search(&segment).ok()?;
        let local = choice_event(&self.programs[program as usize], choice as u32);
        Some(Event { program, local })
    }

    fn is_choice(&self, event: Event) -> bool {
        event.local >= choice_event(&self.programs[event.program as usize], 0)
    }

    /// The put of a transfer's event, and whether it is the landing.
    fn put_of(&self, event: Event) -> (u32, bool) {
        let local = event.local - transfer_event(&self.programs[event.program as usize], 0);
        (local / 2, local % 2 == 1)
    }

    fn is_transfer(&self, event: Event) -> bool {
        event.local > 0 && self.segment_of(event).is_none()
    }

    /// The segment that holds the waits of an event, which is no host.
    fn waiting_segment(&self, event: Event) -> (u32, &Segment) {
        let posted = || self.structures[event.program as usize].posted_by[self.put_of(event).0 as usize];
        let number = self.segment_of(event).unwrap_or_else(posted);
        (number, &self.programs[event.program as usize].segments[number as usize])
    }

    /// Whether what two events read hangs on the same waits, of themselves or of what posts them.
    pub(super) fn are_alike(&self, a: Event, b: Event) -> bool {
        if a.program != b.program || a.local == 0 || b.local == 0 {
            return a == b;
        }
        let program = &self.programs[a.program as usize];
        let ((_, x), (_, y)) = (self.waiting_segment(a), self.waiting_segment(b));
        self.is_transfer(a) == self.is_transfer(b)
            && self.is_choice(a) == self.is_choice(b)
            && x.picked == y.picked
            && program.waits(x) == program.waits(y)
    }

    /// Calls `visit` for every place that directly precedes `place`, until it breaks.
    pub(super) fn predecessors(
        &self,
        place: Place,
        reach: Reach,
        mut visit: impl FnMut(Place) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (event, epoch) = match place {
            Place::Event(event, epoch) => (event, epoch),
            Place::Cell(flat, epoch) => {
                let raisers = self.contributions.events(flat);
                return raisers.iter().try_for_each(|&raiser| visit(Place::Event(raiser, epoch)));
            }
        };
        let program = &self.programs[event.program as usize];
        let structure = &self.structures[event.program as usize];
        let same = |local, epoch| Place::Event(Event { program: event.program, local }, epoch);
        if event.local == 0 {
            if epoch > 0 {
                visit(same(0, epoch - 1))?;
                structure.last.iter().try_for_each(|&s| visit(same(segment_event(s), epoch - 1)))?;
            }
            return ControlFlow::Continue(());
        }
        let Some(number) = self.segment_of(event) else {
            let (put, is_landing) = self.put_of(event);
            let before = if is_landing { event.local - 1 } else { segment_event(structure.posted_by[put as usize]) };
            return visit(same(before, epoch));
        };
        visit(same(if structure.first[number as usize] { 0 } else { segment_event(number - 1) }, epoch))?;
        let is_choice = self.is_choice(event);
        if let Some(choice) = self.choice(event.program, number).filter(|_| !is_choice) {
            visit(Place::Event(choice, epoch))?;
        }
        let segment = &program.segments[number as usize];
        let picked = if reach == Reach::End && !is_choice { program.picked(segment) } else { &[] };
        program
            .waits(segment)
            .iter()
            .chain(picked)
            .try_for_each(|&cell| self.gate(event.program, cell, epoch).map_or(ControlFlow::Continue(()), &mut visit))
    }

    /// The cell behind a wait in `epoch`, in the epoch whose contributions the wait needs.
    fn gate(&self, program: u32, cell: CellId, epoch: u32) -> Option<Place> {
        let needed = match self.programs[program as usize].cell(cell).born {
            Born::Empty => epoch,
            Born::Full => epoch.checked_sub(1)?,
        };
        Some(Place::Cell(self.contributions.flat(program, cell), needed))
    }

    /// Whether launch boundaries alone put `before` before `after`, which is `gap` epochs later.
    pub(super) fn is_obvious(&self, before: Event, after: Event, gap: i32) -> bool {
        if before.program != after.program {
            return false;
        }
        match gap {
            0 => before.local == 0 || before == after,
            _ => gap > 0 && !self.is_transfer(before),
        }
    }

    /// Whether `after`, or what it reads if that is asked for, itself waits for a cell that `before` raises in the same
    /// epoch: the usual case, and the cheapest.
    pub(super) fn is_direct(&self, before: Event, after: Event, is_read: bool) -> bool {
        if after.local == 0 {
            return false;
        }
        let program = &self.programs[after.program as usize];
        let may_pick = is_read && !self.is_choice(after) && !self.is_transfer(after);
        let (_, segment) = self.waiting_segment(after);
        let holds = |list: &Slice, cell: CellId| match list.end - list.start {
            0..=SHORT => program.waits[list.start as usize..list.end as usize].contains(&cell),
            _ => self.lists[&(after.program, list.clone())].binary_search(&cell).is_ok(),
        };
        self.raised(before).any(|(rank, cell)| {
            let is_here = rank == program.rank && program.cell(cell).born == Born::Empty;
            is_here && (holds(&segment.waits, cell) || (may_pick && holds(&segment.picked, cell)))
        })
    }

    /// The cells that an event raises.
    fn raised(&self, event: Event) -> impl Iterator<Item = (Rank, CellId)> + '_ {
        let program = &self.programs[event.program as usize];
        let segment = self.segment_of(event).filter(|_| !self.is_choice(event));
        let signals = segment.map_or(0..0, |s| self.structures[event.program as usize].signals[s as usize].clone());
        let signals = program.signals[signals.start as usize..signals.end as usize].iter().map(|s| (s.rank, s.cell));
        let by_put = self.is_transfer(event).then(|| {
            let (put, is_landing) = self.put_of(event);
            let put = &program.puts[put as usize];
            if is_landing { Some((put.target.rank, put.cell)) } else { put.retired.map(|cell| (program.rank, cell)) }
        });
        signals.chain(by_put.flatten())
    }
}

/// First, last and posting segments of a program; a segment belongs to one instruction.
fn structure(program: &Program) -> Result<Structure, Violation> {
    let mut first = vec![false; program.segments.len()];
    let mut owned = vec![false; program.segments.len()];
    let mut last = Vec::new();
    let mut posted_by = vec![0; program.puts.len()];
    let mut choosers = Vec::new();
    let mut signals = vec![0..0; program.segments.len()];
    for (lane, index, instruction) in program.instructions() {
        let segments = instruction.segments.clone();
        if owned[segments.start as usize..segments.end as usize].iter().any(|&o| o) {
            return Err(Violation::Malformed { at: at(program, lane, index), what: Malformed::Slice });
        }
        owned[segments.start as usize..segments.end as usize].fill(true);
        first[segments.start as usize] = true;
        last.push(segments.end - 1);
        signals[segments.end as usize - 1] = instruction.signals.clone();
        choosers.extend(segments.clone().filter(|&s| program.chooses(instruction, &program.segments[s as usize])));
        if let Op::Put(id) = instruction.op {
            posted_by[id.0 as usize] = segments.end - 1;
        }
    }
    choosers.sort_unstable();
    Ok(Structure { first, last, posted_by, choosers, signals })
}

/// Every list of waits that is longer than [`SHORT`], sorted.
fn long_lists(programs: &[Program]) -> HashMap<(u32, Slice), Vec<CellId>> {
    let mut lists = HashMap::new();
    for (index, program) in (0..).zip(programs) {
        for list in program.segments.iter().flat_map(|s| [&s.waits, &s.picked]) {
            if list.end - list.start > SHORT {
                lists.entry((index, list.clone())).or_insert_with(|| {
                    let mut cells = program.waits[list.start as usize..list.end as usize].to_vec();
                    cells.sort_unstable();
                    cells
                });
            }
        }
    }
    lists
}
