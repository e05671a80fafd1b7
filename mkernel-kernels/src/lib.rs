//! Roles and operator planners: pure Rust, from a problem and a world to one rank's program.

pub mod operator;
pub mod profile;
pub mod split;

pub mod ag_gemm;
mod gather;
pub mod ring_attention;

pub use ag_gemm::AgGemm;
pub use operator::{Operator, PlanError, TensorKind, TensorSpec};
pub use profile::Profile;
pub use ring_attention::RingAttention;
pub use split::{RoleCtas, Work};
