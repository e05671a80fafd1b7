//! mkernel-core

pub mod abi;
pub mod fifo;
pub mod ticket;
