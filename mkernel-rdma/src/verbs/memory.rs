//! Protection domains, and memory registered in them.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ibverbs_sys as sys;
use mkernel_core::nic::Shared;

use super::device::Device;
use super::error::VerbsError;
use super::result;

/// A protection domain: queue pairs reach the memory of their own only.
#[derive(Debug)]
pub struct Domain {
    pd: NonNull<sys::ibv_pd>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread, and at once from several (ibverbs(7)).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: it was allocated, and what was made in it keeps it alive, so all of that is gone.
        unsafe { sys::ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

impl Domain {
    /// A domain of a device.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Domain>, VerbsError> {
        // SAFETY: the device is open.
        let pd = unsafe { result::alloc_pd(device.context()) }.map_err(|e| device.error("ibv_alloc_pd", e))?;
        Ok(Arc::new(Domain { pd, device: Arc::clone(device) }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn pd(&self) -> NonNull<sys::ibv_pd> {
        self.pd
    }
}

/// Registered memory.
#[derive(Debug)]
pub struct Region {
    mr: NonNull<sys::ibv_mr>,
    domain: Arc<Domain>,
    /// What is registered; `None` for memory that the kernel keeps by its descriptor.
    memory: Option<Arc<dyn Shared>>,
}

// SAFETY: as for `Domain`; the memory itself is `Send` and `Sync`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was registered; queue pairs that use it end in an error if they still do.
        unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// What peers and this rank may do. Never relaxed ordering: a signal must not overtake its bytes.
fn access() -> sys::ibv_access_flags {
    sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
        | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ
}

impl Region {
    /// Registers memory of the host.
    ///
    /// # Errors
    /// [`VerbsError::Memlock`] if too little may be locked, [`VerbsError::Call`].
    pub fn host(domain: &Arc<Domain>, memory: Arc<dyn Shared>) -> Result<Region, VerbsError> {
        // SAFETY: the domain is allocated, and `Shared` promises that the memory stays mapped while `memory` lives.
        let mr = unsafe { result::reg_mr(domain.pd, memory.address(), memory.bytes(), access()) };
        let mr = mr.map_err(|error| no_room(domain, memory.bytes(), error))?;
        Ok(Region { mr, domain: Arc::clone(domain), memory: Some(memory) })
    }

    /// Registers memory of a GPU by its dma-buf: `bytes` bytes from `offset` on, which requests name by `address`.
    ///
    /// # Errors
    /// [`VerbsError::NoDmaBuf`] if the device cannot, [`VerbsError::Call`].
    pub fn dma_buf(
        domain: &Arc<Domain>,
        descriptor: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        address: u64,
    ) -> Result<Region, VerbsError> {
        // SAFETY: the domain is allocated.
        let mr = unsafe { result::reg_dmabuf(domain.pd, offset, bytes, address, descriptor.as_raw_fd(), access()) };
        let device = &domain.device;
        let mr = mr.map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => VerbsError::NoDmaBuf { device: device.name().to_owned() },
            _ => device.error("ibv_reg_dmabuf_mr", error),
        })?;
        Ok(Region { mr, domain: Arc::clone(domain), memory: None })
    }

    /// The key for requests of this rank.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// The key for requests of peers.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// The memory of the host that is registered.
    pub fn memory(&self) -> Option<&Arc<dyn Shared>> {
        self.memory.as_ref()
    }

    /// Where it is registered.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

/// Registration locks pages; without the right to, the kernel says that there is no memory.
fn no_room(domain: &Domain, bytes: u64, error: io::Error) -> VerbsError {
    let device = domain.device.name().to_owned();
    match (error.kind(), memlock()) {
        (io::ErrorKind::OutOfMemory, Some(limit)) => VerbsError::Memlock { device, bytes, limit },
        _ => VerbsError::Call { call: "ibv_reg_mr", device, source: error },
    }
}

/// The limit of locked memory, if there is one (proc_pid_limits(5)).
fn memlock() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Words of this process that a NIC may read and write.
#[derive(Debug)]
pub struct Words(Box<[AtomicU64]>);

impl Words {
    /// `count` words of zero.
    pub fn new(count: usize) -> Arc<Words> {
        Arc::new(Words((0..count.max(1)).map(|_| AtomicU64::new(0)).collect()))
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

// SAFETY: the box stays where it is as long as `self` lives, and its words are atomic.
unsafe impl Shared for Words {
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }
}
