//! What each program, and each reference from one to another, must be by itself.

use super::violation::{At, LaneFault, Malformed, Party, Violation};
use super::{find, routed};
use crate::dtype::DType;
use crate::program::{Instruction, Lane, LaneId, Op, Program, Put, PutId, Segment, Slice};
use crate::region::Span;
use crate::signal::CellId;
use crate::world::Rank;

/// One program per rank at most, all of one world.
pub(super) fn check_world(programs: &[Program]) -> Result<(), Violation> {
    let first = programs.first().ok_or(Violation::Nothing)?;
    for (i, program) in programs.iter().enumerate() {
        let again = i > 0 && programs[i - 1].rank == program.rank;
        if again || program.world != first.world || program.rank.0 >= first.world.size() {
            return Err(Violation::World(program.rank));
        }
    }
    Ok(())
}

/// Lanes, pools, shapes and reach of one program.
pub(super) fn check_program(program: &Program) -> Result<(), Violation> {
    for (id, lane) in program.lanes.iter().enumerate() {
        let Ok(id) = u16::try_from(id) else {
            return Err(Violation::Lane { rank: program.rank, lane: LaneId(u16::MAX), what: LaneFault::TooMany });
        };
        check_lane(program, LaneId(id), lane)?;
    }
    let mut posted = vec![false; program.puts.len()];
    // Many segments may share one long list, so lists are looked through one by one only if something is wrong.
    let cells_exist = program.waits.iter().all(|c| (c.0 as usize) < program.cells.len());
    for (lane, index, instruction) in program.instructions() {
        let malformed = |what| Violation::Malformed { at: at(program, lane, index), what };
        check_pools(program, instruction).map_err(malformed)?;
        if !cells_exist {
            check_waits(program, instruction).map_err(malformed)?;
        }
        check_instruction(program, instruction, &mut posted).map_err(malformed)?;
    }
    match posted.iter().position(|p| !p) {
        Some(put) => Err(Violation::UnpostedPut { rank: program.rank, put: PutId(put as u32) }),
        None => Ok(()),
    }
}

/// Names an instruction.
pub(super) fn at(program: &Program, lane: LaneId, instruction: u32) -> At {
    At { rank: program.rank, lane, role: program.lanes[usize::from(lane.0)].role, instruction }
}

fn check_lane(program: &Program, id: LaneId, lane: &Lane) -> Result<(), Violation> {
    let fault = |what| Violation::Lane { rank: program.rank, lane: id, what };
    if lane.ctas == 0 {
        return Err(fault(LaneFault::NoCta));
    }
    if lane.instructions.is_empty() {
        return Err(fault(LaneFault::Empty));
    }
    // A chain of continuations longer than there are lanes comes back to itself.
    let mut next = lane.next;
    for _ in 0..program.lanes.len() {
        match next {
            None => return Ok(()),
            Some(l) if usize::from(l.0) >= program.lanes.len() || l == id => break,
            Some(l) => next = program.lanes[usize::from(l.0)].next,
        }
    }
    if next.is_some() { Err(fault(LaneFault::Continuation)) } else { Ok(()) }
}

fn inside(slice: &Slice, len: usize) -> bool {
    slice.start <= slice.end && slice.end as usize <= len
}

/// The lists of an instruction lie in their pools.
fn check_pools(program: &Program, i: &Instruction) -> Result<(), Malformed> {
    let pools = inside(&i.segments, program.segments.len())
        && inside(&i.writes, program.spans.len())
        && inside(&i.signals, program.signals.len());
    if !pools {
        return Err(Malformed::Slice);
    }
    let segments = program.segments(i);
    if segments.is_empty() {
        return Err(Malformed::NoSegment);
    }
    let waits = |s: &Segment| [&s.waits, &s.picked].into_iter().all(|list| inside(list, program.waits.len()));
    match segments.iter().all(|s| waits(s) && inside(&s.reads, program.spans.len())) {
        true => Ok(()),
        false => Err(Malformed::Slice),
    }
}

/// An instruction waits for cells that there are.
fn check_waits(program: &Program, i: &Instruction) -> Result<(), Malformed> {
    let mut waits = program.segments(i).iter().flat_map(|s| program.waits(s).iter().chain(program.picked(s)));
    if waits.any(|c| c.0 as usize >= program.cells.len()) { Err(Malformed::Cell) } else { Ok(()) }
}

fn check_instruction(program: &Program, i: &Instruction, posted: &mut [bool]) -> Result<(), Malformed> {
    let segments = program.segments(i);
    let spans = || segments.iter().flat_map(|s| program.reads(s)).chain(program.writes(i));
    if spans().any(|s| s.rows > 1 && s.stride < s.row_bytes) {
        return Err(Malformed::Stride);
    }
    let reachable = |rank: Rank| rank.0 < program.world.size() && program.world.same_node(rank, program.rank);
    if !spans().all(|s| reachable(s.rank)) || !program.signals(i).iter().all(|s| reachable(s.rank)) {
        return Err(Malformed::Reach);
    }
    if program.signals(i).iter().any(|s| s.amount == 0) {
        return Err(Malformed::ZeroSignal);
    }
    check_op(program, i, posted)
}

/// Numbers and shapes of the spans that the operation takes.
fn check_op(program: &Program, i: &Instruction, posted: &mut [bool]) -> Result<(), Malformed> {
    let (segments, writes) = (program.segments(i), program.writes(i));
    let no_reads = segments.iter().all(|s| program.reads(s).is_empty());
    let has_axis = matches!(i.op, Op::Attention { .. } | Op::Route { .. } | Op::Merge { .. });
    if !has_axis && segments.iter().any(|s| s.position != 0) {
        return Err(Malformed::Position);
    }
    match i.op {
        Op::Release => {
            let own = writes.iter().all(|s| s.rank == program.rank);
            if no_reads && own { Ok(()) } else { Err(Malformed::Arity) }
        }
        Op::Put(id) => {
            let slot = posted.get_mut(id.0 as usize).ok_or(Malformed::Put)?;
            if std::mem::replace(slot, true) || id.0 >> 31 != 0 {
                return Err(Malformed::Put);
            }
            if !no_reads || !writes.is_empty() {
                return Err(Malformed::Arity);
            }
            check_put(program, program.put(id))
        }
        Op::Copy => {
            if writes.len() != segments.len() {
                return Err(Malformed::Arity);
            }
            segments.iter().zip(writes).try_for_each(|(segment, write)| match program.reads(segment) {
                [read] if same_shape(read, write) => Ok(()),
                [_] => Err(Malformed::Shape),
                _ => Err(Malformed::Arity),
            })
        }
        Op::Reduce { narrow, output } => check_reduce(program, i, narrow, output),
        Op::Pack { .. } | Op::Route { .. } | Op::Expert { .. } | Op::Combine { .. } | Op::Merge { .. } => {
            routed::check(program, i)
        }
        Op::Attention { dtype, query, .. } => check_attention(program, i, dtype, query),
        Op::Gemm { input, output } => {
            check_floats([input, output])?;
            let [c] = writes else { return Err(Malformed::Arity) };
            let (input, output) = (input.bytes(), output.bytes());
            if !elements(c, output) {
                return Err(Malformed::Stride);
            }
            segments.iter().try_for_each(|segment| {
                let [a, b] = program.reads(segment) else { return Err(Malformed::Arity) };
                if !elements(a, input) || !elements(b, input) {
                    return Err(Malformed::Stride);
                }
                let columns_fit = b.row_bytes / input == c.row_bytes / output;
                let inner_fits = a.row_bytes / input == u64::from(b.rows);
                if a.rows == c.rows && columns_fit && inner_fits { Ok(()) } else { Err(Malformed::Shape) }
            })
        }
    }
}

/// Sums and products are of floats.
fn check_floats<const N: usize>(dtypes: [DType; N]) -> Result<(), Malformed> {
    if dtypes.contains(&DType::I32) { Err(Malformed::Element) } else { Ok(()) }
}

/// Sources of the written span's shape, each in f32 or in the narrow type.
fn check_reduce(program: &Program, i: &Instruction, narrow: DType, output: DType) -> Result<(), Malformed> {
    check_floats([narrow, output])?;
    let [write] = program.writes(i) else { return Err(Malformed::Arity) };
    if !elements(write, output.bytes()) {
        return Err(Malformed::Stride);
    }
    let columns = write.row_bytes / output.bytes();
    program.segments(i).iter().try_for_each(|segment| {
        let [read] = program.reads(segment) else { return Err(Malformed::Arity) };
        let element =
            [DType::F32, narrow].into_iter().map(DType::bytes).find(|e| e.checked_mul(columns) == Some(read.row_bytes));
        match element {
            Some(element) if !elements(read, element) => Err(Malformed::Stride),
            Some(_) if read.rows == write.rows => Ok(()),
            _ => Err(Malformed::Shape),
        }
    })
}

/// Q with the first segment, K and V of one shape with every segment, all of one row length; positions fit in 64 bits.
fn check_attention(program: &Program, i: &Instruction, dtype: DType, first_row: u64) -> Result<(), Malformed> {
    check_floats([dtype])?;
    let [output] = program.writes(i) else { return Err(Malformed::Arity) };
    let ends = |first: u64, span: &Span| first.checked_add(u64::from(span.rows)).is_some();
    let mut first = true;
    program.segments(i).iter().try_for_each(|segment| {
        let (query, keys) = match (program.reads(segment), std::mem::take(&mut first)) {
            ([query, key, value], true) => (Some(query), [key, value]),
            ([key, value], false) => (None, [key, value]),
            _ => return Err(Malformed::Arity),
        };
        let mut spans = query.into_iter().chain(keys).chain([output]);
        if !spans.all(|s| elements(s, dtype.bytes())) {
            return Err(Malformed::Stride);
        }
        if !ends(first_row, output) || !ends(segment.position, keys[0]) {
            return Err(Malformed::Position);
        }
        let widths = keys.iter().all(|s| s.row_bytes == output.row_bytes);
        let fits = query.is_none_or(|q| same_shape(q, output)) && keys[0].rows == keys[1].rows;
        if widths && fits && output.row_bytes > 0 { Ok(()) } else { Err(Malformed::Shape) }
    })
}

fn check_put(program: &Program, put: &Put) -> Result<(), Malformed> {
    if let Some(count) = put.count
        && (count.rank != program.rank || count.rows != 1 || count.row_bytes != 8 || count.offset % 8 != 0)
    {
        return Err(Malformed::Shape);
    }
    if put.source.rank != program.rank || put.target.rank.0 >= program.world.size() {
        return Err(Malformed::Reach);
    }
    if put.target.rank == program.rank {
        return Err(Malformed::Reach);
    }
    let rows_apart = |s: &Span| s.rows <= 1 || s.stride >= s.row_bytes;
    if !rows_apart(&put.source) || !rows_apart(&put.target) {
        return Err(Malformed::Stride);
    }
    if !same_shape(&put.source, &put.target) {
        return Err(Malformed::Shape);
    }
    match put.retired {
        Some(cell) if cell.0 as usize >= program.cells.len() => Err(Malformed::Cell),
        _ => Ok(()),
    }
}

fn same_shape(a: &Span, b: &Span) -> bool {
    a.rows == b.rows && a.row_bytes == b.row_bytes
}

/// Whether a span is whole elements of `bytes` bytes.
pub(super) fn elements(span: &Span, bytes: u64) -> bool {
    span.offset.is_multiple_of(bytes)
        && span.row_bytes.is_multiple_of(bytes)
        && (span.rows <= 1 || span.stride.is_multiple_of(bytes))
}

/// Every span lies in its region and every signal names a cell, as far as the target's program is here.
pub(super) fn check_bounds(programs: &[Program]) -> Result<(), Violation> {
    for program in programs {
        for (lane, index, instruction) in program.instructions() {
            let at = at(program, lane, index);
            let segments = program.segments(instruction).iter();
            for span in segments.flat_map(|s| program.reads(s)).chain(program.writes(instruction)) {
                check_span(programs, span, Party::Instruction(at))?;
            }
            let mut cells: Vec<_> = program.signals(instruction).iter().map(|s| (s.rank, s.cell)).collect();
            if let Op::Put(id) = instruction.op {
                let put = program.put(id);
                check_span(programs, &put.source, Party::Transfer(at))?;
                if let Some(count) = &put.count {
                    check_span(programs, count, Party::Instruction(at))?;
                }
                check_span(programs, &put.target, Party::Transfer(at))?;
                cells.push((put.target.rank, put.cell));
            }
            let exists = |(rank, cell): &(Rank, CellId)| match find(programs, *rank) {
                Some(i) => (cell.0 as usize) < programs[i].cells.len(),
                None => true,
            };
            if !cells.iter().all(exists) {
                return Err(Violation::Malformed { at, what: Malformed::Cell });
            }
        }
        for span in program.inputs.iter().map(|p| &p.span).chain(program.host_reads()).copied() {
            if span.rank != program.rank || (span.rows > 1 && span.stride < span.row_bytes) {
                return Err(Violation::Bounds { party: Party::Host(program.rank), span });
            }
            check_span(programs, &span, Party::Host(program.rank))?;
        }
    }
    Ok(())
}

fn check_span(programs: &[Program], span: &Span, party: Party) -> Result<(), Violation> {
    let Some(owner) = find(programs, span.rank) else { return Ok(()) };
    let size = programs[owner].regions.get(span.region.0 as usize).map(|r| r.bytes);
    match (span.end(), size) {
        _ if span.is_empty() => Ok(()),
        (Some(end), Some(size)) if end <= size => Ok(()),
        _ => Err(Violation::Bounds { party, span: *span }),
    }
}

/// NIC bytes against the declared law: out for every program, in for every program or for the one that is proved.
pub(super) fn check_law(programs: &[Program], only: Option<usize>) -> Result<(), Violation> {
    // Regions may be as large as 64 bits count, so sums over puts need more.
    let mut inbound = vec![0u128; programs.len()];
    let narrow = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    for program in programs {
        let mut out = 0u128;
        for put in program.puts.iter().filter(|p| !program.world.same_node(program.rank, p.target.rank)) {
            out += u128::from(put.source.bytes());
            if let Some(target) = find(programs, put.target.rank) {
                inbound[target] += u128::from(put.source.bytes());
            }
        }
        let (rank, law) = (program.rank, program.law.inter_out);
        if out != u128::from(law) {
            return Err(Violation::ByteLaw { rank, direction: "out", actual: narrow(out), law });
        }
    }
    for (index, (program, &actual)) in programs.iter().zip(&inbound).enumerate() {
        let law = program.law.inter_in;
        if only.is_none_or(|only| only == index) && actual != u128::from(law) {
            return Err(Violation::ByteLaw { rank: program.rank, direction: "in", actual: narrow(actual), law });
        }
    }
    Ok(())
}
