//! The device-to-host FIFO: a ring of tickets with many producers and one consumer.
//!
//! Producers are the CTAs of a kernel (or host threads), the consumer is the proxy. All state that they share is a
//! slice of u64 words: [`FifoHeader`], then the slots. Zeroed words are an empty ring.
//!
//! # Invariant
//! A position is a count of tickets, and it lives in slot `position % slots`. At any time
//! `tail <= next <= tail + slots`, where `tail` is what the consumer has published and `next` is what it will pop, and
//! **the slot of `next` holds the ticket of `next` or of `next - slots`, nothing else.** The two have different lap
//! bits, so one bit says which it is. It holds for every power of two >= 2 of slots, because
//! - a position has one producer: `head` gives each out once (`fetch_add`);
//! - its producer writes the slot once, in one store, so that a ticket is there as a whole or not at all;
//! - it writes only after `tail` has passed `position - slots`, that is after the slot's last ticket was popped;
//! - positions wrap at 2^64, a multiple of two laps, so parity alternates across the wrap too.
//!
//! Tickets leave in the order of their positions. One producer's tickets leave in the order of its pushes.
//!
//! # Orderings, in pairs
//! | release | acquire | ordered between them |
//! |---|---|---|
//! | slot store in [`Producer::push`] | slot load in [`Consumer::pop`] | what the producer wrote before the push (the payload) is visible after the pop |
//! | `tail` store in [`Consumer::pop`] | `tail` load in [`Producer::push`] | the consumer's load of a slot comes before the store that overwrites it |
//! | `poisoned` store | `poisoned` load | nothing but the flag itself |
//!
//! On a device each of these is `.sys`. `head` is relaxed: it hands out numbers and covers no data. The consumer never
//! reads it, so producers on a device may keep it in device memory. A popped ticket frees its slot, not the payload:
//! that is `retired`'s to say.
//!
//! # Progress
//! The consumer publishes `tail` at the latest after a quarter of the ring, and whenever it finds the ring empty. So
//! a producer that waits is never owed a slot by a consumer that polls, in a ring of 2 as in any other.
//!
//! # A producer that gives up
//! A producer looks for room before it claims, so it mostly waits without a position, and giving up then leaves the
//! ring as it was. If others took the room between its look and its claim, it waits with a position that nobody else
//! will fill. Giving up then **poisons** the ring: tickets before the hole are still delivered, none after it ever is,
//! nothing is overwritten, waiting producers stop with [`Stop::Poisoned`], and the consumer sees
//! [`Consumer::is_poisoned`] when it runs dry. There is no repair: the session ends. A push into a free slot does not
//! look at the flag and may succeed; such a ticket is never popped. A panic in the caller's check counts as giving up.
//!
//! The one consumer cannot be doubled:
//! ```compile_fail
//! let (_, consumer) = mkernel_core::fifo::channel(2).unwrap();
//! let second = consumer.clone();
//! ```

use std::mem::{offset_of, size_of};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[cfg(loom)]
use loom::{sync::atomic::AtomicU64, thread::yield_now};
#[cfg(not(loom))]
use std::{sync::atomic::AtomicU64, thread::yield_now};

use thiserror::Error;

use crate::ticket::{Lap, Ticket};

crate::abi_struct! {
    /// The head of a ring's memory; the slots follow it. Producers, the consumer and the slots have 128 bytes of
    /// their own each, so none of them shares a cache line with another, however the memory is aligned.
    pub struct FifoHeader: size 256 {
        /// The next position that a producer claims.
        pub head: u64,
        /// Zero.
        pub reserved_head: [u64; 15],
        /// Positions below it are popped and their slots are free.
        pub tail: u64,
        /// Not 0 once a producer has abandoned a position. Beside `tail`, since who waits reads both.
        pub poisoned: u64,
        /// Zero.
        pub reserved_tail: [u64; 14],
    }
}

const HEAD: usize = offset_of!(FifoHeader, head) / size_of::<u64>();
const TAIL: usize = offset_of!(FifoHeader, tail) / size_of::<u64>();
const POISONED: usize = offset_of!(FifoHeader, poisoned) / size_of::<u64>();

/// Words of a ring's memory before its first slot.
pub const HEADER_WORDS: usize = size_of::<FifoHeader>() / size_of::<u64>();

/// Most slots of a ring: 8 MiB of tickets, far beyond what a proxy can be behind with.
pub const MAX_SLOTS: usize = 1 << 20;

/// Why a FIFO could not be made or a ticket not be pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FifoError {
    /// The memory does not hold a ring: ask for another size.
    #[error("a ring has a power of two of slots from 2 to {MAX_SLOTS}, not {slots}")]
    Slots {
        /// Words that were given for slots.
        slots: usize,
    },
    /// The ring stayed full until the caller's check ended the wait: end the session, since the ticket is lost.
    #[error("put {} got no slot at position {position}", ticket.put())]
    Stopped {
        /// The position that it waited for.
        position: u64,
        /// The ticket that was not pushed.
        ticket: Ticket,
        /// What ended the wait.
        #[source]
        stop: Stop,
    },
}

/// What ended a wait for a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Stop {
    /// The abort word is up.
    #[error("the abort word is up")]
    Aborted,
    /// The deadline of the wait has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// Another producer gave up before.
    #[error("another producer gave up, and nothing behind its position is delivered")]
    Poisoned,
}

/// Makes a ring of `slots` tickets in host memory.
///
/// # Errors
/// [`FifoError::Slots`] unless `slots` is a power of two from 2 to [`MAX_SLOTS`].
pub fn channel(slots: usize) -> Result<(Producer, Consumer), FifoError> {
    // Refused before it is allocated.
    let slots = check_slots(slots)?;
    channel_over((0..HEADER_WORDS + slots).map(|_| AtomicU64::new(0)).collect(), 0)
}

/// Makes an empty ring over memory of the caller's, its first position `start`.
///
/// The memory is [`HEADER_WORDS`] and the slots, and always derefs to the same words. All of it is written here: with
/// `start` 0 to zeros. The peers of another memory space take part once this has returned.
///
/// # Errors
/// [`FifoError::Slots`] unless the slots are a power of two from 2 to [`MAX_SLOTS`].
pub fn channel_over<W>(words: W, start: u64) -> Result<(Producer<W>, Consumer<W>), FifoError>
where
    W: Deref<Target = [AtomicU64]>,
{
    let slots = check_slots(words.len().saturating_sub(HEADER_WORDS))?;
    let ring = Ring { slots: slots as u64, shift: slots.trailing_zeros(), words };
    for word in &ring.words[..HEADER_WORDS] {
        word.store(0, Relaxed);
    }
    ring.head().store(start, Relaxed);
    for position in (0..ring.slots).map(|offset| start.wrapping_add(offset)) {
        let (_, ticket) = Ticket::read(0);
        ring.slot(position).store(ticket.stamp(ring.lap(position).other()), Relaxed);
    }
    ring.tail().store(start, Release);
    let ring = Arc::new(ring);
    let batch = (ring.slots / 4).max(1);
    Ok((Producer { ring: ring.clone(), tail: start }, Consumer { ring, next: start, tail: start, batch }))
}

fn check_slots(slots: usize) -> Result<usize, FifoError> {
    let fits = slots.is_power_of_two() && (2..=MAX_SLOTS).contains(&slots);
    if fits { Ok(slots) } else { Err(FifoError::Slots { slots }) }
}

/// Pushes tickets; every producer thread has a clone.
#[derive(Debug)]
pub struct Producer<W = Box<[AtomicU64]>> {
    ring: Arc<Ring<W>>,
    /// The last `tail` seen. It only rises, so an old one is merely cautious.
    tail: u64,
}

impl<W> Clone for Producer<W> {
    fn clone(&self) -> Self {
        Producer { ring: self.ring.clone(), tail: self.tail }
    }
}

impl<W: Deref<Target = [AtomicU64]>> Producer<W> {
    /// Pushes a ticket: what this thread wrote before is visible to whoever pops it.
    ///
    /// While the ring is full it calls `check` and yields, in turn. `check` looks at the abort word and the deadline.
    ///
    /// # Errors
    /// [`FifoError::Stopped`] if `check` ended the wait or the ring is poisoned. The ticket is not pushed.
    #[inline]
    pub fn push(&mut self, ticket: Ticket, mut check: impl FnMut() -> Result<(), Stop>) -> Result<(), FifoError> {
        let stopped = |position, stop| FifoError::Stopped { position, ticket, stop };
        // A look before the claim: who waits without a position holds nobody up and leaves no hole.
        let head = self.ring.head().load(Relaxed);
        if !self.ring.is_free(head, self.tail) {
            self.wait(None, &mut check).map_err(|stop| stopped(head, stop))?;
        }
        let position = self.ring.head().fetch_add(1, Relaxed);
        if !self.ring.is_free(position, self.tail) {
            self.wait(Some(position), &mut check).map_err(|stop| stopped(position, stop))?;
        }
        let (slot, lap) = (self.ring.slot(position), self.ring.lap(position));
        debug_assert_ne!(Ticket::read(slot.load(Relaxed)).0, lap, "the slot of position {position} is not free");
        slot.store(ticket.stamp(lap), Release);
        Ok(())
    }

    /// Whether a producer has given up.
    pub fn is_poisoned(&self) -> bool {
        self.ring.is_poisoned()
    }

    /// Waits until the slot of the claimed position, or else of the next one to claim, is free. A claim is
    /// abandoned on every other way out.
    #[cold]
    fn wait(&mut self, claimed: Option<u64>, check: &mut impl FnMut() -> Result<(), Stop>) -> Result<(), Stop> {
        let ring = &*self.ring;
        let claim = claimed.map(|_| Claim(ring));
        loop {
            self.tail = ring.tail().load(Acquire);
            if ring.is_free(claimed.unwrap_or_else(|| ring.head().load(Relaxed)), self.tail) {
                std::mem::forget(claim);
                return Ok(());
            }
            if ring.is_poisoned() {
                return Err(Stop::Poisoned);
            }
            check()?;
            yield_now();
        }
    }
}

/// Pops tickets; there is one, and it is no `Clone`.
#[derive(Debug)]
pub struct Consumer<W = Box<[AtomicU64]>> {
    ring: Arc<Ring<W>>,
    /// The position that is popped next.
    next: u64,
    /// What the ring's `tail` says; `next - tail < batch`.
    tail: u64,
    batch: u64,
}

impl<W: Deref<Target = [AtomicU64]>> Consumer<W> {
    /// Pops the next ticket if it is there; never waits.
    ///
    /// On `None` ask [`Consumer::is_poisoned`]: the next ticket may never come.
    #[inline]
    pub fn pop(&mut self) -> Option<Ticket> {
        let (lap, ticket) = Ticket::read(self.ring.slot(self.next).load(Acquire));
        if lap != self.ring.lap(self.next) {
            self.publish();
            return None;
        }
        self.next = self.next.wrapping_add(1);
        if self.next.wrapping_sub(self.tail) >= self.batch {
            self.publish();
        }
        Some(ticket)
    }

    /// Whether a producer has given up.
    pub fn is_poisoned(&self) -> bool {
        self.ring.is_poisoned()
    }

    #[inline]
    fn publish(&mut self) {
        if self.tail != self.next {
            self.tail = self.next;
            self.ring.tail().store(self.next, Release);
        }
    }
}

#[derive(Debug)]
struct Ring<W> {
    words: W,
    slots: u64,
    /// log2 of `slots`.
    shift: u32,
}

impl<W: Deref<Target = [AtomicU64]>> Ring<W> {
    #[inline]
    fn head(&self) -> &AtomicU64 {
        &self.words[HEAD]
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        &self.words[TAIL]
    }

    #[inline]
    fn is_free(&self, position: u64, tail: u64) -> bool {
        position.wrapping_sub(tail) < self.slots
    }

    #[inline]
    fn slot(&self, position: u64) -> &AtomicU64 {
        &self.words[HEADER_WORDS + (position & (self.slots - 1)) as usize]
    }

    #[inline]
    fn lap(&self, position: u64) -> Lap {
        Lap::of(position, self.shift)
    }

    fn is_poisoned(&self) -> bool {
        self.words[POISONED].load(Acquire) != 0
    }
}

/// A claimed position whose slot is not yet free; dropped, it poisons the ring.
struct Claim<'a, W: Deref<Target = [AtomicU64]>>(&'a Ring<W>);

impl<W: Deref<Target = [AtomicU64]>> Drop for Claim<'_, W> {
    fn drop(&mut self) {
        self.0.words[POISONED].store(1, Release);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// A full ring whose next position is claimed: what a producer finds that lost the race for the last room.
    fn claimed_without_room() -> (Producer, Consumer, u64) {
        let (mut producer, consumer) = channel(2).unwrap();
        let ticket = Ticket::new(0, 0).unwrap();
        (0..2).for_each(|_| producer.push(ticket, || Err(Stop::Deadline)).unwrap());
        let position = producer.ring.head().fetch_add(1, Relaxed);
        (producer, consumer, position)
    }

    #[test]
    fn giving_up_a_claimed_position_poisons_the_ring() {
        let (mut producer, consumer, position) = claimed_without_room();
        assert_eq!(producer.wait(Some(position), &mut || Err(Stop::Aborted)), Err(Stop::Aborted));
        assert!(consumer.is_poisoned());
        assert_eq!(producer.wait(None, &mut || Ok(())), Err(Stop::Poisoned));
    }

    #[test]
    fn a_panic_in_the_check_of_a_claimed_position_poisons_the_ring() {
        let (mut producer, consumer, position) = claimed_without_room();
        let wait = || producer.wait(Some(position), &mut || panic!("a check that fails"));
        assert!(catch_unwind(AssertUnwindSafe(wait)).is_err());
        assert!(consumer.is_poisoned());
    }

    #[test]
    fn a_claimed_position_that_gets_its_room_poisons_nothing() {
        let (mut producer, mut consumer, position) = claimed_without_room();
        let mut check = || consumer.pop().map(|_| ()).ok_or(Stop::Deadline);
        assert_eq!(producer.wait(Some(position), &mut check), Ok(()));
        assert!(!consumer.is_poisoned());
    }
}
