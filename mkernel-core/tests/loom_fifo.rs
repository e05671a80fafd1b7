//! Every interleaving of the ticket FIFO, up to loom's bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p mkernel-core --release --test loom_fifo`
#![cfg(loom)]

use std::mem::offset_of;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use mkernel_core::fifo::{Consumer, FifoHeader, HEADER_WORDS, Producer, Stop, channel, channel_over};
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

/// Producer `put` sends `counts[put]` tickets; all arrive once, each producer's in order.
fn exchange<W>(producer: Producer<W>, mut consumer: Consumer<W>, counts: [u32; 2])
where
    W: std::ops::Deref<Target = [AtomicU64]> + Send + Sync + 'static,
{
    let threads = [0, 1].map(|put| {
        let mut producer = producer.clone();
        thread::spawn(move || {
            (0..counts[put]).for_each(|argument| producer.push(ticket(put as u64, argument), || Ok(())).unwrap());
        })
    });
    let mut expected = [0; 2];
    for _ in 0..counts[0] + counts[1] {
        let ticket = next(&mut consumer);
        let expected = &mut expected[ticket.put() as usize];
        assert_eq!(ticket.argument(), *expected, "producer {}", ticket.put());
        *expected += 1;
    }
    threads.map(|thread| thread.join().unwrap());
    assert_eq!(expected, counts);
    assert_eq!(consumer.pop(), None);
}

#[test]
fn two_producers_lose_and_repeat_nothing_over_two_laps() {
    explore(2, || {
        let (producer, consumer) = channel(2).unwrap();
        exchange(producer, consumer, [2, 2]);
    });
}

#[test]
fn two_producers_lose_and_repeat_nothing_over_three_laps() {
    explore(2, || {
        let (producer, consumer) = channel(2).unwrap();
        exchange(producer, consumer, [3, 2]);
    });
}

#[test]
fn two_producers_lose_and_repeat_nothing_across_the_wrap() {
    explore(2, || {
        let (producer, consumer) = channel_over(words(), u64::MAX - 1).unwrap();
        exchange(producer, consumer, [2, 2]);
    });
}

/// A payload that loom watches for unordered access.
struct Payloads([UnsafeCell<u32>; 3]);

// SAFETY: loom reports every access that is not ordered; that is what the tests are about.
unsafe impl Sync for Payloads {}

impl Payloads {
    fn new() -> Arc<Payloads> {
        Arc::new(Payloads([0; 3].map(UnsafeCell::new)))
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

#[test]
fn a_producer_that_gives_up_never_lets_a_later_ticket_through() {
    explore(3, || {
        let (producer, mut consumer) = channel(2).unwrap();
        let threads = [0, 1].map(|put| {
            let mut producer = producer.clone();
            thread::spawn(move || {
                let push = |argument| producer.push(ticket(put, argument), || Err(Stop::Deadline)).is_ok();
                (0..2).map(push).filter(|ok| *ok).count()
            })
        });
        let mut popped = Vec::new();
        popped.extend(consumer.pop());
        let pushed: usize = threads.map(|thread| thread.join().unwrap()).iter().sum();
        popped.extend(std::iter::from_fn(|| consumer.pop()));
        // Either nobody gave up and all four came, or the flag is up and what came is a prefix.
        assert_eq!(consumer.is_poisoned(), pushed < 4);
        assert!(popped.len() <= pushed);
        for put in 0..2 {
            let of_one: Vec<_> = popped.iter().filter(|ticket| ticket.put() == put).map(|t| t.argument()).collect();
            assert!(of_one.is_sorted_by(|a, b| a < b), "{of_one:?}");
        }
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
            Wrong(words).store(0, ticket(0, 0), Ordering::Relaxed);
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

#[test]
fn the_header_has_its_words_where_the_slots_begin() {
    assert_eq!(offset_of!(FifoHeader, head), 0);
    assert_eq!(size_of::<FifoHeader>(), HEADER_WORDS * 8);
}
