//! Roles and operator planners: pure Rust, from a problem and a world to one rank's program.

pub mod operator;
pub mod profile;
pub mod split;

pub mod ag_gemm;
pub mod gemm_ar;
pub mod gemm_rs;
pub mod ring_attention;
pub mod split_k;

pub use ag_gemm::AgGemm;
pub use gemm_ar::{AllReduce, GemmAr};
pub use gemm_rs::GemmRs;
pub use operator::{Operator, PlanError, TensorKind, TensorSpec};
pub use profile::Profile;
pub use ring_attention::RingAttention;
pub use split::{RoleCtas, Work};
pub use split_k::Partial;
