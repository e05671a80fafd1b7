//! Products and attention as tiles of a Hopper engine: which qualify, and the tensor maps through which they read and write.
//!
//! A tensor map describes a matrix in memory once; a tile names it by index, with coordinates. The engine reads zeros past
//! a map's end and writes nothing there, and that is how the edges of K are masked: the maps of both operands of a product
//! end where the segment's K does. The copy engine wants addresses and pitches that are multiples of 16 bytes (CUDA driver
//! API, `cuTensorMapEncodeTiled`); what has others goes through the portable engines.

mod engine;
mod maps;

use mkernel_core::{Addresses, Instruction, Op, Program, Span};

use super::layout::{BoxEntry, Element, TileEntry};
use super::{EncodeError, element_of};
pub use engine::{AttentionEngine, Engine, GemmEngine};
pub use maps::MapSpec;
pub(crate) use maps::bytes_of;
use maps::{Maps, part};

/// Rows of a tile.
pub(super) const ROWS: u32 = 128;

/// K of a block of a product.
const DEPTH: u64 = 64;

/// Rows of a box of C, Q or O.
const HALF_ROWS: u32 = 64;

/// The tiles of one program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tiles {
    /// One for each instruction, in order, with no rows where it is no tile; empty if none is.
    pub tiles: Vec<TileEntry>,
    /// One for each segment of the pool; empty if no instruction is a tile.
    pub boxes: Vec<BoxEntry>,
    /// The maps that they name.
    pub maps: Vec<MapSpec>,
}

/// The tiles of `program` for `engine`.
pub(super) fn encode(program: &Program, addresses: &Addresses, engine: &Engine) -> Result<Tiles, EncodeError> {
    let mut encoder = Encoder { program, addresses, maps: Maps::default() };
    let mut tiles = Vec::new();
    let mut boxes = vec![BoxEntry::default(); program.segments.len()];
    for (_, _, instruction) in program.instructions() {
        if !engine.does(program, addresses, instruction) {
            tiles.push(TileEntry::default());
            continue;
        }
        let first = instruction.segments.start as usize;
        let segments = program.segments(instruction);
        for (at, segment) in segments.iter().enumerate() {
            // The first segment of attention reads Q before K and V.
            let (Some(a), Some(b)) = (program.reads(segment).iter().rev().nth(1), program.reads(segment).last()) else {
                continue;
            };
            boxes[first + at] = encoder.operands(engine, a, b, segment.position)?;
        }
        let [c] = program.writes(instruction) else { continue };
        let mut tile = encoder.result(engine, c, instruction)?;
        if let (Engine::Attention(_), [query, ..]) = (engine, program.reads(&segments[0])) {
            let q = encoder.whole(query, engine.input(), HALF_ROWS, End::Anywhere)?;
            (tile.q_map, tile.q_row, tile.q_column) = (q.map, q.row, q.column);
        }
        let b = boxes[first];
        (tile.a_map, tile.a_row, tile.a_column) = (b.a_map, b.a_row, b.a_column);
        (tile.b_map, tile.b_row, tile.b_column) = (b.b_map, b.b_row, b.b_column);
        (tile.length, tile.position) = (b.length, b.position);
        tile.blocks = boxes[first..][..segments.len()].iter().fold(0u32, |sum, b| sum.saturating_add(b.length));
        (tile.waits, tile.wait_count) = (segments[0].waits.start, segments[0].waits.len() as u32);
        tiles.push(tile);
    }
    Ok(Tiles { tiles, boxes, maps: encoder.maps.specs })
}

struct Encoder<'a> {
    program: &'a Program,
    addresses: &'a Addresses,
    maps: Maps,
}

impl Encoder<'_> {
    fn address(&self, span: &Span) -> Result<u64, EncodeError> {
        self.addresses.span(span).ok_or(EncodeError::Unmapped { program: self.program.rank, rank: span.rank })
    }

    /// Maps the matrix that a span is a part of, up to the span's end. Maps that end at different places (`end`) are not
    /// shared.
    fn whole(&mut self, span: &Span, element: Element, box_rows: u32, end: End) -> Result<Corner, EncodeError> {
        let at = part(span, self.address(span)?).expect("qualified");
        let size = bytes_of(element);
        let columns = (at.column_bytes + span.row_bytes) / size;
        // A segment of no keys reads nothing, but a map has a row.
        let rows = at.row + u64::from(span.rows.max(1));
        let spec = MapSpec { address: at.base, element, columns, rows, pitch: at.pitch, box_rows };
        let end = if end == End::WithTheSpan { columns } else { 0 };
        let (row, column) = (at.row as u32, (at.column_bytes / size) as u32);
        Ok(Corner { map: self.maps.of(spec, end), row, column, spec })
    }

    /// A by the columns that are this segment's K, B by its rows.
    fn product(&mut self, a: &Span, b: &Span, element: Element) -> Result<BoxEntry, EncodeError> {
        let (at_a, at_b) = (part(a, self.address(a)?), part(b, self.address(b)?));
        let (at_a, at_b) = (at_a.expect("qualified"), at_b.expect("qualified"));
        let (depth, size) = (u64::from(b.rows), bytes_of(element));
        let (address, rows) = (at_a.base + at_a.column_bytes, at_a.row + u64::from(a.rows));
        let spec = MapSpec { address, element, columns: depth, rows, pitch: at_a.pitch, box_rows: ROWS };
        let a_map = self.maps.of(spec, depth);
        let (address, columns) = (at_b.base + at_b.row * at_b.pitch, (at_b.column_bytes + b.row_bytes) / size);
        let spec = MapSpec { address, element, columns, rows: depth, pitch: at_b.pitch, box_rows: DEPTH as u32 };
        let b_map = self.maps.of(spec, depth);
        let (a_row, b_column) = (at_a.row as u32, (at_b.column_bytes / size) as u32);
        let length = depth.div_ceil(DEPTH) as u32;
        Ok(BoxEntry { a_map, a_row, b_map, b_column, length, ..BoxEntry::default() })
    }

    fn operands(&mut self, engine: &Engine, a: &Span, b: &Span, position: u64) -> Result<BoxEntry, EncodeError> {
        let Engine::Attention(attention) = engine else { return self.product(a, b, engine.input()) };
        let keys = attention.keys();
        let (k, v) = (
            self.whole(a, attention.input, keys, End::Anywhere)?,
            self.whole(b, attention.input, keys, End::Anywhere)?,
        );
        Ok(BoxEntry {
            position,
            a_map: k.map,
            a_row: k.row,
            a_column: k.column,
            b_map: v.map,
            b_row: v.row,
            b_column: v.column,
            length: b.rows,
            reserved: 0,
        })
    }

    /// Maps C; where a tile is narrower than the engine's, its map ends with it, so that nothing is written beyond.
    fn result(&mut self, engine: &Engine, c: &Span, instruction: &Instruction) -> Result<TileEntry, EncodeError> {
        let output = match instruction.op {
            Op::Gemm { output, .. } => element_of(output).expect("qualified"),
            _ => engine.input(),
        };
        let is_full = c.row_bytes / bytes_of(output) == u64::from(engine.columns());
        let end = if is_full { End::Anywhere } else { End::WithTheSpan };
        let Corner { map, row, column, spec } = self.whole(c, output, HALF_ROWS, end)?;
        Ok(TileEntry {
            out: spec.address,
            pitch: spec.pitch,
            c_map: map,
            row,
            column,
            rows: c.rows,
            columns: spec.columns as u32,
            ..TileEntry::default()
        })
    }
}

/// Where the map of a matrix ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// With the last of the spans that share it.
    Anywhere,
    /// With the columns of the span.
    WithTheSpan,
}

/// Where a span begins in a map.
struct Corner {
    map: u32,
    row: u32,
    column: u32,
    /// The map as far as this span needs it.
    spec: MapSpec,
}

#[cfg(test)]
mod tests;
