//! The persistent kernel on a GPU: compile, load, launch, and the host side of a running launch.
//!
//! Three rungs, never skipped: cudarc's calls, one `Result` each; owned types that free what they hold ([`memory`],
//! [`module`], [`nvrtc`]); and [`executor`], which has no unsafe code.

mod agent;
pub mod cache;
pub mod error;
pub mod executor;
pub mod gpu;
pub mod heap;
pub mod memory;
pub mod module;
pub mod nvrtc;
mod outcome;
mod program;
mod running;
pub mod stream;
mod tensor_map;

pub use error::CudaError;
pub use executor::{Compute, CudaExecutor, Options};
pub use heap::Heap;
