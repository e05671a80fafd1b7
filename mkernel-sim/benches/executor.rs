//! What the host executors spend per instruction beyond the math.
//!
//! Each launch runs 10,000 instructions on one CTA; time per element is time per instruction.
//! `cargo bench -p mkernel-sim --bench executor`
#![allow(clippy::unwrap_used)]
#![allow(missing_docs, reason = "criterion's macros make public items without docs")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mkernel_core::builder::Step;
use mkernel_core::{
    Born, CellId, Executor, LaneBuilder, Op, ProgramBuilder, Put, Rank, RegionId, Role, RoleName, Signal, Span,
    Verified, World, validate,
};
use mkernel_sim::{Network, Options, Seeded, Threaded};

const INSTRUCTIONS: u32 = 10_000;

/// Copies of 64 bytes that wait for a signal that has come and raise one.
struct Copies;

/// Puts without bytes to rank 1; the last instruction waits until all have gone and rank 1 has seen them.
struct Puts;

/// Waits for all of them and says so.
struct Acknowledge;

impl Role for Copies {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let ready = Signal { rank: Rank(0), cell: CellId(0), amount: 1 };
        lane.push(Op::Release, Step::new(&[], &[]), &[], &[ready]);
        let done = Signal { rank: Rank(0), cell: CellId(1), amount: 1 };
        for i in 1..INSTRUCTIONS {
            let at = |region| Span::flat(Rank(0), RegionId(region), u64::from(i) * 64, 64);
            lane.push(Op::Copy, Step::new(&[CellId(0)], &[at(0)]), &[at(1)], &[done]);
        }
    }
}

impl Role for Puts {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        for i in 1..INSTRUCTIONS {
            let put = Put::signal(Rank(0), Rank(1), CellId(i));
            lane.put(&[], Put { retired: Some(CellId(0)), ..put });
        }
        lane.push(Op::Release, Step::new(&[CellId(0), CellId(1)], &[]), &[], &[]);
    }
}

impl Role for Acknowledge {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        // The last first: a thread that slept for each in turn would measure its wake-ups.
        let landed: Vec<CellId> = (1..INSTRUCTIONS).rev().map(CellId).collect();
        lane.put(&landed, Put::signal(Rank(1), Rank(0), CellId(1)));
    }
}

fn copies() -> Arc<Verified> {
    let mut builder = ProgramBuilder::new(&World::new(&[1]).unwrap(), Rank(0));
    let bytes = u64::from(INSTRUCTIONS) * 64;
    let input = builder.region("input", bytes);
    builder.region("output", bytes);
    let span = Span::flat(Rank(0), input, 0, bytes);
    builder.input(mkernel_core::Placement { tensor: "input", span, row: 0, column: 0 });
    builder.cell(1, Born::Empty);
    builder.cell(INSTRUCTIONS - 1, Born::Empty);
    builder.lane(&Copies, 1);
    Arc::new(validate(vec![builder.finish()]).unwrap())
}

fn puts() -> Arc<Verified> {
    let world = World::new(&[1, 1]).unwrap();
    let mut from = ProgramBuilder::new(&world, Rank(0));
    from.cell(INSTRUCTIONS - 1, Born::Empty);
    from.cell(1, Born::Empty);
    from.lane(&Puts, 1);
    let mut to = ProgramBuilder::new(&world, Rank(1));
    to.cell(0, Born::Empty);
    for _ in 1..INSTRUCTIONS {
        to.cell(1, Born::Empty);
    }
    to.lane(&Acknowledge, 1);
    Arc::new(validate(vec![from.finish(), to.finish()]).unwrap())
}

fn overhead(criterion: &mut Criterion) {
    let options = || Options { network: Network::prompt(), poison: false, ..Options::default() };
    let mut group = criterion.benchmark_group("instruction");
    group.throughput(Throughput::Elements(u64::from(INSTRUCTIONS)));
    for (name, verified) in [("copy", copies()), ("put", puts())] {
        let mut threaded = Threaded::new(verified.clone(), options()).unwrap();
        group.bench_function(format!("threaded/{name}"), |b| b.iter(|| black_box(threaded.launch().unwrap())));
        let mut seeded = Seeded::new(verified.clone(), options()).unwrap();
        group.bench_function(format!("seeded/{name}"), |b| b.iter(|| black_box(seeded.launch().unwrap())));
    }
    group.finish();
}

criterion_group!(benches, overhead);
criterion_main!(benches);
