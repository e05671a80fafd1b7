//! Peer GPU memory for mkernel: empty until the CUDA executor can use it.
