//! Completion queues, and reliable queue pairs from their creation to ready to send.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;
use ibverbs_sys::ibv_qp_attr_mask as Mask;

use super::choose::Choice;
use super::device::Device;
use super::error::VerbsError;
use super::memory::Domain;
use super::result;

/// Bytes asked for inside requests; what is granted may be less.
const INLINE: u32 = 64;

/// A queue of completions, polled.
#[derive(Debug)]
pub struct Completions {
    cq: NonNull<sys::ibv_cq>,
    /// The queue goes before its device is closed.
    _device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread, and at once from several (ibverbs(7)).
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: it was created, and queue pairs keep it alive, so all of them are gone.
        unsafe { sys::ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

impl Completions {
    /// A queue that holds `entries` completions.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Completions>, VerbsError> {
        let entries = i32::try_from(entries.max(1)).unwrap_or(i32::MAX);
        // SAFETY: the device is open.
        let cq = unsafe { result::create_cq(device.context(), entries) };
        let cq = cq.map_err(|e| device.error("ibv_create_cq", e))?;
        Ok(Arc::new(Completions { cq, _device: Arc::clone(device) }))
    }

    pub(super) fn poll(&self, completions: &mut [sys::ibv_wc]) -> io::Result<usize> {
        // SAFETY: the queue exists.
        unsafe { result::poll_cq(self.cq, completions) }
    }
}

/// What a queue pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Requests.
    pub sends: u32,
    /// Receive requests.
    pub receives: u32,
    /// Pieces of a request.
    pub pieces: u32,
}

/// How long a peer may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time to an acknowledgement: 4.096 us times 2 to this power.
    pub timeout: u8,
    /// Tries after the first, at most 7.
    pub retries: u8,
}

/// The other end of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its number, which is also its first packet number.
    pub number: u32,
    /// The InfiniBand address.
    pub lid: u16,
    /// The MTU of its port by code.
    pub mtu: u32,
    /// The address.
    pub gid: [u8; 16],
}

/// A reliable queue pair.
#[derive(Debug)]
pub struct QueuePair {
    qp: NonNull<sys::ibv_qp>,
    inline: u32,
    domain: Arc<Domain>,
    /// The pair goes before its queue of completions.
    _completions: Arc<Completions>,
}

// SAFETY: libibverbs may be called from any thread, and at once from several (ibverbs(7)).
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it was created, and nothing else refers to it.
        unsafe { sys::ibv_destroy_qp(self.qp.as_ptr()) };
    }
}

/// Packet numbers have 24 bits.
const PSN: u32 = 0xff_ffff;

impl QueuePair {
    /// A queue pair that is not connected.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn new(domain: &Arc<Domain>, completions: &Arc<Completions>, depth: Depth) -> Result<QueuePair, VerbsError> {
        let create = |inline: u32| {
            let mut wanted = sys::ibv_qp_init_attr {
                send_cq: completions.cq.as_ptr(),
                recv_cq: completions.cq.as_ptr(),
                cap: sys::ibv_qp_cap {
                    max_send_wr: depth.sends,
                    max_recv_wr: depth.receives,
                    max_send_sge: depth.pieces,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: sys::ibv_qp_type::IBV_QPT_RC,
                ..sys::ibv_qp_init_attr::default()
            };
            // SAFETY: domain and queue exist, and the pair keeps both alive.
            unsafe { result::create_qp(domain.pd(), &mut wanted) }.map(|qp| (qp, wanted.cap.max_inline_data))
        };
        // A device without room for bytes inside requests refuses to be asked for it.
        let created = create(INLINE).or_else(|_| create(0));
        let (qp, inline) = created.map_err(|e| domain.device().error("ibv_create_qp", e))?;
        let completions = Arc::clone(completions);
        Ok(QueuePair { qp, inline, domain: Arc::clone(domain), _completions: completions })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: it exists.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Bytes that a request may carry inside.
    pub fn inline(&self) -> u32 {
        self.inline
    }

    /// Connects it with the other end; both ends do so before either sends.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn connect(&self, own: &Choice, peer: &End, patience: Patience) -> Result<(), VerbsError> {
        self.initialise(own)?;
        self.receive(own, peer)?;
        self.send(patience)
    }

    fn initialise(&self, own: &Choice) -> Result<(), VerbsError> {
        let access = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let wanted = sys::ibv_qp_attr {
            qp_state: sys::ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: own.port.number,
            qp_access_flags: access.0,
            ..sys::ibv_qp_attr::default()
        };
        let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp to INIT", wanted, mask.0)
    }

    fn receive(&self, own: &Choice, peer: &End) -> Result<(), VerbsError> {
        let grh = sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: peer.gid },
            flow_label: 0,
            sgid_index: own.gid.index as u8,
            hop_limit: 64,
            traffic_class: 0,
        };
        let ah_attr = sys::ibv_ah_attr {
            grh,
            dlid: peer.lid,
            is_global: own.port.is_ethernet.into(),
            port_num: own.port.number,
            ..sys::ibv_ah_attr::default()
        };
        let wanted = sys::ibv_qp_attr {
            qp_state: sys::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: own.port.mtu.min(peer.mtu),
            dest_qp_num: peer.number,
            rq_psn: peer.number & PSN,
            ah_attr,
            max_dest_rd_atomic: 1,
            // 0.64 ms between tries of a message that finds no receive request.
            min_rnr_timer: 12,
            ..sys::ibv_qp_attr::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", wanted, mask.0)
    }

    fn send(&self, patience: Patience) -> Result<(), VerbsError> {
        let wanted = sys::ibv_qp_attr {
            qp_state: sys::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.number() & PSN,
            timeout: patience.timeout,
            retry_cnt: patience.retries.min(7),
            // For ever: a receiver that is late is no failure, and one that is gone does not answer at all.
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..sys::ibv_qp_attr::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", wanted, mask.0)
    }

    /// Puts it in the error state: requests that are on their way are flushed.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn break_off(&self) -> Result<(), VerbsError> {
        let wanted = sys::ibv_qp_attr { qp_state: sys::ibv_qp_state::IBV_QPS_ERR, ..sys::ibv_qp_attr::default() };
        self.modify("ibv_modify_qp to ERR", wanted, Mask::IBV_QP_STATE.0)
    }

    fn modify(&self, call: &'static str, mut wanted: sys::ibv_qp_attr, mask: u32) -> Result<(), VerbsError> {
        // SAFETY: it exists.
        let modified = unsafe { result::modify_qp(self.qp, &mut wanted, mask) };
        modified.map_err(|e| self.domain.device().error(call, e))
    }

    /// Posts requests; on failure also how many were taken.
    ///
    /// # Safety
    /// As `result::post_send` says for the requests.
    pub(super) unsafe fn post(&self, requests: &mut [sys::ibv_send_wr]) -> Result<(), (usize, io::Error)> {
        // SAFETY: the pair exists; the rest is the caller's promise.
        unsafe { result::post_send(self.qp, requests) }
    }

    /// Makes room for one message with an immediate.
    pub(super) fn receive_one(&self, id: u64) -> io::Result<()> {
        // SAFETY: the pair exists.
        unsafe { result::post_recv(self.qp, id) }
    }
}
