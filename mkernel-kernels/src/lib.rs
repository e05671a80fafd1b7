//! Roles and operator planners: pure Rust, from a problem and a world to one rank's program, and on to its device form.
//!
//! Behind `cuda`: the persistent kernel that runs the device form.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod encode;
pub mod operator;
pub mod profile;
pub mod split;

pub mod ag_gemm;
mod gather;
pub mod gemm_ar;
pub mod gemm_rs;
pub mod moe;
pub mod ring_attention;
pub mod split_k;

pub use ag_gemm::AgGemm;
pub use gemm_ar::{AllReduce, GemmAr};
pub use gemm_rs::GemmRs;
pub use moe::{MoeDispatchGemm, MoeFfn};
pub use operator::{Operator, PlanError, TensorKind, TensorSpec};
pub use profile::Profile;
pub use ring_attention::RingAttention;
pub use split::{RoleCtas, Work};
pub use split_k::Partial;
