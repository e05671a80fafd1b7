//! A transport between virtual ranks of one GPU that needs no SM: copy engines and pinned host memory in between.
//!
//! A copy within one GPU is done by a kernel, which never starts while a persistent kernel holds every SM (measured on
//! an H200: such copies, whatever the call, make no progress until the holder ends). Copies between the GPU and pinned
//! host memory are done by the copy engines and do run. So a put goes through a **slot** of pinned memory, as it would
//! go through a wire: out of the source on one stream, into the target on another, then the signal, on that same stream.
//!
//! # Contract
//! - The signal covers the bytes: the word is written by `cuStreamWriteValue64` after the copy on one stream, with the
//!   memory barrier that this call has by default.
//! - No order between puts is promised. (There is one, and nothing relies on it.)
//! - A put retires once the copy out of its source is done, which says nothing about arrival.
//! - Nothing blocks: without a free slot [`Transport::post`] answers [`PostError::Full`].

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};
use mkernel_core::transport::{Contract, Ordering, Post, PostError, Signalling, TransportError};
use mkernel_core::{Addresses, Span, Transport};

/// Why the transport cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CopyEngineError {
    /// The driver refused a call.
    #[error("the CUDA driver refused to {what}")]
    Driver {
        /// What was asked for.
        what: &'static str,
        /// The driver's answer.
        #[source]
        source: DriverError,
    },
}

/// The copy engines of one GPU, shared by the transports of all ranks on it: one stream in each direction.
///
/// Shared, since the GPU has one engine for each direction anyway, and since a context maps its streams onto a few
/// hardware queues: work that shares a queue with a persistent kernel waits for it (seen with 17 streams of one
/// priority). The streams have the highest priority for the same reason: a queue has one priority.
#[derive(Debug)]
pub struct Engines {
    context: Arc<CudaContext>,
    out: Arc<CudaStream>,
    into: Arc<CudaStream>,
}

impl Engines {
    /// Makes the streams.
    ///
    /// # Errors
    /// [`CopyEngineError`] where the driver refuses.
    pub fn new(context: &Arc<CudaContext>) -> Result<Arc<Engines>, CopyEngineError> {
        let asked = |what| move |source| CopyEngineError::Driver { what, source };
        context.bind_to_thread().map_err(asked("use the GPU"))?;
        let (_, highest) = result::stream::get_priority_range().map_err(asked("tell its priorities"))?;
        let stream = || context.new_stream_with_priority(highest).map_err(asked("make a stream"));
        Ok(Arc::new(Engines { context: context.clone(), out: stream()?, into: stream()? }))
    }
}

/// The transport of one rank.
#[derive(Debug)]
pub struct CopyEngine {
    engines: Arc<Engines>,
    addresses: Addresses,
    slot_bytes: u64,
    free: Vec<Slot>,
    /// Puts whose sources are being read, oldest first; then those that are on their way into the target.
    reading: VecDeque<(u64, u32, Slot)>,
    landing: VecDeque<(u64, u32, Slot)>,
    /// Puts of no bytes, retired as soon as they are posted.
    empty: Vec<u64>,
}

/// Pinned memory for one put under way, and the two moments that matter.
#[derive(Debug)]
struct Slot {
    memory: Pinned,
    read: CudaEvent,
    landed: CudaEvent,
}

/// Pinned host memory, freed with its owner.
#[derive(Debug)]
struct Pinned {
    context: Arc<CudaContext>,
    bytes: NonNull<u8>,
}

// SAFETY: it owns its memory, which has no ties to a thread; only the copy engines access it.
unsafe impl Send for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the pointer came from `malloc_host` and is freed only here.
            let _ = unsafe { result::free_host(self.bytes.as_ptr().cast()) };
        }
    }
}

impl CopyEngine {
    /// Makes a transport with `slots` puts of up to `slot_bytes` bytes under way at once.
    ///
    /// # Errors
    /// [`CopyEngineError`] where the driver refuses.
    ///
    /// # Safety
    /// `addresses` are of memory on the engines' GPU that outlives the transport, as large as the spans of the posts
    /// and the cells that they name.
    pub unsafe fn new(
        engines: &Arc<Engines>,
        addresses: Addresses,
        slots: usize,
        slot_bytes: u64,
    ) -> Result<CopyEngine, CopyEngineError> {
        let asked = |what| move |source| CopyEngineError::Driver { what, source };
        let context = &engines.context;
        context.bind_to_thread().map_err(asked("use the GPU"))?;
        let event = || context.new_event(None).map_err(asked("make an event"));
        let mut free = Vec::new();
        for _ in 0..slots.max(1) {
            let size = usize::try_from(slot_bytes.max(1)).expect("addresses have 64 bits");
            // SAFETY: the context is current; the pointer is freed once, by the drop of its owner.
            let raw = unsafe { result::malloc_host(size, sys::CU_MEMHOSTALLOC_PORTABLE) };
            let raw = raw.map_err(asked("allocate pinned memory"))?;
            let bytes = NonNull::new(raw.cast::<u8>()).expect("the driver gives an address with success");
            let memory = Pinned { context: context.clone(), bytes };
            free.push(Slot { memory, read: event()?, landed: event()? });
        }
        let (reading, landing, empty) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Ok(CopyEngine { engines: engines.clone(), addresses, slot_bytes, free, reading, landing, empty })
    }

    /// Enqueues everything of one put; `slot` is none for a put of no bytes.
    fn enqueue(&self, post: &Post, slot: Option<&Slot>) -> Result<(), DriverError> {
        let Engines { context, out, into } = &*self.engines;
        context.bind_to_thread()?;
        let unmapped = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let cell = self.addresses.cell(post.target.rank, post.cell).ok_or(unmapped)?;
        if let Some(slot) = slot {
            let source = self.addresses.span(&post.source).ok_or(unmapped)?;
            let target = self.addresses.span(&post.target).ok_or(unmapped)?;
            copy(out, &post.source, End::Device(source), End::Slot(slot))?;
            slot.read.record(out)?;
            into.wait(&slot.read)?;
            copy(into, &post.target, End::Slot(slot), End::Device(target))?;
        }
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: `new` was told that the cells of `addresses` are device memory that outlives the transport.
        unsafe { sys::cuStreamWriteValue64_v2(into.cu_stream(), cell, post.value, flags) }.result()?;
        slot.map_or(Ok(()), |slot| slot.landed.record(into))
    }
}

/// One end of a copy: device memory at an address, or a slot.
enum End<'a> {
    Device(u64),
    Slot(&'a Slot),
}

/// Enqueues the copy of a span out of device memory into a slot or the other way, row after row.
///
/// A span without gaps is one row, so that a long shard is no long list of short rows.
fn copy(stream: &CudaStream, span: &Span, from: End<'_>, to: End<'_>) -> Result<(), DriverError> {
    let flat = span.is_contiguous();
    let (width, height) = if flat { (span.bytes(), 1) } else { (span.row_bytes, u64::from(span.rows)) };
    let pitch = if flat { width } else { span.stride };
    let place = |end: &End<'_>| match end {
        End::Device(address) => (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, std::ptr::null_mut(), *address, pitch),
        End::Slot(slot) => (sys::CUmemorytype::CU_MEMORYTYPE_HOST, slot.memory.bytes.as_ptr(), 0, width),
    };
    let ((from_type, from_host, from_device, from_pitch), (to_type, to_host, to_device, to_pitch)) =
        (place(&from), place(&to));
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: from_type,
        srcHost: from_host.cast(),
        srcDevice: from_device,
        srcArray: std::ptr::null_mut(),
        srcPitch: from_pitch as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: to_type,
        dstHost: to_host.cast(),
        dstDevice: to_device,
        dstArray: std::ptr::null_mut(),
        dstPitch: to_pitch as usize,
        WidthInBytes: width as usize,
        Height: height as usize,
    };
    // SAFETY: the span's memory is alive (`new`), the slot holds the put's bytes (`post`) and lives until `landed`.
    unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) }.result()
}

impl Transport for CopyEngine {
    fn contract(&self) -> Contract {
        Contract::new(Ordering::Unordered, Signalling::Counter).expect("a counter is sound on any order")
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        let (token, peer) = (post.token, post.target.rank.0);
        let failed = |status| TransportError { token, peer, status };
        let bytes = post.source.bytes();
        if bytes > self.slot_bytes {
            return Err(failed(sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32).into());
        }
        if bytes == 0 {
            self.enqueue(post, None).map_err(|error| failed(error.0 as u32))?;
            self.empty.push(token);
            return Ok(());
        }
        let slot = self.free.pop().ok_or(PostError::Full)?;
        let enqueued = self.enqueue(post, Some(&slot));
        // Kept under way even if a part was refused: the rest may still be running over it.
        self.reading.push_back((token, peer, slot));
        enqueued.map_err(|error| failed(error.0 as u32).into())
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        retired.append(&mut self.empty);
        while let Some(&(token, peer, ref slot)) = self.reading.front() {
            if !is_done(&slot.read, token, peer)? {
                break;
            }
            retired.push(token);
            self.landing.extend(self.reading.pop_front());
        }
        // Each look is a call of the driver: slots are fetched back only when there is none left.
        while self.free.is_empty()
            && let Some(&(token, peer, ref slot)) = self.landing.front()
        {
            if !is_done(&slot.landed, token, peer)? {
                break;
            }
            self.free.extend(self.landing.pop_front().map(|(_, _, slot)| slot));
        }
        Ok(())
    }
}

fn is_done(event: &CudaEvent, token: u64, peer: u32) -> Result<bool, TransportError> {
    event.try_is_complete().map_err(|error| TransportError { token, peer, status: error.0 as u32 })
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        // Copies under way use the slots; a stream that cannot be awaited belongs to a context that runs nothing.
        let _ = (self.engines.out.synchronize(), self.engines.into.synchronize());
    }
}
