//! The command as a process: what it prints, what it writes, how it ends.

#![expect(clippy::unwrap_used, reason = "all of this is test code")]

mod experts;
mod files;
mod flags;
mod good;
mod measure;
mod plans;
mod support;
