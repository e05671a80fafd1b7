//! The command as a process: what it prints, what it writes, how it ends.

mod files;
mod flags;
mod good;
mod plans;
mod support;
