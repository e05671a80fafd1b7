//! Verified programs on the host: memory, transport, executors and a race detector.
//!
//! | concept | module |
//! |---|---|
//! | what every instruction means | `ops` on `memory` and `cells` |
//! | how badly puts may arrive | [`network`], delivered by `loopback` |
//! | any schedule, replayed from a seed | [`seeded`] |
//! | what went wrong | `hang` |
#![deny(unsafe_code)]

mod cells;
mod hang;
mod host;
mod loopback;
mod memory;
mod ops;
mod schedule;
mod sgemm;

pub mod error;
pub mod network;
pub mod options;
pub mod seeded;

pub use error::SimError;
pub use network::{Injection, Network};
pub use options::Options;
pub use seeded::Seeded;
