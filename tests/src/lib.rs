//! Programs, mutations, oracles and fixtures that the workspace tests share.

pub mod ag_gemm;
