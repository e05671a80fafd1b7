//! Whether the spans of an instruction have the shapes that the device code relies on to stay inside them.

use mkernel_core::routing::{Tile, most_pairs, most_tiles};
use mkernel_core::{DType, Experts, Instruction, Op, Program, Segment, Span, Stage};

use super::layout::KernelShape;

/// Bytes of a u32 of a table.
const WORD: u64 = 4;

/// The most sources that a merge sums: the device keeps the rows of each in shared memory (`kMergeSources` in merge.cuh).
pub(super) const MERGE_SOURCES: usize = 96;

/// The longest head that the device's engines of attention hold in shared memory.
const LONGEST_HEAD: u64 = 256;

/// Expert numbers are signed in a table, and a run is named by 16 bits on the device.
const MOST_EXPERTS: u32 = 1 << 31;
const MOST_RUNS: usize = 1 << 16;

/// Whether the device can do the instruction.
pub(super) fn fits(program: &Program, i: &Instruction) -> bool {
    let (segments, writes) = (program.segments(i), program.writes(i));
    match i.op {
        // Release takes any spans.
        Op::Release => true,
        Op::Put(put) => (put.0 as usize) < program.puts.len() && writes.is_empty(),
        Op::Copy => {
            let reads: Vec<&Span> = segments.iter().flat_map(|s| program.reads(s)).collect();
            let same = |(r, w): (&&Span, &Span)| (r.rows, r.row_bytes) == (w.rows, w.row_bytes);
            reads.len() == writes.len() && reads.iter().zip(writes).all(same)
        }
        Op::Gemm { input, output } => fits_gemm(program, i, input, output),
        Op::Attention { dtype, .. } => fits_attention(program, i, dtype),
        Op::Reduce { narrow, output } => fits_reduce(program, i, narrow, output),
        Op::Pack { .. } => fits_pack(program, segments, writes),
        Op::Route { experts, tile } => fits_route(program, i, experts, tile),
        Op::Expert { stage, input, output } => fits_expert(program, i, stage, (input, output)),
        Op::Combine { tile } => fits_combine(program, segments, writes, tile),
        Op::Merge { narrow, output, .. } => fits_merge(program, i, narrow, output),
    }
}

/// Elements are read whole, so they lie at multiples of their size.
fn is_whole(span: &Span, size: u64) -> bool {
    span.offset.is_multiple_of(size)
        && span.row_bytes.is_multiple_of(size)
        && (span.rows <= 1 || span.stride.is_multiple_of(size))
}

fn fits_gemm(program: &Program, i: &Instruction, input: DType, output: DType) -> bool {
    let [c] = program.writes(i) else { return false };
    let columns = c.row_bytes / output.bytes();
    let product = |s: &Segment| {
        let [a, b] = program.reads(s) else { return false };
        let sides = a.rows == c.rows && b.row_bytes == columns * input.bytes();
        let whole = is_whole(a, input.bytes()) && is_whole(b, input.bytes()) && is_whole(c, output.bytes());
        sides && whole && a.row_bytes == u64::from(b.rows) * input.bytes()
    };
    program.segments(i).iter().all(product)
}

fn fits_attention(program: &Program, i: &Instruction, dtype: DType) -> bool {
    let [out] = program.writes(i) else { return false };
    let size = dtype.bytes();
    let dim = out.row_bytes / size;
    let part = |(index, s): (usize, &Segment)| {
        let (query, keys) = match (index, program.reads(s)) {
            (0, [q, k, v]) => (Some(q), [k, v]),
            (1.., [k, v]) => (None, [k, v]),
            _ => return false,
        };
        let is_like = |q: &Span| (q.rows, q.row_bytes) == (out.rows, out.row_bytes) && is_whole(q, size);
        let is_side = |k: &&Span| k.row_bytes == out.row_bytes && k.rows == keys[0].rows && is_whole(k, size);
        query.is_none_or(is_like) && keys.iter().all(is_side)
    };
    let is_head = dim > 0 && dim <= LONGEST_HEAD && dim.is_multiple_of(8);
    is_head && is_whole(out, size) && program.segments(i).iter().enumerate().all(part)
}

fn fits_reduce(program: &Program, i: &Instruction, narrow: DType, output: DType) -> bool {
    let [sum] = program.writes(i) else { return false };
    let columns = sum.row_bytes / output.bytes();
    let source = |s: &Segment| {
        let [read] = program.reads(s) else { return false };
        is_source(read, sum.rows, columns, narrow)
    };
    is_whole(sum, output.bytes()) && program.segments(i).iter().all(source)
}

/// Whether a span holds `rows` rows of `columns` elements, in f32 or in `narrow`.
fn is_source(span: &Span, rows: u32, columns: u64, narrow: DType) -> bool {
    let wide = span.row_bytes == columns * DType::F32.bytes();
    let size = if wide { DType::F32.bytes() } else { narrow.bytes() };
    span.rows == rows && span.row_bytes == columns * size && is_whole(span, size)
}

/// Written rows, perhaps with their number as an aligned u64.
fn is_counted(writes: &[Span]) -> bool {
    match writes {
        [_] => true,
        [_, count] => count.rows == 1 && count.row_bytes == 8 && count.offset.is_multiple_of(8),
        _ => false,
    }
}

fn fits_pack(program: &Program, segments: &[Segment], writes: &[Span]) -> bool {
    let [segment] = segments else { return false };
    let [rows, table] = program.reads(segment) else { return false };
    let is_same = |packed: &Span| (packed.rows, packed.row_bytes) == (rows.rows, rows.row_bytes);
    is_counted(writes) && is_same(&writes[0]) && rows.rows == table.rows && is_whole(table, WORD)
}

fn fits_route(program: &Program, i: &Instruction, experts: Experts, tile: u32) -> bool {
    let [tiles, rows, places] = program.writes(i) else { return false };
    if tile == 0 || experts.first > experts.end || experts.end > MOST_EXPERTS || i.segments.len() > MOST_RUNS {
        return false;
    }
    let mut tokens = 0;
    let is_run = |s: &Segment| {
        let [table] = program.reads(s) else { return false };
        tokens += u64::from(table.rows);
        let is_inside = s.position.saturating_add(table.rows.into()) <= places.rows.into();
        is_inside && is_whole(table, WORD) && (table.rows == 0 || table.row_bytes == places.row_bytes)
    };
    let are_runs = program.segments(i).iter().all(is_run) && tokens == u64::from(places.rows);
    let (topk, count) = (places.row_bytes / WORD, u64::from(experts.len()));
    let is_table = [tiles, rows, places].into_iter().all(|s| is_whole(s, WORD)) && rows.is_contiguous();
    let has_room = rows.bytes() / WORD >= most_pairs(tokens, topk, count)
        && u64::from(tiles.rows) >= most_tiles(tokens, topk, count, tile.into())
        && tiles.row_bytes == Tile::WORDS as u64 * WORD;
    // Per tile its place and two runs, per expert three counts, and for one warp at least two more.
    let shared = 8 * u64::from(tiles.rows) + 5 * WORD * count;
    are_runs && is_table && has_room && topk > 0 && shared <= u64::from(KernelShape::SHARED_BYTES)
}

fn fits_expert(program: &Program, i: &Instruction, stage: Stage, (input, output): (DType, DType)) -> bool {
    let ([segment], [out]) = (program.segments(i), program.writes(i)) else { return false };
    let (entry, list, rows, weights) = match (stage, program.reads(segment)) {
        (Stage::Up, [entry, list, rows, weights]) => (entry, Some(list), rows, [weights, weights]),
        (Stage::Gated, [entry, list, rows, gate, up]) => (entry, Some(list), rows, [gate, up]),
        (Stage::Down, [entry, rows, weights]) => (entry, None, rows, [weights, weights]),
        _ => return false,
    };
    let depth = rows.row_bytes / input.bytes();
    let columns = out.row_bytes / output.bytes();
    let is_weight = |w: &Span| {
        w.row_bytes == columns * input.bytes() && is_whole(w, input.bytes()) && u64::from(w.rows).is_multiple_of(depth)
    };
    depth > 0
        && u32::try_from(depth).is_ok()
        && entry.bytes() == Tile::WORDS as u64 * WORD
        && entry.rows == 1
        && is_whole(entry, WORD)
        && list.is_none_or(|l| l.is_contiguous() && is_whole(l, WORD))
        && (list.is_some() || rows.rows == out.rows)
        && is_whole(rows, input.bytes())
        && is_whole(out, output.bytes())
        && weights.into_iter().all(is_weight)
}

fn fits_combine(program: &Program, segments: &[Segment], writes: &[Span], tile: u32) -> bool {
    let ([segment], [out]) = (segments, writes) else { return false };
    let [places, weights, results] = program.reads(segment) else { return false };
    let is_run = (places.rows, places.row_bytes) == (weights.rows, weights.row_bytes) && places.rows == out.rows;
    let is_wide = out.row_bytes == results.row_bytes;
    tile > 0 && is_run && is_wide && [places, weights, results, out].into_iter().all(|s| is_whole(s, WORD))
}

fn fits_merge(program: &Program, i: &Instruction, narrow: DType, output: DType) -> bool {
    let (segments, writes) = (program.segments(i), program.writes(i));
    if !is_counted(writes) || segments.len() > MERGE_SOURCES {
        return false;
    }
    let columns = writes[0].row_bytes / output.bytes();
    let source = |s: &Segment| {
        let [rows, table] = program.reads(s) else { return false };
        is_source(rows, writes[0].rows, columns, narrow) && table.rows == writes[0].rows && is_whole(table, WORD)
    };
    is_whole(&writes[0], output.bytes()) && segments.iter().all(source)
}
