//! What the detector reports: who, where, and against whom.

use std::fmt;

use mkernel_core::{CellId, LaneId, Rank, RoleName, Span};

/// One side of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The rank that acts.
    pub rank: Rank,
    /// The launch, counted from 0.
    pub epoch: u32,
    /// What acts.
    pub actor: Actor,
}

/// What acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The host, writing inputs before a launch.
    HostWrite,
    /// The host, reading outputs after a launch.
    HostRead,
    /// The reads of one segment.
    Segment {
        /// Role of the lane.
        role: RoleName,
        /// The lane.
        lane: LaneId,
        /// The instruction's index.
        instruction: u32,
        /// The segment's index.
        segment: u32,
    },
    /// The writes and signals of an instruction.
    Write {
        /// Role of the lane.
        role: RoleName,
        /// The lane.
        lane: LaneId,
        /// The instruction's index.
        instruction: u32,
    },
    /// The transport, reading the source of a put.
    PutRead {
        /// The lane of the put's instruction.
        lane: LaneId,
        /// Its index.
        instruction: u32,
    },
    /// The transport, writing the target of a put and its signal.
    PutWrite {
        /// The lane of the put's instruction.
        lane: LaneId,
        /// Its index.
        instruction: u32,
    },
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Party { rank, epoch, actor } = self;
        match actor {
            Actor::HostWrite => write!(f, "{rank} epoch {epoch}: the host writing inputs"),
            Actor::HostRead => write!(f, "{rank} epoch {epoch}: the host reading outputs"),
            Actor::Segment { role, lane, instruction, segment } => {
                write!(f, "{rank} epoch {epoch}: {role} lane {} instruction {instruction} segment {segment}", lane.0)
            }
            Actor::Write { role, lane, instruction } => {
                write!(f, "{rank} epoch {epoch}: {role} lane {} instruction {instruction}", lane.0)
            }
            Actor::PutRead { lane, instruction } => {
                write!(f, "{rank} epoch {epoch}: the read of the put of lane {} instruction {instruction}", lane.0)
            }
            Actor::PutWrite { lane, instruction } => {
                write!(f, "{rank} epoch {epoch}: the landing of the put of lane {} instruction {instruction}", lane.0)
            }
        }
    }
}

/// Why programs are not sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Race {
    /// Two accesses, at least one of them a write, that nothing orders.
    #[error("{first} and {second} touch {span}, and nothing orders them")]
    Unordered {
        /// The access met first.
        first: Party,
        /// The access met second.
        second: Party,
        /// What the second touches.
        span: Span,
    },
    /// A read of bytes that hold nothing of this epoch.
    #[error("{reader} reads {span}, which nobody has written in this epoch or which has been released")]
    Undefined {
        /// The reader.
        reader: Party,
        /// Who wrote or released it last.
        last: Option<Party>,
        /// What it reads.
        span: Span,
    },
    /// A contribution of the next epoch may come before a wait of this one.
    #[error("{contributor} may raise cell {} before {waiter} has seen it", cell.0)]
    Early {
        /// The cell.
        cell: CellId,
        /// Who contributes too early.
        contributor: Party,
        /// The wait, or the put whose signal could be overtaken.
        waiter: Party,
    },
    /// A cell fills to something else than its plan.
    #[error("{rank} cell {} receives {counted} in epoch {epoch}, the plan says {planned}", cell.0)]
    Count {
        /// The cell's rank.
        rank: Rank,
        /// The cell.
        cell: CellId,
        /// The launch.
        epoch: u32,
        /// What was contributed by then.
        counted: u64,
        /// The planned total.
        planned: u64,
    },
    /// The cell of a put has other contributors.
    #[error("{put} fills {rank} cell {}, which is planned for more than that", cell.0)]
    SharedPutCell {
        /// The put.
        put: Party,
        /// The cell's rank.
        rank: Rank,
        /// The cell.
        cell: CellId,
    },
    /// A wait that never holds.
    #[error("{waiter} waits for cell {} for ever", cell.0)]
    Stuck {
        /// The instruction.
        waiter: Party,
        /// The cell.
        cell: CellId,
    },
    /// An index names nothing.
    #[error("{rank} lane {} instruction {instruction} names a cell, put or span that does not exist", lane.0)]
    Malformed {
        /// The rank.
        rank: Rank,
        /// The lane.
        lane: LaneId,
        /// The instruction's index.
        instruction: u32,
    },
}
