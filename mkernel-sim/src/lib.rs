//! Verified programs on the host: memory, transport, executors and a race detector.
//!
//! | concept | module |
//! |---|---|
//! | what every instruction means | `ops` on `memory` and `cells`, both in `block`s |
//! | how badly puts may arrive | [`network`], delivered by `loopback` |
//! | any schedule, replayed from a seed | [`seeded`] |
//! | one thread per CTA and proxy | [`threaded`] |
//! | the same with one process per rank | [`shm`], with memory in `segment` and peers on a [`board`] |
//! | the same programs without data, every access watched | [`race`] |
//! | what went wrong | `watch`, `hang` |
//! | what is going on | [`account`] |
#![deny(unsafe_code)]

mod block;
mod cells;
mod hang;
mod host;
mod loopback;
mod memory;
mod ops;
mod peers;
mod schedule;
mod segment;
mod sgemm;
mod split;
mod trace;
mod watch;

pub mod account;
pub mod board;
pub mod error;
pub mod fabric;
pub mod network;
pub mod options;
pub mod race;
pub mod seeded;
pub mod shm;
pub mod threaded;
pub mod wires;

pub use account::Account;
pub use board::Board;
pub use error::{SegmentError, SimError};
pub use fabric::Fabric;
pub use hang::first_cause;
pub use network::{Injection, Network};
pub use options::Options;
pub use race::find_races;
pub use seeded::Seeded;
pub use shm::{Segment, Shm};
pub use split::FarTransport;
pub use threaded::Threaded;
pub use wires::Wires;
