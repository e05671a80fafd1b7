//! Owned device memory and owned pinned host memory.
//!
//! Both are plain bytes by address: the device code reads and writes them through the entries of [`crate::encode`]. All
//! copies here are synchronous and take place while no persistent kernel of this context lives.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use cudarc::driver::{CudaContext, result, sys};
use mkernel_core::abi::AbiType;

use super::error::{Asked, CudaError};

/// Device memory, freed with its owner.
#[derive(Debug)]
pub struct Buffer {
    context: Arc<CudaContext>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` bytes, zeroed; at least one, so that every buffer has an address.
    ///
    /// # Errors
    /// The driver's, such as out of memory.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Buffer, CudaError> {
        let bytes = bytes.max(1);
        context.bind_to_thread().asked("use the GPU")?;
        // SAFETY: the context is current; the address is freed once, by the drop of the buffer made of it.
        let address = unsafe { result::malloc_sync(bytes) }.asked("allocate device memory")?;
        let mut buffer = Buffer { context: context.clone(), address, bytes };
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// Allocates and fills memory with `items`.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub fn of<T: AbiType>(context: &Arc<CudaContext>, items: &[T]) -> Result<Buffer, CudaError> {
        let mut buffer = Buffer::new(context, size_of_val(items))?;
        buffer.write(0, bytes_of(items))?;
        Ok(buffer)
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&mut self, byte: u8) -> Result<(), CudaError> {
        self.context.bind_to_thread().asked("use the GPU")?;
        // SAFETY: the range is this buffer's, alive and exclusively borrowed.
        unsafe { result::memset_d8_sync(self.address, byte, self.bytes) }.asked("fill device memory")
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.check(offset, bytes.len());
        self.context.bind_to_thread().asked("use the GPU")?;
        // SAFETY: the range was checked to be this buffer's; the copy ends before the call returns.
        unsafe { result::memcpy_htod_sync(self.address + offset, bytes) }.asked("write device memory")
    }

    /// Reads into `bytes` from `offset`.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.check(offset, bytes.len());
        self.context.bind_to_thread().asked("use the GPU")?;
        // SAFETY: the range was checked to be this buffer's; the copy ends before the call returns.
        unsafe { result::memcpy_dtoh_sync(bytes, self.address + offset) }.asked("read device memory")
    }

    /// Writes (or reads) rows of `row_bytes` bytes, `stride` apart from `offset` on, as one copy.
    fn rows(&self, rows: &Rows, direction: Direction) -> Result<(), CudaError> {
        if rows.count == 0 || rows.bytes == 0 {
            return Ok(());
        }
        let end = (rows.count - 1) as u64 * rows.stride + rows.bytes as u64;
        self.check(rows.offset, usize::try_from(end).expect("checked against a buffer's size"));
        self.context.bind_to_thread().asked("use the GPU")?;
        let (device, host) = (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, sys::CUmemorytype::CU_MEMORYTYPE_HOST);
        let mut copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: device,
            srcHost: std::ptr::null(),
            srcDevice: self.address + rows.offset,
            srcArray: std::ptr::null_mut(),
            srcPitch: rows.stride as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: host,
            dstHost: std::ptr::null_mut(),
            dstDevice: 0,
            dstArray: std::ptr::null_mut(),
            dstPitch: rows.bytes,
            WidthInBytes: rows.bytes,
            Height: rows.count,
        };
        match direction {
            Direction::Read(to) => copy.dstHost = to.cast(),
            Direction::Write(from) => {
                (copy.dstMemoryType, copy.dstDevice, copy.dstPitch) = (device, copy.srcDevice, copy.srcPitch);
                (copy.srcMemoryType, copy.srcHost, copy.srcPitch) = (host, from.cast(), rows.bytes);
            }
        }
        // SAFETY: the device range was checked, the callers checked that the host side holds count x bytes, and the
        // copy ends before the call returns.
        unsafe { sys::cuMemcpy2DUnaligned_v2(&copy) }.result().asked("copy rows")
    }

    /// Writes `bytes` row after row.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the rows are not in the buffer or `bytes` is not their length.
    pub fn write_rows(&mut self, rows: &Rows, bytes: &[u8]) -> Result<(), CudaError> {
        assert_eq!(bytes.len(), rows.count * rows.bytes, "bytes of the rows");
        match rows.count {
            1 => self.write(rows.offset, bytes),
            _ => self.rows(rows, Direction::Write(bytes.as_ptr())),
        }
    }

    /// Reads `bytes` row after row.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// As [`Buffer::write_rows`].
    pub fn read_rows(&self, rows: &Rows, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert_eq!(bytes.len(), rows.count * rows.bytes, "bytes of the rows");
        match rows.count {
            1 => self.read(rows.offset, bytes),
            _ => self.rows(rows, Direction::Read(bytes.as_mut_ptr())),
        }
    }

    fn check(&self, offset: u64, bytes: usize) {
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.bytes as u64), "{bytes} bytes at {offset} of {}", self.bytes);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A refusal here means that the context is broken or gone; the memory goes with it.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the address came from `malloc_sync` and is freed only here.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Rows of bytes in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Where the first starts.
    pub offset: u64,
    /// How many.
    pub count: usize,
    /// Bytes of each.
    pub bytes: usize,
    /// From one's start to the next; at least `bytes` where there are two or more.
    pub stride: u64,
}

enum Direction {
    Write(*const u8),
    Read(*mut u8),
}

/// Pinned host memory that the GPU reads and writes, freed with its owner: u64 words, zeroed.
#[derive(Debug)]
pub struct Pinned {
    context: Arc<CudaContext>,
    words: NonNull<AtomicU64>,
    count: usize,
    device: u64,
}

// SAFETY: it owns its memory, which has no ties to a thread, and gives it out as atomics only.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates `count` words.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<CudaContext>, count: usize) -> Result<Pinned, CudaError> {
        context.bind_to_thread().asked("use the GPU")?;
        let count = count.max(1);
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the context is current; the pointer is freed once, by the drop of the value made of it.
        let raw = unsafe { result::malloc_host(count * 8, flags) }.asked("allocate pinned memory")?;
        let words = NonNull::new(raw.cast::<AtomicU64>()).expect("the driver gives an address with success");
        let mut pinned = Pinned { context: context.clone(), words, count, device: 0 };
        // SAFETY: the allocation holds `count` words, and nobody else has its address yet.
        unsafe { std::ptr::write_bytes(words.as_ptr(), 0, count) };
        // SAFETY: the memory was allocated as mapped.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut pinned.device, raw, 0) };
        mapped.result().asked("map pinned memory")?;
        Ok(pinned)
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.device
    }

    /// Word `index` as two u32, of which the low half comes first.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn halves(&self, index: usize) -> &[AtomicU32; 2] {
        // SAFETY: a u64 holds two u32 of weaker alignment; the words are only ever accessed atomically, and nobody
        // accesses the same word as a whole.
        unsafe { &*std::ptr::from_ref(&self[index]).cast::<[AtomicU32; 2]>() }
    }
}

impl Deref for Pinned {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the allocation holds `count` initialised words for as long as `self` lives. The GPU accesses them
        // too, by single aligned accesses, which atomics of both sides allow.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the pointer came from `malloc_host` and is freed only here.
            let _ = unsafe { result::free_host(self.words.as_ptr().cast()) };
        }
    }
}

/// The bytes of ABI entries.
fn bytes_of<T: AbiType>(items: &[T]) -> &[u8] {
    // SAFETY: an `AbiType` is plain data with no padding (its layout is asserted), so every byte is initialised.
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast::<u8>(), size_of_val(items)) }
}

/// Reads entries back from a buffer.
///
/// # Errors
/// The driver's.
pub fn read_entries<T: AbiType>(buffer: &Buffer, count: usize) -> Result<Vec<T>, CudaError> {
    let mut bytes = vec![0u8; count * size_of::<T>()];
    buffer.read(0, &mut bytes)?;
    let entry = |chunk: &[u8]| {
        // SAFETY: the chunk has the size of a T, and any bit pattern is a T (`AbiType`).
        unsafe { std::ptr::read_unaligned(chunk.as_ptr().cast::<T>()) }
    };
    Ok(bytes.chunks_exact(size_of::<T>()).map(entry).collect())
}
