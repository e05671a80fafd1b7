//! RDMA transport for mkernel: empty until the proxy can post to a queue pair.
