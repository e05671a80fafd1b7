//! Who writes what is read as an index, as a count, or as the rows of a tile.
//!
//! An operation whose lengths are data trusts the numbers that it reads. So they must be those that the right operation
//! writes, in the right place: then every number is within its planned bound, whatever the table of chosen experts says.
//!
//! - An **index** is written by an [`Op::Route`] and used by the same rank's program: an entry is one row of its tiles, a
//!   list of rows is the whole list, places are whole rows of its places, all of one index, and what they point into has
//!   the rows that the index counts with.
//! - A **table** of chosen experts has rows of one length without gaps, wherever a part of it is read.
//! - The **rows of a tile** that are read for slot `s` of an index are written by [`Op::Expert`] for slot `s` of that index.
//! - A **count** belongs to the packed rows that the put carries: one [`Op::Pack`] or [`Op::Merge`] writes both. Or it is
//!   an input of its own, and the host answers for it.
//! - A **picked wait** orders the part for which it stands ([`super::picks`]).

use std::collections::{HashMap, HashSet};

use super::picks::{Pick, Writers};
use super::structure::at;
use super::violation::{Party, Violation};
use crate::dtype::DType;
use crate::program::{Instruction, Op, Program, Routed, Segment, Slice, Stage};
use crate::region::{RegionId, Span};
use crate::routing::Experts;
use crate::signal::CellId;

/// Checks every program that is to be proved.
pub(super) fn check(programs: &[Program], only: Option<usize>) -> Result<(), Violation> {
    let is_proved = |(index, _): &(usize, &Program)| only.is_none_or(|only| only == *index);
    let mut picks = Vec::new();
    for (_, program) in programs.iter().enumerate().filter(is_proved) {
        check_tables(program)?;
        let mut forms = Forms::of(program);
        for (lane, index, instruction) in program.instructions() {
            let at = at(program, lane, index);
            forms.check(instruction).map_err(|span| Violation::Form { party: Party::Instruction(at), span })?;
            picks.extend(forms.pick(instruction).map(|pick| (at, pick)));
        }
        let host = Party::Host(program.rank);
        program
            .routed
            .iter()
            .try_for_each(|r| forms.routed(r))
            .map_err(|span| Violation::Form { party: host, span })?;
    }
    let writers = Writers::of(programs, picks.iter().map(|(_, pick)| &pick.span));
    match picks.iter().find(|(_, pick)| !writers.are_ordered(pick)) {
        None => Ok(()),
        Some((at, pick)) => Err(Violation::Pick { at: *at, span: pick.span }),
    }
}

/// Tables have no gaps, and those that share bytes have rows of one length that start at the same bytes.
fn check_tables(program: &Program) -> Result<(), Violation> {
    let mut tables: Vec<(Span, Party)> = Vec::new();
    let mut known = HashSet::new();
    for (lane, index, i) in program.instructions() {
        let place = match i.op {
            Op::Route { .. } => 0,
            Op::Pack { .. } | Op::Merge { .. } => 1,
            _ => continue,
        };
        let spans = program.segments(i).iter().map(|s| program.reads(s)[place]);
        let fresh = spans.filter(|table| !table.is_empty() && known.insert(*table));
        tables.extend(fresh.map(|table| (table, Party::Instruction(at(program, lane, index)))));
    }
    tables.sort_by_key(|(table, _)| (table.rank, table.region, table.offset));
    let mut furthest = Span::empty(program.rank);
    for (table, party) in tables {
        let is_one_grid = table.row_bytes == furthest.row_bytes
            && (table.offset - furthest.offset.min(table.offset)).is_multiple_of(table.row_bytes);
        if !table.is_contiguous() || (table.overlap(&furthest) > 0 && !is_one_grid) {
            return Err(Violation::Form { party, span: table });
        }
        let is_further = (table.rank, table.region, table.end()) > (furthest.rank, furthest.region, furthest.end());
        furthest = if is_further { table } else { furthest };
    }
    Ok(())
}

/// What a route writes.
struct Index<'a> {
    tiles: &'a Span,
    rows: &'a Span,
    places: &'a Span,
    experts: Experts,
    tile: u32,
    /// First token and one past the last of each run that lands.
    landings: Vec<(u64, u64)>,
}

impl Index<'_> {
    /// Rows of the results of all tile slots.
    fn results(&self) -> u64 {
        u64::from(self.tiles.rows) * u64::from(self.tile)
    }
}

/// A tile slot: its index among those of the program, and its number there.
type Slot = (usize, u32);

/// What one program writes in some form.
struct Forms<'a> {
    program: &'a Program,
    indexes: Vec<Index<'a>>,
    /// Packed rows, by the place of their count.
    counts: HashMap<(RegionId, u64), &'a Span>,
    /// Rows of tiles, with their element type.
    tiles: HashMap<Slot, Vec<(&'a Span, DType)>>,
    /// Results of all slots that are known to be in place: many instructions read the same.
    results: HashSet<(usize, Span)>,
    /// Picks that have been listed.
    picks: HashSet<(Span, Slice, &'a [CellId])>,
}

impl<'a> Forms<'a> {
    fn of(program: &'a Program) -> Forms<'a> {
        let (indexes, counts, tiles) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut forms = Forms { program, indexes, counts, tiles, results: HashSet::new(), picks: HashSet::new() };
        for (_, _, i) in program.instructions() {
            match (i.op, program.writes(i)) {
                (Op::Route { experts, tile }, [tiles, rows, places]) => {
                    let landings = program.segments(i).iter().skip(1);
                    let run = |s: &Segment| (s.position, s.position + u64::from(program.reads(s)[0].rows));
                    let landings = landings.map(run).collect();
                    forms.indexes.push(Index { tiles, rows, places, experts, tile, landings });
                }
                (Op::Pack { .. } | Op::Merge { .. }, [rows, count]) => {
                    forms.counts.insert((count.region, count.offset), rows);
                }
                _ => {}
            }
        }
        for (_, _, i) in program.instructions() {
            if let Op::Expert { output, .. } = i.op
                && let Some(slot) = forms.slot(&forms.reads(i)[0])
            {
                forms.tiles.entry(slot).or_default().push((&program.writes(i)[0], output));
            }
        }
        forms
    }

    /// What the first segment reads.
    fn reads(&self, i: &Instruction) -> &'a [Span] {
        self.program.reads(&self.program.segments(i)[0])
    }

    /// The slot of an entry.
    fn slot(&self, entry: &Span) -> Option<Slot> {
        let slots = self.indexes.iter().map(|index| row_of(index.tiles, entry));
        slots.enumerate().find_map(|(index, slot)| slot.map(|slot| (index, slot)))
    }

    /// Checks one instruction; answers the first span that is not in the form in which it is used.
    fn check(&mut self, i: &Instruction) -> Result<(), Span> {
        match i.op {
            Op::Route { .. } => self.route(i),
            Op::Put(id) => {
                let put = self.program.put(id);
                let Some(count) = put.count else { return Ok(()) };
                let by_host = || self.program.inputs.iter().any(|p| is_same(&p.span, &count));
                let rows = self.counts.get(&(count.region, count.offset));
                ensure(rows.map_or_else(by_host, |rows| **rows == put.source), &count)
            }
            Op::Expert { stage, input, .. } => self.expert(i, stage, input),
            Op::Combine { tile } => {
                let [places, _, results] = self.reads(i) else { return Err(Span::empty(self.program.rank)) };
                let index = self.indexes.iter().position(|x| row_of(x.places, places).is_some()).ok_or(*places)?;
                ensure(self.indexes[index].tile == tile, places)?;
                self.all_results(index, results, Some(DType::F32))
            }
            _ => Ok(()),
        }
    }

    /// An index is its own rank's, and each token is in one run.
    fn route(&self, i: &Instruction) -> Result<(), Span> {
        let program = self.program;
        program.writes(i).iter().try_for_each(|span| ensure(span.rank == program.rank, span))?;
        let mut runs: Vec<_> = program.segments(i).iter().map(|s| (s.position, program.reads(s)[0])).collect();
        runs.sort_by_key(|(first, _)| *first);
        let mut next = 0;
        for (first, table) in runs.iter().filter(|(_, table)| table.rows > 0) {
            ensure(*first == next, table)?;
            next += u64::from(table.rows);
        }
        Ok(())
    }

    fn expert(&self, i: &Instruction, stage: Stage, input: DType) -> Result<(), Span> {
        let (reads, written) = (self.reads(i), &self.program.writes(i)[0]);
        let slot = self.slot(&reads[0]).ok_or(reads[0])?;
        let index = &self.indexes[slot.0];
        ensure(written.rows == index.tile, written)?;
        let (rows, weights) = match (stage, reads) {
            (Stage::Down, [_, rows, weights @ ..]) => {
                ensure(self.is_tile(slot, rows, Some(input)), rows)?;
                (rows, weights)
            }
            (_, [_, list, rows, weights @ ..]) => {
                ensure(is_same(index.rows, list), list)?;
                ensure(rows.rows == index.places.rows, rows)?;
                (rows, weights)
            }
            _ => return Err(reads[0]),
        };
        let depth = rows.row_bytes / input.bytes();
        let all = depth.checked_mul(index.experts.len().into());
        weights.iter().try_for_each(|w| ensure(all == Some(w.rows.into()), w))
    }

    /// Whether `rows` is all of what was written for a slot, from its first row on.
    fn is_tile(&self, slot: Slot, rows: &Span, dtype: Option<DType>) -> bool {
        let written = self.tiles.get(&slot).into_iter().flatten();
        let good = written.filter(|(w, output)| is_in_step(w, rows) && dtype.is_none_or(|dtype| dtype == *output));
        good.map(|(w, _)| w.overlap(rows)).sum::<u64>() == rows.bytes()
    }

    /// Whether `results` holds the tiles of all slots of an index, one after the other.
    fn all_results(&mut self, index: usize, results: &Span, dtype: Option<DType>) -> Result<(), Span> {
        if self.results.contains(&(index, *results)) {
            return Ok(());
        }
        let Index { tiles, tile, .. } = self.indexes[index];
        ensure(self.indexes[index].results() == results.rows.into(), results)?;
        for slot in 0..tiles.rows {
            let rows = Span { offset: results.row(slot * tile), rows: tile, ..*results };
            ensure(self.is_tile((index, slot), &rows, dtype), &rows)?;
        }
        self.results.insert((index, *results));
        Ok(())
    }

    fn routed(&mut self, routed: &Routed) -> Result<(), Span> {
        let index = self.indexes.iter().position(|index| is_same(index.places, &routed.rows)).ok_or(routed.rows)?;
        self.all_results(index, &routed.span, None)
    }

    /// What the picked waits of a checked instruction stand for, unless an earlier one had the same.
    fn pick(&mut self, i: &Instruction) -> Option<Pick<'a>> {
        let (program, segment) = (self.program, &self.program.segments(i)[0]);
        if !program.chooses(i, segment) {
            return None;
        }
        let (reads, certain, picked) = (program.reads(segment), program.waits(segment), program.picked(segment));
        let span = reads[i.op.gathered()?];
        if !self.picks.insert((span, segment.picked.clone(), certain)) {
            return None;
        }
        let mut parts: Vec<(u64, u64)> = match i.op {
            Op::Combine { tile } => {
                let tile = u64::from(tile);
                (0..u64::from(span.rows) / tile).map(|slot| (slot * tile, (slot + 1) * tile)).collect()
            }
            _ => self.indexes[self.slot(&reads[0])?.0].landings.clone(),
        };
        // A wait too many or too few stands for nothing: everything is then in a part without one.
        if parts.len() != picked.len() {
            parts.clear();
        }
        let parts = parts.into_iter().zip(picked).filter(|((first, end), _)| first < end);
        let mut parts: Vec<_> = parts.map(|((first, end), &cell)| (first, end, cell)).collect();
        parts.sort_unstable_by_key(|(first, ..)| *first);
        Some(Pick { span, certain, parts })
    }
}

fn ensure(holds: bool, span: &Span) -> Result<(), Span> {
    if holds { Ok(()) } else { Err(*span) }
}

/// The same bytes in one order.
fn is_same(a: &Span, b: &Span) -> bool {
    let are_flat = a.is_contiguous() && b.is_contiguous();
    are_flat && (a.rank, a.region, a.offset, a.bytes()) == (b.rank, b.region, b.offset, b.bytes())
}

/// The first row of `part`, if it is whole rows of `whole`.
fn row_of(whole: &Span, part: &Span) -> Option<u32> {
    let is_grid = (whole.rank, whole.region, whole.row_bytes) == (part.rank, part.region, part.row_bytes)
        && (part.rows <= 1 || part.stride == whole.stride);
    let distance = part.offset.checked_sub(whole.offset).filter(|_| is_grid)?;
    let row = if distance == 0 { 0 } else { distance.checked_div(whole.stride)? };
    let is_whole = distance == 0 || distance.is_multiple_of(whole.stride);
    let is_inside = row + u64::from(part.rows) <= u64::from(whole.rows);
    (is_whole && is_inside).then_some(row as u32)
}

/// Whether row r of one span is of row r of the other, for every r.
fn is_in_step(a: &Span, b: &Span) -> bool {
    let is_grid = (a.rank, a.region, a.rows) == (b.rank, b.region, b.rows) && (a.rows <= 1 || a.stride == b.stride);
    is_grid && a.offset < b.offset + b.row_bytes && b.offset < a.offset + a.row_bytes
}
