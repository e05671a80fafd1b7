//! Transports carry puts.
//!
//! The contract promises the least that hardware keeps: the signal of a put covers that put's bytes; there is no order
//! between puts; completion frees the source and says nothing about arrival. A transport may deliver in any order, in
//! pieces, late; it never raises a signal before all bytes of its put are visible at the target.

use crate::region::Span;
use crate::signal::CellId;

/// Whether writes of one queue pair land in the order in which they were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ordering {
    /// As reliable connections do (InfiniBand RC, RoCE).
    InOrder,
    /// As scalable reliable datagrams do (EFA SRD).
    Unordered,
}

/// How a transport makes the signal follow the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signalling {
    /// The signal is a second write on the same queue pair.
    WriteAfterWrite,
    /// The signal travels as immediate data; the receiving side raises the cell after completion.
    Immediate,
    /// The receiving side counts bytes or messages and raises the cell when all have landed.
    Counter,
}

/// A pair of ordering and signalling that is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    ordering: Ordering,
    signalling: Signalling,
}

/// The pair would let a signal overtake its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a signal written after its bytes overtakes them on an unordered transport; signal by immediate or counter")]
pub struct UnsoundContract;

impl Contract {
    /// Pairs an ordering with a way to signal.
    ///
    /// # Errors
    /// [`UnsoundContract`] for write-after-write on an unordered transport.
    pub const fn new(ordering: Ordering, signalling: Signalling) -> Result<Contract, UnsoundContract> {
        match (ordering, signalling) {
            (Ordering::Unordered, Signalling::WriteAfterWrite) => Err(UnsoundContract),
            _ => Ok(Contract { ordering, signalling }),
        }
    }

    /// The ordering stated.
    pub const fn ordering(&self) -> Ordering {
        self.ordering
    }

    /// The way of signalling stated.
    pub const fn signalling(&self) -> Signalling {
        self.signalling
    }
}

/// One put in flight, with everything resolved: a transport knows nothing of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Comes back in [`Transport::poll`] once the source has been read; no other post has it.
    pub token: u64,
    /// Bytes read.
    pub source: Span,
    /// Where they land.
    pub target: Span,
    /// The cell of the target rank.
    pub cell: CellId,
    /// The value that the cell takes once the bytes are visible. The cell has no other source in this epoch.
    pub value: u64,
}

/// Why a put was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full: poll and try again with the same post.
    #[error("the send queue is full")]
    Full,
    /// The put can never be carried.
    #[error(transparent)]
    Failed(#[from] TransportError),
}

/// A put failed for good; the session is poisoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("put {token} to rank {peer} failed with status {status} ({})", status_name(*status))]
pub struct TransportError {
    /// The token of the put.
    pub token: u64,
    /// The target rank.
    pub peer: u32,
    /// The transport's own status code (a verbs work completion status for RDMA).
    pub status: u32,
}

/// What a status means, by the numbers of verbs work completions (ibv_poll_cq(3)), and what to look at.
pub const fn status_name(status: u32) -> &'static str {
    match status {
        STATUS_LENGTH => "bytes beyond what the queue pair takes",
        2 => "a request that the queue pair cannot carry",
        4 => "memory of this rank that is not registered",
        STATUS_FLUSHED => "given up after an earlier failure of the queue pair",
        9 => "refused as an invalid request by the peer's NIC",
        10 => "no access to the peer's memory: wrong key or bounds",
        11 => "the peer's NIC could not carry it out",
        STATUS_UNREACHABLE => "no answer: the peer, its process or the link is gone",
        13 => "the peer is not ready to receive",
        STATUS_REFUSED => "the NIC takes no more requests",
        STATUS_NO_PEER => "there is no connection to that rank",
        STATUS_LINK_DOWN => "the link of this rank's NIC is down",
        _ => "see ibv_wc_status",
    }
}

/// `IBV_WC_LOC_LEN_ERR`.
pub const STATUS_LENGTH: u32 = 1;
/// `IBV_WC_WR_FLUSH_ERR`: never the cause itself.
pub const STATUS_FLUSHED: u32 = 5;
/// `IBV_WC_RETRY_EXC_ERR`.
pub const STATUS_UNREACHABLE: u32 = 12;
/// Not of verbs: posting failed for good.
pub const STATUS_REFUSED: u32 = 1 << 16;
/// Not of verbs: nothing leads to the rank.
pub const STATUS_NO_PEER: u32 = STATUS_REFUSED + 1;
/// Not of verbs: a failure while the NIC's port was down.
pub const STATUS_LINK_DOWN: u32 = STATUS_REFUSED + 2;

/// Carries puts to other ranks. Neither call blocks.
pub trait Transport {
    /// What it states about order and signals.
    fn contract(&self) -> Contract;

    /// Starts one put.
    ///
    /// # Errors
    /// [`PostError::Full`] if it must be tried again, [`PostError::Failed`] if it can never succeed.
    fn post(&mut self, post: &Post) -> Result<(), PostError>;

    /// Makes progress and appends the tokens of puts whose sources have been read.
    ///
    /// # Errors
    /// The first failed put.
    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError>;

    /// Appends the cells of this rank whose puts have landed as a whole since the last call, once for each put, where it
    /// is not the put that writes the cell ([`Signalling::WriteAfterWrite`]). Whoever polls raises each by one.
    fn landed(&mut self, _cells: &mut Vec<CellId>) {}
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn contract(&self) -> Contract {
        (**self).contract()
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        (**self).post(post)
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        (**self).poll(retired)
    }

    fn landed(&mut self, cells: &mut Vec<CellId>) {
        (**self).landed(cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_written_after_its_bytes_needs_an_ordered_transport() {
        use Signalling::{Counter, Immediate, WriteAfterWrite};
        for signalling in [WriteAfterWrite, Immediate, Counter] {
            let ordered = Contract::new(Ordering::InOrder, signalling).map(|c| (c.ordering(), c.signalling()));
            assert_eq!(ordered, Ok((Ordering::InOrder, signalling)));
            let is_refused = Contract::new(Ordering::Unordered, signalling) == Err(UnsoundContract);
            assert_eq!(is_refused, signalling == WriteAfterWrite);
        }
    }
}
