//! Every interleaving of the ticket FIFO, up to loom's bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p mkernel-core --release --test loom_fifo`
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use mkernel_core::fifo::{Consumer, HEADER_WORDS, Stop, channel, channel_over};
use mkernel_core::ticket::{Lap, Ticket};

const RING_OF_TWO: u32 = 1;

fn ticket(put: u64, argument: u32) -> Ticket {
    Ticket::new(put, argument).unwrap()
}

fn words() -> Arc<[AtomicU64]> {
    (0..HEADER_WORDS + 2).map(|_| AtomicU64::new(0)).collect()
}

fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

fn next<W: std::ops::Deref<Target = [AtomicU64]>>(consumer: &mut Consumer<W>) -> Ticket {
    loop {
        match consumer.pop() {
            Some(ticket) => return ticket,
            None => thread::yield_now(),
        }
    }
}

/// A payload that loom watches for unordered access.
struct Payloads([UnsafeCell<u32>; 6]);

// SAFETY: loom reports every access that is not ordered; that is what the tests are about.
unsafe impl Sync for Payloads {}

impl Payloads {
    fn new() -> Arc<Payloads> {
        Arc::new(Payloads([0; 6].map(UnsafeCell::new)))
    }

    fn write(&self, index: u32) {
        // SAFETY: loom checks that nobody else is at the cell.
        self.0[index as usize].with_mut(|cell| unsafe { *cell = index + 1 });
    }

    fn check(&self, index: u32) {
        // SAFETY: loom checks that no writer is at the cell.
        assert_eq!(self.0[index as usize].with(|cell| unsafe { *cell }), index + 1);
    }
}

/// Ends a wait after two looks, so that loom need not follow two waiters that take turns for ever.
fn patience() -> impl FnMut() -> Result<(), Stop> {
    let mut looks = 0;
    move || {
        looks += 1;
        if looks <= 2 { Ok(()) } else { Err(Stop::Deadline) }
    }
}

/// Producer `put` writes payloads and pushes `counts[put]` tickets from `start` on, until one push gives up. What
/// arrives is each producer's first tickets in order with their payloads, and everything if nobody gave up.
///
/// Returns how many interleavings delivered everything and how many poisoned the ring.
fn exchange(preemptions: usize, start: u64, counts: [u32; 2]) -> [usize; 2] {
    let [complete, poisoned] = [0; 2].map(|zero| Arc::new(AtomicUsize::new(zero)));
    let seen = [complete.clone(), poisoned.clone()];
    explore(preemptions, move || {
        let payloads = Payloads::new();
        let (producer, mut consumer) = channel_over(words(), start).unwrap();
        let threads = [0, 1].map(|put| {
            let (mut producer, payloads) = (producer.clone(), payloads.clone());
            let mut push = move |argument| {
                payloads.write(put * 3 + argument);
                producer.push(ticket(put.into(), argument), patience()).is_ok()
            };
            thread::spawn(move || (0..counts[put as usize]).map_while(|argument| push(argument).then_some(())).count())
        });
        let mut arrived = [0; 2];
        let mut arrive = |ticket: Ticket| {
            let next = &mut arrived[ticket.put() as usize];
            assert_eq!(ticket.argument(), *next, "producer {}", ticket.put());
            payloads.check(ticket.put() * 3 + ticket.argument());
            *next += 1;
        };
        for _ in 0..counts[0] + counts[1] + 1 {
            match consumer.pop() {
                Some(ticket) => arrive(ticket),
                None => thread::yield_now(),
            }
        }
        let pushed = threads.map(|thread| thread.join().unwrap() as u32);
        std::iter::from_fn(|| consumer.pop()).for_each(&mut arrive);
        if consumer.is_poisoned() {
            assert_ne!(pushed, counts, "only who gives up poisons");
            assert!(arrived[0] <= pushed[0] && arrived[1] <= pushed[1]);
        } else {
            assert_eq!(arrived, pushed);
        }
        complete.fetch_add(usize::from(arrived == counts), Relaxed);
        poisoned.fetch_add(usize::from(consumer.is_poisoned()), Relaxed);
    });
    seen.map(|seen| seen.load(Relaxed))
}

#[test]
fn two_producers_lose_and_repeat_nothing_over_two_laps() {
    let [complete, poisoned] = exchange(2, 0, [2, 2]);
    println!("{complete} interleavings delivered everything, {poisoned} poisoned the ring");
    assert!(complete > 1000 && poisoned > 10, "the model lost its reach");
}

#[test]
fn two_producers_lose_and_repeat_nothing_over_three_laps() {
    let [complete, _] = exchange(1, 0, [3, 2]);
    println!("{complete} interleavings delivered everything");
    assert!(complete > 1000, "the model lost its reach");
}

#[test]
fn two_producers_lose_and_repeat_nothing_across_the_wrap() {
    let [complete, poisoned] = exchange(2, u64::MAX - 1, [2, 2]);
    println!("{complete} interleavings delivered everything, {poisoned} poisoned the ring");
    assert!(complete > 1000 && poisoned > 10, "the model lost its reach");
}

#[test]
fn a_payload_written_before_the_push_is_visible_after_the_pop() {
    explore(3, || {
        let payloads = Payloads::new();
        let (mut producer, mut consumer) = channel(2).unwrap();
        let written = payloads.clone();
        let thread = thread::spawn(move || {
            for index in 0..3 {
                written.write(index);
                producer.push(ticket(0, index), || Ok(())).unwrap();
            }
        });
        (0..3).for_each(|_| payloads.check(next(&mut consumer).argument()));
        thread.join().unwrap();
    });
}

/// The ring's words seen by a producer that is written wrong on purpose.
struct Wrong(Arc<[AtomicU64]>);

impl Wrong {
    fn store(&self, position: u64, ticket: Ticket, ordering: Ordering) {
        let slot = HEADER_WORDS + (position % 2) as usize;
        self.0[slot].store(ticket.stamp(Lap::of(position, RING_OF_TWO)), ordering);
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_refutes_a_producer_that_publishes_relaxed() {
    explore(3, || {
        let (payloads, words) = (Payloads::new(), words());
        let (_, mut consumer) = channel_over(words.clone(), 0).unwrap();
        let written = payloads.clone();
        thread::spawn(move || {
            written.write(0);
            Wrong(words).store(0, ticket(0, 0), Relaxed);
        });
        payloads.check(next(&mut consumer).argument());
    });
}

#[test]
#[should_panic(expected = "overwritten")]
fn loom_refutes_a_producer_that_does_not_wait_for_its_slot() {
    explore(3, || {
        let words = words();
        let (_, mut consumer) = channel_over(words.clone(), 0).unwrap();
        let thread = thread::spawn(move || {
            let producer = Wrong(words);
            (0..4).for_each(|position| producer.store(position, ticket(0, position as u32), Ordering::Release));
        });
        let first = (0..3).find_map(|_| {
            consumer.pop().or_else(|| {
                thread::yield_now();
                None
            })
        });
        thread.join().unwrap();
        assert_eq!(first.or_else(|| consumer.pop()), Some(ticket(0, 0)), "overwritten");
    });
}
