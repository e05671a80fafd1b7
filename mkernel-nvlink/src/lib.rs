//! Peer GPU memory for mkernel, and the copy engines of a GPU as a transport.

#[cfg(feature = "cuda")]
pub mod copy_engine;

#[cfg(feature = "cuda")]
pub use copy_engine::{CopyEngine, CopyEngineError, Engines};
