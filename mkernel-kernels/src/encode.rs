//! A verified program as the device reads it: pools of entries with every span and cell resolved to an address.
//!
//! Pure: it asks an [`Addresses`] table where things are and touches no device. Widths are proved here: what does not
//! fit its field is an [`EncodeError`], never a truncation.

mod fits;
pub mod layout;
mod scope;
pub mod tiles;

use mkernel_core::{
    Addresses, CellId, DType, Experts, Instruction, Mask, Op, Program, Rank, RoleName, Segment, Span, Stage,
};

use tiles::{Engine, Tiles};

use layout::{
    EdgeScope, Element, InstructionEntry, KernelShape, LaneEntry, MaskCode, OpCode, SegmentEntry, SignalEntry,
    SpanEntry, StageCode, WaitEntry,
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
    #[error("the program of {program} computes with {dtype}, which the kernel does not")]
    Element {
        /// Whose program.
        program: Rank,
        /// The type.
        dtype: DType,
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
    /// Whether there is any `op`.
    pub fn has(&self, op: OpCode) -> bool {
        self.instructions.iter().any(|i| i.op == op as u32)
    }

    /// Whether any `op` reads elements of this type.
    pub fn reads(&self, op: OpCode, element: Element) -> bool {
        self.instructions.iter().any(|i| i.op == op as u32 && i.input == element as u32)
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
            if tile.rows > 0 {
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
        position: segment.position,
        waits: segment.waits.start,
        wait_count: segment.waits.end - segment.waits.start,
        picked: segment.picked.start,
        picked_count: segment.picked.end - segment.picked.start,
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
        if !fits::fits(self.program, instruction) {
            let (program, op) = (self.program.rank, instruction.op.name());
            return Err(EncodeError::Spans { program, lane, instruction: index, op });
        }
        Ok(InstructionEntry {
            away: u32::from(data_decides_peer_bytes(self.program, instruction)),
            segments: instruction.segments.start,
            segment_count: instruction.segments.end - instruction.segments.start,
            writes: instruction.writes.start,
            write_count: instruction.writes.end - instruction.writes.start,
            signals: instruction.signals.start,
            signal_count: instruction.signals.end - instruction.signals.start,
            ..self.operation(instruction)?
        })
    }

    /// What the operation itself says.
    fn operation(&self, instruction: &Instruction) -> Result<InstructionEntry, EncodeError> {
        let none = InstructionEntry::default();
        let entry = |op: OpCode| InstructionEntry { op: op as u32, ..none };
        let typed = |op, input, output| -> Result<InstructionEntry, EncodeError> {
            let (input, output) = (self.element(input)? as u32, self.element(output)? as u32);
            Ok(InstructionEntry { input, output, ..entry(op) })
        };
        let of = |experts: Experts, entry| {
            let Experts { first, end } = experts;
            InstructionEntry { expert_first: first, expert_end: end, ..entry }
        };
        Ok(match instruction.op {
            Op::Copy => entry(OpCode::Copy),
            Op::Release => entry(OpCode::Release),
            Op::Put(put) => {
                let rows = self.program.put(put).count.map_or(Ok(0), |count| self.address(&count))?;
                InstructionEntry { put: put.0, rows, ..entry(OpCode::Put) }
            }
            Op::Gemm { input, output } => typed(OpCode::Gemm, input, output)?,
            Op::Reduce { narrow, output } => typed(OpCode::Reduce, narrow, output)?,
            Op::Attention { dtype, mask, query } => {
                let variant = mask_code(mask) as u32;
                InstructionEntry { variant, query, ..typed(OpCode::Attention, dtype, dtype)? }
            }
            Op::Pack { held, wanted } => {
                let Experts { first, end } = held.unwrap_or(wanted);
                let variant = u32::from(held.is_some());
                of(wanted, InstructionEntry { variant, held_first: first, held_end: end, ..entry(OpCode::Pack) })
            }
            Op::Route { experts, tile } => of(experts, InstructionEntry { tile, ..entry(OpCode::Route) }),
            Op::Expert { stage, input, output } => {
                InstructionEntry { variant: stage_code(stage) as u32, ..typed(OpCode::Expert, input, output)? }
            }
            Op::Combine { tile } => InstructionEntry { tile, ..entry(OpCode::Combine) },
            Op::Merge { experts, narrow, output } => of(experts, typed(OpCode::Merge, narrow, output)?),
        })
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

/// Whether data decides how many bytes of an instruction go to another rank's memory.
pub(crate) fn data_decides_peer_bytes(program: &Program, instruction: &Instruction) -> bool {
    let is_data = matches!(instruction.op, Op::Pack { .. } | Op::Expert { .. } | Op::Combine { .. } | Op::Merge { .. });
    is_data && program.writes(instruction).first().is_some_and(|rows| rows.rank != program.rank)
}

fn mask_code(mask: Mask) -> MaskCode {
    match mask {
        Mask::None => MaskCode::All,
        Mask::Causal => MaskCode::Causal,
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

fn stage_code(stage: Stage) -> StageCode {
    match stage {
        Stage::Up => StageCode::Up,
        Stage::Gated => StageCode::Gated,
        Stage::Down => StageCode::Down,
    }
}

/// The role that a lane entry names.
pub fn role_of(lane: &LaneEntry) -> Option<RoleName> {
    RoleName::ALL.get(lane.role as usize).copied()
}

#[cfg(test)]
mod tests;
