//! mkernel-kernels
