//! Claims that events come before others, and the judgement of a list of them.
//!
//! A claim is about the first epoch and the one after: edges are the same in every epoch, except that nothing precedes
//! the first, and none leads back in time. So a path between two epochs is there, shifted, between any two that are
//! as far apart, and no claim is about more than one epoch's distance.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use super::cells::{Event, transfer_event};
use super::graph::{Graph, Place, Reach};
use super::search::{Depth, NEAR, Search};
use crate::region::Span;
use crate::signal::CellId;

/// What a claim is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    /// Bytes that both events touch, in epochs so much later than the running one.
    Bytes { span: Span, first_epoch: u32, second_epoch: u32 },
    /// A cell that the earlier events wait for or raise, and the later one raises.
    Cell(CellId),
}

/// A claim that every one of a set of events of one program in an epoch precedes `after`, `gap` epochs later.
#[derive(Clone, Debug)]
struct Claim {
    /// In [`Claims::events`]; two claims with one start have one set.
    before: Range<u32>,
    after: Event,
    gap: i32,
    /// Whether it is what `after` reads that must come later: picked waits order that, and nothing else of the event.
    is_read: bool,
    subject: u32,
}

impl Claim {
    /// What claims with one way back have in common.
    fn way(&self) -> (i32, Event, bool) {
        (self.gap, self.after, self.is_read)
    }
}

/// A list of claims that share sets of events.
#[derive(Default)]
pub(super) struct Claims {
    list: Vec<Claim>,
    events: Vec<Event>,
    subjects: Vec<Subject>,
}

/// A claim that does not hold: one event that may come too late, the one it should precede, and what about.
pub(super) struct Refuted {
    pub(super) before: Event,
    pub(super) after: Event,
    pub(super) subject: Subject,
}

impl Claims {
    /// A set of events of one program.
    pub(super) fn set(&mut self, events: impl IntoIterator<Item = Event>) -> Range<u32> {
        let start = self.events.len() as u32;
        self.events.extend(events);
        start..self.events.len() as u32
    }

    /// The events of a set.
    pub(super) fn events(&self, set: &Range<u32>) -> &[Event] {
        &self.events[set.start as usize..set.end as usize]
    }

    /// Claims that all events of one set precede all of another, `gap` epochs later.
    pub(super) fn push(&mut self, before: &Range<u32>, after: &Range<u32>, gap: i32, is_read: bool, subject: Subject) {
        let number = self.note(subject);
        let claim = |&after| Claim { before: before.clone(), after, gap, is_read, subject: number };
        self.list.extend(self.events[after.start as usize..after.end as usize].iter().map(claim));
    }

    /// Claims that all events of a set precede each of `after`, `gap` epochs later.
    pub(super) fn push_each(
        &mut self,
        before: &Range<u32>,
        after: impl IntoIterator<Item = Event>,
        gap: i32,
        subject: Subject,
    ) {
        let number = self.note(subject);
        let claim = |after| Claim { before: before.clone(), after, gap, is_read: false, subject: number };
        self.list.extend(after.into_iter().map(claim));
    }

    fn note(&mut self, subject: Subject) -> u32 {
        self.subjects.push(subject);
        self.subjects.len() as u32 - 1
    }

    fn set_of(&self, claim: &Claim) -> &[Event] {
        self.events(&claim.before)
    }

    fn is_of_cell(&self, claim: &Claim) -> bool {
        matches!(self.subjects[claim.subject as usize], Subject::Cell(_))
    }

    /// One claim that does not hold, if there is any: one about bytes before one about cells.
    ///
    /// Almost every claim holds within a hop or two of its later event, or through one cell that many later events come
    /// after (a credit, or what it is given for). So: a short walk from each later event, which notes the cells it comes
    /// by; then one walk per cell, shared by all that come after it, the busiest cell first; then, for what is left, a
    /// full walk, which decides.
    pub(super) fn refute(mut self, graph: &Graph<'_>, search: &mut Search<'_>) -> Option<Refuted> {
        let mut open = std::mem::take(&mut self.list);
        if let Some(claim) = open.iter().find(|c| c.gap < 0) {
            return Some(self.refuted(claim, self.set_of(claim)[0]));
        }
        self.settle_at_boundaries(graph, search, &mut open);
        let (open, ways) = self.settle_near(search, open);
        let mut settled = vec![false; open.len()];
        let gates = busiest(&ways);
        for budget in [Some(8), None] {
            for (gate, behind) in &gates {
                self.settle_behind(
                    search,
                    *gate,
                    &open,
                    behind.iter().map(|&w| &ways[w as usize].0),
                    budget,
                    &mut settled,
                );
            }
        }
        let mut rest: Vec<Claim> = open.into_iter().zip(settled).filter(|(_, s)| !s).map(|(c, _)| c).collect();
        rest.sort_by_key(|c| (self.is_of_cell(c), c.way()));
        for way in rest.chunk_by(|a, b| (self.is_of_cell(a), a.way()) == (self.is_of_cell(b), b.way())) {
            search.begin();
            way.iter().for_each(|c| search.want(self.set_of(c)));
            let (start, reach) = start(&way[0]);
            search.walk(start, reach, Depth::Limit(usize::MAX));
            for claim in way {
                if let Some(&before) = self.set_of(claim).iter().find(|&&b| !search.found(&[b])) {
                    return Some(self.refuted(claim, before));
                }
            }
        }
        None
    }

    fn refuted(&self, claim: &Claim, before: Event) -> Refuted {
        Refuted { before, after: claim.after, subject: self.subjects[claim.subject as usize] }
    }

    /// Drops claims that hold because the launch of the earlier event ends after it: the read of a put's source that
    /// something in its launch waits for comes before all that its rank does later. One walk per rank.
    fn settle_at_boundaries(&self, graph: &Graph<'_>, search: &mut Search<'_>, open: &mut Vec<Claim>) {
        let bounded = |claim: &Claim| {
            let first = self.set_of(claim)[0];
            let program = first.program;
            let transfers = transfer_event(&graph.programs[program as usize], 0);
            let is_source = first.local >= transfers && (first.local - transfers).is_multiple_of(2);
            (program == claim.after.program && claim.gap > 0 && is_source).then_some(program)
        };
        open.sort_by_key(bounded);
        let mut left = Vec::with_capacity(open.len());
        for group in open.chunk_by(|a, b| bounded(a) == bounded(b)) {
            let Some(program) = bounded(&group[0]) else {
                left.extend_from_slice(group);
                continue;
            };
            search.begin();
            group.iter().for_each(|c| search.want(self.set_of(c)));
            search.walk(Place::Event(Event { program, local: 0 }, 1), Reach::Middle, Depth::Launch(program));
            left.extend(group.iter().filter(|c| !search.found(self.set_of(c))).cloned());
        }
        *open = left;
    }

    /// Drops claims that hold near their later event. Returns what is left, one way back after another, and for each way its
    /// claims and the cells near it.
    fn settle_near(&self, search: &mut Search<'_>, mut claims: Vec<Claim>) -> (Vec<Claim>, Vec<(Range<u32>, Gates)>) {
        claims.sort_by_key(Claim::way);
        let (mut open, mut ways) = (Vec::new(), Vec::new());
        for way in claims.chunk_by(|a, b| a.way() == b.way()) {
            search.begin();
            let (start, reach) = start(&way[0]);
            search.walk(start, reach, Depth::Near);
            let first = open.len() as u32;
            let is_near = |c: &Claim| c.before.len() <= NEAR && search.found(self.set_of(c));
            open.extend(way.iter().filter(|c| !is_near(c)).cloned());
            if open.len() as u32 > first {
                ways.push((first..open.len() as u32, search.gates.clone()));
            }
        }
        (open, ways)
    }

    /// Settles claims of `ways` whose events all lie behind a cell. A walk with a budget gives up after so many places for each
    /// event that it looks for.
    fn settle_behind<'w>(
        &self,
        search: &mut Search<'_>,
        gate: (u32, u32),
        open: &[Claim],
        ways: impl Iterator<Item = &'w Range<u32>>,
        budget: Option<usize>,
        settled: &mut [bool],
    ) {
        let left: Vec<usize> = ways.flat_map(|w| w.start as usize..w.end as usize).filter(|&i| !settled[i]).collect();
        if left.is_empty() {
            return;
        }
        let mut sets: HashMap<u32, (u32, bool)> = HashMap::new();
        let mut wanted = 0;
        search.begin();
        for Range { start, end } in left.iter().map(|&i| open[i].before.clone()) {
            if sets.insert(start, (end, false)).is_none() {
                search.want(self.events(&(start..end)));
                wanted += (end - start) as usize;
            }
        }
        let limit = budget.map_or(usize::MAX, |each| NEAR + each * wanted);
        search.walk(Place::Cell(gate.0, gate.1), Reach::Middle, Depth::Limit(limit));
        for (&start, (end, found)) in &mut sets {
            *found = search.found(self.events(&(start..*end)));
        }
        left.into_iter().for_each(|i| settled[i] = sets[&open[i].before.start].1);
    }
}

/// Cells with the epoch of their contributions.
type Gates = Vec<(u32, u32)>;

/// Where the walk back from a claim's later event starts.
fn start(claim: &Claim) -> (Place, Reach) {
    let reach = if claim.is_read { Reach::End } else { Reach::Middle };
    (Place::Event(claim.after, claim.gap as u32), reach)
}

/// All cells near any way, with the ways that come by, the busiest first.
fn busiest(ways: &[(Range<u32>, Gates)]) -> Vec<((u32, u32), Vec<u32>)> {
    let mut by_gate: HashMap<(u32, u32), Vec<u32>> = HashMap::new();
    for (index, (_, gates)) in (0..).zip(ways) {
        gates.iter().for_each(|&gate| by_gate.entry(gate).or_default().push(index));
    }
    let mut gates: Vec<_> = by_gate.into_iter().collect();
    gates.sort_by_key(|(gate, behind)| (Reverse(behind.len()), *gate));
    gates
}
