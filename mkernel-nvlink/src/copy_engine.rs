//! A transport between virtual ranks of one GPU that needs no SM: copy engines and pinned host memory in between.
//!
//! A copy within one GPU is done by a kernel, which never starts while a persistent kernel holds every SM (measured on
//! an H200: such copies, whatever the call, make no progress until the holder ends). Copies between the GPU and pinned
//! host memory are done by the copy engines and do run. So a put goes through pinned memory, as it would go through a
//! wire: out of the source on one stream, into the target on another, then the signal, on that same stream.
//!
//! Puts travel as **groups** of up to [`GROUP`]: a call of the driver costs some microseconds, as much as a copy of a
//! chunk, and a group takes as many calls as a put. A group leaves when it is full or when no other is being read: while
//! the engine is busy, puts gather.
//!
//! # Contract
//! - The signal covers the bytes: its word is written after the copy on one stream, behind a memory barrier.
//! - No order between puts is promised.
//! - A put retires once the copy out of its source is done, which says nothing about arrival.
//! - Nothing blocks: without a free group [`Transport::post`] answers [`PostError::Full`].

mod calls;

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};
use mkernel_core::transport::{Contract, Ordering, Post, PostError, Signalling, TransportError};
use mkernel_core::{Addresses, Transport};

use calls::{End, Pinned, Runs, copy_rows, write_words};

/// Most puts of a group.
pub const GROUP: usize = 8;

/// The transport cannot be made: the driver refused a call.
#[derive(Debug, thiserror::Error)]
#[error("the CUDA driver refused to {what}")]
pub struct CopyEngineError {
    /// What was asked for.
    what: &'static str,
    /// The driver's answer.
    #[source]
    source: DriverError,
}

fn asked(what: &'static str) -> impl Fn(DriverError) -> CopyEngineError {
    move |source| CopyEngineError { what, source }
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
    free: Vec<Group>,
    /// Accepts puts until it is full or polled.
    filling: Option<Group>,
    /// Groups whose sources are being read, oldest first; then those that are on their way into their targets.
    reading: VecDeque<Group>,
    landing: VecDeque<Group>,
    /// Puts of no bytes, retired as soon as they are submitted.
    empty: Vec<u64>,
}

/// Puts under way together, with a slot of pinned memory for each, and the two moments that matter.
#[derive(Debug)]
struct Group {
    memory: Pinned,
    posts: Vec<Post>,
    read: CudaEvent,
    landed: CudaEvent,
}

impl CopyEngine {
    /// Makes a transport with `groups` groups of puts of up to `slot_bytes` bytes under way at once.
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
        groups: usize,
        slot_bytes: u64,
    ) -> Result<CopyEngine, CopyEngineError> {
        let event = || engines.context.new_event(None).map_err(asked("make an event"));
        let mut free = Vec::new();
        for _ in 0..groups.max(1) {
            let size = usize::try_from(slot_bytes).expect("addresses have 64 bits") * GROUP;
            let memory = Pinned::new(&engines.context, size).map_err(asked("allocate pinned memory"))?;
            free.push(Group { memory, posts: Vec::new(), read: event()?, landed: event()? });
        }
        let (reading, landing, empty) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Ok(CopyEngine { engines: engines.clone(), addresses, slot_bytes, free, filling: None, reading, landing, empty })
    }

    /// Submits a group. It stays under way even if a part was refused: the rest may still be running over it.
    fn submit(&mut self, mut group: Group) -> Result<(), TransportError> {
        let first = group.posts[0];
        let has_bytes = group.posts.iter().any(|post| !post.source.is_empty());
        let submitted = self.enqueue(&group, has_bytes);
        if has_bytes {
            self.reading.push_back(group);
        } else {
            self.empty.extend(group.posts.drain(..).map(|post| post.token));
            self.free.push(group);
        }
        submitted.map_err(|error| failed(&first, error))
    }

    fn enqueue(&self, group: &Group, has_bytes: bool) -> Result<(), DriverError> {
        let Engines { context, out, into } = &*self.engines;
        context.bind_to_thread()?;
        let unmapped = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let (mut runs_out, mut runs_in, mut rows) = (Runs::default(), Runs::default(), Vec::new());
        let mut words = Vec::with_capacity(GROUP);
        for (index, post) in group.posts.iter().enumerate() {
            words.push((self.addresses.cell(post.target.rank, post.cell).ok_or(unmapped)?, post.value));
            if post.source.is_empty() {
                continue;
            }
            let slot = group.memory.address() + index as u64 * self.slot_bytes;
            let source = self.addresses.span(&post.source).ok_or(unmapped)?;
            let target = self.addresses.span(&post.target).ok_or(unmapped)?;
            if post.source.is_contiguous() && post.target.is_contiguous() {
                runs_out.push(slot, source, post.source.bytes());
                runs_in.push(target, slot, post.source.bytes());
            } else {
                rows.push((post, source, slot, target));
            }
        }
        // SAFETY: sources, targets and cells are alive (`new`); slots hold a put's bytes (`post`) and live until `landed`.
        unsafe {
            if has_bytes {
                runs_out.enqueue(out)?;
                for &(post, source, slot, _) in &rows {
                    copy_rows(out, &post.source, End::Packed(slot), End::Span(source))?;
                }
                group.read.record(out)?;
                into.wait(&group.read)?;
                runs_in.enqueue(into)?;
                for &(post, _, slot, target) in &rows {
                    copy_rows(into, &post.target, End::Span(target), End::Packed(slot))?;
                }
            }
            write_words(into, &words)?;
        }
        if has_bytes { group.landed.record(into) } else { Ok(()) }
    }

    /// Takes back groups that have landed. Each look is a call of the driver, so only when none is free.
    fn reclaim(&mut self) -> Result<(), TransportError> {
        while self.free.is_empty()
            && let Some(group) = self.landing.front()
            && is_done(&group.landed, group)?
        {
            self.free.extend(self.landing.pop_front().map(|mut group| {
                group.posts.clear();
                group
            }));
        }
        Ok(())
    }
}

impl Transport for CopyEngine {
    fn contract(&self) -> Contract {
        Contract::new(Ordering::Unordered, Signalling::Counter).expect("a counter is sound on any order")
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        if post.source.bytes() > self.slot_bytes {
            return Err(failed(post, DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)).into());
        }
        if self.filling.is_none() {
            self.reclaim()?;
        }
        let mut group = self.filling.take().or_else(|| self.free.pop()).ok_or(PostError::Full)?;
        group.posts.push(*post);
        if group.posts.len() == GROUP {
            self.submit(group)?;
        } else {
            self.filling = Some(group);
        }
        Ok(())
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        retired.append(&mut self.empty);
        while let Some(group) = self.reading.front() {
            if !is_done(&group.read, group)? {
                break;
            }
            retired.extend(group.posts.iter().map(|post| post.token));
            self.landing.extend(self.reading.pop_front());
        }
        if self.reading.is_empty()
            && let Some(group) = self.filling.take()
        {
            self.submit(group)?;
            retired.append(&mut self.empty);
        }
        Ok(())
    }
}

fn failed(post: &Post, error: DriverError) -> TransportError {
    TransportError { token: post.token, peer: post.target.rank.0, status: error.0 as u32 }
}

fn is_done(event: &CudaEvent, group: &Group) -> Result<bool, TransportError> {
    event.try_is_complete().map_err(|error| failed(&group.posts[0], error))
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        // Copies under way use the groups; a stream that cannot be awaited belongs to a context that runs nothing.
        let _ = (self.engines.out.synchronize(), self.engines.into.synchronize());
    }
}
