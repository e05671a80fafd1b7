//! The calls of the copy-engine transport: pinned memory, copies and signals in stream order.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use mkernel_core::Span;

/// Pinned host memory, freed with its owner.
#[derive(Debug)]
pub(super) struct Pinned {
    context: Arc<CudaContext>,
    bytes: NonNull<u8>,
}

// SAFETY: it owns its memory, which has no ties to a thread; only the copy engines access it.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Pinned, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: the context is current; the pointer is freed once, by the drop of its owner.
        let raw = unsafe { result::malloc_host(bytes.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) }?;
        let bytes = NonNull::new(raw.cast::<u8>()).expect("the driver gives an address with success");
        Ok(Pinned { context: context.clone(), bytes })
    }

    /// Its address. With unified addressing the driver takes host addresses wherever it takes device addresses.
    pub(super) fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the pointer came from `malloc_host` and is freed only here.
            let _ = unsafe { result::free_host(self.bytes.as_ptr().cast()) };
        }
    }
}

/// Copies of runs of bytes, side by side.
#[derive(Debug, Default)]
pub(super) struct Runs {
    pub(super) to: Vec<u64>,
    pub(super) from: Vec<u64>,
    pub(super) bytes: Vec<usize>,
}

impl Runs {
    /// Adds one copy.
    pub(super) fn push(&mut self, to: u64, from: u64, bytes: u64) {
        self.to.push(to);
        self.from.push(from);
        self.bytes.push(bytes as usize);
    }

    /// Enqueues all of them by one call of the driver; they are done in any order.
    ///
    /// # Safety
    /// Every range is alive, pinned or on the device, until `stream` has passed this point.
    pub(super) unsafe fn enqueue(&mut self, stream: &CudaStream) -> Result<(), DriverError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let nowhere = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        let mut attributes = sys::CUmemcpyAttributes {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: sys::CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32,
        };
        let (to, from, bytes) = (self.to.as_mut_ptr(), self.from.as_mut_ptr(), self.bytes.as_mut_ptr());
        let (count, mut first) = (self.bytes.len(), 0usize);
        // SAFETY: the three arrays have `count` entries, one attribute holds from index 0 on, and the caller vouches for
        // the ranges.
        unsafe {
            sys::cuMemcpyBatchAsync_v2(to, from, bytes, count, &mut attributes, &mut first, 1, stream.cu_stream())
        }
        .result()
    }
}

/// One end of a copy of rows: the span itself at an address, or pinned memory in which its rows lie end to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Span(u64),
    Packed(u64),
}

/// Enqueues the copy of a span with gaps, row after row.
///
/// # Safety
/// As [`Runs::enqueue`].
pub(super) unsafe fn copy_rows(stream: &CudaStream, span: &Span, to: End, from: End) -> Result<(), DriverError> {
    let unified = sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED;
    let place = |end| match end {
        End::Span(address) => (address, span.stride as usize),
        End::Packed(address) => (address, span.row_bytes as usize),
    };
    let ((source, source_pitch), (target, target_pitch)) = (place(from), place(to));
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: unified,
        srcHost: std::ptr::null(),
        srcDevice: source,
        srcArray: std::ptr::null_mut(),
        srcPitch: source_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: unified,
        dstHost: std::ptr::null_mut(),
        dstDevice: target,
        dstArray: std::ptr::null_mut(),
        dstPitch: target_pitch,
        WidthInBytes: span.row_bytes as usize,
        Height: span.rows as usize,
    };
    // SAFETY: the caller vouches for both ends.
    unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) }.result()
}

/// Enqueues writes of words, each after a memory barrier: whoever sees a word sees what was copied before on the stream.
///
/// # Safety
/// The addresses are of aligned u64 in device memory, alive until `stream` has passed this point.
pub(super) unsafe fn write_words(stream: &CudaStream, words: &[(u64, u64)]) -> Result<(), DriverError> {
    let operation = sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64;
    let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
    let write = |&(address, value64): &(u64, u64)| sys::CUstreamBatchMemOpParams {
        writeValue: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
            operation,
            address,
            __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                value64,
            },
            flags,
            alias: 0,
        },
    };
    let mut operations: Vec<sys::CUstreamBatchMemOpParams> = words.iter().map(write).collect();
    let count = operations.len() as u32;
    // SAFETY: `count` operations of the form that they name; the caller vouches for the addresses.
    unsafe { sys::cuStreamBatchMemOp_v2(stream.cu_stream(), count, operations.as_mut_ptr(), 0) }.result()
}
