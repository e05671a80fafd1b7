//! Every interleaving of the ticket FIFO, up to loom's bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p mkernel-core --release --test loom_fifo`
#![cfg(loom)]

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use mkernel_core::fifo::{Consumer, FifoHeader, HEADER_WORDS, Stop, channel, channel_over};
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
fn exchange(start: u64, counts: [u32; 2]) {
    let complete = Arc::new(AtomicUsize::new(0));
    let completed = complete.clone();
    explore(2, move || {
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
        assert_eq!(consumer.is_poisoned(), pushed != counts);
        if pushed == counts {
            assert_eq!(arrived, counts);
            completed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        assert!(arrived[0] <= pushed[0] && arrived[1] <= pushed[1]);
    });
    let complete = complete.load(std::sync::atomic::Ordering::Relaxed);
    println!("{complete} complete interleavings");
    assert!(complete > 100, "{complete} interleavings are no exploration");
}

#[test]
fn two_producers_lose_and_repeat_nothing_over_two_laps() {
    exchange(0, [2, 2]);
}

#[test]
fn two_producers_lose_and_repeat_nothing_over_three_laps() {
    exchange(0, [3, 2]);
}

#[test]
fn two_producers_lose_and_repeat_nothing_across_the_wrap() {
    exchange(u64::MAX - 1, [2, 2]);
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
