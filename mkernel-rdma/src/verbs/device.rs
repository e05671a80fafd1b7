//! Devices, and what they say of themselves.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::error::VerbsError;
use super::result;

/// Most entries of a table of GIDs that are looked at.
const MOST_GIDS: usize = 256;

/// An open device.
#[derive(Debug)]
pub struct Device {
    name: String,
    context: NonNull<sys::ibv_context>,
    attributes: sys::ibv_device_attr,
}

// SAFETY: libibverbs may be called from any thread, and at once from several (ibverbs(7)); nothing else is in a device.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the context was opened, and whatever was made from it keeps the device alive, so all of that is gone.
        unsafe { sys::ibv_close_device(self.context.as_ptr()) };
    }
}

/// What a port says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether packets can be sent.
    pub is_active: bool,
    /// The path MTU by its code: 1 is 256 bytes, 5 is 4096.
    pub mtu: u32,
    /// Speed in units of 100 Mb/s.
    pub speed: u32,
    /// Most bytes of a message.
    pub message: u64,
    /// The InfiniBand address, 0 on Ethernet.
    pub lid: u16,
    /// Whether it is Ethernet.
    pub is_ethernet: bool,
    /// Its addresses.
    pub gids: Vec<Gid>,
}

impl Port {
    /// The path MTU in bytes.
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu
    }
}

/// How packets with a GID look on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: not routed.
    RoceV1,
    /// RoCE v2: UDP over IP.
    RoceV2,
}

/// One address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u32,
    /// The address, as an IPv6 address.
    pub bytes: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
}

/// All devices of this machine, with those that cannot be opened as errors.
///
/// # Errors
/// [`VerbsError::NoDevice`] if there is none.
pub fn devices() -> Result<Vec<Result<Arc<Device>, VerbsError>>, VerbsError> {
    // Without the kernel's part the list cannot be had, and there is no device either.
    let opened = result::open_all().unwrap_or_default();
    if opened.is_empty() {
        return Err(VerbsError::NoDevice);
    }
    Ok(opened.into_iter().map(|(name, file, context)| Device::new(name, &file, context).map(Arc::new)).collect())
}

impl Device {
    fn new(name: String, file: &str, context: io::Result<NonNull<sys::ibv_context>>) -> Result<Device, VerbsError> {
        let context = context.map_err(|source| match may_open(file) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                VerbsError::Permission { device: name.clone() }
            }
            _ => VerbsError::Call { call: "ibv_open_device", device: name.clone(), source },
        })?;
        let mut device = Device { name, context, attributes: sys::ibv_device_attr::default() };
        // SAFETY: the context is open.
        let attributes = unsafe { result::query_device(context) };
        device.attributes = attributes.map_err(|e| device.error("ibv_query_device", e))?;
        Ok(device)
    }

    /// Its name, such as mlx5_0.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Most requests of a queue pair.
    pub fn requests(&self) -> u32 {
        self.attributes.max_qp_wr.unsigned_abs()
    }

    /// Most pieces of a request.
    pub fn pieces(&self) -> u32 {
        self.attributes.max_sge.unsigned_abs()
    }

    /// Most entries of a completion queue.
    pub fn completions(&self) -> u32 {
        self.attributes.max_cqe.unsigned_abs()
    }

    /// The NUMA node that it hangs on, where it hangs on one.
    pub fn numa(&self) -> Option<u32> {
        fs::read_to_string(format!("/sys/class/infiniband/{}/device/numa_node", self.name)).ok()?.trim().parse().ok()
    }

    /// Its ports.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn ports(&self) -> Result<Vec<Port>, VerbsError> {
        // SAFETY: the context is open.
        let gids = unsafe { result::query_gids(self.context, MOST_GIDS) };
        let gids = gids.map_err(|e| self.error("ibv_query_gid_table", e))?;
        (1..=self.attributes.phys_port_cnt).map(|number| self.port(number, &gids)).collect()
    }

    /// Whether a port has a link now.
    pub fn is_active(&self, port: u8) -> bool {
        // SAFETY: the context is open.
        let port = unsafe { result::query_port(self.context, port) };
        port.is_ok_and(|port| port.state == sys::ibv_port_state::IBV_PORT_ACTIVE)
    }

    /// Whether the network interface behind an address has a carrier; a port hears of its loss a second later, or more. What
    /// has no such interface has one.
    pub fn has_carrier(&self, port: u8, gid: u32) -> bool {
        let name = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/ndevs/{gid}", self.name);
        let Ok(interface) = fs::read_to_string(name) else { return true };
        match fs::read_to_string(format!("/sys/class/net/{}/carrier", interface.trim())) {
            Ok(carrier) => carrier.trim() != "0",
            // The interface is not up (sysfs-class-net).
            Err(error) => error.kind() != io::ErrorKind::InvalidInput,
        }
    }

    fn port(&self, number: u8, gids: &[sys::ibv_gid_entry]) -> Result<Port, VerbsError> {
        // SAFETY: the context is open.
        let port = unsafe { result::query_port(self.context, number) }.map_err(|e| self.error("ibv_query_port", e))?;
        let gids = gids.iter().filter(|entry| entry.port_num == u32::from(number)).map(|entry| Gid {
            index: entry.gid_index,
            // SAFETY: every bit pattern is 16 bytes.
            bytes: unsafe { entry.gid.raw },
            kind: match entry.gid_type {
                sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                _ => GidKind::InfiniBand,
            },
        });
        Ok(Port {
            number,
            is_active: port.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
            mtu: port.active_mtu,
            speed: lanes(port.active_width) * lane_speed(port.active_speed),
            message: port.max_msg_sz.into(),
            lid: port.lid,
            is_ethernet: u32::from(port.link_layer) == sys::IBV_LINK_LAYER_ETHERNET,
            gids: gids.collect(),
        })
    }

    pub(super) fn context(&self) -> NonNull<sys::ibv_context> {
        self.context
    }

    pub(super) fn error(&self, call: &'static str, source: io::Error) -> VerbsError {
        VerbsError::Call { call, device: self.name.clone(), source }
    }
}

/// Whether a device's file can be opened: libibverbs tries several ways, and says only what came of the last.
fn may_open(file: &str) -> io::Result<()> {
    fs::File::options().read(true).write(true).open(format!("/dev/infiniband/{file}")).map(drop)
}

/// Lanes of a link by the code of its width (InfiniBand architecture, PortInfo).
fn lanes(code: u8) -> u32 {
    match code {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    }
}

/// Speed of a lane in units of 100 Mb/s by its code.
fn lane_speed(code: u8) -> u32 {
    match code {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => 0,
    }
}
