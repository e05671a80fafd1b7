//! A verified program as the device reads it: pools of entries with every span and cell resolved to an address.
//!
//! Pure: it asks an [`Addresses`] table where things are and touches no device. Widths are proved here: what does not
//! fit its field is an [`EncodeError`], never a truncation.

pub mod layout;
mod scope;
pub mod tiles;

use mkernel_core::{Addresses, CellId, DType, Instruction, Op, Program, Rank, RoleName, Segment, Span};

use tiles::{Engine, Tiles};

use layout::{
    EdgeScope, Element, InstructionEntry, KernelShape, LaneEntry, OpCode, SegmentEntry, SignalEntry, SpanEntry,
    WaitEntry,
};

/// Why a program has no device form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Memory that the program touches is not mapped in this process: map the rank's regions first.
    #[error("memory of {rank} that the program of {program} touches is not mapped here")]
    Unmapped {
        /// Whose program.
        program: Rank,
        /// Whose memory.
        rank: Rank,
    },
    /// A count exceeds its field: use a smaller shape or more ranks.
    #[error("the program of {program} has {count} {what}, more than the device counts")]
    TooMany {
        /// Whose program.
        program: Rank,
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        count: u64,
    },
    /// The kernel has no arithmetic for an element type.
    #[error("the program of {program} multiplies {dtype}, which the kernel does not")]
    Element {
        /// Whose program.
        program: Rank,
        /// The type.
        dtype: DType,
    },
    /// The kernel does not have the operation.
    #[error("the program of {program} has a {op}, which the kernel does not do")]
    Operation {
        /// Whose program.
        program: Rank,
        /// The operation.
        op: &'static str,
    },
    /// Data picks among waits, which no operation of the kernel does.
    #[error("the program of {program} lets data pick among waits, which the kernel does not")]
    Picked {
        /// Whose program.
        program: Rank,
    },
    /// An instruction's spans do not have the form that its operation asks for.
    #[error("lane {lane} instruction {instruction} of the program of {program}: the spans do not fit a {op}")]
    Spans {
        /// Whose program.
        program: Rank,
        /// The lane.
        lane: u16,
        /// The instruction's index in its lane.
        instruction: u32,
        /// The operation.
        op: &'static str,
    },
}

/// The device form of one rank's program.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// The rank.
    pub rank: Rank,
    /// Home CTAs of each lane.
    pub ctas: Vec<u32>,
    /// Lanes.
    pub lanes: Vec<LaneEntry>,
    /// Instructions, lane by lane.
    pub instructions: Vec<InstructionEntry>,
    /// Pool of segments.
    pub segments: Vec<SegmentEntry>,
    /// Pool of waits.
    pub waits: Vec<WaitEntry>,
    /// Pool of spans.
    pub spans: Vec<SpanEntry>,
    /// Pool of signals.
    pub signals: Vec<SignalEntry>,
    /// What the Hopper engine needs to know of the instructions that it does.
    pub tiles: Tiles,
}

impl Image {
    /// Whether any product reads elements of this type.
    pub fn multiplies(&self, element: Element) -> bool {
        let is_gemm = |i: &&InstructionEntry| i.op == OpCode::Gemm as u32;
        self.instructions.iter().filter(is_gemm).any(|i| i.input == element as u32)
    }
}

/// Encodes `program`, its memory and that of the ranks it writes to at `addresses`; the products that `engine` can do
/// become tiles.
///
/// # Errors
/// [`EncodeError`] for unmapped memory, a count beyond its field, or an operation that the kernel does not have.
pub fn encode(program: &Program, addresses: &Addresses, engine: Option<&Engine>) -> Result<Image, EncodeError> {
    let encoder = Encoder { program, addresses };
    let scopes = scope::of_waits(program);
    let mut image = Image {
        rank: program.rank,
        ctas: program.lanes.iter().map(|l| l.ctas).collect(),
        lanes: encoder.lanes()?,
        instructions: Vec::new(),
        segments: program.segments.iter().map(segment_entry).collect(),
        waits: program.waits.iter().map(|&cell| encoder.wait(cell, &scopes)).collect::<Result<_, _>>()?,
        spans: program.spans.iter().map(|s| encoder.span(s)).collect::<Result<_, _>>()?,
        signals: Vec::new(),
        tiles: Tiles::default(),
    };
    for signal in &program.signals {
        let address = encoder.cell(signal.rank, signal.cell)?;
        let scope = scope::of_signal(program, signal) as u32;
        image.signals.push(SignalEntry { address, amount: signal.amount, scope });
    }
    for (lane, index, instruction) in program.instructions() {
        image.instructions.push(encoder.instruction(lane.0, index, instruction)?);
    }
    if let Some(engine) = engine {
        image.tiles = tiles::encode(program, addresses, engine)?;
        for (instruction, tile) in image.instructions.iter_mut().zip(&image.tiles.tiles) {
            if tile.blocks > 0 {
                instruction.op = OpCode::Tile as u32;
            }
        }
    }
    Ok(image)
}

struct Encoder<'a> {
    program: &'a Program,
    addresses: &'a Addresses,
}

fn segment_entry(segment: &Segment) -> SegmentEntry {
    SegmentEntry {
        waits: segment.waits.start,
        wait_count: segment.waits.end - segment.waits.start,
        reads: segment.reads.start,
        read_count: segment.reads.end - segment.reads.start,
    }
}

impl Encoder<'_> {
    fn lanes(&self) -> Result<Vec<LaneEntry>, EncodeError> {
        let mut first = 0u64;
        let mut lanes = Vec::new();
        for lane in &self.program.lanes {
            let count = lane.instructions.len() as u64;
            // A claim counter runs past `count` by at most one per CTA.
            self.count("claims of one lane", count + (1 << 20))?;
            lanes.push(LaneEntry {
                first: self.count("instructions", first)?,
                count: self.count("instructions", count)?,
                next: lane.next.map_or(KernelShape::NO_LANE, |next| u32::from(next.0)),
                role: lane.role as u32,
            });
            first += count;
        }
        self.count("instructions", first)?;
        Ok(lanes)
    }

    fn instruction(&self, lane: u16, index: u32, instruction: &Instruction) -> Result<InstructionEntry, EncodeError> {
        if self.program.segments(instruction).iter().any(|s| !s.picked.is_empty()) {
            return Err(EncodeError::Picked { program: self.program.rank });
        }
        if !self.fits(instruction) {
            let (program, op) = (self.program.rank, instruction.op.name());
            return Err(EncodeError::Spans { program, lane, instruction: index, op });
        }
        let (op, put, input, output) = match instruction.op {
            Op::Copy => (OpCode::Copy, 0, Element::Bf16, Element::Bf16),
            Op::Put(put) => (OpCode::Put, put.0, Element::Bf16, Element::Bf16),
            Op::Release => (OpCode::Release, 0, Element::Bf16, Element::Bf16),
            Op::Gemm { input, output } => (OpCode::Gemm, 0, self.element(input)?, self.element(output)?),
            Op::Reduce { narrow, output } => (OpCode::Reduce, 0, self.element(narrow)?, self.element(output)?),
            other => return Err(EncodeError::Operation { program: self.program.rank, op: other.name() }),
        };
        let rows = match instruction.op {
            Op::Put(put) => self.program.put(put).count.map_or(Ok(0), |count| self.address(&count))?,
            _ => 0,
        };
        Ok(InstructionEntry {
            rows,
            op: op as u32,
            input: input as u32,
            output: output as u32,
            put,
            segments: instruction.segments.start,
            segment_count: instruction.segments.end - instruction.segments.start,
            writes: instruction.writes.start,
            write_count: instruction.writes.end - instruction.writes.start,
            signals: instruction.signals.start,
            signal_count: instruction.signals.end - instruction.signals.start,
        })
    }

    /// Whether the spans have the shapes that the device code relies on.
    fn fits(&self, instruction: &Instruction) -> bool {
        let (segments, writes) = (self.program.segments(instruction), self.program.writes(instruction));
        match instruction.op {
            Op::Copy => {
                let reads: Vec<&Span> = segments.iter().flat_map(|s| self.program.reads(s)).collect();
                let same = |(r, w): (&&Span, &Span)| (r.rows, r.row_bytes) == (w.rows, w.row_bytes);
                reads.len() == writes.len() && reads.iter().zip(writes).all(same)
            }
            Op::Gemm { input, output } => {
                let [c] = writes else { return false };
                let columns = c.row_bytes / output.bytes();
                let product = |s: &Segment| {
                    let [a, b] = self.program.reads(s) else { return false };
                    let sides = a.rows == c.rows && b.row_bytes == columns * input.bytes();
                    // Elements are read whole, so they lie at multiples of their size.
                    let aligned = |s: &Span, size| s.offset.is_multiple_of(size) && s.stride.is_multiple_of(size);
                    let whole = aligned(a, input.bytes()) && aligned(b, input.bytes()) && aligned(c, output.bytes());
                    sides && whole && a.row_bytes == u64::from(b.rows) * input.bytes()
                };
                columns * output.bytes() == c.row_bytes && segments.iter().all(product)
            }
            Op::Reduce { narrow, output } => {
                let [sum] = writes else { return false };
                let columns = sum.row_bytes / output.bytes();
                let is_whole = |s: &Span, size: u64| s.offset.is_multiple_of(size) && s.stride.is_multiple_of(size);
                let source = |s: &Segment| {
                    let [read] = self.program.reads(s) else { return false };
                    let wide = read.row_bytes == columns * DType::F32.bytes();
                    let size = if wide { DType::F32.bytes() } else { narrow.bytes() };
                    read.rows == sum.rows && read.row_bytes == columns * size && is_whole(read, size)
                };
                sum.row_bytes.is_multiple_of(output.bytes())
                    && is_whole(sum, output.bytes())
                    && segments.iter().all(source)
            }
            Op::Put(put) => (put.0 as usize) < self.program.puts.len() && writes.is_empty(),
            // Release takes any spans; what the kernel does not have is refused by name.
            _ => true,
        }
    }

    fn wait(&self, cell: CellId, scopes: &[EdgeScope]) -> Result<WaitEntry, EncodeError> {
        Ok(WaitEntry {
            address: self.cell(self.program.rank, cell)?,
            arrivals: self.program.cell(cell).arrivals,
            cell: cell.0,
            scope: scopes[cell.0 as usize] as u32,
            reserved: 0,
        })
    }

    fn span(&self, span: &Span) -> Result<SpanEntry, EncodeError> {
        let address = self.address(span)?;
        let Span { row_bytes, stride, rows, .. } = *span;
        Ok(SpanEntry { address, row_bytes, stride, rows, reserved: 0 })
    }

    fn address(&self, span: &Span) -> Result<u64, EncodeError> {
        self.addresses.span(span).ok_or(self.unmapped(span.rank))
    }

    fn cell(&self, rank: Rank, cell: CellId) -> Result<u64, EncodeError> {
        self.addresses.cell(rank, cell).ok_or(self.unmapped(rank))
    }

    fn element(&self, dtype: DType) -> Result<Element, EncodeError> {
        element_of(dtype).ok_or(EncodeError::Element { program: self.program.rank, dtype })
    }

    fn count(&self, what: &'static str, count: u64) -> Result<u32, EncodeError> {
        u32::try_from(count).map_err(|_| EncodeError::TooMany { program: self.program.rank, what, count })
    }

    fn unmapped(&self, rank: Rank) -> EncodeError {
        EncodeError::Unmapped { program: self.program.rank, rank }
    }
}

/// The device's name of an element type; none if it has no arithmetic for it.
fn element_of(dtype: DType) -> Option<Element> {
    match dtype {
        DType::Bf16 => Some(Element::Bf16),
        DType::F16 => Some(Element::F16),
        DType::F32 => Some(Element::F32),
        DType::I32 => None,
    }
}

/// The role that a lane entry names.
pub fn role_of(lane: &LaneEntry) -> Option<RoleName> {
    RoleName::ALL.get(lane.role as usize).copied()
}

#[cfg(test)]
mod tests;
