//! How the processes of a job find each other, prove who they are, and hear of each other's faults.
//!
//! Rank 0 listens at the address that the launcher names; every other rank connects to it, so there is no order in which
//! ranks must start and no cycle of dials. Both ends prove that they hold the job's secret. When all ranks have arrived
//! the listener closes and the connections stay open as the control channel: the ranks exchange blobs over it, compare
//! what must be equal, and whatever ends one rank reaches all through rank 0. `docs/bootstrap.md` has the tables.
//!
//! Deciding and doing are apart: [`Decoder`] and the state machines of rank 0 and of a member are pure; `link`, `server`
//! and `client` move bytes. No thread is started: the owner of a [`Control`] calls [`Control::step`].

mod auth;
mod client;
mod control;
mod error;
mod fault;
mod fields;
mod frame;
mod hub;
mod link;
mod listen;
mod member;
#[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "only ranks that run raise records"))]
pub(crate) mod record;
mod server;
mod setup;
mod wire;

#[cfg(test)]
mod machine_tests;

pub use auth::{MIN_SECRET_BYTES, PROOF_BYTES, Secret};
pub use control::{Control, join};
pub use error::{Attempt, Error, Refusal, Refusals};
pub use fault::{JobFault, MAX_RECORD, Step};
pub use fields::{Divergence, Fields};
pub use frame::{Decoder, FrameError, HEADER_BYTES, Hello, MAX_BLOB, MAX_JOB, Message, Reason, VERSION};
pub use member::Failure;
pub use setup::{MAX_RANKS, Place, Setup};

use mkernel_core::World;

/// What a rank hears on the control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All ranks have arrived.
    Joined {
        /// The ranks of each node.
        world: World,
    },
    /// An exchange is complete.
    Shared {
        /// The blob of each rank.
        blobs: Vec<Vec<u8>>,
    },
    /// A rank left before the others. Only rank 0 hears of it.
    Left {
        /// The rank.
        rank: u32,
    },
    /// After a fault a rank says what it was doing. Only rank 0 hears of it.
    Account {
        /// The rank.
        rank: u32,
        /// In the words of its executor.
        blob: Vec<u8>,
    },
    /// The job has a fault: the first one, the same on every rank.
    Fault(JobFault),
    /// Every rank has left, or this rank has left after a fault. Nothing follows.
    Closed,
}
