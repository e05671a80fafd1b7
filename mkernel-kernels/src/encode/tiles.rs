//! Products as tiles of the Hopper engine: which qualify, and the tensor maps through which they are read and written.
//!
//! A tensor map describes a matrix in memory once; a tile names it by index, with coordinates. The engine reads zeros past
//! a map's end and writes nothing there, and that is how the edges of K are masked: the maps of both operands end where
//! the segment's K does. The copy engine wants addresses and pitches that are multiples of 16 bytes (CUDA driver API,
//! `cuTensorMapEncodeTiled`); what has others goes through the portable engine.

use std::collections::HashMap;

use mkernel_core::{Addresses, DType, Instruction, Op, Program, Span};

use super::layout::{BoxEntry, Element, KernelShape, TileEntry};
use super::{EncodeError, element_of};

/// Rows of a tile.
const ROWS: u32 = 128;

/// K of a block.
const DEPTH: u64 = 64;

/// The compiled-in shape of the engine: every tile of a launch fits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    /// The type of the operands: bf16 or f16.
    pub input: Element,
    /// Columns of a tile: 128 or 256.
    pub columns: u32,
    /// Whether tiles are written in the type of the operands.
    pub writes_input: bool,
    /// Whether tiles are written in f32.
    pub writes_f32: bool,
}

impl Engine {
    /// The engine that serves the products of `programs`; none if it serves none of them.
    pub fn of(programs: &[Program], addresses: &Addresses) -> Option<Engine> {
        let mut engine: Option<Engine> = None;
        for program in programs {
            for (_, _, instruction) in program.instructions() {
                let Some((input, output, columns)) = qualifies(program, addresses, instruction) else { continue };
                let engine =
                    engine.get_or_insert(Engine { input, columns: 128, writes_input: false, writes_f32: false });
                if engine.input == input {
                    engine.columns = engine.columns.max(if columns > 128 { 256 } else { 128 });
                    engine.writes_input |= output == input;
                    engine.writes_f32 |= output == Element::F32;
                }
            }
        }
        engine
    }

    /// Stages of operands and staging boxes of each consumer (`docs/performance.md` has how they were chosen).
    pub const fn stages(&self) -> (u32, u32) {
        if self.columns == 256 { (3, 4) } else { (5, 4) }
    }

    /// Bytes of shared memory of a CTA: the twin of `GemmShape::kSharedBytes`, and the control block.
    pub const fn shared_bytes(&self) -> u32 {
        let (stages, boxes) = self.stages();
        let barriers = 2 * stages + 4 * boxes + 4;
        let engine = stages * (ROWS + self.columns) * 128 + 2 * boxes * 8192 + 8 * barriers;
        engine.next_multiple_of(16) + KernelShape::CONTROL_BYTES
    }
}

/// What the driver is to make a tensor map of; boxes have 128 bytes in a row and are swizzled by 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// The type of the elements.
    pub element: Element,
    /// Elements of a row.
    pub columns: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes from one row's start to the next, a multiple of 16.
    pub pitch: u64,
    /// Rows of a box.
    pub box_rows: u32,
}

/// The tiles of one program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tiles {
    /// One for each instruction, in order; empty if no instruction is a tile.
    pub tiles: Vec<TileEntry>,
    /// One for each segment of the pool; empty if no instruction is a tile.
    pub boxes: Vec<BoxEntry>,
    /// The maps that they name.
    pub maps: Vec<MapSpec>,
}

/// Stands for an instruction that is no tile.
const NO_TILE: TileEntry = TileEntry {
    out: 0,
    pitch: 0,
    c_map: 0,
    row: 0,
    column: 0,
    rows: 0,
    columns: 0,
    blocks: 0,
    waits: 0,
    wait_count: 0,
    a_map: 0,
    b_map: 0,
    a_row: 0,
    b_column: 0,
    first_blocks: 0,
    reserved: 0,
};

/// Stands for a segment of an instruction that is no tile.
const NO_BOX: BoxEntry = BoxEntry { a_map: 0, b_map: 0, a_row: 0, b_column: 0, blocks: 0 };

/// A span as a part of a matrix: whole rows of it from `row` on, or a rectangle.
struct Part {
    /// Address of the matrix.
    base: u64,
    pitch: u64,
    row: u64,
    column_bytes: u64,
}

/// Where a span lies in the matrix of its pitch that starts with its region, or at the span's phase in it where its rows
/// follow each other without a gap.
fn part(span: &Span, address: u64) -> Option<Part> {
    let region = address - span.offset;
    if span.rows <= 1 {
        return Some(Part { base: address, pitch: span.row_bytes.next_multiple_of(16), row: 0, column_bytes: 0 });
    }
    if span.stride == 0 {
        return None;
    }
    let (row, phase) = (span.offset / span.stride, span.offset % span.stride);
    match span.row_bytes.cmp(&span.stride) {
        std::cmp::Ordering::Equal => Some(Part { base: region + phase, pitch: span.stride, row, column_bytes: 0 }),
        std::cmp::Ordering::Less if phase + span.row_bytes <= span.stride => {
            Some(Part { base: region, pitch: span.stride, row, column_bytes: phase })
        }
        _ => None,
    }
}

/// Whether a span can be read or written by the copy engine, its first byte aligned.
fn is_aligned(span: &Span, address: u64) -> bool {
    let Some(part) = part(span, address) else { return false };
    let limits = part.row + u64::from(span.rows) <= i32::MAX as u64 && part.pitch <= i32::MAX as u64;
    part.base.is_multiple_of(16) && part.pitch.is_multiple_of(16) && address.is_multiple_of(16) && limits
}

/// The types and columns of an instruction that the engine does.
fn qualifies(program: &Program, addresses: &Addresses, instruction: &Instruction) -> Option<(Element, Element, u64)> {
    let Op::Gemm { input, output } = instruction.op else { return None };
    let [c] = program.writes(instruction) else { return None };
    let columns = c.row_bytes / output.bytes();
    let types = matches!(input, DType::Bf16 | DType::F16) && (output == input || output == DType::F32);
    let size = (1..=u64::from(ROWS)).contains(&u64::from(c.rows)) && (1..=256).contains(&columns);
    let is_mapped = |span: &Span| addresses.span(span).is_some_and(|address| is_aligned(span, address));
    let has_depth = |s| matches!(program.reads(s), [a, b] if b.rows > 0 && is_mapped(a) && is_mapped(b));
    let fits = types
        && size
        && c.row_bytes.is_multiple_of(16)
        && is_mapped(c)
        && program.segments(instruction).iter().all(has_depth);
    if !fits { None } else { Some((element_of(input)?, element_of(output)?, columns)) }
}

/// Collects maps, one for each matrix.
struct Maps {
    specs: Vec<MapSpec>,
    known: HashMap<(u64, u64, u32, u32, u64), u32>,
}

impl Maps {
    /// The map of a matrix, grown to `rows` by `columns`; maps that end at different places (`end`) are not shared.
    fn of(&mut self, spec: MapSpec, end: u64) -> u32 {
        let key = (spec.address, spec.pitch, spec.element as u32, spec.box_rows, end);
        let next = self.specs.len() as u32;
        let index = *self.known.entry(key).or_insert(next);
        if index == next {
            self.specs.push(spec);
        }
        let known = &mut self.specs[index as usize];
        known.rows = known.rows.max(spec.rows);
        known.columns = known.columns.max(spec.columns);
        index
    }
}

/// The tiles of `program` for `engine`, and for each instruction whether it is one.
pub(super) fn encode(program: &Program, addresses: &Addresses, engine: &Engine) -> Result<Tiles, EncodeError> {
    let mut maps = Maps { specs: Vec::new(), known: HashMap::new() };
    let mut tiles = Vec::new();
    let mut boxes = vec![NO_BOX; program.segments.len()];
    for (_, _, instruction) in program.instructions() {
        let found = qualifies(program, addresses, instruction).filter(|(input, ..)| *input == engine.input);
        let Some((input, output, columns)) = found else {
            tiles.push(NO_TILE);
            continue;
        };
        let address =
            |span: &Span| addresses.span(span).ok_or(EncodeError::Unmapped { program: program.rank, rank: span.rank });
        let segments = program.segments(instruction);
        let first = instruction.segments.start as usize;
        for (at, segment) in segments.iter().enumerate() {
            let [a, b] = program.reads(segment) else { continue };
            boxes[first + at] = operands(&mut maps, (a, address(a)?), (b, address(b)?), input);
        }
        let [c] = program.writes(instruction) else { continue };
        let mut tile = result(&mut maps, (c, address(c)?), output, columns == u64::from(engine.columns));
        let b = boxes[first];
        (tile.a_map, tile.b_map, tile.a_row, tile.b_column) = (b.a_map, b.b_map, b.a_row, b.b_column);
        (tile.first_blocks, tile.blocks) = (b.blocks, boxes[first..][..segments.len()].iter().map(|b| b.blocks).sum());
        (tile.waits, tile.wait_count) = (segments[0].waits.start, segments[0].waits.len() as u32);
        tiles.push(tile);
    }
    Ok(Tiles { tiles, boxes, maps: maps.specs })
}

/// Maps A by the columns that are this segment's K, and B by its rows.
fn operands(maps: &mut Maps, (a, a_at): (&Span, u64), (b, b_at): (&Span, u64), element: Element) -> BoxEntry {
    let size = bytes_of(element);
    let depth = u64::from(b.rows);
    let at = part(a, a_at).expect("qualified");
    let (rows, address) = (at.row + u64::from(a.rows), at.base + at.column_bytes);
    let spec = MapSpec { address, element, columns: depth, rows, pitch: at.pitch, box_rows: ROWS };
    let (a_map, a_row) = (maps.of(spec, depth), at.row as u32);
    let at = part(b, b_at).expect("qualified");
    let columns = (at.column_bytes + b.row_bytes) / size;
    let address = at.base + at.row * at.pitch;
    let spec = MapSpec { address, element, columns, rows: depth, pitch: at.pitch, box_rows: DEPTH as u32 };
    let b_map = maps.of(spec, depth);
    let b_column = (at.column_bytes / size) as u32;
    BoxEntry { a_map, b_map, a_row, b_column, blocks: depth.div_ceil(DEPTH) as u32 }
}

/// Maps C; where a tile is narrower than the engine's, its map ends with it, so that nothing is written beyond.
fn result(maps: &mut Maps, (c, c_at): (&Span, u64), element: Element, is_full: bool) -> TileEntry {
    let size = bytes_of(element);
    let at = part(c, c_at).expect("qualified");
    let columns = (at.column_bytes + c.row_bytes) / size;
    let rows = at.row + u64::from(c.rows);
    let spec = MapSpec { address: at.base, element, columns, rows, pitch: at.pitch, box_rows: 64 };
    TileEntry {
        out: at.base,
        pitch: at.pitch,
        c_map: maps.of(spec, if is_full { 0 } else { columns }),
        row: at.row as u32,
        column: (at.column_bytes / size) as u32,
        rows: c.rows,
        columns: columns as u32,
        ..NO_TILE
    }
}

/// Bytes of an element.
pub(crate) const fn bytes_of(element: Element) -> u64 {
    match element {
        Element::Bf16 | Element::F16 => 2,
        Element::F32 => 4,
    }
}
