//! Where programs can be changed, and into what.

use mkernel_core::{CellId, Op, Program, Rank, RegionId, Signal, Span};

use super::{Change, Mutation};

/// Cells of one rank beyond which a redirected wait or signal tries only some of the others.
const ALL_CELLS: u32 = 12;

pub(super) fn all(programs: &[Program]) -> Vec<Mutation> {
    let mut found = Vec::new();
    for program in 0..programs.len() {
        let mut sites = Sites { programs, index: program, found: &mut found };
        sites.segments();
        sites.instructions();
        sites.puts();
        sites.cells();
        sites.host();
    }
    found
}

struct Sites<'a> {
    programs: &'a [Program],
    index: usize,
    found: &'a mut Vec<Mutation>,
}

/// Other cells of a program of `count` cells, and one that does not exist.
fn other_cells(cell: CellId, count: u32) -> impl Iterator<Item = CellId> {
    let is_near = move |c: u32| c.abs_diff(cell.0) <= 2 || (c ^ cell.0).is_power_of_two();
    (0..=count).filter(move |&c| c != cell.0 && (count <= ALL_CELLS || c == count || is_near(c))).map(CellId)
}

/// A span a little elsewhere: by a byte, an element, a row; one more or less; another region; another rank.
fn other_spans(span: Span, ranks: u32) -> impl Iterator<Item = Span> {
    let mut spans = Vec::new();
    let steps = [1, 2, 4, span.row_bytes, span.stride];
    for (step, is_back) in steps.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let offset = if is_back { span.offset.checked_sub(step) } else { span.offset.checked_add(step) };
        spans.extend(offset.map(|offset| Span { offset, ..span }));
        let row_bytes = if is_back { span.row_bytes.saturating_sub(step) } else { span.row_bytes + step };
        spans.push(Span { row_bytes, ..span });
        let stride = if is_back { span.stride.saturating_sub(step) } else { span.stride + step };
        spans.push(Span { stride, ..span });
    }
    spans.push(Span { rows: span.rows + 1, ..span });
    spans.push(Span { rows: span.rows.saturating_sub(1), ..span });
    spans.push(Span { offset: span.offset + span.stride, rows: span.rows.saturating_sub(1), ..span });
    spans.extend([1, 2].map(|r| Span { region: RegionId((span.region.0 + r) % 3), ..span }));
    spans.extend((0..=ranks).map(|r| Span { rank: Rank(r), ..span }));
    spans.retain(|s| *s != span);
    let mut seen = Vec::new();
    spans.retain(|s| {
        !seen.contains(s) && {
            seen.push(*s);
            true
        }
    });
    spans.into_iter()
}

impl Sites<'_> {
    fn program(&self) -> &Program {
        &self.programs[self.index]
    }

    fn world_size(&self) -> u32 {
        self.program().world.size()
    }

    fn push(&mut self, change: Change) {
        self.found.push(Mutation { program: self.index, change, is_balanced: false });
    }

    /// A change of what is counted: as it is, and balanced.
    fn push_both(&mut self, change: Change) {
        self.push(change);
        self.found.push(Mutation { program: self.index, change, is_balanced: true });
    }

    fn segments(&mut self) {
        let cells = self.program().cells.len() as u32;
        for index in 0..self.program().segments.len() as u32 {
            let segment = self.program().segments[index as usize].clone();
            for (at, cell) in self.program().waits(&segment).to_vec().into_iter().enumerate() {
                self.push(Change::Wait(index, at, None));
                other_cells(cell, cells).for_each(|to| self.push(Change::Wait(index, at, Some(to))));
            }
            for (at, cell) in self.program().picked(&segment).to_vec().into_iter().enumerate() {
                self.push(Change::Picked(index, at, None));
                other_cells(cell, cells).for_each(|to| self.push(Change::Picked(index, at, Some(to))));
            }
            for at in 1..self.program().picked(&segment).len() {
                self.push(Change::SwapPicked(index, at - 1));
            }
            for to in [segment.position.checked_sub(1), Some(segment.position + 1)].into_iter().flatten() {
                self.push(Change::Position(index, to));
            }
            let reads = self.program().reads(&segment).to_vec();
            for (at, &span) in reads.iter().enumerate() {
                self.push(Change::Read(index, at, None));
                other_spans(span, self.world_size()).for_each(|to| self.push(Change::Read(index, at, Some(to))));
            }
            if reads.len() > 1 {
                self.push(Change::SwapReads(index));
            }
        }
    }

    fn instructions(&mut self) {
        let places: Vec<_> = self.program().instructions().map(|(l, i, _)| (usize::from(l.0), i as usize)).collect();
        for place in places {
            let (lane, index) = place;
            let instruction = self.program().lanes[lane].instructions[index].clone();
            self.push_both(Change::Drop(place));
            self.push_both(Change::Twice(place));
            if index + 1 < self.program().lanes[lane].instructions.len() {
                self.push(Change::SwapNext(place));
            }
            for (at, span) in self.program().writes(&instruction).to_vec().into_iter().enumerate() {
                self.push(Change::Write(place, at, None));
                other_spans(span, self.world_size()).for_each(|to| self.push(Change::Write(place, at, Some(to))));
            }
            if instruction.op == Op::Copy {
                self.push(Change::ShortCopy(place));
            }
            for (at, signal) in self.program().signals(&instruction).to_vec().into_iter().enumerate() {
                self.push_both(Change::Signal(place, at, None));
                for amount in [signal.amount - 1, signal.amount + 1] {
                    self.push_both(Change::Signal(place, at, Some(Signal { amount, ..signal })));
                }
                for rank in (0..=self.world_size()).map(Rank).filter(|&r| r != signal.rank) {
                    self.push_both(Change::Signal(place, at, Some(Signal { rank, ..signal })));
                }
                let cells = self.programs[signal.rank.0 as usize].cells.len() as u32;
                for cell in other_cells(signal.cell, cells) {
                    self.push_both(Change::Signal(place, at, Some(Signal { cell, ..signal })));
                }
            }
        }
    }

    fn puts(&mut self) {
        let ranks = self.world_size();
        for index in 0..self.program().puts.len() as u32 {
            let put = self.program().puts[index as usize];
            other_spans(put.source, ranks).for_each(|to| self.push_both(Change::Source(index, to)));
            other_spans(put.target, ranks).for_each(|to| self.push_both(Change::Target(index, to)));
            if !put.source.is_empty() {
                self.push_both(Change::ShortPut(index));
            }
            if let Some(count) = put.count {
                other_spans(count, ranks).for_each(|to| self.push(Change::Count(index, to)));
            }
            let cells = self.programs[put.target.rank.0 as usize].cells.len() as u32;
            other_cells(put.cell, cells).for_each(|to| self.push_both(Change::PutCell(index, to)));
            if let Some(cell) = put.retired {
                self.push_both(Change::Retired(index, None));
                let own = self.program().cells.len() as u32;
                other_cells(cell, own).for_each(|to| self.push_both(Change::Retired(index, Some(to))));
            }
        }
    }

    fn cells(&mut self) {
        for index in 0..self.program().cells.len() as u32 {
            let arrivals = self.program().cells[index as usize].arrivals;
            let others = [arrivals.checked_sub(1), Some(arrivals + 1), Some(2 * arrivals).filter(|&a| a > 1)];
            others.into_iter().flatten().for_each(|to| self.push(Change::Arrivals(index, to)));
            self.push(Change::Born(index));
        }
    }

    /// Placements keep their shape: the test writes and reads them by it.
    fn host(&mut self) {
        let moved = |span: Span| {
            let steps = [1, 2, span.row_bytes, span.stride];
            let on = steps.map(|s| Some(Span { offset: span.offset + s, ..span }));
            let back = steps.map(|s| span.offset.checked_sub(s).map(|offset| Span { offset, ..span }));
            let region = [1, 2].map(|r| Some(Span { region: RegionId((span.region.0 + r) % 3), ..span }));
            on.into_iter().chain(back).chain(region).flatten().filter(move |s| *s != span)
        };
        for index in 0..self.program().inputs.len() {
            moved(self.program().inputs[index].span).for_each(|to| self.push(Change::Input(index, to)));
        }
        for index in 0..self.program().outputs.len() {
            moved(self.program().outputs[index].span).for_each(|to| self.push(Change::Output(index, to)));
        }
        for index in 0..self.program().routed.len() {
            let routed = self.program().routed[index];
            moved(routed.span).for_each(|to| self.push(Change::Routed(index, Some(to), None)));
            moved(routed.rows).for_each(|to| self.push(Change::Routed(index, None, Some(to))));
        }
        self.push(Change::Law);
    }
}
