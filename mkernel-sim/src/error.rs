//! Why a host executor cannot be made.

use std::io;

use mkernel_core::Rank;
use mkernel_core::fifo::FifoError;
use mkernel_core::proxy::ProxyError;

/// Why memory that the processes of a host share cannot be made or reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// There is too little shared memory.
    #[error(
        "{rank} needs {bytes} bytes in {folder}, and all ranks together {all}, but {available} are free; enlarge it (mount -o \
         remount,size={all} {folder}) or use a smaller shape"
    )]
    TooSmall {
        /// The rank.
        rank: Rank,
        /// Where shared memory lives.
        folder: &'static str,
        /// Bytes that the rank needs.
        bytes: u64,
        /// Bytes that all ranks need.
        all: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// The operating system does not give shared memory.
    #[error("{rank}: no shared memory in {folder}: {cause}")]
    Create {
        /// The rank.
        rank: Rank,
        /// Where shared memory lives.
        folder: &'static str,
        /// What the operating system says.
        cause: io::ErrorKind,
    },
    /// A peer's memory is out of reach.
    #[error("the memory of {rank} is out of reach ({cause}); all ranks must run on one host, as one user")]
    Open {
        /// The peer.
        rank: Rank,
        /// What the operating system says.
        cause: io::ErrorKind,
    },
    /// A peer's memory is not laid out as this version and this plan say.
    #[error("the memory of {rank} is not of this version and plan: {field} is {found}, not {wanted}")]
    Header {
        /// The peer.
        rank: Rank,
        /// What differs.
        field: &'static str,
        /// The value there.
        found: u64,
        /// The value that it must have.
        wanted: u64,
    },
}

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
    /// An executor needs the program of every rank of the world.
    #[error("{hosted} of {world} ranks have a verified program; this executor needs all of them")]
    MissingRanks {
        /// Ranks with a program.
        hosted: usize,
        /// Ranks of the world.
        world: u32,
    },
    /// The ring between CTAs and proxy cannot be made.
    #[error("the ticket ring cannot be made")]
    Ring(#[from] FifoError),
    /// Memory that processes share cannot be made or reached.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A proxy cannot be made.
    #[error("a proxy cannot be made")]
    Proxy(#[from] ProxyError),
}
