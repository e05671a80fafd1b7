//! One writer per byte, written before read, read before released or overwritten.

use std::ops::Range;

use super::cells::{Event, segment_event, transfer_event};
use super::claims::{Claims, Refuted, Subject};
use super::find;
use super::graph::Graph;
use super::search::Search;
use super::violation::Violation;
use crate::program::Op;
use crate::region::Span;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Read,
    Write,
    Release,
}

/// One event's touch of memory; the same in every epoch.
#[derive(Clone, Copy, Debug)]
struct Access<'a> {
    span: &'a Span,
    event: Event,
    kind: Kind,
    /// Epochs by which the event lies after the one whose bytes it touches: 1 for the host reading outputs.
    later: u32,
}

/// One access, or reads of one span that hang on the same waits.
struct Group<'a> {
    first: Access<'a>,
    /// The events, as a set of claims.
    events: Range<u32>,
    /// Bytes of the span that somebody writes.
    covered: u64,
}

/// Checks the memory and the cells of every program that is to be proved. Where both are wrong, the memory says more.
pub(super) fn check(graph: &Graph<'_>) -> Result<(), Violation> {
    let mut search = Search::new(graph);
    let mut overrun = None;
    for (index, regions) in collect(graph).into_iter().enumerate() {
        if !graph.is_proved(index) {
            continue;
        }
        let mut claims = Claims::default();
        regions.into_iter().try_for_each(|accesses| check_region(graph, accesses, &mut claims))?;
        super::reuse::claim(graph, index as u32, &mut claims);
        match claims.refute(graph, &mut search).map(|refuted| violation(graph, index, &refuted)) {
            Some(violation @ Violation::Overrun { .. }) => overrun = overrun.or(Some(violation)),
            Some(violation) => return Err(violation),
            None => {}
        }
    }
    overrun.map_or(Ok(()), Err)
}

fn violation(graph: &Graph<'_>, index: usize, refuted: &Refuted) -> Violation {
    let (first, second) = (graph.party_of(refuted.before), graph.party_of(refuted.after));
    match refuted.subject {
        Subject::Bytes { span, first_epoch, second_epoch } => {
            let (first_epoch, second_epoch) = (u64::from(first_epoch), u64::from(second_epoch));
            Violation::Race { first, first_epoch, second, second_epoch, span }
        }
        Subject::Cell(cell) => {
            Violation::Overrun { rank: graph.programs[index].rank, cell, waiter: first, raiser: second }
        }
    }
}

/// All accesses to the memory of proved programs, by program and region.
fn collect<'a>(graph: &Graph<'a>) -> Vec<Vec<Vec<Access<'a>>>> {
    let mut buckets: Vec<Vec<Vec<Access<'a>>>> =
        graph.programs.iter().map(|p| vec![Vec::new(); p.regions.len()]).collect();
    let mut add = |span: &'a Span, event: Event, kind: Kind, later: u32| {
        let Some(owner) = find(graph.programs, span.rank) else { return };
        if !span.is_empty() && graph.is_proved(owner) {
            buckets[owner][span.region.0 as usize].push(Access { span, event, kind, later });
        }
    };
    for (index, program) in graph.programs.iter().enumerate() {
        let event = |local| Event { program: index as u32, local };
        program.inputs.iter().for_each(|p| add(&p.span, event(0), Kind::Write, 0));
        program.host_reads().for_each(|s| add(s, event(0), Kind::Read, 1));
        for (_, _, instruction) in program.instructions() {
            for segment in instruction.segments.clone() {
                // What a choice follows from is read before the waits that it picks.
                let choice = graph.choice(index as u32, segment);
                for (i, span) in program.reads(&program.segments[segment as usize]).iter().enumerate() {
                    let chosen = choice.filter(|_| Some(i) != instruction.op.gathered());
                    add(span, chosen.unwrap_or(event(segment_event(segment))), Kind::Read, 0);
                }
            }
            let kind = if instruction.op == Op::Release { Kind::Release } else { Kind::Write };
            for span in program.writes(instruction) {
                add(span, event(segment_event(instruction.segments.end - 1)), kind, 0);
            }
            if let Op::Put(id) = instruction.op {
                let (put, transfer) = (program.put(id), transfer_event(program, id.0));
                add(&put.source, event(transfer), Kind::Read, 0);
                if let Some(count) = &put.count {
                    add(count, event(segment_event(instruction.segments.end - 1)), Kind::Read, 0);
                }
                add(&put.target, event(transfer + 1), Kind::Write, 0);
            }
        }
    }
    buckets
}

/// How many groups of one span a read is compared with: enough for the few ways in which reads of one span wait.
const GROUPS: usize = 16;

/// Joins reads of one span that are alike, in order of offsets. Events that also write here stay by themselves: what an
/// event writes is not what it reads.
fn group<'a>(graph: &Graph<'a>, mut accesses: Vec<Access<'a>>, claims: &mut Claims) -> Vec<Group<'a>> {
    let mut writers: Vec<Event> = accesses.iter().filter(|a| a.kind != Kind::Read).map(|a| a.event).collect();
    writers.sort_unstable();
    let place = |s: &Span| (s.offset, s.rows, s.row_bytes, s.stride);
    accesses.sort_by_key(|a| (place(a.span), a.kind, a.later));
    let mut groups = Vec::new();
    for same in accesses.chunk_by(|a, b| a.span == b.span && (a.kind, a.later) == (b.kind, b.later)) {
        let mut found: Vec<(Access<'a>, Vec<Event>)> = Vec::new();
        for access in same {
            let is_alone = access.kind != Kind::Read || writers.binary_search(&access.event).is_ok();
            let like = |(first, _): &&mut (Access<'a>, Vec<Event>)| graph.are_alike(first.event, access.event);
            match found.iter_mut().rev().take(GROUPS).filter(|_| !is_alone).find(like) {
                Some((_, events)) => events.push(access.event),
                None => found.push((*access, vec![access.event])),
            }
        }
        groups.extend(found.into_iter().map(|(first, events)| Group { first, events: claims.set(events), covered: 0 }));
    }
    groups
}

/// Sweeps one region by offset: finds all that shares a byte, one of them a write, and claims its order.
fn check_region<'a>(graph: &Graph<'a>, accesses: Vec<Access<'a>>, claims: &mut Claims) -> Result<(), Violation> {
    let mut groups = group(graph, accesses, claims);
    let (mut reads, mut writes): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for current in 0..groups.len() {
        let Access { span, kind, .. } = groups[current].first;
        let live = |&i: &usize| groups[i].first.span.end().is_some_and(|end| end > span.offset);
        writes.retain(live);
        if kind != Kind::Read {
            reads.retain(live);
        }
        let others = if kind == Kind::Read { &[][..] } else { &reads };
        for &other in writes.iter().chain(others) {
            let [a, b] = groups.get_disjoint_mut([other, current]).expect("the other one came before");
            pair(graph, a, b, claims)?;
        }
        match kind {
            Kind::Read => reads.push(current),
            Kind::Write => {
                claim(graph, (&groups[current], 0), (&groups[current], 1), span, claims);
                writes.push(current);
            }
            Kind::Release => writes.push(current),
        }
    }
    for Group { first, covered, .. } in groups {
        let missing = first.span.bytes() - covered;
        if first.kind == Kind::Read && missing > 0 {
            return Err(Violation::NotWritten { party: graph.party_of(first.event), span: *first.span, missing });
        }
    }
    Ok(())
}

/// Judges accesses that may share bytes.
fn pair<'a>(graph: &Graph<'a>, a: &mut Group<'a>, b: &mut Group<'a>, claims: &mut Claims) -> Result<(), Violation> {
    let shared = a.first.span.overlap(b.first.span);
    if shared == 0 {
        return Ok(());
    }
    let (x, y) = (a.first, b.first);
    if x.event == y.event && x.later == y.later && (x.kind == Kind::Read) != (y.kind == Kind::Read) {
        // One event reads before it writes: what it writes is not what it reads, and nothing else writes that.
        return Ok(());
    }
    let (earlier, then) = match (x.kind, y.kind) {
        (Kind::Read, Kind::Read) => return Ok(()),
        (Kind::Write, Kind::Write) | (Kind::Release, Kind::Release) => {
            let (first, second) = (graph.party_of(x.event), graph.party_of(y.event));
            return Err(Violation::TwoWriters { first, second, span: *y.span });
        }
        // Written, then read, then released; whatever comes last, before it is written again.
        (Kind::Write, _) | (Kind::Read, Kind::Release) => (a, b),
        (_, Kind::Write) | (Kind::Release, Kind::Read) => (b, a),
    };
    claim(graph, (earlier, 0), (then, 0), y.span, claims);
    if earlier.first.kind == Kind::Write {
        claim(graph, (then, 0), (earlier, 1), y.span, claims);
        if then.first.kind == Kind::Read {
            then.covered += shared;
        }
    }
    Ok(())
}

/// Claims, for every epoch e, that the first accesses of e + their shift precede the second ones of e + their shift.
fn claim(graph: &Graph<'_>, before: (&Group<'_>, u32), after: (&Group<'_>, u32), span: &Span, claims: &mut Claims) {
    let (earlier, then) = (&before.0.first, &after.0.first);
    let (first_epoch, second_epoch) = (before.1 + earlier.later, after.1 + then.later);
    let (gap, is_read) = (second_epoch as i32 - first_epoch as i32, then.kind == Kind::Read);
    // Groups are events of one program and of one kind, so what is obvious or direct for one is so for all.
    if graph.is_obvious(earlier.event, then.event, gap) {
        return;
    }
    let mut left = before.0.events.clone();
    if gap == 0 {
        let open = |&event: &Event| !graph.is_direct(event, then.event, is_read);
        let rest: Vec<Event> = claims.events(&left).iter().copied().filter(open).collect();
        if rest.is_empty() {
            return;
        }
        if rest.len() < left.len() {
            left = claims.set(rest);
        }
    }
    claims.push(&left, &after.0.events, gap, is_read, Subject::Bytes { span: *span, first_epoch, second_epoch });
}
