//! RDMA transport for mkernel: puts as write requests on reliable queue pairs.
//!
//! | what | where |
//! |---|---|
//! | where memory is, by address and key | [`exposed`] |
//! | a put as write requests, as far as a queue has room | [`writes`] |
//! | which requests are on their way; no queue ever overflows | [`window`] |
//! | signals that travel as immediates | [`immediate`] |
//! | the transport, over any [`mkernel_core::nic::Nic`] | [`transport`] |
//! | real NICs: devices, memory, queue pairs (feature `verbs`) | `verbs` |
//!
//! Nothing here knows a program or an operator. All unsafe code is in `verbs`.
#![deny(unsafe_code)]

pub mod exposed;
pub mod immediate;
pub mod transport;
pub mod window;
pub mod writes;

#[cfg(feature = "verbs")]
pub mod verbs;

pub use exposed::{Exposed, Place};
pub use transport::{Links, Rdma};
