//! Executors run verified programs.

use std::num::NonZeroU32;

use crate::fault::Fault;
use crate::program::LaneId;
use crate::region::Span;
use crate::role::RoleName;
use crate::world::Rank;

/// What the CTAs of one lane did in one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneStats {
    /// The rank.
    pub rank: Rank,
    /// The role of the lane.
    pub role: RoleName,
    /// Home CTAs.
    pub ctas: u32,
    /// Instructions retired.
    pub tasks: u64,
    /// Time spent working, summed over CTAs, in microseconds.
    pub busy_us: f64,
    /// Time spent waiting for signals, summed over CTAs, in microseconds.
    pub wait_us: f64,
}

/// One stretch of one CTA's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceEvent {
    /// The rank.
    pub rank: Rank,
    /// The CTA within the rank.
    pub cta: u32,
    /// The lane that the instruction came from.
    pub lane: LaneId,
    /// The instruction's index in its lane.
    pub instruction: u32,
    /// What was going on.
    pub what: Activity,
    /// Start, in microseconds from the start of the launch.
    pub start_us: f64,
    /// Duration in microseconds.
    pub duration_us: f64,
}

/// What a CTA was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// Waiting for signals.
    Wait,
    /// Doing the instruction.
    Work,
}

/// What one launch did on the ranks that an executor hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Wall time of the launch, in microseconds.
    pub time_us: f64,
    /// One entry per lane of every hosted rank.
    pub lanes: Vec<LaneStats>,
    /// Payload bytes that each hosted rank wrote to peers of its node, by rank.
    pub intra_out: Vec<u64>,
    /// Payload bytes that each hosted rank sent over the NIC, by rank.
    pub inter_out: Vec<u64>,
    /// What every CTA did, if tracing is on.
    pub trace: Vec<TraceEvent>,
}

/// CTAs of a launch, over all ranks that share a GPU, must all be resident at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} CTAs cannot run at once; at most {most} fit")]
pub struct NotResident {
    /// CTAs over all lanes.
    pub asked: u32,
    /// CTAs that fit.
    pub most: u32,
}

/// Runs verified programs, one epoch a launch, on the ranks that it hosts.
///
/// The host may write inputs and read outputs between launches. After a fault the executor is poisoned: every later
/// launch answers with the same fault.
pub trait Executor {
    /// Runs one epoch to its end on all hosted ranks.
    ///
    /// # Errors
    /// The first fault; everything has unwound by then.
    fn launch(&mut self) -> Result<Run, Fault>;

    /// Sets how many CTAs claim from the lanes of `role` from the next launch on.
    ///
    /// That is always sound: progress is proved with one CTA per lane, which decides for every number of them, and
    /// neither lists, cells nor totals depend on it.
    ///
    /// # Errors
    /// [`NotResident`] if so many CTAs cannot run at once; nothing is changed then.
    fn set_ctas(&mut self, role: RoleName, ctas: NonZeroU32) -> Result<(), NotResident>;

    /// Writes `bytes`, of the span's length and row after row, into memory of a hosted rank.
    ///
    /// # Panics
    /// If the rank is not hosted, the span is out of bounds, or the lengths differ.
    fn write(&mut self, span: &Span, bytes: &[u8]);

    /// Reads a span of a hosted rank's memory into `bytes`, row after row.
    ///
    /// # Panics
    /// As [`Executor::write`].
    fn read(&self, span: &Span, bytes: &mut [u8]);
}
