//! The second rung: one call of libibverbs, one `Result`.
//!
//! Functions that return a pointer set `errno`; those that return a number return it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr::{self, NonNull};

use ibverbs_sys as sys;

type Result<T> = std::result::Result<T, io::Error>;

fn pointer<T>(pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

fn number(status: c_int) -> Result<()> {
    // Some providers return -1 and set errno.
    match status {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

/// A device of the list: its name, that of its file in /dev/infiniband, and what opening it gave.
pub(super) type Opened = (String, String, Result<NonNull<sys::ibv_context>>);

/// Opens every device of the machine (ibv_get_device_list(3), ibv_open_device(3)).
pub(super) fn open_all() -> Result<Vec<Opened>> {
    let mut count = 0;
    // SAFETY: `count` is a valid place for a number.
    let list = pointer(unsafe { sys::ibv_get_device_list(&raw mut count) })?;
    let mut opened = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        let text = |name: *const c_char| {
            // SAFETY: names end in zero, and live until the list is freed below.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        // SAFETY: the list has `count` devices, until it is freed below.
        let (device, name, file) = unsafe {
            let device = *list.as_ptr().add(index);
            (device, text(sys::ibv_get_device_name(device)), text((*device).dev_name.as_ptr()))
        };
        // SAFETY: `device` is of the list.
        opened.push((name, file, pointer(unsafe { sys::ibv_open_device(device) })));
    }
    // SAFETY: the list is freed once, after the last use of its devices.
    unsafe { sys::ibv_free_device_list(list.as_ptr()) }
    Ok(opened)
}

/// ibv_query_device(3).
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn query_device(context: NonNull<sys::ibv_context>) -> Result<sys::ibv_device_attr> {
    let mut attributes = sys::ibv_device_attr::default();
    // SAFETY: the caller's promise; `attributes` takes the answer.
    number(unsafe { sys::ibv_query_device(context.as_ptr(), &raw mut attributes) })?;
    Ok(attributes)
}

/// ibv_query_port(3).
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn query_port(context: NonNull<sys::ibv_context>, port: u8) -> Result<sys::ibv_port_attr> {
    let mut attributes = sys::ibv_port_attr::default();
    // SAFETY: the caller's promise; the function fills a prefix of the struct, and the rest is zero.
    number(unsafe { sys::ibv_query_port(context.as_ptr(), port, (&raw mut attributes).cast()) })?;
    Ok(attributes)
}

/// ibv_query_gid_table(3): at most `most` entries, all of all ports.
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn query_gids(context: NonNull<sys::ibv_context>, most: usize) -> Result<Vec<sys::ibv_gid_entry>> {
    let mut entries = vec![sys::ibv_gid_entry::default(); most];
    let size = size_of::<sys::ibv_gid_entry>();
    // SAFETY: the caller's promise; there is room for `most` entries of `size` bytes.
    let count = unsafe { sys::_ibv_query_gid_table(context.as_ptr(), entries.as_mut_ptr(), most, 0, size) };
    let count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-(count as i32)))?;
    entries.truncate(count);
    Ok(entries)
}

/// ibv_alloc_pd(3).
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn alloc_pd(context: NonNull<sys::ibv_context>) -> Result<NonNull<sys::ibv_pd>> {
    // SAFETY: the caller's promise.
    pointer(unsafe { sys::ibv_alloc_pd(context.as_ptr()) })
}

/// ibv_reg_mr(3).
///
/// # Safety
/// `pd` is allocated, and `bytes` bytes from `address` stay mapped until the region is deregistered.
pub(super) unsafe fn reg_mr(
    pd: NonNull<sys::ibv_pd>,
    address: u64,
    bytes: u64,
    access: sys::ibv_access_flags,
) -> Result<NonNull<sys::ibv_mr>> {
    // SAFETY: the caller's promise.
    pointer(unsafe { sys::ibv_reg_mr(pd.as_ptr(), address as *mut c_void, bytes as usize, access.0 as c_int) })
}

/// ibv_reg_dmabuf_mr(3).
///
/// # Safety
/// `pd` is allocated.
pub(super) unsafe fn reg_dmabuf(
    pd: NonNull<sys::ibv_pd>,
    offset: u64,
    bytes: u64,
    address: u64,
    descriptor: c_int,
    access: sys::ibv_access_flags,
) -> Result<NonNull<sys::ibv_mr>> {
    let (bytes, access) = (bytes as usize, access.0 as c_int);
    // SAFETY: the caller's promise; the kernel checks the descriptor.
    pointer(unsafe { sys::ibv_reg_dmabuf_mr(pd.as_ptr(), offset, bytes, address, descriptor, access) })
}

/// ibv_create_cq(3), without a channel.
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn create_cq(context: NonNull<sys::ibv_context>, entries: c_int) -> Result<NonNull<sys::ibv_cq>> {
    // SAFETY: the caller's promise; no channel is used.
    pointer(unsafe { sys::ibv_create_cq(context.as_ptr(), entries, ptr::null_mut(), ptr::null_mut(), 0) })
}

/// ibv_create_qp(3); what was granted is in `wanted.cap`.
///
/// # Safety
/// `pd` is allocated and the completion queues of `wanted` exist.
pub(super) unsafe fn create_qp(
    pd: NonNull<sys::ibv_pd>,
    wanted: &mut sys::ibv_qp_init_attr,
) -> Result<NonNull<sys::ibv_qp>> {
    // SAFETY: the caller's promise.
    pointer(unsafe { sys::ibv_create_qp(pd.as_ptr(), wanted) })
}

/// ibv_modify_qp(3).
///
/// # Safety
/// `qp` exists.
pub(super) unsafe fn modify_qp(qp: NonNull<sys::ibv_qp>, wanted: &mut sys::ibv_qp_attr, mask: u32) -> Result<()> {
    // SAFETY: the caller's promise.
    number(unsafe { sys::ibv_modify_qp(qp.as_ptr(), wanted, mask as c_int) })
}

/// ibv_post_send(3); on failure also the index of the request that was refused.
///
/// # Safety
/// `qp` exists. Every `sg_list` points at `num_sge` entries, and what those name stays registered, or for inline requests
/// readable until this returns.
pub(super) unsafe fn post_send(
    qp: NonNull<sys::ibv_qp>,
    requests: &mut [sys::ibv_send_wr],
) -> std::result::Result<(), (usize, io::Error)> {
    let Some(last) = requests.len().checked_sub(1) else { return Ok(()) };
    let first = requests.as_mut_ptr();
    for index in 0..=last {
        // SAFETY: `index` is inside the slice, and so is `index + 1` before the last.
        unsafe { (*first.add(index)).next = if index < last { first.add(index + 1) } else { ptr::null_mut() } };
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the caller's promise for `qp` and for what the requests point at; they are linked within the slice. Every
    // provider has the function.
    let status = unsafe {
        let post = (*(*qp.as_ptr()).context).ops.post_send.expect("every provider posts");
        post(qp.as_ptr(), first, &raw mut bad)
    };
    number(status).map_err(|error| {
        let refused = (bad as usize).saturating_sub(first as usize) / size_of::<sys::ibv_send_wr>();
        (if bad.is_null() { 0 } else { refused.min(last) }, error)
    })
}

/// ibv_post_recv(3): one request without memory, as writes with an immediate take.
///
/// # Safety
/// `qp` exists.
pub(super) unsafe fn post_recv(qp: NonNull<sys::ibv_qp>, id: u64) -> Result<()> {
    let mut request = sys::ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
    let mut bad = ptr::null_mut();
    // SAFETY: the caller's promise; the request is copied before the call returns. Every provider has the function.
    number(unsafe {
        let post = (*(*qp.as_ptr()).context).ops.post_recv.expect("every provider receives");
        post(qp.as_ptr(), &raw mut request, &raw mut bad)
    })
}

/// ibv_poll_cq(3): fills the front of `completions`, answers how many.
///
/// # Safety
/// `cq` exists.
pub(super) unsafe fn poll_cq(cq: NonNull<sys::ibv_cq>, completions: &mut [sys::ibv_wc]) -> Result<usize> {
    let most = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
    // SAFETY: the caller's promise; there is room for `most` completions. Every provider has the function.
    let count = unsafe {
        let poll = (*(*cq.as_ptr()).context).ops.poll_cq.expect("every provider polls");
        poll(cq.as_ptr(), most, completions.as_mut_ptr())
    };
    usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(count.saturating_neg()))
}
