//! The smallest program that shows every idea: rank 0 hands eight bytes to rank 1, which copies them to its output and
//! gives the landing memory back. Written by hand, within a node and between two.

use mkernel_core::builder::Step;
use mkernel_core::{
    Born, CellId, LaneBuilder, Law, Op, Placement, Program, ProgramBuilder, Put, Rank, RegionId, Role, RoleName,
    Signal, Span, World,
};

/// Bytes handed over.
pub const BYTES: u64 = 8;

/// A lane written as a function.
pub struct Script<F>(pub RoleName, pub F);

impl<F: Fn(&mut LaneBuilder<'_>)> Role for Script<F> {
    fn name(&self) -> RoleName {
        self.0
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        (self.1)(lane);
    }
}

/// A signal by one.
pub const fn signal(rank: u32, cell: u32) -> Signal {
    Signal { rank: Rank(rank), cell: CellId(cell), amount: 1 }
}

/// All bytes of a region of the relay.
pub const fn whole(rank: u32, region: u32) -> Span {
    Span::flat(Rank(rank), RegionId(region), 0, BYTES)
}

/// What rank 0 hands over, in its memory.
pub const INPUT: Span = whole(0, 0);
/// Where it lands.
pub const LANDING: Span = whole(1, 1);
/// Where rank 1 leaves it.
pub const OUTPUT: Span = whole(1, 2);

/// A builder with the regions of the relay and one cell per entry.
fn start(world: &World, rank: u32, cells: &[Born]) -> ProgramBuilder {
    let mut builder = ProgramBuilder::new(world, Rank(rank));
    for name in ["input", "landing", "output"] {
        builder.region(name, BYTES);
    }
    for &born in cells {
        builder.cell(1, born);
    }
    builder
}

fn placed(tensor: &'static str, span: Span) -> Placement {
    Placement { tensor, span, row: 0, column: 0 }
}

/// The relay between two ranks of one node.
pub fn direct() -> Vec<Program> {
    let world = World::new(&[2]).expect("two ranks");
    let mut first = start(&world, 0, &[Born::Full]);
    first.input(placed("x", INPUT));
    first.lane(
        &Script(RoleName::Intra, |lane: &mut LaneBuilder<'_>| {
            lane.push(Op::Copy, Step::new(&[CellId(0)], &[INPUT]), &[LANDING], &[signal(1, 0)]);
        }),
        1,
    );
    let mut second = start(&world, 1, &[Born::Empty, Born::Empty]);
    second.output(placed("y", OUTPUT));
    second.lane(
        &Script(RoleName::Compute, |lane: &mut LaneBuilder<'_>| {
            lane.push(Op::Copy, Step::new(&[CellId(0)], &[LANDING]), &[OUTPUT], &[signal(1, 1)]);
            lane.push(Op::Release, Step::new(&[CellId(1)], &[]), &[LANDING], &[signal(0, 0)]);
        }),
        2,
    );
    vec![first.finish(), second.finish()]
}

/// The relay between two nodes.
pub fn proxied() -> Vec<Program> {
    let world = World::new(&[1, 1]).expect("two ranks");
    let mut first = start(&world, 0, &[Born::Full, Born::Empty]);
    first.input(placed("x", INPUT));
    first.law(Law { inter_out: BYTES, inter_in: 0 });
    first.lane(
        &Script(RoleName::Send, |lane: &mut LaneBuilder<'_>| {
            let put = Put { source: INPUT, count: None, target: LANDING, cell: CellId(0), retired: Some(CellId(1)) };
            lane.put(&[CellId(0)], put);
            lane.push(Op::Release, Step::new(&[CellId(1)], &[]), &[], &[]);
        }),
        1,
    );
    let mut second = start(&world, 1, &[Born::Empty, Born::Empty, Born::Empty]);
    second.output(placed("y", OUTPUT));
    second.law(Law { inter_out: 0, inter_in: BYTES });
    second.lane(
        &Script(RoleName::Compute, |lane: &mut LaneBuilder<'_>| {
            lane.push(Op::Copy, Step::new(&[CellId(0)], &[LANDING]), &[OUTPUT], &[signal(1, 1)]);
            lane.push(Op::Release, Step::new(&[CellId(1)], &[]), &[LANDING], &[signal(1, 2)]);
        }),
        1,
    );
    second.lane(
        &Script(RoleName::Send, |lane: &mut LaneBuilder<'_>| {
            lane.put(&[CellId(2)], Put::signal(Rank(1), Rank(0), CellId(0)));
        }),
        1,
    );
    vec![first.finish(), second.finish()]
}
