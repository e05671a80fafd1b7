//! Roles: pure planners that fill lanes.

use std::fmt;

use crate::builder::LaneBuilder;

/// The part that a lane's CTAs play.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoleName {
    /// Tiles of matrix products and attention.
    Compute,
    /// Copies between GPUs of one node.
    Intra,
    /// Tickets for the NIC.
    Send,
    /// Sums of partials that arrive.
    Reduce,
}

impl RoleName {
    /// All roles, in the order of reports.
    pub const ALL: [RoleName; 4] = [RoleName::Compute, RoleName::Intra, RoleName::Send, RoleName::Reduce];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            RoleName::Compute => "compute",
            RoleName::Intra => "intra",
            RoleName::Send => "send",
            RoleName::Reduce => "reduce",
        }
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A pure planner of one lane: the same input always gives the same instructions.
pub trait Role {
    /// Which part it plays.
    fn name(&self) -> RoleName;

    /// Appends the lane's instructions in the order in which CTAs should claim them.
    fn fill(&self, lane: &mut LaneBuilder<'_>);
}
