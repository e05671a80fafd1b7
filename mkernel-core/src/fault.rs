//! The one way in which a launch fails.

use std::fmt;

use crate::program::LaneId;
use crate::role::RoleName;
use crate::signal::CellId;
use crate::transport::status_name;
use crate::world::Rank;

/// What went wrong first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// A wait did not come true before the deadline.
    Deadline,
    /// The transport reported an error for a put.
    Transport,
    /// A FIFO stayed full until the deadline: the proxy is gone or stuck.
    FifoFull,
    /// Another instruction, rank or the caller asked to stop.
    Aborted,
    /// An executor's own thread died.
    Died,
    /// An index in memory says something beyond what was planned: memory was overwritten from outside.
    Index,
}

impl FaultKind {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::Deadline => "deadline",
            FaultKind::Transport => "transport",
            FaultKind::FifoFull => "fifo-full",
            FaultKind::Aborted => "aborted",
            FaultKind::Died => "died",
            FaultKind::Index => "index",
        }
    }
}

/// The record of the first failure of a launch: who was doing what, and what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Where.
    pub rank: Rank,
    /// The role of the lane.
    pub role: Option<RoleName>,
    /// The lane.
    pub lane: Option<LaneId>,
    /// The instruction's index in its lane.
    pub instruction: Option<u32>,
    /// The cell waited for.
    pub cell: Option<CellId>,
    /// The value that the wait asked for.
    pub wanted: u64,
    /// The value last seen there.
    pub seen: u64,
    /// The other rank concerned: the source of the missing signal or the target of the failed put.
    pub peer: Option<Rank>,
    /// What the transport said ([`crate::transport::status_name`]).
    pub status: Option<u32>,
}

impl Fault {
    /// A fault of `rank` with nothing else known.
    pub const fn new(kind: FaultKind, rank: Rank) -> Fault {
        let (role, lane, instruction, cell, peer, status) = (None, None, None, None, None, None);
        Fault { kind, rank, role, lane, instruction, cell, wanted: 0, seen: 0, peer, status }
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rank, self.kind.name())?;
        if let Some(role) = self.role {
            write!(f, " in role {role}")?;
        }
        if let (Some(lane), Some(instruction)) = (self.lane, self.instruction) {
            write!(f, ", lane {} instruction {instruction}", lane.0)?;
        }
        if let Some(cell) = self.cell {
            write!(f, ", waited for cell {} to reach {} and saw {}", cell.0, self.wanted, self.seen)?;
        }
        if let Some(peer) = self.peer {
            write!(f, "; the other side is {peer}")?;
        }
        if let Some(status) = self.status {
            write!(f, "; status {status}, {}", status_name(status))?;
        }
        if self.kind == FaultKind::Deadline {
            write!(f, "; if a step only takes longer than that, set a longer deadline (--deadline-ms)")?;
        }
        Ok(())
    }
}
