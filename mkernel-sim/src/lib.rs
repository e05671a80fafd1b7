//! Verified programs on the host: memory, transport, executors and a race detector.
//!
//! | concept | module |
//! |---|---|
//! | what every instruction means | `ops` on `memory` and `cells` |
//! | how badly puts may arrive | [`network`], delivered by `loopback` |
//! | any schedule, replayed from a seed | [`seeded`] |
//! | one thread per CTA and proxy | [`threaded`] |
//! | the same programs without data, every access watched | [`race`] |
//! | what went wrong | `watch`, `hang` |
#![deny(unsafe_code)]

mod cells;
mod hang;
mod host;
mod loopback;
mod memory;
mod ops;
mod schedule;
mod sgemm;
mod watch;

pub mod error;
pub mod network;
pub mod options;
pub mod race;
pub mod seeded;
pub mod threaded;

pub use error::SimError;
pub use network::{Injection, Network};
pub use options::Options;
pub use race::find_races;
pub use seeded::Seeded;
pub use threaded::Threaded;
