//! What the device reads and writes, each layout written once for Rust and C++.
//!
//! A rank's program becomes flat pools of entries; ranges are `first` and `count` into them, and every span, cell and
//! pool is a plain address, so the device resolves nothing. What the proxy alone needs (the put table) stays here.

use mkernel_core::abi::{self, AbiType};
use mkernel_core::fifo::FifoHeader;
use mkernel_core::ticket::TicketBits;
use mkernel_core::{abi_const, abi_enum, abi_struct};

abi_enum! {
    /// What an instruction does; the twin of `mkernel_core::Op`.
    pub enum OpCode {
        /// Copies bytes, span by span.
        Copy = 0,
        /// Pushes the ticket of `put`.
        Put = 1,
        /// Gives memory back, poisoned if the launch says so.
        Release = 2,
        /// One tile of a matrix product.
        Gemm = 3,
        /// A sum of sources.
        Reduce = 4,
        /// One tile of attention.
        Attention = 5,
        /// Rows of tokens, packed.
        Pack = 6,
        /// The index of a rank.
        Route = 7,
        /// One tile of an expert.
        Expert = 8,
        /// Weighted sums of a rank's results.
        Combine = 9,
        /// Sums of packed partial rows.
        Merge = 10,
        /// One tile of a matrix product or of attention, by a Hopper engine.
        Tile = 11,
    }
}

abi_enum! {
    /// Which keys a row of attention sees; the twin of `mkernel_core::Mask`.
    pub enum MaskCode {
        /// All.
        All = 0,
        /// Those at its own position and before.
        Causal = 1,
    }
}

abi_enum! {
    /// What a tile of an expert multiplies; the twin of `mkernel_core::Stage`.
    pub enum StageCode {
        /// Gathered rows with one matrix.
        Up = 0,
        /// Gathered rows with two matrices, `silu` of the first times the second.
        Gated = 1,
        /// The tile's own rows with one matrix.
        Down = 2,
    }
}

abi_enum! {
    /// Element types; the twin of `mkernel_core::DType`.
    pub enum Element {
        /// bfloat16.
        Bf16 = 0,
        /// IEEE 754 binary16.
        F16 = 1,
        /// IEEE 754 binary32.
        F32 = 2,
    }
}

abi_enum! {
    /// How far an edge reaches: which memory scope its release and its acquire name.
    pub enum EdgeScope {
        /// Both ends are this rank's CTAs on one GPU.
        Gpu = 0,
        /// The other end is another rank, another process, the CPU, a copy engine or a NIC.
        System = 1,
    }
}

abi_enum! {
    /// What went wrong on the device; the twin of `mkernel_core::FaultKind`.
    pub enum FaultCode {
        /// A wait did not come true before the deadline.
        Deadline = 0,
        /// The FIFO stayed full until the deadline, or is poisoned.
        FifoFull = 1,
        /// The abort word is up.
        Aborted = 2,
    }
}

abi_const! {
    /// The shape of the kernel.
    pub struct KernelShape {
        /// Threads of a CTA that do an instruction together.
        THREADS = 256,
        /// Bytes of shared memory that they take as scratch: all that the portable kernel has.
        SHARED_BYTES = 107520,
        /// Threads that claim, load and store beside them in the pipelined kernel.
        SERVICE_THREADS = 128,
        /// Instructions that a CTA of the pipelined kernel has under way.
        SLOTS = 3,
        /// Bytes of shared memory behind the engine's, for what is under way.
        CONTROL_BYTES = 1024,
        /// `LaneEntry::next` of a lane whose CTAs are done when it is drained.
        NO_LANE = u32::MAX,
    }
}

abi_struct! {
    /// A lane of a rank: a run of its instructions.
    pub struct LaneEntry: size 16 {
        /// Its first instruction.
        pub first: u32,
        /// Its instructions.
        pub count: u32,
        /// The lane to go on with when it is drained, or `KernelShape::NO_LANE`.
        pub next: u32,
        /// Its role, by position in `RoleName::ALL`; for reports.
        pub role: u32,
    }
}

abi_struct! {
    /// One instruction.
    pub struct InstructionEntry: size 88 {
        /// Address of the u64 number of rows that the ticket of `put` carries, or 0.
        pub rows: u64,
        /// Position of the first row of Q.
        pub query: u64,
        /// An `OpCode`.
        pub op: u32,
        /// A `MaskCode` of attention, a `StageCode` of an expert; 1 for a pack that reads rows packed for `held`.
        pub variant: u32,
        /// An `Element`: the type of what a product reads, and of a sum's sources that are not f32.
        pub input: u32,
        /// An `Element`: the type of what a product or a sum writes.
        pub output: u32,
        /// Rows of a tile of an expert.
        pub tile: u32,
        /// The experts of a route or a merge, and those that a pack wants: the first,
        pub expert_first: u32,
        /// and one past the last.
        pub expert_end: u32,
        /// The experts of which a pack reads tokens: the first,
        pub held_first: u32,
        /// and one past the last.
        pub held_end: u32,
        /// The put of a ticket.
        pub put: u32,
        /// Its first segment.
        pub segments: u32,
        /// Its segments, at least one.
        pub segment_count: u32,
        /// The first span written.
        pub writes: u32,
        /// Spans written.
        pub write_count: u32,
        /// The first signal.
        pub signals: u32,
        /// Signals raised.
        pub signal_count: u32,
        /// 1 if data decides how many rows go to another rank's memory.
        pub away: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// The tile of an instruction whose op is `OpCode::Tile`: a product C = A B, or attention with O for C, K for A and V
    /// for B. Coordinates count elements of the tensor maps, which are named by index.
    pub struct TileEntry: size 96 {
        /// Address of the first byte that the map of C covers.
        pub out: u64,
        /// Its row pitch in bytes.
        pub pitch: u64,
        /// The first segment's `BoxEntry`, so that it is there with the claim: `position`; the rest is below.
        pub position: u64,
        /// The map of C.
        pub c_map: u32,
        /// First row in C.
        pub row: u32,
        /// First column in C.
        pub column: u32,
        /// Rows that are written, at least one.
        pub rows: u32,
        /// One past the last column that is written, from the first of the map.
        pub columns: u32,
        /// Of a product: blocks of 64 of K, over all segments.
        pub blocks: u32,
        /// The first segment's first wait.
        pub waits: u32,
        /// Its waits.
        pub wait_count: u32,
        /// Of attention: the map of Q,
        pub q_map: u32,
        /// the first row in Q,
        pub q_row: u32,
        /// the first column in Q.
        pub q_column: u32,
        /// Of the first segment: `a_map`,
        pub a_map: u32,
        /// `a_row`,
        pub a_row: u32,
        /// `a_column`,
        pub a_column: u32,
        /// `b_map`,
        pub b_map: u32,
        /// `b_row`,
        pub b_row: u32,
        /// `b_column`,
        pub b_column: u32,
        /// `length`.
        pub length: u32,
    }
}

abi_struct! {
    /// The operands of a segment of a tile. The K of a product starts and ends with both maps.
    pub struct BoxEntry: size 40 {
        /// Of attention: position of the first key.
        pub position: u64,
        /// The map of A.
        pub a_map: u32,
        /// First row in A.
        pub a_row: u32,
        /// First column in A.
        pub a_column: u32,
        /// The map of B.
        pub b_map: u32,
        /// First row in B.
        pub b_row: u32,
        /// First column in B.
        pub b_column: u32,
        /// Blocks of 64 of K, at least one; or keys.
        pub length: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// One segment of an instruction.
    pub struct SegmentEntry: size 32 {
        /// First index along the axis that segments divide.
        pub position: u64,
        /// The first wait.
        pub waits: u32,
        /// Waits.
        pub wait_count: u32,
        /// The first of the waits of which data picks.
        pub picked: u32,
        /// Those waits.
        pub picked_count: u32,
        /// The first span read.
        pub reads: u32,
        /// Spans read.
        pub read_count: u32,
    }
}

abi_struct! {
    /// One wait: in epoch `e` for `(e + 1) * arrivals`.
    pub struct WaitEntry: size 24 {
        /// Address of the cell.
        pub address: u64,
        /// Arrivals in one epoch.
        pub arrivals: u32,
        /// The cell's id, for the fault record.
        pub cell: u32,
        /// An `EdgeScope`: the furthest source of the cell.
        pub scope: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// A rectangle of bytes.
    pub struct SpanEntry: size 32 {
        /// Address of the first byte.
        pub address: u64,
        /// Bytes of a row.
        pub row_bytes: u64,
        /// Bytes from one row's start to the next.
        pub stride: u64,
        /// Rows.
        pub rows: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// One signal.
    pub struct SignalEntry: size 16 {
        /// Address of the cell.
        pub address: u64,
        /// By how much it rises.
        pub amount: u32,
        /// An `EdgeScope`: how far away its waiter is.
        pub scope: u32,
    }
}

abi_struct! {
    /// What the CTAs of a lane did in all launches.
    pub struct LaneTotals: size 32 {
        /// Instructions retired.
        pub tasks: u64,
        /// Nanoseconds in instructions, waits left out, over all CTAs.
        pub busy_ns: u64,
        /// Nanoseconds in waits, over all CTAs.
        pub wait_ns: u64,
        /// Bytes that went to other ranks' memory where data decides how many.
        pub peer_bytes: u64,
    }
}

abi_struct! {
    /// A rank's program and state by address.
    pub struct RankEntry: size 120 {
        /// `LaneEntry`s.
        pub lanes: u64,
        /// `InstructionEntry`s.
        pub instructions: u64,
        /// `SegmentEntry`s.
        pub segments: u64,
        /// `WaitEntry`s.
        pub waits: u64,
        /// `SpanEntry`s.
        pub spans: u64,
        /// `SignalEntry`s.
        pub signals: u64,
        /// `TileEntry`s, one per instruction, or 0 if there are no tiles.
        pub tiles: u64,
        /// `BoxEntry`s, one per segment, or 0 if there are no tiles.
        pub boxes: u64,
        /// Tensor maps.
        pub maps: u64,
        /// Two sets of one u32 per lane: instructions claimed in launches of even and of odd epochs.
        pub claims: u64,
        /// `LaneTotals`, one per lane.
        pub totals: u64,
        /// The u64 position that the next ticket takes; only the device counts it.
        pub fifo_head: u64,
        /// `FifoHeader` and slots, in host memory.
        pub fifo: u64,
        /// log2 of the slots.
        pub fifo_shift: u32,
        /// The rank.
        pub rank: u32,
        /// Lanes.
        pub lane_count: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// Where a CTA starts.
    pub struct HomeEntry: size 8 {
        /// Index into the launch's ranks.
        pub rank: u32,
        /// The lane.
        pub lane: u32,
    }
}

abi_struct! {
    /// The first fault of a launch, in host memory.
    pub struct FaultRecord: size 48 {
        /// Not 0 once the other fields are written.
        pub written: u64,
        /// The value that the wait asked for.
        pub wanted: u64,
        /// The value last seen.
        pub seen: u64,
        /// A `FaultCode`.
        pub code: u32,
        /// Index into the launch's ranks.
        pub rank: u32,
        /// The lane.
        pub lane: u32,
        /// The instruction's index in its lane.
        pub instruction: u32,
        /// The cell waited for; for `FaultCode::FifoFull` the put.
        pub cell: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// The kernel's parameter.
    pub struct LaunchEntry: size 80 {
        /// `RankEntry`s.
        pub ranks: u64,
        /// One `HomeEntry` per CTA.
        pub homes: u64,
        /// The u64 epoch of the launch; the last CTA to leave moves it on.
        pub epoch: u64,
        /// The `FaultRecord`, in host memory.
        pub fault: u64,
        /// A u32 in device memory: not 0 once somebody owns the fault record.
        pub fault_claim: u64,
        /// A u32 in host memory: not 0 once the launch is to unwind.
        pub abort: u64,
        /// A u32 in device memory: CTAs that have left the launch.
        pub exits: u64,
        /// A u64 in device memory that rises with every instruction that retires, on any CTA.
        pub progress: u64,
        /// Nanoseconds for which a wait may see no progress.
        pub deadline_ns: u64,
        /// Ranks.
        pub rank_count: u32,
        /// Not 0 if released memory is to be filled with NaN.
        pub poison: u32,
    }
}

/// The C++ text of every layout here and of those of the core that the device uses, for namespace `mk`.
pub fn text() -> String {
    let items: [fn() -> String; 22] = [
        TicketBits::cpp,
        FifoHeader::cpp,
        OpCode::cpp,
        MaskCode::cpp,
        StageCode::cpp,
        Element::cpp,
        EdgeScope::cpp,
        FaultCode::cpp,
        KernelShape::cpp,
        LaneEntry::cpp,
        InstructionEntry::cpp,
        TileEntry::cpp,
        BoxEntry::cpp,
        SegmentEntry::cpp,
        WaitEntry::cpp,
        SpanEntry::cpp,
        SignalEntry::cpp,
        LaneTotals::cpp,
        RankEntry::cpp,
        HomeEntry::cpp,
        FaultRecord::cpp,
        LaunchEntry::cpp,
    ];
    format!("namespace mk {{\n{}}}  // namespace mk\n", abi::text(&items))
}

/// Bytes of one entry, as the launcher allocates them.
pub const fn size_of<T: AbiType>() -> usize {
    std::mem::size_of::<T>()
}
