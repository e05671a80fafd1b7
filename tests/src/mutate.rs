//! Every small way to break any set of programs.
//!
//! A [`Mutation`] changes one thing: a wait, a signal, a span, a put, a cell, an instruction. Many such changes are
//! caught by counting alone (a dropped signal leaves its cell one short), so each change of what is counted comes also
//! **balanced**: arrivals and byte laws are corrected to what the broken programs do, and only order and memory are
//! left to convict them.
//!
//! Lists are never edited in place: the changed copy is appended to its pool, since ranges of a pool may be shared.

mod sites;

use mkernel_core::{Born, CellId, Instruction, Op, Program, PutId, Rank, Segment, Signal, Span};

/// One change to the program of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// The index of the program.
    pub program: usize,
    /// The change.
    pub change: Change,
    /// Whether arrivals and laws are corrected afterwards.
    pub is_balanced: bool,
}

/// Where an instruction is: its lane and its index there.
pub type Place = (usize, usize);

/// What is changed. Segments, puts and cells are named by their index, list entries by their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A wait is dropped, or waits for another cell.
    Wait(u32, usize, Option<CellId>),
    /// The same for a wait of which data picks.
    Picked(u32, usize, Option<CellId>),
    /// A wait of which data picks and the next one change places.
    SwapPicked(u32, usize),
    /// A segment stands elsewhere on its axis.
    Position(u32, u64),
    /// A span read is dropped or replaced.
    Read(u32, usize, Option<Span>),
    /// Two operands change places.
    SwapReads(u32),
    /// A span written is dropped or replaced.
    Write(Place, usize, Option<Span>),
    /// A signal is dropped or replaced.
    Signal(Place, usize, Option<Signal>),
    /// The source of a put is replaced.
    Source(u32, Span),
    /// The target of a put is replaced.
    Target(u32, Span),
    /// Both ends of a put lose their last row.
    ShortPut(u32),
    /// Both ends of a copy lose their last row.
    ShortCopy(Place),
    /// The count of a put is replaced.
    Count(u32, Span),
    /// A put fills another cell.
    PutCell(u32, CellId),
    /// A put retires into another cell or none.
    Retired(u32, Option<CellId>),
    /// A cell is planned for another number of arrivals.
    Arrivals(u32, u32),
    /// A cell is born the other way.
    Born(u32),
    /// An instruction is dropped, with its put.
    Drop(Place),
    /// An instruction is there twice, with its put.
    Twice(Place),
    /// An instruction and the next one change places.
    SwapNext(Place),
    /// The host writes an input elsewhere.
    Input(usize, Span),
    /// The host reads an output elsewhere.
    Output(usize, Span),
    /// The host reads rows that data placed, or their places, elsewhere.
    Routed(usize, Option<Span>, Option<Span>),
    /// The law says one byte more.
    Law,
}

/// Every mutation of `programs`, in a fixed order.
pub fn mutations(programs: &[Program]) -> Vec<Mutation> {
    sites::all(programs)
}

impl Mutation {
    /// The kind of the change: its name without what it is about.
    pub fn family(&self) -> String {
        format!("{:?}", self.change).chars().take_while(|c| c.is_alphanumeric()).collect()
    }
}

/// Makes several changes at once, of lists before whole instructions, since a place means what it did only until an
/// instruction comes or goes. `None` if they are about one instruction coming or going twice.
pub fn apply_all(changes: &[Mutation], programs: &[Program]) -> Option<Vec<Program>> {
    let moves = |m: &&Mutation| matches!(m.change, Change::Drop(_) | Change::Twice(_) | Change::SwapNext(_));
    if changes.iter().filter(moves).count() > 1 {
        return None;
    }
    let mut order: Vec<&Mutation> = changes.iter().collect();
    order.sort_by_key(|m| (moves(m), m.is_balanced));
    let is_balanced = changes.iter().any(|m| m.is_balanced);
    let mut programs = programs.to_vec();
    for mutation in order {
        if !mutation.change.fits(&programs[mutation.program]) {
            return None;
        }
        mutation.change.apply(&mut programs[mutation.program]);
    }
    if is_balanced {
        balance(&mut programs);
    }
    Some(programs)
}

/// Sets arrivals and laws to what the programs do.
pub fn balance(programs: &mut [Program]) {
    let mut raised: Vec<Vec<u32>> = programs.iter().map(|p| vec![0; p.cells.len()]).collect();
    let mut moved = vec![(0, 0); programs.len()];
    for (index, program) in programs.iter().enumerate() {
        let mut raise = |rank: Rank, cell: CellId, amount: u32| {
            let of_rank = raised.get_mut(rank.0 as usize);
            if let Some(value) = of_rank.and_then(|r| r.get_mut(cell.0 as usize)) {
                *value += amount;
            }
        };
        for (_, _, instruction) in program.instructions() {
            program.signals(instruction).iter().for_each(|s| raise(s.rank, s.cell, s.amount));
            if let Op::Put(id) = instruction.op {
                let put = program.put(id);
                raise(put.target.rank, put.cell, 1);
                put.retired.into_iter().for_each(|cell| raise(program.rank, cell, 1));
                let is_inter =
                    put.target.rank.0 < program.world.size() && !program.world.same_node(program.rank, put.target.rank);
                if is_inter {
                    moved[index].0 += put.source.bytes();
                    moved[put.target.rank.0 as usize].1 += put.source.bytes();
                }
            }
        }
    }
    for ((program, raised), moved) in programs.iter_mut().zip(raised).zip(moved) {
        (program.law.inter_out, program.law.inter_in) = moved;
        program.cells.iter_mut().zip(raised).for_each(|(cell, arrivals)| cell.arrivals = arrivals);
    }
}

/// Appends a list to its pool, with entry `at` replaced by `by` or left out.
fn edit<T: Copy>(pool: &mut Vec<T>, range: &mut std::ops::Range<u32>, at: usize, by: Option<T>) {
    let mut list = pool[range.start as usize..range.end as usize].to_vec();
    match by {
        Some(by) => list[at] = by,
        None => drop(list.remove(at)),
    }
    *range = pool.len() as u32..(pool.len() + list.len()) as u32;
    pool.extend(list);
}

fn segment(p: &mut Program, index: u32) -> &mut Segment {
    &mut p.segments[index as usize]
}

fn instruction(p: &mut Program, (lane, index): Place) -> &mut Instruction {
    &mut p.lanes[lane].instructions[index]
}

/// A span without its last row.
fn shorter(span: Span) -> Span {
    Span { rows: span.rows.saturating_sub(1), ..span }
}

impl Change {
    /// Whether the list entries that it names are still there, after other changes.
    fn fits(self, p: &Program) -> bool {
        let at_segment = |s: u32| &p.segments[s as usize];
        let at_place = |(l, i): Place| &p.lanes[l].instructions[i];
        match self {
            Change::Wait(s, at, _) => at < p.waits(at_segment(s)).len(),
            Change::Picked(s, at, _) => at < p.picked(at_segment(s)).len(),
            Change::SwapPicked(s, at) => at + 1 < p.picked(at_segment(s)).len(),
            Change::Read(s, at, _) => at < p.reads(at_segment(s)).len(),
            Change::SwapReads(s) => p.reads(at_segment(s)).len() > 1,
            Change::Write(place, at, _) => at < p.writes(at_place(place)).len(),
            Change::Signal(place, at, _) => at < p.signals(at_place(place)).len(),
            Change::ShortCopy(place) => {
                let copy = at_place(place);
                !p.writes(copy).is_empty() && p.segments(copy).first().is_some_and(|s| !p.reads(s).is_empty())
            }
            _ => true,
        }
    }

    fn apply(self, p: &mut Program) {
        match self {
            Change::Wait(s, at, by) => edit(&mut p.waits, &mut p.segments[s as usize].waits, at, by),
            Change::Picked(s, at, by) => edit(&mut p.waits, &mut p.segments[s as usize].picked, at, by),
            Change::SwapPicked(s, at) => {
                let picked = p.picked(&p.segments[s as usize]);
                let (a, b) = (picked[at], picked[at + 1]);
                edit(&mut p.waits, &mut p.segments[s as usize].picked, at, Some(b));
                edit(&mut p.waits, &mut p.segments[s as usize].picked, at + 1, Some(a));
            }
            Change::Position(s, by) => segment(p, s).position = by,
            Change::Read(s, at, by) => edit(&mut p.spans, &mut p.segments[s as usize].reads, at, by),
            Change::SwapReads(s) => {
                let reads = segment(p, s).reads.clone();
                let (a, b) = (p.spans[reads.start as usize], p.spans[reads.start as usize + 1]);
                edit(&mut p.spans, &mut p.segments[s as usize].reads, 0, Some(b));
                edit(&mut p.spans, &mut p.segments[s as usize].reads, 1, Some(a));
            }
            Change::Write((l, i), at, by) => edit(&mut p.spans, &mut p.lanes[l].instructions[i].writes, at, by),
            Change::Signal((l, i), at, by) => edit(&mut p.signals, &mut p.lanes[l].instructions[i].signals, at, by),
            Change::Source(put, by) => p.puts[put as usize].source = by,
            Change::Target(put, by) => p.puts[put as usize].target = by,
            Change::ShortPut(put) => {
                let put = &mut p.puts[put as usize];
                (put.source, put.target) = (shorter(put.source), shorter(put.target));
            }
            Change::ShortCopy(place) => {
                let copy = instruction(p, place).clone();
                let (s, write) = (copy.segments.start, shorter(p.writes(&copy)[0]));
                let read = shorter(p.reads(&p.segments[s as usize])[0]);
                edit(&mut p.spans, &mut p.segments[s as usize].reads, 0, Some(read));
                Change::Write(place, 0, Some(write)).apply(p);
            }
            Change::Count(put, by) => p.puts[put as usize].count = Some(by),
            Change::PutCell(put, by) => p.puts[put as usize].cell = by,
            Change::Retired(put, by) => p.puts[put as usize].retired = by,
            Change::Arrivals(cell, by) => p.cells[cell as usize].arrivals = by,
            Change::Born(cell) => {
                let born = &mut p.cells[cell as usize].born;
                *born = if *born == Born::Full { Born::Empty } else { Born::Full };
            }
            Change::Drop((lane, index)) => drop_instruction(p, lane, index),
            Change::Twice((lane, index)) => {
                let mut copy = p.lanes[lane].instructions[index].clone();
                let segments = p.segments(&copy).to_vec();
                copy.segments = p.segments.len() as u32..(p.segments.len() + segments.len()) as u32;
                p.segments.extend(segments);
                if let Op::Put(id) = &mut copy.op {
                    p.puts.push(p.puts[id.0 as usize]);
                    *id = PutId(p.puts.len() as u32 - 1);
                }
                p.lanes[lane].instructions.insert(index + 1, copy);
            }
            Change::SwapNext((lane, index)) => p.lanes[lane].instructions.swap(index, index + 1),
            Change::Input(at, by) => p.inputs[at].span = by,
            Change::Output(at, by) => p.outputs[at].span = by,
            Change::Routed(at, span, rows) => {
                let routed = &mut p.routed[at];
                (routed.span, routed.rows) = (span.unwrap_or(routed.span), rows.unwrap_or(routed.rows));
            }
            Change::Law => p.law.inter_out += 1,
        }
    }
}

/// Drops an instruction; a lane that it leaves empty goes too, and the put that it posted.
fn drop_instruction(p: &mut Program, lane: usize, index: usize) {
    let gone = p.lanes[lane].instructions.remove(index);
    if let Op::Put(PutId(put)) = gone.op {
        p.puts.remove(put as usize);
        for instruction in p.lanes.iter_mut().flat_map(|l| &mut l.instructions) {
            if let Op::Put(id) = &mut instruction.op {
                id.0 -= u32::from(id.0 > put);
            }
        }
    }
    if p.lanes[lane].instructions.is_empty() {
        let next = p.lanes.remove(lane).next;
        for other in &mut p.lanes {
            if other.next.is_some_and(|n| usize::from(n.0) == lane) {
                other.next = next;
            }
            if let Some(id) = other.next.as_mut().filter(|id| usize::from(id.0) > lane) {
                id.0 -= 1;
            }
        }
    }
}
