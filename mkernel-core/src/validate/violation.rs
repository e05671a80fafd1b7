//! Why programs are refused.

use std::fmt;

use crate::program::{LaneId, PutId};
use crate::region::Span;
use crate::role::RoleName;
use crate::signal::CellId;
use crate::world::Rank;

/// An instruction, named as a user finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The rank.
    pub rank: Rank,
    /// The lane.
    pub lane: LaneId,
    /// The role of the lane.
    pub role: RoleName,
    /// The instruction's index in the lane.
    pub instruction: u32,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} lane {} instruction {}", self.rank, self.role, self.lane.0, self.instruction)
    }
}

/// Who touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// An instruction.
    Instruction(At),
    /// The transfer that a put instruction started; it goes on after the instruction.
    Transfer(At),
    /// The host, which writes inputs before a launch and reads outputs after it.
    Host(Rank),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Instruction(at) => at.fmt(f),
            Party::Transfer(at) => write!(f, "the transfer started by {at}"),
            Party::Host(rank) => write!(f, "the host of {rank} between launches"),
        }
    }
}

/// What is wrong with one instruction's own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A range points outside its pool.
    #[error("a list range lies outside its pool")]
    Slice,
    /// No segment at all.
    #[error("it has no segment")]
    NoSegment,
    /// The operation takes other numbers of spans.
    #[error("it reads or writes the wrong number of spans")]
    Arity,
    /// Shapes of the spans do not fit together.
    #[error("the shapes of its spans do not fit together")]
    Shape,
    /// A span is not a whole number of elements, or rows of one span overlap.
    #[error("a span is misaligned or its rows overlap")]
    Stride,
    /// An operation on floats is given integers.
    #[error("it computes with integers; it takes bf16, f16 or f32")]
    Element,
    /// Rows or keys beyond position 2^64, or a position where the operation has no axis.
    #[error("its positions do not fit in 64 bits, or it has no use for them")]
    Position,
    /// The put index does not exist or belongs to two instructions.
    #[error("its put does not exist or is posted by another instruction too")]
    Put,
    /// A cell does not exist.
    #[error("it names a cell that does not exist")]
    Cell,
    /// A signal of amount zero.
    #[error("it raises a signal by zero")]
    ZeroSignal,
    /// Memory or a cell of a rank that it cannot reach directly.
    #[error("it reaches a rank of another node without a put")]
    Reach,
}

/// The first thing found wrong with a set of programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// No program was given.
    #[error("no program to validate")]
    Nothing,
    /// Programs of different worlds, two of one rank, or a rank outside the world.
    #[error("the program of {0} is for another world, is outside it or is there twice")]
    World(Rank),
    /// The programs of some ranks are missing.
    #[error("{given} programs were given for a world of {size} ranks; for a part of the world use validate_rank")]
    Incomplete {
        /// Programs given.
        given: usize,
        /// Ranks of the world.
        size: u32,
    },
    /// The program of the rank to be proved, or of a rank that raises its cells, is missing.
    #[error("{0} or a rank that raises its cells is missing")]
    NotClosed(Rank),
    /// A lane without CTAs, without instructions, in a cycle of continuations, or beyond the last lane number.
    #[error("{rank} lane {lane}: {what}", lane = lane.0)]
    Lane {
        /// The rank.
        rank: Rank,
        /// The lane.
        lane: LaneId,
        /// What is wrong.
        what: LaneFault,
    },
    /// An instruction that is wrong by itself.
    #[error("{at}: {what}")]
    Malformed {
        /// The instruction.
        at: At,
        /// What is wrong.
        what: Malformed,
    },
    /// A put in the table that no instruction posts.
    #[error("{rank}: put {put} is never posted", put = put.0)]
    UnpostedPut {
        /// The rank.
        rank: Rank,
        /// The put.
        put: PutId,
    },
    /// A span outside its region.
    #[error("{party} touches {span}, outside its region")]
    Bounds {
        /// Who touches it.
        party: Party,
        /// The span.
        span: Span,
    },
    /// Contributions to a cell do not add up to its planned arrivals.
    #[error("{rank} cell {cell} is planned for {planned} arrivals per epoch and gets {actual}", cell = cell.0)]
    Arrivals {
        /// The rank that holds the cell.
        rank: Rank,
        /// The cell.
        cell: CellId,
        /// Its planned arrivals.
        planned: u32,
        /// What the programs contribute.
        actual: u64,
    },
    /// A cell with contributions from two ranks, or from a put and anything else.
    #[error("{rank} cell {cell} is raised by {first} and by {second}; a cell has one source rank, and one put or none", cell = cell.0)]
    Sources {
        /// The rank that holds the cell.
        rank: Rank,
        /// The cell.
        cell: CellId,
        /// One contributor.
        first: Party,
        /// Another.
        second: Party,
    },
    /// A wait for a cell that nothing raises: it orders nothing.
    #[error("{at} waits for cell {cell}, which has no arrivals", cell = cell.0)]
    VacuousWait {
        /// The instruction.
        at: At,
        /// The cell.
        cell: CellId,
    },
    /// A wait that is never met.
    #[error("deadlock in epoch {epoch}: {at} waits for cell {cell} to reach {wanted}, which stays at {seen}", cell = cell.0)]
    Deadlock {
        /// The first instruction that is stuck.
        at: At,
        /// The epoch, counted from the first launch.
        epoch: u64,
        /// The cell.
        cell: CellId,
        /// The threshold.
        wanted: u64,
        /// The value it stays at.
        seen: u64,
    },
    /// Two writes of one byte in one epoch.
    #[error("{first} and {second} both write bytes of {span} in one epoch")]
    TwoWriters {
        /// One writer.
        first: Party,
        /// The other.
        second: Party,
        /// What the second writes.
        span: Span,
    },
    /// A read of bytes that nothing writes in the epoch.
    #[error("{party} reads {span}, of which {missing} bytes are never written in that epoch")]
    NotWritten {
        /// The reader.
        party: Party,
        /// What it reads.
        span: Span,
        /// How many bytes are missing.
        missing: u64,
    },
    /// Two accesses of one byte, at least one a write, that must be ordered and are not.
    #[error(
        "race: {second} (epoch {second_epoch}) may touch {span} before {first} (epoch {first_epoch}) is done with it"
    )]
    Race {
        /// Who must come first.
        first: Party,
        /// The epoch of that access.
        first_epoch: u64,
        /// Who must come later.
        second: Party,
        /// The epoch of that access.
        second_epoch: u64,
        /// What the second touches.
        span: Span,
    },
    /// A contribution of a later epoch may arrive before an earlier epoch's wait has been met, or before the put of an
    /// earlier epoch has landed.
    #[error("{rank} cell {cell}: {raiser} may raise it for the next epoch before {waiter} is done with this one", cell = cell.0)]
    Overrun {
        /// The rank that holds the cell.
        rank: Rank,
        /// The cell.
        cell: CellId,
        /// Who waits, or the earlier epoch's put.
        waiter: Party,
        /// Who raises it too early.
        raiser: Party,
    },
    /// A read of something as an index, a count or the rows of a tile, of bytes that are written in no such form.
    #[error("{party} takes {span} for an index, a count or rows of a tile, and nothing writes it there in that form")]
    Form {
        /// Who uses it.
        party: Party,
        /// What it uses.
        span: Span,
    },
    /// Data may pick a way past the wait that orders a part of what is gathered.
    #[error("{at} gathers from {span}, and who writes a part of it does not raise the wait picked for that part")]
    Pick {
        /// The instruction.
        at: At,
        /// What it gathers from.
        span: Span,
    },
    /// NIC bytes differ from the operator's formula.
    #[error("{rank} moves {actual} bytes {direction} over the NIC per epoch; the law says {law}")]
    ByteLaw {
        /// The rank.
        rank: Rank,
        /// `out` or `in`.
        direction: &'static str,
        /// Bytes planned; 2^64 - 1 stands for more.
        actual: u64,
        /// Bytes by the formula.
        law: u64,
    },
    /// More nodes in the graph of events than can be numbered.
    #[error("the programs are too large to validate together: {events} events")]
    TooLarge {
        /// Events of all epochs.
        events: u64,
    },
}

/// What is wrong with a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneFault {
    /// No CTA claims from it.
    #[error("it has no CTA")]
    NoCta,
    /// It has no instruction.
    #[error("it has no instruction")]
    Empty,
    /// Lane numbers have 16 bits.
    #[error("there are more than 65536 lanes")]
    TooMany,
    /// Its continuation does not exist or leads back to it.
    #[error("its continuation does not exist or leads back to it")]
    Continuation,
}
