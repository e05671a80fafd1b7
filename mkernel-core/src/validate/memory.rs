//! One writer per byte, written before read, read before released or overwritten.

use super::cells::{Event, segment_event, transfer_event};
use super::graph::{Claim, Graph};
use super::violation::{Party, Violation};
use super::{EPOCHS, find};
use crate::program::Op;
use crate::region::Span;
use crate::signal::{Born, CellId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Release,
}

/// One event's touch of memory; the same in every epoch.
#[derive(Clone, Copy, Debug)]
struct Access {
    span: Span,
    event: Event,
    kind: Kind,
    /// Epochs by which the event lies after the one whose bytes it touches: 1 for the host reading outputs.
    later: u32,
}

/// Checks the memory and the cells of every program that is to be proved.
pub(super) fn check(graph: &Graph<'_>) -> Result<(), Violation> {
    collect(graph).into_iter().try_for_each(|accesses| check_region(graph, accesses))?;
    (0..graph.programs.len()).filter(|&p| graph.is_proved(p)).try_for_each(|p| check_cells(graph, p))
}

/// All accesses to the memory of proved programs, by program and region.
fn collect(graph: &Graph<'_>) -> Vec<Vec<Access>> {
    let mut first_region = Vec::with_capacity(graph.programs.len());
    let mut regions = 0;
    for program in graph.programs {
        first_region.push(regions);
        regions += program.regions.len();
    }
    let mut buckets: Vec<Vec<Access>> = vec![Vec::new(); regions];
    let mut add = |span: &Span, event: Event, kind: Kind, later: u32| {
        let Some(owner) = find(graph.programs, span.rank) else { return };
        if !span.is_empty() && graph.is_proved(owner) {
            buckets[first_region[owner] + span.region.0 as usize].push(Access { span: *span, event, kind, later });
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

/// Sweeps one region by offset: finds every pair that shares a byte, one of them a write, and claims its order.
fn check_region(graph: &Graph<'_>, mut accesses: Vec<Access>) -> Result<(), Violation> {
    accesses.sort_by_key(|a| a.span.offset);
    let mut covered = vec![0u64; accesses.len()];
    let mut claims = Vec::new();
    let (mut reads, mut writes): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for current in 0..accesses.len() {
        let access = accesses[current];
        let live = |&i: &usize| accesses[i].span.end().is_some_and(|end| end > access.span.offset);
        writes.retain(live);
        for &other in &writes {
            pair(graph, &accesses, other, current, &mut covered, &mut claims)?;
        }
        if access.kind == Kind::Read {
            reads.push(current);
            continue;
        }
        reads.retain(live);
        for &other in &reads {
            pair(graph, &accesses, other, current, &mut covered, &mut claims)?;
        }
        if access.kind == Kind::Write {
            claim(graph, (&access, 0), (&access, 1), current, &mut claims);
        }
        writes.push(current);
    }
    for (access, &bytes) in accesses.iter().zip(&covered) {
        let missing = access.span.bytes() - bytes;
        if access.kind == Kind::Read && missing > 0 {
            return Err(Violation::NotWritten { party: graph.party_of(access.event), span: access.span, missing });
        }
    }
    match graph.refute(claims) {
        None => Ok(()),
        Some(claim) => {
            let ((first, first_epoch), (second, second_epoch)) = (graph.party(claim.before), graph.party(claim.after));
            let span = accesses[claim.subject as usize].span;
            Err(Violation::Race { first, first_epoch, second, second_epoch, span })
        }
    }
}

/// Judges two accesses that may share bytes.
fn pair(
    graph: &Graph<'_>,
    accesses: &[Access],
    i: usize,
    j: usize,
    covered: &mut [u64],
    claims: &mut Vec<Claim>,
) -> Result<(), Violation> {
    let shared = accesses[i].span.overlap(&accesses[j].span);
    if shared == 0 {
        return Ok(());
    }
    let (a, b) = (&accesses[i], &accesses[j]);
    if a.event == b.event && a.later == b.later && (a.kind == Kind::Read) != (b.kind == Kind::Read) {
        // One event reads before it writes: what it writes is not what it reads, and nothing else writes that.
        return Ok(());
    }
    match (a.kind, b.kind) {
        (Kind::Read, Kind::Read) => {}
        (Kind::Write, Kind::Read) => {
            covered[j] += shared;
            claim(graph, (a, 0), (b, 0), j, claims);
            claim(graph, (b, 0), (a, 1), j, claims);
        }
        (Kind::Read, Kind::Write) => {
            covered[i] += shared;
            claim(graph, (b, 0), (a, 0), i, claims);
            claim(graph, (a, 0), (b, 1), i, claims);
        }
        (Kind::Release, Kind::Read) => claim(graph, (b, 0), (a, 0), j, claims),
        (Kind::Read, Kind::Release) => claim(graph, (a, 0), (b, 0), i, claims),
        (Kind::Release, Kind::Write) => {
            claim(graph, (b, 0), (a, 0), j, claims);
            claim(graph, (a, 0), (b, 1), j, claims);
        }
        (Kind::Write, Kind::Release) => {
            claim(graph, (a, 0), (b, 0), i, claims);
            claim(graph, (b, 0), (a, 1), i, claims);
        }
        (Kind::Write, Kind::Write) | (Kind::Release, Kind::Release) => {
            let (first, second) = (graph.party_of(a.event), graph.party_of(b.event));
            return Err(Violation::TwoWriters { first, second, span: b.span });
        }
    }
    Ok(())
}

/// Claims, for every epoch e, that the first access of e + its shift precedes the second of e + its shift.
fn claim(graph: &Graph<'_>, before: (&Access, u32), after: (&Access, u32), subject: usize, claims: &mut Vec<Claim>) {
    let (is_one_epoch, is_read) = (before.1 == after.1 && before.0.later == after.0.later, after.0.kind == Kind::Read);
    if is_one_epoch && graph.is_direct(before.0.event, after.0.event, is_read) {
        return;
    }
    for epoch in 0..EPOCHS - before.1.max(after.1) {
        let node = |(access, shift): (&Access, u32)| graph.node(access.event, epoch + shift + access.later);
        let claim = Claim { before: node(before), after: node(after), is_read, subject: subject as u32 };
        if !graph.is_obvious(claim.before, claim.after) {
            claims.push(claim);
        }
    }
}

/// Contributions for the next epoch come after every wait of this one, and after the put that fills the cell in this one:
/// a put sets a value, and two of them the wrong way round would let the cell fall.
fn check_cells(graph: &Graph<'_>, index: usize) -> Result<(), Violation> {
    let program = &graph.programs[index];
    let mut claims = Vec::new();
    let mut subjects: Vec<(CellId, Event, Event)> = Vec::new();
    for cell in (0..program.cells.len() as u32).map(CellId) {
        // A put goes to another rank, so it is alone in its cell; what else other ranks raise are additions.
        let puts =
            graph.contributions.events(graph.contributions.flat(index as u32, cell)).iter().filter(|e| {
                e.program != index as u32 && e.local >= transfer_event(&graph.programs[e.program as usize], 0)
            });
        for &put in puts {
            for epoch in 0..EPOCHS - 1 {
                let (before, after) = (graph.node(put, epoch), graph.node(put, epoch + 1));
                claims.push(Claim { before, after, is_read: false, subject: subjects.len() as u32 });
            }
            subjects.push((cell, put, put));
        }
    }
    for (segment, s) in program.segments.iter().enumerate() {
        let waiter = Event { program: index as u32, local: segment_event(segment as u32) };
        for &cell in program.waits(s).iter().chain(program.picked(s)) {
            // A credit is filled in an epoch for the wait of the next one.
            let shift = u32::from(program.cell(cell).born == Born::Empty);
            for &raiser in graph.contributions.events(graph.contributions.flat(index as u32, cell)) {
                for epoch in 0..EPOCHS - shift {
                    let (before, after) = (graph.node(waiter, epoch), graph.node(raiser, epoch + shift));
                    if !graph.is_obvious(before, after) {
                        claims.push(Claim { before, after, is_read: false, subject: subjects.len() as u32 });
                    }
                }
                subjects.push((cell, waiter, raiser));
            }
        }
    }
    let Some(claim) = graph.refute(claims) else { return Ok(()) };
    let (cell, waiter, raiser) = subjects[claim.subject as usize];
    let (waiter, raiser): (Party, Party) = (graph.party_of(waiter), graph.party_of(raiser));
    Err(Violation::Overrun { rank: program.rank, cell, waiter, raiser })
}
