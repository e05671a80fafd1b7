//! Hand-written programs, lane by lane.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of these")]

use mkernel_core::builder::Step;
use mkernel_core::{
    Born, CellId, LaneBuilder, LaneId, Op, Placement, Program, ProgramBuilder, Put, Rank, RegionId, Role, RoleName,
    Signal, Span, World,
};

/// A lane written out by hand.
struct Written<F>(F);

impl<F: Fn(&mut LaneBuilder<'_>)> Role for Written<F> {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        (self.0)(lane);
    }
}

/// One rank's program in the making: regions `0..` of 64 bytes each.
pub struct Sketch {
    rank: Rank,
    builder: ProgramBuilder,
}

impl Sketch {
    pub fn new(world: &World, rank: u32, regions: u32) -> Sketch {
        let mut builder = ProgramBuilder::new(world, Rank(rank));
        for _ in 0..regions {
            builder.region("memory", 64);
        }
        Sketch { rank: Rank(rank), builder }
    }

    pub fn cell(mut self, arrivals: u32, born: Born) -> Sketch {
        self.builder.cell(arrivals, born);
        self
    }

    pub fn input(mut self, span: Span) -> Sketch {
        self.builder.input(Placement { tensor: "in", span, row: 0, column: 0 });
        self
    }

    pub fn output(mut self, span: Span) -> Sketch {
        self.builder.output(Placement { tensor: "out", span, row: 0, column: 0 });
        self
    }

    pub fn lane(mut self, ctas: u32, fill: impl Fn(&mut LaneBuilder<'_>)) -> Sketch {
        self.builder.lane(&Written(fill), ctas);
        self
    }

    pub fn then(mut self, lane: u16, next: u16) -> Sketch {
        self.builder.then(Some(LaneId(lane)), Some(LaneId(next)));
        self
    }

    pub fn law(mut self, inter_out: u64, inter_in: u64) -> Sketch {
        self.builder.law(mkernel_core::Law { inter_out, inter_in });
        self
    }

    pub fn finish(self) -> Program {
        self.builder.finish()
    }
}

/// `bytes` bytes from `offset` of a region.
pub fn span(rank: u32, region: u32, offset: u64, bytes: u64) -> Span {
    Span::flat(Rank(rank), RegionId(region), offset, bytes)
}

/// Raises a cell by one.
pub fn raise(rank: u32, cell: u32) -> Signal {
    Signal { rank: Rank(rank), cell: CellId(cell), amount: 1 }
}

/// Copies `from` to `to` after the waits.
pub fn copy(lane: &mut LaneBuilder<'_>, waits: &[u32], from: Span, to: Span, signals: &[Signal]) {
    lane.push(Op::Copy, Step::new(&cells(waits), &[from]), &[to], signals);
}

/// Gives spans back after the waits.
pub fn release(lane: &mut LaneBuilder<'_>, waits: &[u32], spans: &[Span], signals: &[Signal]) {
    lane.push(Op::Release, Step::new(&cells(waits), &[]), spans, signals);
}

/// Puts `source` to `target` after the waits.
pub fn put(lane: &mut LaneBuilder<'_>, waits: &[u32], source: Span, target: Span, cell: u32, retired: Option<u32>) {
    lane.put(&cells(waits), Put { source, count: None, target, cell: CellId(cell), retired: retired.map(CellId) });
}

pub fn cells(ids: &[u32]) -> Vec<CellId> {
    ids.iter().copied().map(CellId).collect()
}
