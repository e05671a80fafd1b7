//! mkernel-sim
