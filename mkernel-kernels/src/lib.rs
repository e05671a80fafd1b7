//! Roles and operator planners: pure Rust, from a problem and a world to one rank's program.

pub mod operator;
pub mod profile;
pub mod split;

pub mod ag_gemm;
pub mod moe;

pub use ag_gemm::AgGemm;
pub use moe::{MoeDispatchGemm, MoeFfn};
pub use operator::{Operator, PlanError, TensorKind, TensorSpec};
pub use profile::Profile;
pub use split::{RoleCtas, Work};
