//! mkernel-core
