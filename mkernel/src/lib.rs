//! mkernel

pub mod bootstrap;
pub mod config;
