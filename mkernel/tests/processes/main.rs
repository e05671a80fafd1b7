//! Ranks as processes over shared memory, through the command: every operator, every world, every way to lose a rank.
#![expect(clippy::unwrap_used, reason = "all of this is test code")]

mod asked;
mod faults;
mod good;
mod job;
