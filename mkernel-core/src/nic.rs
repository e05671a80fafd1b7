//! What a NIC is asked for: write requests on queue pairs, as plain data.
//!
//! [`Nic`] is the line between deciding and doing. A transport decides which requests carry a put; a NIC posts them and hands
//! completions back. Real NICs, a model of bad ones and one that does nothing all stand behind it.
//!
//! Addresses and keys are numbers that mean something to the NIC alone.

use std::fmt::Debug;

use crate::world::Rank;

/// Memory that a NIC may read and write while the program runs.
///
/// # Safety
/// From [`Shared::address`] on, [`Shared::bytes`] bytes stay mapped, readable and writable, as long as the value lives, and
/// the program reaches them through raw pointers and atomics alone, never through a reference to plain bytes.
#[allow(unsafe_code, reason = "a declaration")]
pub unsafe trait Shared: Debug + Send + Sync {
    /// The first byte.
    fn address(&self) -> u64;

    /// How many there are.
    fn bytes(&self) -> u64;
}

/// Bytes of this rank that a request reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub bytes: u32,
    /// The local key of the memory.
    pub key: u32,
}

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Pieces of this rank's memory, one after the other: `count` entries of [`Chain::pieces`] from `first`.
    Pieces {
        /// The first entry.
        first: u32,
        /// Number of entries; zero for a request that carries its immediate alone.
        count: u32,
    },
    /// This value, little endian; it is no longer needed once the request has been posted.
    Value(u64),
}

/// One write to a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Comes back in the completion.
    pub id: u64,
    /// What is written.
    pub payload: Payload,
    /// Address of the first byte written.
    pub target: u64,
    /// The remote key of the memory.
    pub key: u32,
    /// Handed to the target once the bytes are visible there.
    pub immediate: Option<u32>,
    /// Whether success is reported; failure always is.
    pub is_signalled: bool,
}

/// Requests for one queue pair, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The requests.
    pub requests: Vec<Request>,
    /// What they read.
    pub pieces: Vec<Piece>,
}

impl Chain {
    /// What a request of this chain reads from memory.
    pub fn pieces(&self, request: &Request) -> &[Piece] {
        match request.payload {
            Payload::Pieces { first, count } => &self.pieces[first as usize..(first + count) as usize],
            Payload::Value(_) => &[],
        }
    }

    /// Forgets all requests, and keeps the memory.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
    }

    /// Forgets the first `count` requests. Their pieces stay until [`Chain::clear`].
    pub fn remove_first(&mut self, count: usize) {
        self.requests.drain(..count);
    }
}

/// What a queue pair takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that are posted and not known to be complete, per queue pair; at least 1.
    pub requests: u32,
    /// Pieces of one request; at least 1.
    pub pieces: u32,
    /// Bytes of one request; at least 8.
    pub message: u64,
}

/// A queue pair of this rank, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEnd {
    /// The rank at the other end.
    pub peer: Rank,
    /// Which of this rank's NICs it belongs to.
    pub rail: u32,
}

/// What a NIC reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A request of this rank is complete, successfully or not. On a queue pair that keeps order, so are all before it.
    Sent {
        /// The queue pair.
        queue: u32,
        /// The request.
        id: u64,
        /// 0, or what went wrong ([`crate::transport::status_name`]).
        status: u32,
    },
    /// A peer's request with this immediate has landed.
    Landed {
        /// The immediate.
        immediate: u32,
    },
}

/// A chain was not posted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the NIC took {posted} requests and refused the next with error {error}")]
pub struct Refused {
    /// Requests from the start of the chain that were posted.
    pub posted: usize,
    /// The operating system's error number.
    pub error: i32,
    /// Whether the same request may be taken later.
    pub is_temporary: bool,
}

/// One rank's queue pairs, numbered from 0.
pub trait Nic {
    /// What each of its queue pairs takes.
    fn limits(&self) -> Limits;

    /// Posts a chain on a queue pair. The caller keeps to [`Limits`].
    ///
    /// # Errors
    /// [`Refused`] if not all of it was posted.
    fn post(&mut self, queue: u32, chain: &Chain) -> Result<(), Refused>;

    /// Appends what has completed since the last call.
    ///
    /// # Errors
    /// The operating system's error number if completions cannot be had any more.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), i32>;

    /// The cause behind a failed request's status, where the NIC can tell more than the completion did.
    fn cause(&self, _queue: u32, status: u32) -> u32 {
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_chain_still_finds_its_pieces() {
        let piece = |address| Piece { address, bytes: 1, key: 0 };
        let request = |id, first, count| Request {
            id,
            payload: Payload::Pieces { first, count },
            target: 0,
            key: 0,
            immediate: None,
            is_signalled: false,
        };
        let mut chain =
            Chain { requests: vec![request(0, 0, 1), request(1, 1, 2)], pieces: vec![piece(7), piece(8), piece(9)] };
        chain.remove_first(1);
        assert_eq!(chain.pieces(&chain.requests[0]), [piece(8), piece(9)]);
    }
}
