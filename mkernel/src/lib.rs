//! mkernel
