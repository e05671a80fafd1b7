//! The ticket FIFO on real threads; `loom_fifo.rs` explores its interleavings.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mkernel_core::fifo::{
    Consumer, FifoError, FifoHeader, HEADER_WORDS, MAX_SLOTS, Producer, Stop, channel, channel_over,
};
use mkernel_core::ticket::Ticket;

type Words = Box<[AtomicU64]>;
type Shared = Arc<[AtomicU64]>;

fn words(slots: usize, fill: u64) -> Words {
    (0..HEADER_WORDS + slots).map(|_| AtomicU64::new(fill)).collect()
}

fn ticket(put: u64, argument: u64) -> Ticket {
    Ticket::new(put, u32::try_from(argument).unwrap()).unwrap()
}

/// Ends a wait after a minute, so that a lost wake-up fails instead of hanging.
fn minute() -> impl FnMut() -> Result<(), Stop> + Send {
    let deadline = Instant::now() + Duration::from_secs(60);
    move || if Instant::now() < deadline { Ok(()) } else { Err(Stop::Deadline) }
}

/// For pushes that must not wait.
fn never() -> Result<(), Stop> {
    panic!("the ring is not full")
}

/// Sends `each` tickets from every producer and checks that all arrive, each producer's in order.
fn exchange(producer: Producer, mut consumer: Consumer, producers: u64, each: u64) {
    let mut expected = vec![0; producers as usize];
    thread::scope(|scope| {
        for put in 0..producers {
            let mut producer = producer.clone();
            scope.spawn(move || {
                let mut check = minute();
                (0..each).for_each(|argument| producer.push(ticket(put, argument), &mut check).unwrap());
            });
        }
        let mut check = minute();
        for _ in 0..producers * each {
            let ticket = loop {
                match consumer.pop() {
                    Some(ticket) => break ticket,
                    None => thread::yield_now(),
                }
                check().unwrap();
            };
            let expected = &mut expected[ticket.put() as usize];
            assert_eq!(u64::from(ticket.argument()), *expected, "producer {}", ticket.put());
            *expected += 1;
        }
    });
    assert_eq!(consumer.pop(), None);
    assert!(!producer.is_poisoned());
}

#[test]
fn a_ring_of_two_keeps_every_ticket_over_many_laps() {
    let (producer, consumer) = channel(2).unwrap();
    exchange(producer, consumer, 4, 20_000);
}

#[test]
fn a_large_ring_keeps_every_ticket_over_many_laps() {
    let (producer, consumer) = channel(256).unwrap();
    exchange(producer, consumer, 3, 50_000);
}

#[test]
fn positions_wrap_at_the_end_of_u64() {
    for (slots, before) in [(2, 1), (2, 4), (8, 3), (8, 1000), (64, 64)] {
        let (producer, consumer) = channel_over(words(slots, u64::MAX), 0u64.wrapping_sub(before)).unwrap();
        exchange(producer, consumer, 2, 2_000);
    }
}

#[test]
fn any_start_in_any_memory_is_an_empty_ring() {
    let seed = 0x5eed_f1f0;
    println!("seed {seed:#x}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..1000 {
        let slots = 2 << random.usize(..6);
        let (mut producer, mut consumer) = channel_over(words(slots, random.u64(..)), random.u64(..)).unwrap();
        for lap in 0..3 {
            assert_eq!(consumer.pop(), None);
            (0..slots as u64).for_each(|put| producer.push(ticket(put, lap), never).unwrap());
            (0..slots as u64).for_each(|put| assert_eq!(consumer.pop(), Some(ticket(put, lap))));
            // Finding the ring empty is what publishes the last free slots.
            assert_eq!(consumer.pop(), None);
        }
    }
}

#[test]
fn an_empty_ring_at_zero_is_zeroed_memory() {
    let memory = Shared::from(words(4, 7));
    let _handles = channel_over(memory.clone(), 0).unwrap();
    assert!(memory.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_slot_is_freed_at_the_latest_by_a_quarter_of_the_ring() {
    let (mut producer, mut consumer) = channel(8).unwrap();
    (0..8).for_each(|put| producer.push(ticket(put, 0), never).unwrap());
    assert_eq!((consumer.pop(), consumer.pop()), (Some(ticket(0, 0)), Some(ticket(1, 0))));
    (8..10).for_each(|put| producer.push(ticket(put, 0), || Err(Stop::Deadline)).unwrap());
}

#[test]
fn only_a_power_of_two_from_two_slots_is_a_ring() {
    for slots in [0, 1, 3, 6, 1000, MAX_SLOTS * 2, usize::MAX] {
        assert_eq!(channel(slots).err(), Some(FifoError::Slots { slots }));
    }
    assert_eq!(channel_over(words(3, 0), 0).err(), Some(FifoError::Slots { slots: 3 }));
    assert_eq!(channel_over(Words::default(), 0).err(), Some(FifoError::Slots { slots: 0 }));
    assert!(channel(MAX_SLOTS).is_ok());
}

#[test]
fn a_wait_ends_with_what_its_check_returns_and_leaves_the_ring_whole() {
    for stop in [Stop::Aborted, Stop::Deadline] {
        let (mut producer, mut consumer) = channel(2).unwrap();
        (0..2).for_each(|put| producer.push(ticket(put, 0), never).unwrap());
        let mut checks = 0;
        let check = || {
            checks += 1;
            if checks < 10 { Ok(()) } else { Err(stop) }
        };
        let late = ticket(2, 0);
        assert_eq!(producer.push(late, check), Err(FifoError::Stopped { position: 2, ticket: late, stop }));
        assert!(!consumer.is_poisoned());
        (0..2).for_each(|put| assert_eq!(consumer.pop(), Some(ticket(put, 0))));
        producer.push(late, never).unwrap();
        assert_eq!(consumer.pop(), Some(late));
    }
}

#[test]
fn an_abort_word_ends_the_wait_of_another_thread() {
    let abort = AtomicBool::new(false);
    let (mut producer, _consumer) = channel(2).unwrap();
    (0..2).for_each(|put| producer.push(ticket(put, 0), never).unwrap());
    let (waiting, is_waiting) = std::sync::mpsc::channel();
    let pushed = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let check = || {
                waiting.send(()).expect("the test listens until the scope ends");
                if abort.load(Ordering::Relaxed) { Err(Stop::Aborted) } else { Ok(()) }
            };
            producer.push(ticket(2, 0), check)
        });
        is_waiting.recv().unwrap();
        abort.store(true, Ordering::Relaxed);
        waiter.join().unwrap()
    });
    assert!(matches!(pushed, Err(FifoError::Stopped { position: 2, stop: Stop::Aborted, .. })));
}

/// A full ring of two, and its memory for a second producer that works on the words as a device does.
fn full_ring() -> (Shared, Producer<Shared>, Consumer<Shared>) {
    let memory = Shared::from(words(2, 0));
    let (mut producer, consumer) = channel_over(memory.clone(), 0).unwrap();
    (0..2).for_each(|put| producer.push(ticket(put, 0), never).unwrap());
    (memory, producer, consumer)
}

#[test]
fn nothing_behind_an_abandoned_position_is_delivered() {
    let (memory, mut producer, mut consumer) = full_ring();
    memory[offset_of!(FifoHeader, head) / 8].fetch_add(1, Ordering::Relaxed);
    (0..2).for_each(|put| assert_eq!(consumer.pop(), Some(ticket(put, 0))));
    producer.push(ticket(3, 0), never).unwrap();
    // Position 4 lies in the slot of the hole, position 2, one lap later: it may not pass for it.
    assert!(producer.push(ticket(4, 0), || Err(Stop::Deadline)).is_err());
    assert_eq!(consumer.pop(), None);
}

#[test]
fn a_poisoned_ring_stops_who_waits_and_tells_the_consumer() {
    let (memory, mut producer, mut consumer) = full_ring();
    let late = ticket(2, 0);
    let check = || {
        memory[offset_of!(FifoHeader, poisoned) / 8].store(1, Ordering::Release);
        Ok(())
    };
    let poisoned = Err(FifoError::Stopped { position: 2, ticket: late, stop: Stop::Poisoned });
    assert_eq!(producer.push(late, check), poisoned);
    assert!(consumer.is_poisoned() && producer.is_poisoned());
    assert_eq!(consumer.pop(), Some(ticket(0, 0)));
}
