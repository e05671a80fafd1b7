//! The race detector: each test is a program with one mistake, beside the program without it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Sketch, copy, put, raise, release, span};
use mkernel_core::{Born, LaneId, Program, Rank, World};
use mkernel_sim::find_races;
use mkernel_sim::race::{Actor, Race};

fn one() -> World {
    World::new(&[1]).unwrap()
}

/// Input in region 0 goes through region 1 to the output in region 2, by two instructions of one lane.
fn relay(waits: &[u32]) -> Vec<Program> {
    let sketch = Sketch::new(&one(), 0, 3).cell(1, Born::Empty).input(span(0, 0, 0, 8)).output(span(0, 2, 0, 8));
    let sketch = sketch.lane(1, |lane| {
        copy(lane, &[], span(0, 0, 0, 8), span(0, 1, 0, 8), &[raise(0, 0)]);
        copy(lane, waits, span(0, 1, 0, 8), span(0, 2, 0, 8), &[]);
    });
    vec![sketch.finish()]
}

#[test]
fn a_relay_that_waits_has_no_race() {
    assert_eq!(find_races(&relay(&[0]), 4), Ok(()));
}

#[test]
fn places_in_a_lane_order_nothing_and_both_parties_are_named() {
    let Err(Race::Unordered { first, second, span: at }) = find_races(&relay(&[]), 3) else {
        panic!("the second copy may read before the first has written")
    };
    assert_eq!((first.rank, second.rank, at), (Rank(0), Rank(0), span(0, 1, 0, 8)));
    assert!(matches!(first.actor, Actor::Write { lane: LaneId(0), instruction: 0, .. }));
    assert!(matches!(second.actor, Actor::Segment { lane: LaneId(0), instruction: 1, segment: 0, .. }));
}

#[test]
fn bytes_that_only_an_earlier_launch_wrote_are_undefined() {
    let sketch = Sketch::new(&one(), 0, 2).output(span(0, 1, 0, 8));
    let programs = vec![sketch.lane(1, |l| copy(l, &[], span(0, 0, 0, 8), span(0, 1, 0, 8), &[])).finish()];
    assert!(matches!(find_races(&programs, 3), Err(Race::Undefined { last: None, .. })));
}

#[test]
fn released_bytes_are_undefined() {
    let programs = |released| {
        let sketch = Sketch::new(&one(), 0, 2).cell(1, Born::Empty).input(span(0, 0, 0, 8));
        let sketch = sketch.output(span(0, 1, 0, 8));
        let sketch = sketch.lane(1, |lane| {
            release(lane, &[], &[span(0, 0, released, 4)], &[raise(0, 0)]);
            copy(lane, &[0], span(0, 0, 0, 8), span(0, 1, 0, 8), &[]);
        });
        vec![sketch.finish()]
    };
    assert_eq!(find_races(&programs(8), 3), Ok(()));
    let Err(Race::Undefined { last: Some(last), .. }) = find_races(&programs(4), 3) else { panic!("released") };
    assert!(matches!(last.actor, Actor::Write { instruction: 0, .. }));
}

/// Rank 0 copies its input to rank 1, which copies it on to its output and, if it `credits`, says so.
fn pair(credits: bool) -> Vec<Program> {
    let world = World::new(&[2]).unwrap();
    let waits: &[u32] = if credits { &[0] } else { &[] };
    let from = Sketch::new(&world, 0, 2).cell(u32::from(credits), Born::Full).input(span(0, 0, 0, 8));
    let from = from.lane(1, |l| copy(l, waits, span(0, 0, 0, 8), span(1, 0, 0, 8), &[raise(1, 0)]));
    let to = Sketch::new(&world, 1, 2).cell(1, Born::Empty).output(span(1, 1, 0, 8));
    let to = to.lane(1, |lane| {
        let signals = [raise(0, 0)];
        copy(lane, &[0], span(1, 0, 0, 8), span(1, 1, 0, 8), if credits { &signals } else { &[] });
    });
    vec![from.finish(), to.finish()]
}

#[test]
fn landing_memory_is_overwritten_only_under_a_credit() {
    assert_eq!(find_races(&pair(true), 4), Ok(()));
    // Rank 0 runs ahead into its next launch.
    assert!(matches!(find_races(&pair(false), 4), Err(Race::Early { .. } | Race::Unordered { .. })));
}

/// Rank 0 puts its input to rank 1 on another node, which gives the space back by an empty put.
fn put_pair(waits_for_retired: bool, waits_for_arrival: bool) -> Vec<Program> {
    let world = World::new(&[1, 1]).unwrap();
    let from = Sketch::new(&world, 0, 2).cell(1, Born::Full).cell(1, Born::Empty).input(span(0, 0, 0, 8));
    let from = from.law(8, 0).lane(1, |lane| {
        put(lane, &[0], span(0, 0, 0, 8), span(1, 0, 0, 8), 0, Some(1));
        if waits_for_retired {
            release(lane, &[1], &[], &[]);
        }
    });
    let to = Sketch::new(&world, 1, 2).cell(1, Born::Empty).cell(1, Born::Empty).output(span(1, 1, 0, 8));
    let to = to.law(0, 8).lane(1, |lane| {
        let waits: &[u32] = if waits_for_arrival { &[0] } else { &[] };
        copy(lane, waits, span(1, 0, 0, 8), span(1, 1, 0, 8), &[raise(1, 1)]);
        put(lane, &[1], span(1, 0, 0, 0), span(0, 0, 0, 0), 0, None);
    });
    vec![from.finish(), to.finish()]
}

#[test]
fn a_launch_may_end_before_the_source_of_a_put_is_read() {
    assert_eq!(find_races(&put_pair(true, true), 4), Ok(()));
    let Err(Race::Unordered { first, second, .. }) = find_races(&put_pair(false, true), 4) else {
        panic!("the host may rewrite the input while the transport still reads it")
    };
    assert!(matches!((first.actor, second.actor), (Actor::PutRead { .. }, Actor::HostWrite)));
}

#[test]
fn a_put_has_landed_only_once_its_signal_is_seen() {
    assert!(find_races(&put_pair(true, false), 4).is_err());
}

#[test]
fn a_wait_that_never_holds_is_named() {
    let sketch = Sketch::new(&one(), 0, 1).cell(1, Born::Empty);
    let programs = vec![sketch.lane(1, |lane| release(lane, &[0], &[], &[raise(0, 0)])).finish()];
    assert!(matches!(find_races(&programs, 3), Err(Race::Stuck { .. })));
}

#[test]
fn a_cell_that_overfills_is_named() {
    let sketch = Sketch::new(&one(), 0, 1).cell(1, Born::Empty);
    let sketch = sketch.lane(1, |lane| release(lane, &[], &[], &[raise(0, 0), raise(0, 0)]));
    let found = find_races(&[sketch.finish()], 3);
    assert!(matches!(found, Err(Race::Count { counted: 2, planned: 1, .. })), "{found:?}");
}

#[test]
fn a_fast_contributor_must_not_fill_in_for_a_slow_one() {
    // Rank 2 waits for both others, who raise its cell in every launch. Without credits the first may raise it twice.
    let programs = |has_credits: bool| -> Vec<Program> {
        let world = World::new(&[3]).unwrap();
        let rank = |r: u32| {
            let waits: &[u32] = if has_credits { &[0] } else { &[] };
            let sketch = Sketch::new(&world, r, 0).cell(u32::from(has_credits), Born::Full);
            sketch.lane(1, |lane| release(lane, waits, &[], &[raise(2, 0)])).finish()
        };
        let signals = [raise(0, 0), raise(1, 0)];
        let last = Sketch::new(&world, 2, 0).cell(2, Born::Empty);
        let last = last.lane(1, |lane| release(lane, &[0], &[], if has_credits { &signals } else { &[] }));
        vec![rank(0), rank(1), last.finish()]
    };
    assert_eq!(find_races(&programs(true), 4), Ok(()));
    assert!(matches!(find_races(&programs(false), 4), Err(Race::Early { .. })));
}

#[test]
fn segments_read_only_what_their_own_and_earlier_waits_cover() {
    let programs = |late_first: bool| {
        let sketch = Sketch::new(&one(), 0, 3).cell(1, Born::Empty).input(span(0, 0, 0, 8)).output(span(0, 2, 0, 16));
        let sketch = sketch.lane(1, |lane| copy(lane, &[], span(0, 0, 0, 8), span(0, 1, 0, 8), &[raise(0, 0)]));
        let sketch = sketch.lane(1, |lane| {
            let (early, late, waits) = ([span(0, 0, 0, 8)], [span(0, 1, 0, 8)], common::cells(&[0]));
            let (first, second) = if late_first { (&late, &early) } else { (&early, &late) };
            let step = mkernel_core::builder::Step::new;
            let steps = [step(&[], first), step(&waits, second)];
            lane.push_segments(mkernel_core::Op::Copy, &steps, &[span(0, 2, 0, 8), span(0, 2, 8, 8)], &[]);
        });
        vec![sketch.finish()]
    };
    assert_eq!(find_races(&programs(false), 3), Ok(()));
    assert!(matches!(find_races(&programs(true), 3), Err(Race::Unordered { .. })));
}

#[test]
fn a_wait_that_data_may_leave_out_orders_its_own_reads_and_nothing_after_them() {
    // The second instruction picks its wait; the release that follows it must wait for the first by itself.
    let programs = |waits: &[u32]| {
        let sketch = Sketch::new(&one(), 0, 3).cell(1, Born::Empty).cell(1, Born::Empty).input(span(0, 0, 0, 8));
        let sketch = sketch.output(span(0, 2, 0, 8)).lane(1, |lane| {
            copy(lane, &[], span(0, 0, 0, 8), span(0, 1, 0, 8), &[raise(0, 0)]);
            let (shared, reads) = (lane.shared_waits(&common::cells(&[0])), [span(0, 1, 0, 8)]);
            let step = mkernel_core::builder::Step::new(&[], &reads).picking(&shared);
            lane.push(mkernel_core::Op::Copy, step, &[span(0, 2, 0, 8)], &[raise(0, 1)]);
            release(lane, waits, &[span(0, 1, 0, 8)], &[]);
        });
        vec![sketch.finish()]
    };
    assert_eq!(find_races(&programs(&[1, 0]), 3), Ok(()));
    let Err(Race::Unordered { first, .. }) = find_races(&programs(&[1]), 3) else { panic!("it may overtake") };
    assert!(matches!(first.actor, Actor::Write { instruction: 0, .. }));
}
