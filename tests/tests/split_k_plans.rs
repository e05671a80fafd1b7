//! Every planned GEMM+ReduceScatter and GEMM+AllReduce is proved, for any shape and world, and sends what the law says.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use mkernel_core::{DType, Law, Program, Rank, World, validate};
use mkernel_kernels::{AllReduce, GemmAr, GemmRs, Operator, Partial, Profile, RoleCtas};
use proptest::prelude::*;

const SMALL_TILES: Profile = Profile { tile_m: 4, tile_n: 5, ..Profile::HOST };

fn plan_world(problem: &dyn Operator, world: &World, profile: &Profile) -> Vec<Program> {
    world.ranks().map(|rank| problem.plan(world, rank, profile, &RoleCtas::default()).unwrap()).collect()
}

fn worlds() -> impl Strategy<Value = World> {
    proptest::collection::vec(1u32..=5, 1..=5).prop_map(|gpus| World::new(&gpus).unwrap())
}

fn partials() -> impl Strategy<Value = Partial> {
    prop_oneof![Just(Partial::Narrow), Just(Partial::F32)]
}

fn profiles() -> impl Strategy<Value = Profile> {
    prop_oneof![3 => Just(SMALL_TILES), 1 => Just(Profile::HOST)]
}

/// Rows of part `index` of `parts`: the first ones are one longer.
fn rows(m: u64, parts: u32, index: u32) -> u64 {
    m / u64::from(parts) + u64::from(u64::from(index) < m % u64::from(parts))
}

/// Bytes out and in of every rank, message by message: `from` sends each slice's rows to `to`.
fn tally(world: &World, messages: impl Iterator<Item = (Rank, Rank, u64)>) -> Vec<Law> {
    let mut laws = vec![Law::default(); world.size() as usize];
    for (from, to, bytes) in messages {
        assert!(!world.same_node(from, to));
        laws[from.0 as usize].inter_out += bytes;
        laws[to.0 as usize].inter_in += bytes;
    }
    laws
}

/// One rounded partial per row and remote node, sent by the rank on the owner's rail.
fn scatter_law(world: &World, m: u64, row: u64) -> Vec<Law> {
    let size = world.size();
    let messages = world.ranks().flat_map(|owner| {
        let bytes = rows(m, size, owner.0) * row;
        world.other_nodes(owner).map(move |n| (world.rail(n, world.index_of(owner)), owner, bytes))
    });
    tally(world, messages)
}

/// Each rank's rows once to every other node.
fn gather_law(world: &World, m: u64, row: u64) -> Vec<Law> {
    let size = world.size();
    let messages = world.ranks().flat_map(|owner| {
        let bytes = rows(m, size, owner.0) * row;
        world.other_nodes(owner).map(move |n| (owner, world.rail(n, world.index_of(owner)), bytes))
    });
    tally(world, messages)
}

/// Each node's partial of every row once to every other node.
fn one_shot_law(world: &World, m: u64, row: u64) -> Vec<Law> {
    let widest = world.max_gpus();
    let messages = (0..widest).flat_map(|slice| {
        world.nodes().flat_map(move |from| {
            let others = world.nodes().filter(move |&to| to != from);
            others.map(move |to| (world.rail(from, slice), world.rail(to, slice), rows(m, widest, slice) * row))
        })
    });
    tally(world, messages)
}

fn laws(programs: &[Program]) -> Vec<Law> {
    programs.iter().map(|p| p.law).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_reduce_scatter_is_proved_and_its_law_is_one_partial_per_row_and_remote_node(
        m in 1u64..150, n in 1u64..60, k in 1u64..100, world in worlds(), partial in partials(), profile in profiles(),
    ) {
        let problem = GemmRs { m, n, k, dtype: DType::Bf16, partial };
        let programs = plan_world(&problem, &world, &profile);
        let row = n * if partial == Partial::F32 { 4 } else { 2 };
        prop_assert_eq!(laws(&programs), scatter_law(&world, m, row));
        let verified = validate(programs);
        prop_assert!(verified.is_ok(), "{problem:?} on {world}: {}", verified.unwrap_err());
    }

    #[test]
    fn every_two_step_all_reduce_is_proved_and_its_law_is_a_scatter_and_a_gather(
        m in 1u64..150, n in 1u64..60, k in 1u64..100, world in worlds(), partial in partials(), profile in profiles(),
    ) {
        let problem = GemmAr { m, n, k, dtype: DType::F16, partial, all_reduce: AllReduce::TwoStep };
        let programs = plan_world(&problem, &world, &profile);
        let row = n * if partial == Partial::F32 { 4 } else { 2 };
        let both = scatter_law(&world, m, row).into_iter().zip(gather_law(&world, m, n * 2));
        let wanted: Vec<_> = both
            .map(|(s, g)| Law { inter_out: s.inter_out + g.inter_out, inter_in: s.inter_in + g.inter_in })
            .collect();
        prop_assert_eq!(laws(&programs), wanted);
        let verified = validate(programs);
        prop_assert!(verified.is_ok(), "{problem:?} on {world}: {}", verified.unwrap_err());
    }

    #[test]
    fn every_one_shot_all_reduce_is_proved_and_its_law_is_every_partial_to_every_other_node(
        m in 1u64..150, n in 1u64..60, k in 1u64..100, world in worlds(), partial in partials(), profile in profiles(),
    ) {
        let problem = GemmAr { m, n, k, dtype: DType::Bf16, partial, all_reduce: AllReduce::OneShot };
        let programs = plan_world(&problem, &world, &profile);
        prop_assert_eq!(laws(&programs), one_shot_law(&world, m, n * if partial == Partial::F32 { 4 } else { 2 }));
        let verified = validate(programs);
        prop_assert!(verified.is_ok(), "{problem:?} on {world}: {}", verified.unwrap_err());
    }
}

#[test]
fn nic_bytes_of_even_worlds_are_the_shares_of_c_that_the_design_states() {
    for (nodes, gpus) in [(2, 1), (2, 4), (4, 2), (3, 3)] {
        let world = World::uniform(nodes, gpus).unwrap();
        let (m, n) = (u64::from(world.size()) * 24, 40);
        let c_per_gpu = m * n * 2 / u64::from(gpus);
        let out = |problem: &dyn Operator| {
            let laws = laws(&plan_world(problem, &world, &SMALL_TILES));
            assert!(laws.iter().all(|l| *l == laws[0] && l.inter_in == l.inter_out), "{world}");
            laws[0].inter_out
        };
        let (dtype, partial, nodes) = (DType::Bf16, Partial::Narrow, u64::from(nodes));
        let all_reduce = |all_reduce| GemmAr { m, n, k: 30, dtype, partial, all_reduce };
        assert_eq!(out(&GemmRs { m, n, k: 30, dtype, partial }), (nodes - 1) * c_per_gpu / nodes);
        assert_eq!(out(&all_reduce(AllReduce::TwoStep)), 2 * (nodes - 1) * c_per_gpu / nodes);
        assert_eq!(out(&all_reduce(AllReduce::OneShot)), (nodes - 1) * c_per_gpu);
    }
}

#[test]
fn one_rank_of_a_thousand_is_planned_in_under_a_second_within_its_own_work() {
    let world = World::uniform(128, 8).unwrap();
    let (m, small, n, k, dtype, partial) = (16384u64, 1024, 8192u64, 65536u64, DType::Bf16, Partial::Narrow);
    let problems: [(&dyn Operator, bool); 3] = [
        (&GemmRs { m, n, k, dtype, partial }, false),
        (&GemmAr { m, n, k, dtype, partial, all_reduce: AllReduce::TwoStep }, false),
        (&GemmAr { m: small, n, k, dtype, partial, all_reduce: AllReduce::OneShot }, true),
    ];
    for (problem, one_shot) in problems {
        let start = Instant::now();
        let program = problem.plan(&world, Rank(517), &Profile::H200, &RoleCtas::default()).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let memory: u64 = program.regions.iter().map(|r| r.bytes).sum();
        assert!(seconds < 1.0, "{} took {seconds} s", problem.name());
        // A, B and C of this rank, all of C in f32 in slots, and as much again in 16 bits staged and landed.
        let own = (m * k + k * n) / 1024 * 2 + m * n * (2 + 4 + 2);
        let landed = if one_shot { m * n / 8 * 128 * 2 } else { 0 };
        assert!(memory <= own + landed, "{}: {memory} bytes", problem.name());
        let instructions: usize = program.lanes.iter().map(|l| l.instructions.len()).sum();
        println!("{}: {seconds:.3} s, {instructions} instructions, {memory} bytes", problem.name());
    }
}
