//! Tickets through the ring and through `crossbeam_queue::ArrayQueue`, one and four producers, in one run.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use crossbeam_queue::ArrayQueue;
use mkernel_core::fifo::{self, Stop};
use mkernel_core::ticket::Ticket;

const SLOTS: usize = 1024;
/// Tickets of one iteration, over all producers.
const TICKETS: u64 = 1 << 16;

const PAIRS: usize = 201;
const PAIR_TICKETS: u64 = 1 << 18;

/// Times one consumer and `producers` threads from a common start until the last ticket is popped.
fn time<P: FnMut(Ticket) + Send>(producers: Vec<P>, tickets: u64, mut pop: impl FnMut() -> Option<Ticket>) -> Duration {
    let start = Barrier::new(producers.len() + 1);
    let each = tickets / producers.len() as u64;
    thread::scope(|scope| {
        for mut push in producers {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                (0..each).for_each(|index| push(Ticket::new(index & 0xffff, 1).expect("16 bits fit 31")));
            });
        }
        start.wait();
        let begin = Instant::now();
        let mut popped = 0;
        while popped < tickets {
            match pop() {
                Some(ticket) => popped += u64::from(ticket.argument()),
                None => thread::yield_now(),
            }
        }
        begin.elapsed()
    })
}

fn ring(producers: usize, tickets: u64) -> Duration {
    let abort = AtomicBool::new(false);
    let (producer, mut consumer) = fifo::channel(SLOTS).expect("1024 is a power of two");
    let check = || if abort.load(Ordering::Relaxed) { Err(Stop::Aborted) } else { Ok(()) };
    let pushes = (0..producers).map(|_| {
        let mut producer = producer.clone();
        move |ticket| producer.push(ticket, check).expect("nobody aborts")
    });
    time(pushes.collect(), tickets, || consumer.pop())
}

fn array_queue(producers: usize, tickets: u64) -> Duration {
    let abort = AtomicBool::new(false);
    let queue = ArrayQueue::new(SLOTS);
    let pushes = (0..producers).map(|_| {
        |ticket| {
            while queue.push(ticket).is_err() {
                assert!(!abort.load(Ordering::Relaxed), "nobody aborts");
                thread::yield_now();
            }
        }
    });
    time(pushes.collect(), tickets, || queue.pop())
}

fn push_and_pop(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fifo");
    group.throughput(Throughput::Elements(TICKETS)).sample_size(20);
    for producers in [1, 4] {
        group.bench_with_input(BenchmarkId::new("ring", producers), &producers, |bencher, &producers| {
            bencher.iter_custom(|iterations| ring(producers, iterations * TICKETS));
        });
        group.bench_with_input(BenchmarkId::new("array_queue", producers), &producers, |bencher, &producers| {
            bencher.iter_custom(|iterations| array_queue(producers, iterations * TICKETS));
        });
    }
    group.finish();
}

/// Prints the ratio of rates from alternated pairs, which a busy machine moves less than it moves either rate.
fn ratio() {
    for producers in [1, 4] {
        let mut ratios: Vec<f64> = (0..PAIRS)
            .map(|_| {
                let ring = ring(producers, PAIR_TICKETS);
                array_queue(producers, PAIR_TICKETS).as_secs_f64() / ring.as_secs_f64()
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let (low, median, high) = (ratios[PAIRS / 4], ratios[PAIRS / 2], ratios[PAIRS * 3 / 4]);
        println!(
            "ring over array_queue, {producers} producers: {median:.2}x (quartiles {low:.2} to {high:.2}, {PAIRS} pairs)"
        );
    }
}

criterion_group!(rates, push_and_pop);

fn main() {
    rates();
    ratio();
}
