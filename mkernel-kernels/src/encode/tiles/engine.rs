//! The engine that a launch is compiled for, and what it takes.

use mkernel_core::{Addresses, Instruction, Op, Program, Span};

use super::super::element_of;
use super::super::layout::{Element, KernelShape};
use super::{ROWS, maps};

/// The compiled-in shape of the engine of matrix products: every tile of a launch fits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmEngine {
    /// The type of the operands: bf16 or f16.
    pub input: Element,
    /// Columns of a tile: 128 or 256.
    pub columns: u32,
    /// Whether tiles are written in the type of the operands.
    pub writes_input: bool,
    /// Whether tiles are written in f32.
    pub writes_f32: bool,
}

/// The compiled-in shape of the engine of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionEngine {
    /// The type of Q, K, V and O: bf16 or f16.
    pub input: Element,
    /// Length of a head: 64, 128 or 256.
    pub dim: u32,
}

/// The engine of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// Matrix products.
    Gemm(GemmEngine),
    /// Attention.
    Attention(AttentionEngine),
}

impl Engine {
    /// The engine that serves `programs`; none if they have nothing for one. Products come before attention.
    pub fn of(programs: &[Program], addresses: &Addresses) -> Option<Engine> {
        let mut all = programs.iter().flat_map(|p| p.instructions().map(move |(_, _, i)| (p, i)));
        let first = || all.find_map(|(p, i)| attention(p, addresses, i)).map(Engine::Attention);
        Engine::for_products(programs, addresses).or_else(first)
    }

    /// The engine that serves the products of `programs`; none if they have none for it.
    pub fn for_products(programs: &[Program], addresses: &Addresses) -> Option<Engine> {
        let all = programs.iter().flat_map(|p| p.instructions().map(move |(_, _, i)| (p, i)));
        let mut gemm: Option<GemmEngine> = None;
        for (input, output, columns) in all.filter_map(|(p, i)| product(p, addresses, i)) {
            let empty = GemmEngine { input, columns: 128, writes_input: false, writes_f32: false };
            let engine = gemm.get_or_insert(empty);
            if engine.input == input {
                engine.columns = engine.columns.max(if columns > 128 { 256 } else { 128 });
                engine.writes_input |= output == input;
                engine.writes_f32 |= output == Element::F32;
            }
        }
        gemm.map(Engine::Gemm)
    }

    /// Whether it does an instruction.
    pub(super) fn does(&self, program: &Program, addresses: &Addresses, instruction: &Instruction) -> bool {
        match self {
            Engine::Gemm(engine) => {
                product(program, addresses, instruction).is_some_and(|(input, ..)| input == engine.input)
            }
            Engine::Attention(engine) => attention(program, addresses, instruction) == Some(*engine),
        }
    }

    /// The type of the operands.
    pub(super) const fn input(&self) -> Element {
        match self {
            Engine::Gemm(engine) => engine.input,
            Engine::Attention(engine) => engine.input,
        }
    }

    /// Columns of a whole tile.
    pub(super) const fn columns(&self) -> u32 {
        match self {
            Engine::Gemm(engine) => engine.columns,
            Engine::Attention(engine) => engine.dim,
        }
    }

    /// Bytes of shared memory of a CTA: the twin of `engine::kSharedBytes`, and the control block.
    pub const fn shared_bytes(&self) -> u32 {
        let engine = match self {
            Engine::Gemm(engine) => engine.shared_bytes(),
            Engine::Attention(engine) => engine.shared_bytes(),
        };
        engine.next_multiple_of(16) + KernelShape::CONTROL_BYTES
    }

    /// The compiler's definitions.
    pub fn definitions(&self) -> Vec<String> {
        let mut all = vec!["PIPELINED".to_owned(), format!("SHARED_BYTES={}", self.shared_bytes())];
        if self.input() == Element::F16 {
            all.push("F16".to_owned());
        }
        let (stages, boxes) = match self {
            Engine::Gemm(engine) => {
                all.push(format!("TILE_N={}", engine.columns));
                let switches = [(engine.writes_input, "TILE_HALF"), (engine.writes_f32, "TILE_F32")];
                all.extend(switches.into_iter().filter(|(on, _)| *on).map(|(_, name)| name.to_owned()));
                engine.stages()
            }
            Engine::Attention(engine) => {
                all.extend([format!("ATTENTION_DIM={}", engine.dim), format!("KEYS={}", engine.keys())]);
                engine.stages()
            }
        };
        all.extend([format!("STAGES={stages}"), format!("BOXES={boxes}")]);
        all
    }
}

// The shapes are those that measured best: see `docs/performance.md`.

impl GemmEngine {
    /// Stages of operands and staging boxes of each consumer.
    const fn stages(&self) -> (u32, u32) {
        if self.columns == 256 { (3, 4) } else { (5, 4) }
    }

    const fn shared_bytes(&self) -> u32 {
        let (stages, boxes) = self.stages();
        let barriers = 2 * stages + 4 * boxes + 4;
        stages * (ROWS + self.columns) * 128 + 2 * boxes * 8192 + 8 * barriers
    }
}

impl AttentionEngine {
    /// Keys of a block.
    pub(super) const fn keys(&self) -> u32 {
        match self.dim {
            64 => 192,
            128 => 176,
            _ => 64,
        }
    }

    /// Stages of keys and of values, and staging boxes of each consumer.
    const fn stages(&self) -> (u32, u32) {
        match self.dim {
            64 => (3, 2),
            128 => (2, 1),
            _ => (2, 2),
        }
    }

    const fn shared_bytes(&self) -> u32 {
        let (stages, boxes) = self.stages();
        let (across, barriers) = (self.dim / 64, 4 * stages + 4 + 4 * boxes);
        let queries = 2 * across * 8192;
        queries + 2 * stages * across * self.keys() * 128 + 2 * boxes * 8192 + stages * 16 + 8 * barriers
    }
}

/// A 16-bit element type.
fn half(dtype: mkernel_core::DType) -> Option<Element> {
    element_of(dtype).filter(|element| *element != Element::F32)
}

fn are_aligned(addresses: &Addresses, spans: &[Span]) -> bool {
    spans.iter().all(|span| addresses.span(span).is_some_and(|address| maps::is_aligned(span, address)))
}

/// The types and columns of a product that an engine does.
fn product(program: &Program, addresses: &Addresses, instruction: &Instruction) -> Option<(Element, Element, u64)> {
    let Op::Gemm { input, output } = instruction.op else { return None };
    let (input, output) = (half(input)?, element_of(output)?);
    let [c] = program.writes(instruction) else { return None };
    let columns = c.row_bytes / maps::bytes_of(output);
    let size = (1..=ROWS).contains(&c.rows) && (1..=256).contains(&columns) && c.row_bytes.is_multiple_of(16);
    let has_depth = |s| matches!(program.reads(s), [_, b] if b.rows > 0) && are_aligned(addresses, program.reads(s));
    let fits = (output == input || output == Element::F32) && size && are_aligned(addresses, &[*c]);
    (fits && program.segments(instruction).iter().all(has_depth)).then_some((input, output, columns))
}

/// The engine that does an instruction of attention.
fn attention(program: &Program, addresses: &Addresses, instruction: &Instruction) -> Option<AttentionEngine> {
    let Op::Attention { dtype, query, .. } = instruction.op else { return None };
    let input = half(dtype)?;
    let [o] = program.writes(instruction) else { return None };
    let dim = o.row_bytes / maps::bytes_of(input);
    let in_range = |position: u64| position <= i64::MAX as u64 / 2;
    let fits = matches!(dim, 64 | 128 | 256) && (1..=ROWS).contains(&o.rows) && in_range(query);
    let has_heads = |s: &mkernel_core::Segment| {
        let reads = program.reads(s);
        let is_row = |span: &Span| span.row_bytes == o.row_bytes && span.rows <= i32::MAX as u32;
        are_aligned(addresses, reads) && reads.iter().all(is_row) && in_range(s.position)
    };
    let fits = fits && are_aligned(addresses, &[*o]) && program.segments(instruction).iter().all(has_heads);
    fits.then_some(AttentionEngine { input, dim: dim as u32 })
}
