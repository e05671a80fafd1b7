//! A program: what one rank does in every epoch, as plain data.
//!
//! A program is a few **lanes**. A lane is an ordered list of instructions that a number of CTAs claim in order. An
//! instruction is *wait -> do -> signal*; it may have several **segments**, each with its own waits and the bytes that
//! it reads (the K loop of a GEMM, the sources of a sum), so that accumulators stay in registers while data arrives.
//!
//! What orders memory is signals and launch boundaries, never the order of a lane: neighbours in a lane may run on
//! different CTAs, and a CTA may read for the next instruction before this one's stores are visible.
//!
//! Every byte that an instruction touches is listed: reads with the segments, writes with the instruction, both ends
//! of a put in the put table. So [`fn@crate::validate`] knows nothing of what an operation computes.
//!
//! Lists of varying length (segments, waits, reads, writes, signals) live in pools of the program and are named by
//! ranges: memory per instruction is flat, and the whole program is a handful of allocations.

use std::ops::Range;

use crate::dtype::DType;
use crate::region::{Region, Span};
use crate::role::RoleName;
use crate::routing::Experts;
use crate::signal::{Cell, CellId, Signal};
use crate::world::{Rank, World};

/// A range of a pool.
pub type Slice = Range<u32>;

/// Names a lane within one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u16);

/// Names a put within one program: its index in [`Program::puts`], and the payload of its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PutId(pub u32);

/// Which keys a row of attention sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All of them.
    None,
    /// Those at its own position and before.
    Causal,
}

/// What an instruction does between its waits and its signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Copies bytes: each segment reads one span, written to the span of the same index; both of one shape.
    Copy,
    /// Hands a put to the proxy as a ticket. Reads, writes and the remote signal are in the put table.
    Put(PutId),
    /// Gives memory back: whatever the spans written held is dead from here on, and executors may poison it. With no
    /// span it only joins its waits into its signals.
    Release,
    /// One tile of a matrix product: each segment reads an `[m, k]` span of A and a `[k, n]` span of B, both of type
    /// `input` and row-major; the sum over segments in order, accumulated in f32, is rounded once to `output` and
    /// written to the `[m, n]` span.
    Gemm {
        /// Element type of A and B.
        input: DType,
        /// Element type of the tile written.
        output: DType,
    },
    /// One tile of attention with a running softmax: the first segment reads a `[rows, dim]` span of Q, and every segment
    /// a `[keys, dim]` span of K and one of V; `softmax(Q K^T / sqrt(dim)) V` over the keys of all segments, with state in
    /// f32 and one rounding to `dtype`, is written to the `[rows, dim]` span. A segment's [`Segment::position`] is the
    /// position of its first key. Keys that the mask hides contribute nothing, whatever their values.
    Attention {
        /// Element type of Q, K, V and O.
        dtype: DType,
        /// Which keys each row sees.
        mask: Mask,
        /// Position of the first row of Q in the sequence.
        query: u64,
    },
    /// A sum: each segment reads one source of the written span's shape, in f32 or in `narrow` as its row width says; the
    /// sum in segment order, accumulated in f32, is rounded once to `output`.
    Reduce {
        /// Element type of the sources that are not f32.
        narrow: DType,
        /// Element type written.
        output: DType,
    },
    /// Packs rows of tokens: reads the rows and the tokens' part of the table ([`crate::routing`]), writes the rows of
    /// tokens with an expert among `wanted`, in order, to the first rows of the first span, and to the second, if there is
    /// one, their number as a u64.
    Pack {
        /// The rows read are those of tokens with one of these experts, packed; without it every token's.
        held: Option<Experts>,
        /// Whose rows are written.
        wanted: Experts,
    },
    /// Writes the index of a rank ([`crate::routing`]): its tiles, rows and places. Each segment reads the table of a run
    /// of tokens, the first of which is [`Segment::position`]: the rank's own in the first segment, then those that land,
    /// in the order in which they are expected.
    Route {
        /// The experts of the rank.
        experts: Experts,
        /// Rows of a tile.
        tile: u32,
    },
    /// One tile of one expert: reads the entry of a tile slot, then what `stage` says, and writes the first rows of its
    /// span, as many as the entry counts. Picks among the landings in the order of [`Op::Route`].
    Expert {
        /// What is multiplied.
        stage: Stage,
        /// Element type of rows and weights.
        input: DType,
        /// Element type written.
        output: DType,
    },
    /// Sums the results of a rank's experts for a run of tokens: reads the run's places and its weights in f32, then all
    /// results in f32, and writes in f32, for each token with a result here, in order and packed, the sum over its slots in
    /// order of weight times result; each product and each sum is rounded. Picks among the tile slots.
    Combine {
        /// Rows of a tile.
        tile: u32,
    },
    /// Sums partial rows of a run of tokens: each segment reads rows, in f32 or `narrow` as their width says, and the run's
    /// table. Its rows are those of tokens with one of the experts from [`Segment::position`] to the next segment's, packed.
    /// The sum in segment order, from zero in f32, is rounded once to `output`. Written are the rows of tokens with one of
    /// `experts`, packed, with their number as a u64 in a second span; or, with no second span, every token's.
    Merge {
        /// The experts that the segments divide.
        experts: Experts,
        /// Element type of the sources that are not f32.
        narrow: DType,
        /// Element type written.
        output: DType,
    },
}

/// What a tile of an expert multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Reads the list of rows, the gathered tokens `[T, K]` and weights `[experts * K, N]`: the rows named, times the
    /// expert's weights.
    Up,
    /// Reads as `Up` and a second span of weights: `silu(g) * u` in f32 of the products `g` with the first and `u` with the
    /// second, where `silu(g) = g / (1 + exp(-g))`.
    Gated,
    /// Reads the tile's own rows `[tile, K]` and weights `[experts * K, N]`.
    Down,
}

impl Op {
    /// The read of a segment of which data chooses the part that is touched, where its waits are picked ([`Segment::picked`]).
    /// The other reads come before that choice, ordered by the segment's certain waits alone.
    pub const fn gathered(&self) -> Option<usize> {
        match self {
            Op::Expert { stage: Stage::Up | Stage::Gated, .. } | Op::Combine { .. } => Some(2),
            _ => None,
        }
    }

    /// The name in messages and traces.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Copy => "copy",
            Op::Put(_) => "put",
            Op::Release => "release",
            Op::Gemm { .. } => "gemm",
            Op::Attention { .. } => "attention",
            Op::Reduce { .. } => "reduce",
            Op::Pack { .. } => "pack",
            Op::Route { .. } => "route",
            Op::Expert { .. } => "expert",
            Op::Combine { .. } => "combine",
            Op::Merge { .. } => "merge",
        }
    }
}

/// A stretch of an instruction that starts once its waits hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Cells of this rank to wait for, in [`Program::waits`].
    pub waits: Slice,
    /// Cells of which data picks those that cover the bytes really read, in [`Program::waits`]. Such a wait orders this
    /// segment's own reads (where [`Op::gathered`] names one, that one) and nothing after them: an instruction that must
    /// come after all of the cells waits for them itself. Whether the program ends is decided as if all were waited for.
    pub picked: Slice,
    /// Bytes read once the waits of this and all earlier segments hold, in [`Program::spans`]. Where data decides what
    /// is read, all that it may choose from.
    pub reads: Slice,
    /// First index along the axis that segments divide (the first key of a block of attention); zero where the
    /// operation has no use for it.
    pub position: u64,
}

/// One instruction of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub op: Op,
    /// Its segments, at least one, in [`Program::segments`].
    pub segments: Slice,
    /// Bytes written after the last segment, in [`Program::spans`].
    pub writes: Slice,
    /// Signals raised once the writes are visible, in [`Program::signals`].
    pub signals: Slice,
}

/// An ordered list of instructions that CTAs claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The role that filled it.
    pub role: RoleName,
    /// Home CTAs, at least one: how many blocks claim from it from the start.
    pub ctas: u32,
    /// The instructions, claimed in this order.
    pub instructions: Vec<Instruction>,
    /// The lane that a CTA helps with when this one is drained.
    pub next: Option<LaneId>,
}

/// Bytes that the transport carries to another rank, with the signal that covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// What is read, in this rank's memory; may be empty. Where `count` is given, at most its rows.
    pub source: Span,
    /// Where the number of rows that are really carried is found, as a u64 in this rank's memory, once the posting
    /// instruction's waits hold. Zero rows still signal. The ticket carries the number.
    pub count: Option<Span>,
    /// Where it lands; of the source's shape. Its rank is the target even when it is empty.
    pub target: Span,
    /// The cell of the target rank that the put fills once its bytes are visible there. A cell filled by a put has
    /// exactly one arrival per epoch, so no order between puts is ever needed.
    pub cell: CellId,
    /// The cell of this rank that rises by one once the source has been read.
    pub retired: Option<CellId>,
}

impl Put {
    /// A put of no bytes: the signal alone.
    pub const fn signal(from: Rank, to: Rank, cell: CellId) -> Put {
        Put { source: Span::empty(from), count: None, target: Span::empty(to), cell, retired: None }
    }
}

/// Where a rectangle of a global tensor lives on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The tensor's name, as in the command's files.
    pub tensor: &'static str,
    /// The bytes on this rank; one span row is one row of the rectangle.
    pub span: Span,
    /// First row of the rectangle in the global tensor, taken as a matrix.
    pub row: u64,
    /// First column.
    pub column: u64,
}

/// Where rows of a global tensor live on this rank, as data decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The tensor's name.
    pub tensor: &'static str,
    /// The rows on this rank.
    pub span: Span,
    /// A u32 for each row of the global tensor, taken as a matrix, in order: the row of `span` that holds it, or
    /// [`crate::routing::NOWHERE`].
    pub rows: Span,
}

/// The bytes that a rank must send and receive over the NIC in one epoch, from the operator's formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Law {
    /// Payload bytes out, over all puts to other nodes.
    pub inter_out: u64,
    /// Payload bytes in.
    pub inter_in: u64,
}

/// What one rank does in every epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The world that it was planned for.
    pub world: World,
    /// The rank that it is for.
    pub rank: Rank,
    /// Regions of this rank; ids are indices.
    pub regions: Vec<Region>,
    /// Cells of this rank; ids are indices.
    pub cells: Vec<Cell>,
    /// The lanes; ids are indices.
    pub lanes: Vec<Lane>,
    /// Pool of segments.
    pub segments: Vec<Segment>,
    /// Pool of waits.
    pub waits: Vec<CellId>,
    /// Pool of spans read and written.
    pub spans: Vec<Span>,
    /// Pool of signals.
    pub signals: Vec<Signal>,
    /// The put table.
    pub puts: Vec<Put>,
    /// Memory that the host writes before each launch.
    pub inputs: Vec<Placement>,
    /// Memory that the host reads after each launch.
    pub outputs: Vec<Placement>,
    /// Memory that the host reads after each launch where data says which.
    pub routed: Vec<Routed>,
    /// What the operator's formula says it sends and receives; where lengths are data, at most.
    pub law: Law,
}

fn of<'a, T>(pool: &'a [T], slice: &Slice) -> &'a [T] {
    &pool[slice.start as usize..slice.end as usize]
}

impl Program {
    /// The segments of an instruction of this program.
    pub fn segments(&self, instruction: &Instruction) -> &[Segment] {
        of(&self.segments, &instruction.segments)
    }

    /// The cells that a segment waits for.
    pub fn waits(&self, segment: &Segment) -> &[CellId] {
        of(&self.waits, &segment.waits)
    }

    /// The cells of which data picks those that a segment waits for.
    pub fn picked(&self, segment: &Segment) -> &[CellId] {
        of(&self.waits, &segment.picked)
    }

    /// The spans that a segment reads.
    pub fn reads(&self, segment: &Segment) -> &[Span] {
        of(&self.spans, &segment.reads)
    }

    /// The spans that an instruction writes.
    pub fn writes(&self, instruction: &Instruction) -> &[Span] {
        of(&self.spans, &instruction.writes)
    }

    /// The signals that an instruction raises.
    pub fn signals(&self, instruction: &Instruction) -> &[Signal] {
        of(&self.signals, &instruction.signals)
    }

    /// The put of a ticket or of an [`Op::Put`].
    ///
    /// # Panics
    /// If the program has no such put.
    pub fn put(&self, id: PutId) -> &Put {
        &self.puts[id.0 as usize]
    }

    /// The cell with this id.
    ///
    /// # Panics
    /// If the program has no such cell.
    pub fn cell(&self, id: CellId) -> &Cell {
        &self.cells[id.0 as usize]
    }

    /// What the host reads after each launch.
    pub fn host_reads(&self) -> impl Iterator<Item = &Span> {
        let routed = self.routed.iter().flat_map(|r| [&r.span, &r.rows]);
        self.outputs.iter().map(|p| &p.span).chain(routed)
    }

    /// Whether data chooses what a segment of `instruction` waits for and gathers, from what its other reads say.
    pub fn chooses(&self, instruction: &Instruction, segment: &Segment) -> bool {
        instruction.op.gathered().is_some() && !self.picked(segment).is_empty()
    }

    /// All instructions with their lane and index, lane by lane.
    pub fn instructions(&self) -> impl Iterator<Item = (LaneId, u32, &Instruction)> {
        self.lanes.iter().enumerate().flat_map(|(lane, l)| {
            l.instructions.iter().enumerate().map(move |(i, instruction)| (LaneId(lane as u16), i as u32, instruction))
        })
    }

    /// Home CTAs over all lanes: how many must be resident at once.
    pub fn ctas(&self) -> u32 {
        self.lanes.iter().map(|l| l.ctas).sum()
    }

    /// Bytes that leave this rank per epoch: within the node, and over the NIC.
    pub fn bytes_out(&self) -> (u64, u64) {
        let (mut intra, mut inter) = (0, 0);
        for (_, _, instruction) in self.instructions() {
            for span in self.writes(instruction) {
                if span.rank != self.rank && instruction.op != Op::Release {
                    intra += span.bytes();
                }
            }
        }
        for put in &self.puts {
            let tier = if self.world.same_node(self.rank, put.target.rank) { &mut intra } else { &mut inter };
            *tier += put.source.bytes();
        }
        (intra, inter)
    }
}
