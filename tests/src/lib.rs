//! Programs, mutations, oracles and fixtures that the workspace tests share.

pub mod ag_gemm;
pub mod campaign;
pub mod conformance;
pub mod judge;
pub mod model;
pub mod moe;
pub mod mutate;
pub mod original;
pub mod random;
pub mod relay;
pub mod split_k;
