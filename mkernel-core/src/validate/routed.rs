//! Numbers and shapes of the spans of operations whose lengths are data.

use super::structure::elements;
use super::violation::Malformed;
use crate::dtype::DType;
use crate::program::{Instruction, Op, Program, Stage};
use crate::region::Span;
use crate::routing::{Experts, Tile};

/// Bytes of a u32 of a table.
const WORD: u64 = 4;

/// Checks an instruction that works with the table of experts or an index.
pub(super) fn check(program: &Program, i: &Instruction) -> Result<(), Malformed> {
    match i.op {
        Op::Pack { .. } => check_pack(program, i),
        Op::Route { experts, tile } => check_route(program, i, experts, tile),
        Op::Expert { stage, input, output } => check_expert(program, i, stage, (input, output)),
        Op::Combine { tile } => check_combine(program, i, tile),
        Op::Merge { experts, narrow, output } => check_merge(program, i, experts, (narrow, output)),
        _ => Ok(()),
    }
}

fn ensure(holds: bool) -> Result<(), Malformed> {
    if holds { Ok(()) } else { Err(Malformed::Shape) }
}

/// The reads of the one segment.
fn only<'a, const N: usize>(program: &'a Program, i: &Instruction) -> Result<&'a [Span; N], Malformed> {
    let [segment] = program.segments(i) else { return Err(Malformed::Arity) };
    program.reads(segment).try_into().map_err(|_| Malformed::Arity)
}

/// The written rows and, if it is there, the number of rows: one aligned u64 of this rank.
fn rows_and_count<'a>(program: &'a Program, i: &Instruction) -> Result<(&'a Span, Option<&'a Span>), Malformed> {
    let (rows, count) = match program.writes(i) {
        [rows] => (rows, None),
        [rows, count] => (rows, Some(count)),
        _ => return Err(Malformed::Arity),
    };
    if let Some(count) = count {
        ensure(count.rank == program.rank && count.rows == 1 && count.row_bytes == 8 && count.offset % 8 == 0)?;
    }
    Ok((rows, count))
}

fn check_pack(program: &Program, i: &Instruction) -> Result<(), Malformed> {
    let [rows, table] = only(program, i)?;
    let (packed, _) = rows_and_count(program, i)?;
    if !elements(table, WORD) {
        return Err(Malformed::Stride);
    }
    ensure(packed.row_bytes == rows.row_bytes && packed.rows == table.rows && rows.rows == table.rows)
}

fn check_route(program: &Program, i: &Instruction, experts: Experts, tile: u32) -> Result<(), Malformed> {
    let [tiles, rows, places] = program.writes(i) else { return Err(Malformed::Arity) };
    ensure(tile > 0 && experts.first <= experts.end)?;
    ensure(tiles.row_bytes == Tile::WORDS as u64 * WORD && rows.is_contiguous() && places.row_bytes >= WORD)?;
    let mut tokens = 0;
    for segment in program.segments(i) {
        let [table] = program.reads(segment) else { return Err(Malformed::Arity) };
        ensure(table.row_bytes == places.row_bytes || table.rows == 0)?;
        ensure(segment.position + u64::from(table.rows) <= u64::from(places.rows))?;
        tokens += u64::from(table.rows);
    }
    if ![tiles, rows, places].iter().all(|s| elements(s, WORD)) {
        return Err(Malformed::Stride);
    }
    let (topk, experts) = (places.row_bytes / WORD, u64::from(experts.len()));
    ensure(tokens == u64::from(places.rows))?;
    ensure(rows.bytes() / WORD >= crate::routing::most_pairs(tokens, topk, experts))?;
    ensure(u64::from(tiles.rows) >= crate::routing::most_tiles(tokens, topk, experts, u64::from(tile)))
}

fn check_expert(
    program: &Program,
    i: &Instruction,
    stage: Stage,
    (input, output): (DType, DType),
) -> Result<(), Malformed> {
    let [segment] = program.segments(i) else { return Err(Malformed::Arity) };
    let [written] = program.writes(i) else { return Err(Malformed::Arity) };
    let (entry, rows, list, weights) = match (stage, program.reads(segment)) {
        (Stage::Up, [entry, list, rows, weights]) => (entry, rows, Some(list), [weights, weights]),
        (Stage::Gated, [entry, list, rows, gate, up]) => (entry, rows, Some(list), [gate, up]),
        (Stage::Down, [entry, rows, weights]) => (entry, rows, None, [weights, weights]),
        _ => return Err(Malformed::Arity),
    };
    let words = [Some(entry), list].into_iter().flatten().all(|s| elements(s, WORD));
    let floats = [rows, weights[0], weights[1]].iter().all(|s| elements(s, input.bytes()));
    if !words || !floats || !elements(written, output.bytes()) {
        return Err(Malformed::Stride);
    }
    ensure(entry.rows == 1 && entry.row_bytes == Tile::WORDS as u64 * WORD)?;
    ensure(list.is_some() || rows.rows == written.rows)?;
    let depth = rows.row_bytes / input.bytes();
    weights.into_iter().try_for_each(|w| {
        let whole_experts = depth > 0 && u64::from(w.rows).is_multiple_of(depth);
        ensure(whole_experts && w.row_bytes / input.bytes() == written.row_bytes / output.bytes())
    })
}

fn check_combine(program: &Program, i: &Instruction, tile: u32) -> Result<(), Malformed> {
    let [places, weights, results] = only(program, i)?;
    let [written] = program.writes(i) else { return Err(Malformed::Arity) };
    if ![places, weights, results, written].iter().all(|s| elements(s, WORD)) {
        return Err(Malformed::Stride);
    }
    let one_run = places.rows == weights.rows && places.row_bytes == weights.row_bytes && places.rows == written.rows;
    ensure(tile > 0 && one_run && written.row_bytes == results.row_bytes)
}

fn check_merge(
    program: &Program,
    i: &Instruction,
    experts: Experts,
    (narrow, output): (DType, DType),
) -> Result<(), Malformed> {
    let (written, _) = rows_and_count(program, i)?;
    if !elements(written, output.bytes()) {
        return Err(Malformed::Stride);
    }
    let columns = written.row_bytes / output.bytes();
    let mut first = u64::from(experts.first);
    for segment in program.segments(i) {
        let [rows, table] = program.reads(segment) else { return Err(Malformed::Arity) };
        let element = [DType::F32, narrow].into_iter().map(DType::bytes).find(|e| e * columns == rows.row_bytes);
        let Some(element) = element else { return Err(Malformed::Shape) };
        if !elements(rows, element) || !elements(table, WORD) {
            return Err(Malformed::Stride);
        }
        ensure(rows.rows == written.rows && table.rows == written.rows)?;
        ensure(segment.position >= first && segment.position <= u64::from(experts.end))?;
        first = segment.position;
    }
    let start = program.segments(i)[0].position;
    ensure(start == u64::from(experts.first))
}
