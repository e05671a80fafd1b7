//! Bytes that threads, or processes, share, and counters in them.
//!
//! # Invariant
//! A block's bytes stay mapped as long as the block lives: it owns its allocation, or holds the mapping that it is a part
//! of. A block hands out its address only; who reads or writes there answers for order ([`crate::memory`]). A block that
//! became [`Words`] is touched by atomic operations alone, in this process by [`Words`], in others by theirs.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use memmap2::MmapRaw;
use mkernel_core::nic::Shared;
use rustix::thread::futex::{self, Timespec};

/// Alignment of every block: that of the widest atomic and vector loads.
const ALIGN: usize = 16;

/// Owned bytes, or a part of a mapping.
#[derive(Debug)]
pub(crate) struct Block {
    base: NonNull<u8>,
    len: usize,
    keeper: Keeper,
}

/// What keeps the bytes.
#[derive(Debug)]
enum Keeper {
    Heap(Layout),
    /// Held, never looked at.
    Map(#[allow(dead_code, reason = "it keeps the mapping alive")] Arc<MmapRaw>),
}

// SAFETY: a block owns its allocation or shares a mapping that no thread owns, and nothing in it is bound to a thread.
unsafe impl Send for Block {}
// SAFETY: a block only hands out its address; the users of the address say why their accesses do not race.
unsafe impl Sync for Block {}

impl Block {
    /// Zeroed bytes of this process; `None` if there are none left.
    pub(crate) fn zeroed(bytes: u64) -> Option<Block> {
        let len = usize::try_from(bytes).ok()?;
        // Never a zero-sized layout, so that every block is one allocation.
        let layout = Layout::from_size_align(len.max(1), ALIGN).ok()?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Block { base, len, keeper: Keeper::Heap(layout) })
    }

    /// `len` bytes of a mapping from `offset`, which is a multiple of [`ALIGN`].
    ///
    /// # Panics
    /// If the part is not inside the mapping.
    pub(crate) fn part(map: &Arc<MmapRaw>, offset: usize, len: usize) -> Block {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= map.len());
        assert!(is_inside && offset.is_multiple_of(ALIGN), "{len} bytes at {offset} of a map of {}", map.len());
        // SAFETY: `offset` is at most the mapping's length, so the address is inside it or one past its end.
        let base = unsafe { map.as_mut_ptr().add(offset) };
        Block { base: NonNull::new(base).expect("no mapping is at 0"), len, keeper: Keeper::Map(Arc::clone(map)) }
    }

    /// The address of the first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Keeper::Heap(layout) = self.keeper {
            // SAFETY: `base` came from `alloc_zeroed` with this layout, and the block owns it.
            unsafe { dealloc(self.base.as_ptr(), layout) }
        }
    }
}

/// A whole mapping.
#[derive(Debug)]
pub(crate) struct Mapping(Arc<MmapRaw>);

impl Mapping {
    pub(crate) fn new(map: &Arc<MmapRaw>) -> Mapping {
        Mapping(Arc::clone(map))
    }
}

// SAFETY: the mapping lives as long as `self`, and is reached through raw pointers and atomics alone (module invariant).
unsafe impl Shared for Mapping {
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

/// A block as counters.
#[derive(Debug)]
pub(crate) struct Words(Block);

impl Words {
    /// Takes a block that nothing else in this process touches.
    ///
    /// # Panics
    /// If the block's length is not a multiple of 8.
    pub(crate) fn new(block: Block) -> Words {
        assert!(block.len.is_multiple_of(8), "{} bytes are no words", block.len);
        Words(block)
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the block is aligned to `ALIGN`, initialised (zeroed by the allocator or the file system), of this
        // length, alive as long as `self`, and accessed by atomic operations alone (module invariant).
        unsafe { slice::from_raw_parts(self.0.base.as_ptr().cast(), self.0.len / 8) }
    }
}

/// The half of a counter that changes with every addition.
fn low(word: &AtomicU64) -> &AtomicU32 {
    const { assert!(cfg!(target_endian = "little"), "the low half of a counter is its first half") }
    // SAFETY: the first four bytes of a live, aligned `AtomicU64`; nobody but the kernel reads through this reference,
    // atomically.
    unsafe { &*ptr::from_ref(word).cast::<AtomicU32>() }
}

/// Sleeps while a counter is `seen`, until [`wake`] of any process or for `limit`; it may wake early.
///
/// A counter that rises by an exact multiple of 2^32 between the caller's look and the sleep is not noticed until `limit`.
pub(crate) fn sleep(word: &AtomicU64, seen: u64, limit: Duration) {
    let limit = Timespec { tv_sec: limit.as_secs().min(1 << 30) as _, tv_nsec: limit.subsec_nanos().into() };
    // Changed already, interrupted, timed out, woken: the caller looks again in every case.
    let _ = futex::wait(low(word), futex::Flags::empty(), seen as u32, Some(&limit));
}

/// Wakes everybody who sleeps on a counter, in any process.
pub(crate) fn wake(word: &AtomicU64) {
    // An address that can be loaded can be woken; nobody there is no error.
    let _ = futex::wake(low(word), futex::Flags::empty(), i32::MAX as u32);
}
