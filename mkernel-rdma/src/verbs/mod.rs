//! Real NICs, through libibverbs: three rungs, of which only the last is used from outside.
//!
//! | rung | where |
//! |---|---|
//! | the C functions | crate `ibverbs-sys` |
//! | one call, one `Result` | `result` |
//! | owned types, each keeping its parents alive by `Arc` | [`device`], [`memory`], [`queue`] |
//!
//! On top: which NIC and which address are used ([`choose`]), a rank's queue pairs as a [`mkernel_core::nic::Nic`]
//! ([`nic`]), and the small side channel between ranks ([`side`]).

pub mod choose;
pub mod device;
pub mod error;
pub mod memory;
pub mod nic;
mod offer;
pub mod queue;
mod result;
pub mod side;

pub use choose::{Choice, choose};
pub use device::{Device, devices};
pub use error::VerbsError;
pub use nic::{Offer, Pending, Rail, Settings};
