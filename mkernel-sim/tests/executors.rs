//! Both executors on small programs written by hand.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Sketch, copy, put, raise, release, span};
use half::f16;
use mkernel_core::builder::Step;
use mkernel_core::{
    Born, CellId, DType, Executor, FaultKind, Op, Program, Put, Rank, RegionId, Span, Verified, World, validate,
};
use mkernel_sim::{Network, Options, Seeded, SimError, Threaded};

fn verified(programs: Vec<Program>) -> Arc<Verified> {
    Arc::new(validate(programs).unwrap_or_else(|violation| panic!("{violation}")))
}

/// Runs `each` on threads and under ten seeds.
fn on_both(programs: Vec<Program>, options: &Options, each: impl Fn(&mut dyn Executor)) {
    let verified = verified(programs);
    each(&mut Threaded::new(verified.clone(), options.clone()).unwrap());
    for seed in 0..10 {
        println!("seed {seed}");
        each(&mut Seeded::new(verified.clone(), Options { seed, ..options.clone() }).unwrap());
    }
}

fn bytes(executor: &dyn Executor, span: Span) -> Vec<u8> {
    let mut bytes = vec![0; span.bytes() as usize];
    executor.read(&span, &mut bytes);
    bytes
}

/// Rank 0 writes through rank 1's memory and back by puts, under credits.
fn ping_pong() -> Vec<Program> {
    ping_pong_from(0)
}

/// The same from this offset of every region on.
fn ping_pong_from(start: u64) -> Vec<Program> {
    let span = |rank, region, offset, bytes| span(rank, region, start + offset, bytes);
    let world = World::new(&[1, 1]).unwrap();
    let ping = Sketch::new(&world, 0, 2).cell(1, Born::Empty).cell(1, Born::Empty);
    let ping = ping.input(span(0, 0, 0, 64)).output(span(0, 1, 0, 64)).law(64, 64).lane(1, |lane| {
        put(lane, &[], span(0, 0, 0, 64), span(1, 0, 0, 64), 0, Some(1));
        release(lane, &[0, 1], &[], &[]);
    });
    let pong = Sketch::new(&world, 1, 1).cell(1, Born::Empty).cell(1, Born::Empty);
    let pong = pong.law(64, 64).lane(1, |lane| {
        put(lane, &[0], span(1, 0, 0, 64), span(0, 1, 0, 64), 0, Some(1));
        release(lane, &[1], &[], &[]);
    });
    let mut programs = vec![ping.finish(), pong.finish()];
    programs.iter_mut().flat_map(|p| &mut p.regions).for_each(|region| region.bytes += start);
    programs
}

#[test]
fn memory_beyond_four_gib_is_reached_and_what_lies_there_below_is_left_alone() {
    let start = 1 << 32;
    let verified = verified(ping_pong_from(start));
    // Without poison nothing but the bytes that are used is ever touched.
    let options = Options { poison: false, ..Options::default() };
    let sent: Vec<u8> = (1..65).collect();
    let run = |executor: &mut dyn Executor| {
        executor.write(&span(0, 0, start, 64), &sent);
        executor.launch().unwrap();
        assert_eq!(bytes(executor, span(0, 1, start, 64)), sent);
        assert_eq!(bytes(executor, span(0, 1, 0, 64)), [0; 64]);
        assert_eq!(bytes(executor, span(1, 0, 0, 64)), [0; 64]);
    };
    run(&mut Threaded::new(verified.clone(), options.clone()).unwrap());
    run(&mut Seeded::new(verified, options).unwrap());
}

#[test]
fn puts_carry_new_bytes_in_every_epoch() {
    for network in [Network::default(), Network::prompt()] {
        on_both(ping_pong(), &Options { ring: 2, network, ..Options::default() }, |executor| {
            for epoch in 0..5u8 {
                let sent: Vec<u8> = (0..64).map(|i| i * 3 + epoch).collect();
                executor.write(&span(0, 0, 0, 64), &sent);
                let run = executor.launch().unwrap();
                assert_eq!(bytes(executor, span(0, 1, 0, 64)), sent);
                assert_eq!((run.inter_out, run.intra_out), (vec![64, 64], vec![0, 0]));
            }
        });
    }
}

#[test]
fn a_counted_put_carries_as_many_rows_as_memory_says_even_none() {
    let world = World::new(&[1, 1]).unwrap();
    let rows = |rank| Span { rank: Rank(rank), region: RegionId(0), offset: 0, rows: 4, row_bytes: 2, stride: 2 };
    let from = Sketch::new(&world, 0, 2)
        .cell(1, Born::Empty)
        .cell(1, Born::Empty)
        .input(span(0, 0, 0, 8))
        .input(span(0, 1, 0, 8));
    let from = from.law(8, 0).lane(1, |lane| {
        let (source, target) = (rows(0), rows(1));
        let (cell, retired) = (CellId(0), Some(CellId(0)));
        lane.put(&[], Put { source, count: Some(span(0, 1, 0, 8)), target, cell, retired });
        release(lane, &[0, 1], &[], &[]);
    });
    let to = Sketch::new(&world, 1, 1).cell(1, Born::Empty).law(0, 8);
    let to = to.lane(1, |lane| lane.put(&[CellId(0)], Put::signal(Rank(1), Rank(0), CellId(1))));
    on_both(vec![from.finish(), to.finish()], &Options::default(), |executor| {
        for (count, landed) in [(2u64, [1, 1, 1, 1, 255, 255, 255, 255]), (0, [1, 1, 1, 1, 255, 255, 255, 255])] {
            executor.write(&span(0, 0, 0, 8), &[1; 8]);
            executor.write(&span(0, 1, 0, 8), &count.to_le_bytes());
            assert_eq!(executor.launch().unwrap().inter_out, [2 * count, 0]);
            assert_eq!(bytes(executor, span(1, 0, 0, 8)), landed);
        }
        executor.write(&span(0, 1, 0, 8), &5u64.to_le_bytes());
        let fault = executor.launch().unwrap_err();
        assert_eq!((fault.kind, fault.rank, fault.instruction), (FaultKind::Transport, Rank(0), Some(0)));
    });
}

#[test]
fn released_memory_is_poisoned_unless_poison_is_off() {
    let sketch = Sketch::new(&World::new(&[1]).unwrap(), 0, 1).input(span(0, 0, 0, 8));
    let programs = vec![sketch.lane(1, |lane| release(lane, &[], &[span(0, 0, 2, 3)], &[])).finish()];
    for (poison, expected) in [(true, [1, 1, 255, 255, 255, 1, 1, 1]), (false, [1; 8])] {
        on_both(programs.clone(), &Options { poison, ..Options::default() }, |executor| {
            executor.write(&span(0, 0, 0, 8), &[1; 8]);
            executor.launch().unwrap();
            assert_eq!(bytes(executor, span(0, 0, 0, 8)), expected);
        });
    }
}

#[test]
fn a_product_of_two_segments_is_rounded_once_and_not_a_number_passes_through() {
    // f16 holds 2048 but not 2049. Rounded per segment the sum 2048 + 1 + 1 stays 2048; rounded once it is 2050.
    let matrix = |region, rows, row_bytes| Span {
        rank: Rank(0),
        region: RegionId(region),
        offset: 0,
        rows,
        row_bytes,
        stride: row_bytes,
    };
    let (a, b, c) = (matrix(0, 1, 2), matrix(1, 1, 4), matrix(2, 1, 4));
    let sketch = Sketch::new(&World::new(&[1]).unwrap(), 0, 3);
    let sketch = sketch.input(span(0, 0, 0, 6)).input(span(0, 1, 0, 12)).output(c).lane(1, |lane| {
        let reads: Vec<[Span; 2]> =
            (0..3).map(|i| [Span { offset: 2 * i, ..a }, Span { offset: 4 * i, ..b }]).collect();
        let steps: Vec<Step<'_>> = reads.iter().map(|reads| Step::new(&[], reads)).collect();
        lane.push_segments(Op::Gemm { input: DType::F16, output: DType::F16 }, &steps, &[c], &[]);
    });
    let encode = |values: &[f32]| values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect::<Vec<_>>();
    on_both(vec![sketch.finish()], &Options::default(), |executor| {
        executor.write(&span(0, 0, 0, 6), &encode(&[1.0, 1.0, 1.0]));
        executor.write(&span(0, 1, 0, 12), &encode(&[2048.0, 1.0, 1.0, f32::NAN, 1.0, f32::INFINITY]));
        executor.launch().unwrap();
        let c = bytes(executor, c);
        assert_eq!(f16::from_le_bytes([c[0], c[1]]).to_f32(), 2050.0);
        assert!(f16::from_le_bytes([c[2], c[3]]).is_nan());
    });
}

#[test]
fn lanes_help_each_other_and_every_instruction_runs_once() {
    let world = World::new(&[1]).unwrap();
    for ctas in [1, 2, 5] {
        // Lane 0 is drained at once; its CTAs help with lane 1, whose instructions all wait for the last of lane 0.
        let sketch = Sketch::new(&world, 0, 2).cell(1, Born::Empty).input(span(0, 0, 0, 64)).output(span(0, 1, 0, 64));
        let sketch = sketch
            .lane(ctas, |lane| {
                release(lane, &[], &[], &[]);
                release(lane, &[], &[], &[raise(0, 0)]);
            })
            .lane(1, |lane| {
                for i in 0..64 {
                    copy(lane, &[0], span(0, 0, i, 1), span(0, 1, 63 - i, 1), &[]);
                }
            })
            .then(0, 1);
        on_both(vec![sketch.finish()], &Options::default(), |executor| {
            let sent: Vec<u8> = (0..64).collect();
            executor.write(&span(0, 0, 0, 64), &sent);
            let run = executor.launch().unwrap();
            assert_eq!(bytes(executor, span(0, 1, 0, 64)), sent.into_iter().rev().collect::<Vec<_>>());
            assert_eq!(run.lanes.iter().map(|l| l.tasks).collect::<Vec<_>>(), [2, 64]);
        });
    }
}

#[test]
fn a_trace_has_an_entry_of_work_for_every_instruction() {
    let options = Options { trace: true, ..Options::default() };
    on_both(ping_pong(), &options, |executor| {
        executor.write(&span(0, 0, 0, 64), &[7; 64]);
        let trace = executor.launch().unwrap().trace;
        for (rank, instruction) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let is_this = |e: &&mkernel_core::executor::TraceEvent| (e.rank.0, e.instruction) == (rank, instruction);
            let works = trace.iter().filter(is_this).any(|e| e.what == mkernel_core::executor::Activity::Work);
            assert!(works, "rank {rank} instruction {instruction}");
        }
    });
}

#[test]
fn a_machine_without_enough_memory_is_a_typed_error() {
    let mut builder = mkernel_core::ProgramBuilder::new(&World::new(&[1]).unwrap(), Rank(0));
    builder.region("huge", 1 << 62);
    let verified = verified(vec![builder.finish()]);
    let error = Threaded::new(verified, Options::default()).unwrap_err();
    assert_eq!(error, SimError::Memory { rank: Rank(0), region: "huge", bytes: 1 << 62 });
}

#[test]
fn a_ring_of_three_is_refused() {
    let options = Options { ring: 3, ..Options::default() };
    assert!(matches!(Threaded::new(verified(ping_pong()), options), Err(SimError::Ring(_))));
}

#[test]
fn a_deadline_that_is_far_away_is_not_a_hang() {
    let options = Options { deadline: Duration::MAX, ..Options::default() };
    on_both(ping_pong(), &options, |executor| {
        executor.write(&span(0, 0, 0, 64), &[7; 64]);
        executor.launch().unwrap();
    });
}
