//! Planning one rank and proving a world. Time and memory per instruction must not grow with the world.
//!
//! `cargo bench -p mkernel-kernels --bench plan`
#![allow(missing_docs)]

use std::hint::black_box;
use std::mem::size_of;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mkernel_core::{Cell, CellId, DType, Instruction, Program, Put, Rank, Segment, Signal, Span, World, validate};
use mkernel_kernels::{AgGemm, Operator, Profile, RoleCtas};

fn plan(problem: &AgGemm, world: &World, rank: Rank) -> Program {
    problem.plan(world, rank, &Profile::H200, &RoleCtas::default()).expect("the shape can be planned")
}

fn problem(size: u64) -> AgGemm {
    AgGemm { m: size, n: size, k: size, dtype: DType::Bf16 }
}

fn instructions(program: &Program) -> u64 {
    program.lanes.iter().map(|lane| lane.instructions.len() as u64).sum()
}

/// Bytes of the lists of a program.
fn bytes(p: &Program) -> u64 {
    let lists = [
        instructions(p) * size_of::<Instruction>() as u64,
        p.segments.len() as u64 * size_of::<Segment>() as u64,
        p.waits.len() as u64 * size_of::<CellId>() as u64,
        p.spans.len() as u64 * size_of::<Span>() as u64,
        p.signals.len() as u64 * size_of::<Signal>() as u64,
        p.puts.len() as u64 * size_of::<Put>() as u64,
        p.cells.len() as u64 * size_of::<Cell>() as u64,
    ];
    lists.iter().sum()
}

/// Worlds that grow 256 times, with shapes that keep the rows of a rank: the work grows with the world, and so do the
/// instructions.
fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan one rank");
    group.sample_size(10);
    for (nodes, size) in [(2, 16_384), (32, 65_536), (512, 131_072)] {
        let (world, problem) = (World::uniform(nodes, 8).expect("a sound world"), problem(size));
        let rank = Rank(world.size() / 2 + 1);
        let program = plan(&problem, &world, rank);
        let count = instructions(&program);
        println!("{world}, m=n=k={size}: {count} instructions, {} bytes each", bytes(&program) / count);
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("{} ranks", world.size()), |b| {
            b.iter(|| black_box(plan(&problem, &world, rank)));
        });
    }
    group.finish();
}

fn proofs(c: &mut Criterion) {
    let mut group = c.benchmark_group("validate a world");
    group.sample_size(10);
    for (nodes, gpus, size) in [(2, 4, 8_192), (8, 8, 16_384)] {
        let (world, problem) = (World::uniform(nodes, gpus).expect("a sound world"), problem(size));
        let programs: Vec<Program> = world.ranks().map(|rank| plan(&problem, &world, rank)).collect();
        let count: u64 = programs.iter().map(instructions).sum();
        println!("{world}, m=n=k={size}: {count} instructions in all");
        group.throughput(Throughput::Elements(count));
        group.bench_function(world.to_string(), |b| {
            b.iter_batched(|| programs.clone(), |p| validate(p).expect("sound"), criterion::BatchSize::LargeInput);
        });
    }
    group.finish();
}

criterion_group!(benches, plans, proofs);
criterion_main!(benches);
