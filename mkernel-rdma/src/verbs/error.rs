//! Why RDMA does not work here, sorted by what to do about it.

use std::io;

/// An error of this module.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// Load a driver, or use another transport.
    #[error(
        "this machine has no RDMA device; load the driver of its NIC, or soft-RoCE (modprobe rdma_rxe; rdma link add rxe0 \
         type rxe netdev eth0)"
    )]
    NoDevice,
    /// Name a device that is there.
    #[error("there is no RDMA device {name}; this machine has {found}")]
    NotFound {
        /// The name asked for.
        name: String,
        /// What is there.
        found: String,
    },
    /// Ask for access.
    #[error(
        "no permission to open RDMA device {device}; make /dev/infiniband/uverbs* readable and writable for this user"
    )]
    Permission {
        /// The device.
        device: String,
    },
    /// Bring the link up.
    #[error("no port of RDMA device {device} is active; bring its link up (ip link set DEV up)")]
    NoPort {
        /// The device.
        device: String,
    },
    /// Give the port an address.
    #[error("port {port} of RDMA device {device} has no GID; give its network interface an address")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// Raise the limit.
    #[error(
        "cannot register {bytes} bytes with RDMA device {device}: the limit of locked memory is {limit} bytes; raise it (ulimit \
         -l unlimited, LimitMEMLOCK=infinity in a service, --ulimit memlock=-1 for a container)"
    )]
    Memlock {
        /// The device.
        device: String,
        /// Bytes to register.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Use host memory: the device cannot reach a GPU's.
    #[error("RDMA device {device} cannot register GPU memory (dma-buf is not supported); stage through host memory")]
    NoDmaBuf {
        /// The device.
        device: String,
    },
    /// Use the same number of rails on all ranks.
    #[error("rank {rank} does not speak of RDMA as this rank does: its offer is of another form")]
    Offer {
        /// The rank.
        rank: u32,
    },
    /// A call failed.
    #[error("{call} failed on RDMA device {device}")]
    Call {
        /// The function.
        call: &'static str,
        /// The device.
        device: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}
