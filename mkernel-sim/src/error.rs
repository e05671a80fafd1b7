//! Why a host executor cannot be made.

use mkernel_core::Rank;
use mkernel_core::fifo::FifoError;
use mkernel_core::proxy::ProxyError;

/// Why a host executor cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A region does not fit in this machine's memory.
    #[error("{rank}: no memory for region {region} of {bytes} bytes; use a smaller shape or more ranks")]
    Memory {
        /// The rank.
        rank: Rank,
        /// The region's name.
        region: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// An executor in one process hosts every rank of the world.
    #[error("{hosted} of {world} ranks have a verified program; this executor hosts all of them")]
    MissingRanks {
        /// Ranks with a program.
        hosted: usize,
        /// Ranks of the world.
        world: u32,
    },
    /// The ring between CTAs and proxy cannot be made.
    #[error("the ticket ring cannot be made")]
    Ring(#[from] FifoError),
    /// A proxy cannot be made.
    #[error("a proxy cannot be made")]
    Proxy(#[from] ProxyError),
}
