//! Waits that data may pick: each orders the part of the gathered memory for which it stands.
//!
//! The graph of events has all of them behind the read, but a real run waits only for those that data names. So who writes
//! a part raises that part's very cell, or one that the segment waits for in any case. This is stricter than order by way
//! of others, and decided without a search.

use std::collections::HashMap;

use crate::program::{Instruction, Op, Program};
use crate::region::{RegionId, Span};
use crate::signal::CellId;
use crate::world::Rank;

/// A list of waits of which data picks some, and the span of which each wait covers a part.
pub(super) struct Pick<'a> {
    pub(super) span: Span,
    pub(super) certain: &'a [CellId],
    /// First row of a part, one past the last, and its wait; in order of rows.
    pub(super) parts: Vec<(u64, u64, CellId)>,
}

/// Who writes the memory that is gathered, by rank and region.
pub(super) struct Writers<'a>(HashMap<(Rank, RegionId), Vec<Writer<'a>>>);

struct Writer<'a> {
    span: Span,
    program: &'a Program,
    instruction: &'a Instruction,
}

impl<'a> Writers<'a> {
    /// Those of `gathered` in any of the programs.
    pub(super) fn of<'s>(programs: &'a [Program], gathered: impl Iterator<Item = &'s Span>) -> Writers<'a> {
        let mut writers: HashMap<_, Vec<_>> = gathered.map(|s| ((s.rank, s.region), Vec::new())).collect();
        let instructions = programs.iter().flat_map(|p| p.instructions().map(move |(_, _, i)| (p, i)));
        if writers.is_empty() {
            return Writers(writers);
        }
        for (program, instruction) in instructions.filter(|(_, i)| i.op != Op::Release) {
            let target = if let Op::Put(id) = instruction.op { Some(&program.put(id).target) } else { None };
            for &span in program.writes(instruction).iter().chain(target) {
                if let Some(list) = writers.get_mut(&(span.rank, span.region)) {
                    list.push(Writer { span, program, instruction });
                }
            }
        }
        Writers(writers)
    }

    /// Whether everyone who writes a part raises the part's wait, or a certain one.
    pub(super) fn are_ordered(&self, pick: &Pick<'_>) -> bool {
        let Pick { span, certain, parts } = pick;
        let writers = self.0.get(&(span.rank, span.region)).into_iter().flatten();
        writers.filter(|w| w.span.overlap(span) > 0).all(|w| {
            if certain.iter().any(|&cell| w.raises(span.rank, cell)) {
                return true;
            }
            // The rows of `span` from the writer's first byte to its last.
            let row = |byte: u64| byte.saturating_sub(span.offset) / span.stride.max(1);
            let (first, last) = (row(w.span.offset), row(w.span.end().unwrap_or(u64::MAX).saturating_sub(1)));
            let last = last.min(u64::from(span.rows).saturating_sub(1));
            let mut next = first;
            for &(start, end, cell) in &parts[parts.partition_point(|(_, end, _)| *end <= first)..] {
                if start > next || !w.raises(span.rank, cell) {
                    return false;
                }
                next = end;
                if next > last {
                    return true;
                }
            }
            false
        })
    }
}

impl Writer<'_> {
    fn raises(&self, rank: Rank, cell: CellId) -> bool {
        match self.instruction.op {
            Op::Put(id) => {
                let put = self.program.put(id);
                (put.target.rank, put.cell) == (rank, cell)
            }
            _ => self.program.signals(self.instruction).iter().any(|s| (s.rank, s.cell) == (rank, cell)),
        }
    }
}
