//! Programs that nobody would plan: `validate` names what is wrong with them, and never panics, overflows or accepts them.
#![allow(clippy::unwrap_used)]

use mkernel_core::{
    Born, Cell, CellId, DType, Instruction, Lane, LaneId, Mask, Op, Program, ProgramBuilder, Put, PutId, Rank, Region,
    RegionId, RoleName, Segment, Span, Violation, World, validate,
};

fn empty(ranks: u32) -> Vec<Program> {
    let world = World::new(&vec![1; ranks as usize]).unwrap();
    world.ranks().map(|rank| ProgramBuilder::new(&world, rank).finish()).collect()
}

fn lane(instructions: Vec<Instruction>) -> Lane {
    Lane { role: RoleName::Compute, ctas: 1, instructions, next: None }
}

fn span(rank: u32, offset: u64, rows: u32, row_bytes: u64, stride: u64) -> Span {
    Span { rank: Rank(rank), region: RegionId(0), offset, rows, row_bytes, stride }
}

fn segment(reads: std::ops::Range<u32>) -> Segment {
    Segment { waits: 0..0, picked: 0..0, reads, position: 0 }
}

/// One rank, one instruction; the first spans are its segment's reads, the others its writes.
fn single(op: Op, reads: &[Span], writes: &[Span], region: u64) -> Vec<Program> {
    let mut programs = empty(1);
    let program = &mut programs[0];
    program.regions.push(Region { name: "r", bytes: region });
    program.spans = reads.iter().chain(writes).copied().collect();
    let (middle, end) = (reads.len() as u32, program.spans.len() as u32);
    program.segments.push(segment(0..middle));
    program.lanes.push(lane(vec![Instruction { op, segments: 0..1, writes: middle..end, signals: 0..0 }]));
    programs
}

#[test]
fn a_sum_of_rows_near_two_to_the_64_bytes_is_refused_without_overflow() {
    let op = Op::Reduce { narrow: DType::Bf16, output: DType::Bf16 };
    let wide = span(0, 0, 1, u64::MAX - 1, u64::MAX - 1);
    assert!(validate(single(op, &[wide], &[wide], 8)).is_err());
}

#[test]
fn a_count_of_more_than_two_to_the_64_bytes_is_refused_without_overflow() {
    let mut programs = empty(2);
    programs[0].regions.push(Region { name: "r", bytes: 64 });
    programs[0].segments.push(segment(0..0));
    let count = Some(span(0, 0, u32::MAX, u64::MAX, u64::MAX));
    programs[0].puts.push(Put { count, ..Put::signal(Rank(0), Rank(1), CellId(0)) });
    programs[0].lanes.push(lane(vec![Instruction {
        op: Op::Put(PutId(0)),
        segments: 0..1,
        writes: 0..0,
        signals: 0..0,
    }]));
    programs[1].cells.push(Cell { arrivals: 1, born: Born::Empty });
    assert!(matches!(validate(programs), Err(Violation::Malformed { .. })));
}

#[test]
fn puts_of_more_than_two_to_the_64_bytes_in_all_break_the_law_without_overflow() {
    let mut programs = empty(2);
    for program in &mut programs {
        program.regions.push(Region { name: "r", bytes: u64::MAX });
    }
    let program = &mut programs[0];
    let mut instructions = Vec::new();
    for put in 0..2 {
        let (source, target) = (span(0, 0, 1, u64::MAX, 0), span(1, 0, 1, u64::MAX, 0));
        program.puts.push(Put { source, target, ..Put::signal(Rank(0), Rank(1), CellId(put)) });
        program.segments.push(segment(0..0));
        instructions.push(Instruction { op: Op::Put(PutId(put)), segments: put..put + 1, writes: 0..0, signals: 0..0 });
    }
    program.lanes.push(lane(instructions));
    programs[1].cells = vec![Cell { arrivals: 1, born: Born::Empty }; 2];
    assert!(matches!(validate(programs), Err(Violation::ByteLaw { .. })));
}

#[test]
fn a_lane_beyond_the_width_of_lane_ids_is_refused() {
    // Lane 65536 waits for what nobody raises; cut to 16 bits its number is that of lane 0, which ends.
    let mut programs = empty(1);
    let program = &mut programs[0];
    program.cells.push(Cell { arrivals: 1, born: Born::Empty });
    program.waits.push(CellId(0));
    let lanes = 1 << 16;
    for index in 0..=lanes {
        program.segments.push(segment(0..0));
        let release = Instruction { op: Op::Release, segments: index..index + 1, writes: 0..0, signals: 0..0 };
        program.lanes.push(lane(vec![release]));
    }
    program.segments[lanes as usize].waits = 0..1;
    program.signals.push(mkernel_core::Signal { rank: Rank(0), cell: CellId(0), amount: 1 });
    // The only signal comes from the waiting instruction itself.
    program.lanes[lanes as usize].instructions[0].signals = 0..1;
    assert!(validate(programs).is_err());
}

#[test]
fn operations_on_integers_are_refused() {
    let (i32s, f32s) = (DType::I32, DType::F32);
    let tile = |offset| span(0, offset, 1, 4, 4);
    let three = [tile(0), tile(4), tile(8)];
    let gemms = [(i32s, f32s), (f32s, i32s)].map(|(input, output)| Op::Gemm { input, output });
    let sums = [(i32s, f32s), (f32s, i32s)].map(|(narrow, output)| Op::Reduce { narrow, output });
    let attention = Op::Attention { dtype: i32s, mask: Mask::None, query: 0 };
    let cases = gemms.map(|op| (op, 2)).into_iter().chain(sums.map(|op| (op, 1))).chain([(attention, 3)]);
    for (op, reads) in cases {
        let mut programs = single(op, &three[..reads], &[tile(12)], 16);
        // The host writes what is read: all else about the program is sound.
        programs[0].inputs =
            three.iter().map(|&span| mkernel_core::Placement { tensor: "t", span, row: 0, column: 0 }).collect();
        let found = validate(programs);
        assert!(matches!(found, Err(Violation::Malformed { .. })), "{op:?}: {:?}", found.map(|_| "accepted"));
    }
}

#[test]
fn attention_beyond_position_two_to_the_64_is_refused() {
    for (query, position) in [(u64::MAX, 0), (0, u64::MAX)] {
        let op = Op::Attention { dtype: DType::F32, mask: Mask::Causal, query };
        let tiles = [0, 1, 2].map(|i| span(0, i * 8, 2, 4, 4));
        let mut programs = single(op, &tiles, &[span(0, 24, 2, 4, 4)], 32);
        programs[0].segments[0].position = position;
        programs[0].inputs =
            tiles.iter().map(|&span| mkernel_core::Placement { tensor: "t", span, row: 0, column: 0 }).collect();
        let found = validate(programs);
        assert!(
            matches!(found, Err(Violation::Malformed { .. })),
            "{query} {position}: {:?}",
            found.map(|_| "accepted")
        );
    }
}

#[test]
fn references_to_nowhere_are_refused() {
    let far = u32::MAX;
    let good = || single(Op::Copy, &[span(0, 0, 1, 4, 4)], &[span(0, 4, 1, 4, 4)], 8);
    let refuse = |what: &str, change: &dyn Fn(&mut Program)| {
        let mut programs = good();
        programs[0].inputs =
            vec![mkernel_core::Placement { tensor: "t", span: span(0, 0, 1, 4, 4), row: 0, column: 0 }];
        assert!(validate(programs.clone()).is_ok());
        change(&mut programs[0]);
        assert!(validate(programs).is_err(), "{what}");
    };
    refuse("segments", &|p| p.lanes[0].instructions[0].segments = 0..far);
    refuse("reversed", &|p| p.lanes[0].instructions[0].segments = std::ops::Range { start: 1, end: 0 });
    refuse("no segment", &|p| p.lanes[0].instructions[0].segments = 0..0);
    refuse("writes", &|p| p.lanes[0].instructions[0].writes = far - 1..far);
    refuse("signals", &|p| p.lanes[0].instructions[0].signals = 0..far);
    refuse("waits", &|p| p.segments[0].waits = 0..far);
    refuse("picked", &|p| p.segments[0].picked = 0..far);
    refuse("reads", &|p| p.segments[0].reads = 0..far);
    refuse("cell", &|p| {
        p.waits.push(CellId(far));
        p.segments[0].waits = 0..1;
    });
    refuse("region", &|p| p.spans[0].region = RegionId(far));
    refuse("rank", &|p| p.spans[0].rank = Rank(far));
    refuse("offset", &|p| p.spans[1].offset = u64::MAX);
    refuse("rows", &|p| p.spans.iter_mut().for_each(|s| *s = span(0, 0, far, u64::MAX, u64::MAX)));
    refuse("put", &|p| p.lanes[0].instructions[0].op = Op::Put(PutId(far)));
    refuse("next", &|p| p.lanes[0].next = Some(LaneId(u16::MAX)));
    refuse("itself", &|p| p.lanes[0].next = Some(LaneId(0)));
    refuse("no cta", &|p| p.lanes[0].ctas = 0);
    refuse("empty lane", &|p| p.lanes[0].instructions.clear());
    refuse("own rank", &|p| p.rank = Rank(far));
    refuse("output", &|p| {
        p.outputs.push(mkernel_core::Placement { tensor: "t", span: span(far, 0, 1, 4, 4), row: 0, column: 0 })
    });
    refuse("signal rank", &|p| {
        p.signals.push(mkernel_core::Signal { rank: Rank(far), cell: CellId(far), amount: u32::MAX });
        p.lanes[0].instructions[0].signals = 0..1;
    });
    assert!(matches!(validate(Vec::new()), Err(Violation::Nothing)));
}
