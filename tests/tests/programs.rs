//! Programs written by hand: sound ones are accepted and run, and every way to be unsound has its own message.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use mkernel_core::{
    Born, Cell, CellId, DType, Executor, Instruction, LaneId, Op, Program, Put, PutId, Rank, Span, Violation, World,
    validate, validate_rank,
};
use mkernel_sim::{Options, Seeded, Threaded};
use mkernel_tests::relay::{BYTES, INPUT, LANDING, OUTPUT, direct, proxied, signal, whole};

/// Runs three epochs of the relay with new bytes each.
fn runs(executor: &mut dyn Executor) {
    for epoch in 1..=3u8 {
        executor.write(&INPUT, &[epoch; BYTES as usize]);
        executor.launch().unwrap();
        let mut out = [0; BYTES as usize];
        executor.read(&OUTPUT, &mut out);
        assert_eq!(out, [epoch; BYTES as usize]);
    }
}

#[test]
fn a_relay_within_a_node_and_between_nodes_is_accepted_and_runs() {
    for programs in [direct(), proxied()] {
        let verified = Arc::new(validate(programs).unwrap());
        for seed in 0..30 {
            let options = Options { seed, ring: 2, ..Options::default() };
            runs(&mut Seeded::new(verified.clone(), options).unwrap());
        }
        runs(&mut Threaded::new(verified, Options::default()).unwrap());
    }
}

/// The message for `programs` with one change to the program of `rank`.
fn broken(mut programs: Vec<Program>, rank: usize, change: impl FnOnce(&mut Program)) -> String {
    change(&mut programs[rank]);
    validate(programs).expect_err("the change makes it unsound").to_string()
}

fn first(p: &mut Program) -> &mut Instruction {
    &mut p.lanes[0].instructions[0]
}

/// An empty list.
fn none() -> std::ops::Range<u32> {
    0..0
}

#[test]
fn a_set_of_programs_must_be_one_world_and_all_of_it() {
    assert_eq!(validate(Vec::new()).unwrap_err().to_string(), "no program to validate");
    let [a, b] = <[Program; 2]>::try_from(direct()).unwrap();
    let message = "1 programs were given for a world of 2 ranks; for a part of the world use validate_rank";
    assert_eq!(validate(vec![a.clone()]).unwrap_err().to_string(), message);
    let message = "the program of rank 0 is for another world, is outside it or is there twice";
    assert_eq!(validate(vec![a.clone(), a.clone()]).unwrap_err().to_string(), message);
    let message = "the program of rank 1 is for another world, is outside it or is there twice";
    let elsewhere = Program { world: World::new(&[1, 1]).unwrap(), ..b };
    assert_eq!(validate(vec![a.clone(), elsewhere]).unwrap_err().to_string(), message);
    let outside = Program { rank: Rank(7), ..a };
    assert!(validate(vec![outside]).unwrap_err().to_string().starts_with("the program of rank 7 "));
}

#[test]
fn a_rank_is_proved_with_all_who_raise_its_cells() {
    let [a, b] = <[Program; 2]>::try_from(direct()).unwrap();
    assert!(validate_rank(vec![a.clone(), b.clone()], Rank(1)).is_ok());
    for (given, rank) in [(vec![b.clone()], Rank(1)), (vec![a.clone()], Rank(0)), (vec![a], Rank(1))] {
        let message = format!("{rank} or a rank that raises its cells is missing");
        assert_eq!(validate_rank(given, rank).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_lane_needs_a_cta_an_instruction_and_a_way_out() {
    let lane = |change: fn(&mut Program)| broken(direct(), 1, change);
    assert_eq!(lane(|p| p.lanes[0].ctas = 0), "rank 1 lane 0: it has no CTA");
    assert_eq!(lane(|p| p.lanes[0].instructions.clear()), "rank 1 lane 0: it has no instruction");
    let message = "rank 1 lane 0: its continuation does not exist or leads back to it";
    assert_eq!(lane(|p| p.lanes[0].next = Some(LaneId(0))), message);
    assert_eq!(lane(|p| p.lanes[0].next = Some(LaneId(9))), message);
    let two = |p: &mut Program| {
        p.lanes[0].next = Some(LaneId(1));
        p.lanes[1].next = Some(LaneId(0));
    };
    assert_eq!(broken(proxied(), 1, two), message);
}

#[test]
fn an_instruction_is_checked_by_itself_and_named() {
    let copy = "rank 0 intra lane 0 instruction 0";
    type Case = (&'static str, fn(&mut Program));
    let cases: [Case; 12] = [
        ("a list range lies outside its pool", |p| first(p).writes = 0..99),
        ("a list range lies outside its pool", |p| (p.segments[0].reads.start, p.segments[0].reads.end) = (1, 0)),
        ("it has no segment", |p| first(p).segments = none()),
        ("it reads or writes the wrong number of spans", |p| first(p).writes = none()),
        ("it reads or writes the wrong number of spans", |p| p.segments[0].reads = none()),
        ("the shapes of its spans do not fit together", |p| p.spans[0].row_bytes = 4),
        ("a span is misaligned or its rows overlap", |p| (p.spans[0].rows, p.spans[0].stride) = (2, 4)),
        ("a span is misaligned or its rows overlap", |p| {
            let (input, output) = (DType::F32, DType::F32);
            first(p).op = Op::Gemm { input, output };
            p.spans[1].offset = 2;
        }),
        ("its put does not exist or is posted by another instruction too", |p| first(p).op = Op::Put(PutId(0))),
        ("it names a cell that does not exist", |p| p.waits[0] = CellId(1)),
        ("it names a cell that does not exist", |p| p.signals[0].cell = CellId(2)),
        ("it raises a signal by zero", |p| p.signals[0].amount = 0),
    ];
    for (what, change) in cases {
        assert_eq!(broken(direct(), 0, change), format!("{copy}: {what}"));
    }
    let message = "rank 0 send lane 0 instruction 1: it reaches a rank of another node without a put";
    let signals_across = |p: &mut Program| {
        p.signals.push(signal(1, 0));
        p.lanes[0].instructions[1].signals = 0..1;
    };
    assert_eq!(broken(proxied(), 0, signals_across), message);
    let message = "rank 0 send lane 0 instruction 0: it reaches a rank of another node without a put";
    assert_eq!(broken(proxied(), 0, |p| p.puts[0].target.rank = Rank(0)), message);
    let message = "rank 0 send lane 0 instruction 0: the shapes of its spans do not fit together";
    assert_eq!(broken(proxied(), 0, |p| p.puts[0].count = Some(whole(1, 0))), message);
}

#[test]
fn a_put_of_the_table_is_posted() {
    let message = broken(proxied(), 0, |p| p.puts.push(p.puts[0]));
    assert_eq!(message, "rank 0: put 1 is never posted");
}

#[test]
fn a_span_outside_its_region_is_named_with_who_touches_it() {
    let message = broken(direct(), 1, |p| p.spans[0].offset = 1);
    assert_eq!(
        message,
        "rank 1 compute lane 0 instruction 0 touches rank 1 region 1 at 1 (1 x 8 B, stride 8), outside its region"
    );
    let message = broken(proxied(), 0, |p| p.puts[0].target.offset = u64::MAX);
    assert!(message.starts_with("the transfer started by rank 0 send lane 0 instruction 0 touches rank 1 region 1 at"));
    let message = broken(direct(), 0, |p| p.inputs[0].span.offset = 8);
    assert!(message.starts_with("the host of rank 0 between launches touches rank 0 region 0 at 8"), "{message}");
}

#[test]
fn arrivals_must_add_up() {
    let message = broken(direct(), 0, |p| p.signals[0].amount = 2);
    assert_eq!(message, "rank 1 cell 0 is planned for 1 arrivals per epoch and gets 2");
    let message = broken(direct(), 0, |p| first(p).signals = none());
    assert_eq!(message, "rank 1 cell 0 is planned for 1 arrivals per epoch and gets 0");
    let message = broken(proxied(), 1, |p| p.cells[0].arrivals = 2);
    assert_eq!(message, "rank 1 cell 0 is planned for 2 arrivals per epoch and gets 1");
}

#[test]
fn a_cell_has_one_source_rank_and_a_put_shares_with_nobody() {
    let again = |p: &mut Program| {
        let next = p.signals.len() as u32;
        p.signals.extend([p.signals[0], signal(1, 0)]);
        first(p).signals = next..next + 2;
        p.cells[0].arrivals = 2;
    };
    assert_eq!(
        broken(direct(), 1, again),
        "rank 1 cell 0 is raised by rank 0 intra lane 0 instruction 0 and by rank 1 compute lane 0 instruction 0; \
         a cell has one source rank, and one put or none"
    );
    assert!(broken(proxied(), 1, again).starts_with(
        "rank 1 cell 0 is raised by the transfer started by rank 0 send lane 0 instruction 0 and by rank 1 compute"
    ));
}

#[test]
fn a_wait_for_what_nobody_raises_orders_nothing() {
    let message = broken(direct(), 0, |p| {
        p.cells.push(Cell { arrivals: 0, born: Born::Empty });
        p.waits[0] = CellId(1);
    });
    assert_eq!(message, "rank 0 intra lane 0 instruction 0 waits for cell 1, which has no arrivals");
}

#[test]
fn a_deadlock_names_the_wait_the_epoch_and_both_values() {
    let message = broken(direct(), 0, |p| p.cells[0].born = Born::Empty);
    assert_eq!(
        message,
        "deadlock in epoch 0: rank 0 intra lane 0 instruction 0 waits for cell 0 to reach 1, which stays at 0"
    );
    let message = broken(direct(), 1, |p| p.lanes[0].instructions.swap(0, 1));
    assert_eq!(
        message,
        "deadlock in epoch 1: rank 0 intra lane 0 instruction 0 waits for cell 0 to reach 2, which stays at 1"
    );
}

#[test]
fn two_writers_of_a_byte_are_both_named() {
    let message = broken(direct(), 1, |p| p.spans[1] = Span { row_bytes: 8, ..LANDING });
    assert_eq!(
        message,
        "rank 0 intra lane 0 instruction 0 and rank 1 compute lane 0 instruction 0 both write bytes of \
         rank 1 region 1 at 0 (1 x 8 B, stride 8) in one epoch"
    );
}

#[test]
fn a_read_of_what_is_never_written_says_how_many_bytes() {
    let message = broken(direct(), 1, |p| p.spans[0] = whole(1, 0));
    assert_eq!(
        message,
        "rank 1 compute lane 0 instruction 0 reads rank 1 region 0 at 0 (1 x 8 B, stride 8), of which 8 bytes are \
         never written in that epoch"
    );
    let message = broken(direct(), 1, |p| p.spans[0] = OUTPUT);
    assert!(message.contains("of which 8 bytes are never written"), "an instruction cannot read what it writes");
}

#[test]
fn a_race_names_both_parties_and_their_epochs() {
    let span = "rank 1 region 1 at 0 (1 x 8 B, stride 8)";
    let message = broken(direct(), 1, |p| p.segments[0].waits = none());
    assert_eq!(
        message,
        format!(
            "race: rank 1 compute lane 0 instruction 0 (epoch 0) may touch {span} before rank 0 intra lane 0 \
             instruction 0 (epoch 0) is done with it"
        )
    );
    let message = broken(direct(), 0, |p| p.segments[0].waits = none());
    assert_eq!(
        message,
        format!(
            "race: rank 0 intra lane 0 instruction 0 (epoch 1) may touch {span} before rank 1 compute lane 0 \
             instruction 0 (epoch 0) is done with it"
        )
    );
    let message = broken(proxied(), 0, |p| p.lanes[0].instructions.truncate(1));
    assert_eq!(
        message,
        "race: the host of rank 0 between launches (epoch 1) may touch rank 0 region 0 at 0 (1 x 8 B, stride 8) before \
         the transfer started by rank 0 send lane 0 instruction 0 (epoch 0) is done with it"
    );
}

#[test]
fn a_source_that_was_read_says_nothing_of_the_landing() {
    // Rank 0 tells rank 1 by a second put, once the first one's source has been read; rank 1 waits for that one alone.
    let mut programs = proxied();
    let second = Put { cell: CellId(3), ..Put::signal(Rank(0), Rank(1), CellId(3)) };
    programs[0].puts.push(second);
    programs[0].lanes[0].instructions[1].op = Op::Put(PutId(1));
    programs[1].cells.push(Cell { arrivals: 1, born: Born::Empty });
    let with_both = |p: &mut Program| {
        let next = p.waits.len() as u32;
        p.waits.extend([CellId(0), CellId(3)]);
        p.segments[0].waits = next..next + 2;
    };
    let mut sound = programs.clone();
    with_both(&mut sound[1]);
    validate(sound).unwrap();
    let message = broken(programs, 1, |p| {
        with_both(p);
        p.segments[0].waits.start += 1;
    });
    assert!(message.starts_with("race: rank 1 compute lane 0 instruction 0 (epoch 0) may touch rank 1 region 1"));
}

#[test]
fn a_cell_is_not_raised_again_before_it_was_seen() {
    let bare = |mut programs: Vec<Program>| {
        // No memory but the input: only the cells are left to object.
        programs[1].lanes[0].instructions[0].op = Op::Release;
        programs[1].lanes[0].instructions[0].writes = none();
        programs[1].segments[0].reads = none();
        programs[1].outputs.clear();
        programs[1].lanes[0].instructions[1].writes = none();
        programs
    };
    let unordered = |p: &mut Program| p.segments[0].waits = none();
    let mut programs = bare(direct());
    programs[0].lanes[0].instructions[0].op = Op::Release;
    programs[0].lanes[0].instructions[0].writes = none();
    programs[0].segments[0].reads = none();
    assert!(validate(programs.clone()).is_ok());
    assert_eq!(
        broken(programs, 0, unordered),
        "rank 1 cell 0: rank 0 intra lane 0 instruction 0 may raise it for the next epoch before rank 1 compute lane 0 \
         instruction 0 is done with this one"
    );
    // A put sets a value: a later one must not land first, even if nobody waits.
    let mut programs = bare(proxied());
    programs[0].puts[0].source = Span::empty(Rank(0));
    programs[0].puts[0].target = Span::empty(Rank(1));
    (programs[0].law.inter_out, programs[1].law.inter_in) = (0, 0);
    let without_credit = |p: &mut Program| {
        p.segments[0].waits = none();
        p.cells[0].arrivals = 0;
    };
    without_credit(&mut programs[0]);
    programs[1].segments[0].waits = none();
    programs[1].lanes.truncate(1);
    let put = "the transfer started by rank 0 send lane 0 instruction 0";
    assert_eq!(
        broken(programs, 1, |p| p.puts.clear()),
        format!("rank 1 cell 0: {put} may raise it for the next epoch before {put} is done with this one")
    );
}

#[test]
fn bytes_over_the_nic_are_the_bytes_of_the_law() {
    let message = broken(proxied(), 0, |p| p.law.inter_out = 7);
    assert_eq!(message, "rank 0 moves 8 bytes out over the NIC per epoch; the law says 7");
    let message = broken(proxied(), 1, |p| p.law.inter_in = 9);
    assert_eq!(message, "rank 1 moves 8 bytes in over the NIC per epoch; the law says 9");
}

#[test]
fn a_violation_carries_what_its_message_says() {
    let mut programs = direct();
    programs[0].cells[0].born = Born::Empty;
    let Err(Violation::Deadlock { at, epoch, cell, wanted, seen }) = validate(programs) else { panic!("no deadlock") };
    assert_eq!((at.rank, at.lane, at.instruction), (Rank(0), LaneId(0), 0));
    assert_eq!((epoch, cell, wanted, seen), (0, CellId(0), 1, 0));
}
