//! The mixture of experts under any schedule: one output, no race, every corner of routing.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use mkernel_core::{DType, Executor, Program, Rank, RoleName, Verified, World, validate};
use mkernel_kernels::{MoeFfn, Operator, Profile, RoleCtas};
use mkernel_sim::{Options, Seeded, Threaded, find_races};
use mkernel_tests::moe::{self, Choice, Shape, Values};

fn shape(tokens: u64, experts: u64, topk: u64) -> Shape {
    Shape { tokens, hidden: 7, inner: 9, experts, topk, dtype: DType::Bf16 }
}

/// Both operators of a shape.
fn operators(shape: &Shape) -> [Box<dyn Operator>; 2] {
    [Box::new(shape.dispatch()), Box::new(shape.ffn())]
}

fn run(operator: &dyn Operator, executor: &mut dyn Executor, verified: &Verified, values: &Values) -> Vec<f64> {
    moe::write(operator, executor, verified, values);
    executor.launch().unwrap_or_else(|fault| panic!("{}: {fault}", operator.name()));
    moe::read(operator, executor, verified)
}

/// Worlds of every kind.
const WORLDS: [&[u32]; 7] = [&[1], &[3], &[1, 1, 1], &[2, 2], &[3, 2], &[1, 4, 2], &[2, 3, 1, 2]];

#[test]
fn real_inputs_give_the_same_bits_whatever_the_schedule_the_executor_and_the_split() {
    let shape = shape(31, 7, 3);
    let mut random = fastrand::Rng::with_seed(5);
    let values: Vec<_> = Choice::ALL.iter().map(|&c| Values::real(&shape, c, &mut random)).collect();
    for gpus in [&[3, 2][..], &[2, 2], &[1, 1, 1]] {
        let world = World::new(gpus).unwrap();
        for operator in operators(&shape) {
            let mut outputs: Vec<Vec<Vec<f64>>> = Vec::new();
            let mut add = |executor: &mut dyn Executor, verified: &Verified| {
                outputs.push(values.iter().map(|v| run(&*operator, executor, verified, v)).collect());
            };
            for seed in 0..8 {
                let mut roles = RoleCtas::default();
                if seed % 2 == 1 {
                    [(RoleName::Compute, 2), (RoleName::Intra, 1)].iter().for_each(|&(r, c)| roles.set(r, c));
                }
                let verified = moe::verified(&*operator, &world, &roles);
                let options = Options { seed, ring: 2, ..Options::default() };
                add(&mut Seeded::new(verified.clone(), options.clone()).unwrap(), &verified);
                add(&mut Threaded::new(verified.clone(), options).unwrap(), &verified);
            }
            let bits = |run: &Vec<Vec<f64>>| -> Vec<u64> { run.iter().flatten().map(|v| v.to_bits()).collect() };
            assert!(outputs.iter().all(|o| bits(o) == bits(&outputs[0])), "{} on {world}", operator.name());
        }
    }
}

#[test]
fn no_program_has_a_race() {
    for gpus in WORLDS {
        let world = World::new(gpus).unwrap();
        for shape in [shape(1, 1, 1), shape(17, 5, 2), shape(9, 13, 4)] {
            for operator in operators(&shape) {
                let verified = moe::verified(&*operator, &world, &RoleCtas::default());
                find_races(verified.programs(), 3).unwrap_or_else(|r| panic!("{} on {world}: {r}", operator.name()));
            }
        }
    }
}

/// Runs one table on a world with both operators and compares bit for bit.
fn check(gpus: &[u32], shape: &Shape, ids: Vec<i32>) {
    let world = World::new(gpus).unwrap();
    let mut values = Values::exact(shape, Choice::Any, &mut fastrand::Rng::with_seed(1));
    values.ids = ids;
    for operator in operators(shape) {
        let verified = moe::verified(&*operator, &world, &RoleCtas::default());
        let oracle = match operator.name() {
            "moe-ffn" => moe::ffn_oracle(shape, &values),
            _ => moe::dispatch_oracle(shape, &values),
        };
        let wanted: Vec<f64> = oracle.into_iter().map(|(v, _)| v.round()).collect();
        let mut executor = Seeded::new(verified.clone(), Options { seed: 3, ..Options::default() }).unwrap();
        for _ in 0..2 {
            let found = run(&*operator, &mut executor, &verified, &values);
            assert_eq!(found, wanted, "{} on {world} with {:?}", operator.name(), values.ids);
        }
    }
}

/// A shape whose every sum f32 output holds.
fn wide(tokens: u64, experts: u64, topk: u64) -> Shape {
    Shape { dtype: DType::F32, ..shape(tokens, experts, topk) }
}

#[test]
fn zero_tokens_to_an_expert_to_a_rank_and_to_everybody() {
    for gpus in WORLDS {
        // Experts 0 and 2 alone; then the last alone; then nobody.
        check(gpus, &wide(11, 6, 2), (0..22).map(|i| [0, 2, -1][i % 3]).collect());
        check(gpus, &wide(11, 6, 2), vec![5; 22]);
        check(gpus, &wide(11, 6, 2), vec![-1; 22]);
    }
}

#[test]
fn a_token_that_names_one_expert_in_every_slot_is_multiplied_once_and_counts_in_each() {
    for gpus in WORLDS {
        check(gpus, &wide(7, 4, 4), (0..28).map(|i| [3, 3, 3, 3, 1, 2, 1, -1][i % 8]).collect());
    }
    let verified = moe::verified(&wide(7, 4, 4).ffn(), &World::new(&[1]).unwrap(), &RoleCtas::default());
    let program = &verified.programs()[0];
    let slots = program.lanes[0].instructions.iter().filter(|i| i.op.name() == "expert").count();
    // Pairs are at most 7 tokens times 4 experts: 3 tiles for each expert, times columns 3 + 2.
    assert_eq!(slots, 12 * 5);
}

#[test]
fn fewer_experts_than_ranks_fewer_tokens_than_ranks_and_as_many_slots_as_experts() {
    for gpus in WORLDS {
        check(gpus, &wide(23, 1, 1), (0..23).map(|i| i % 2 - 1).collect());
        check(gpus, &wide(2, 3, 2), vec![2, 0, 1, 1]);
        check(gpus, &wide(1, 9, 9), (0..9).rev().collect());
        check(gpus, &wide(13, 5, 5), (0..65).map(|i| (i * 3) % 5).collect());
    }
}

#[test]
fn a_token_goes_once_to_a_node_however_many_of_its_experts_are_there() {
    let (world, shape) = (World::new(&[2, 2]).unwrap(), wide(4, 8, 4));
    let (operator, values) = (shape.dispatch(), {
        let mut values = Values::exact(&shape, Choice::Any, &mut fastrand::Rng::with_seed(1));
        values.ids = vec![4, 5, 6, 7, 0, 1, 2, 3, 4, 6, 4, -1, 0, 7, 0, 7];
        values
    });
    let verified = moe::verified(&operator, &world, &RoleCtas::default());
    let mut executor = Seeded::new(verified.clone(), Options::default()).unwrap();
    moe::write(&operator, &mut executor, &verified, &values);
    // Token 0 of rank 0 crosses once for four experts, token 1 stays, token 2 is at home, token 3 crosses for expert 0.
    assert_eq!(executor.launch().unwrap().inter_out, [28, 0, 0, 28]);
}

#[test]
fn three_nodes_and_uneven_ones_carry_over_the_nic_exactly_what_the_table_needs() {
    let shape = wide(29, 11, 3);
    for gpus in [&[1, 1, 1][..], &[3, 2], &[3, 1, 2], &[2, 3, 1, 2], &[1, 4]] {
        let world = World::new(gpus).unwrap();
        for operator in operators(&shape) {
            let verified = moe::verified(&*operator, &world, &RoleCtas::default());
            let mut executor = Seeded::new(verified.clone(), Options::default()).unwrap();
            let mut random = fastrand::Rng::with_seed(8);
            for choice in Choice::ALL {
                let values = Values::real(&shape, choice, &mut random);
                moe::write(&*operator, &mut executor, &verified, &values);
                let wanted = moe::nic_bytes(&shape, gpus, &values.ids, operator.name() == "moe-ffn");
                assert_eq!(executor.launch().unwrap().inter_out, wanted, "{} on {world}, {choice:?}", operator.name());
                assert_eq!(operator.routed_law(&world, &values.ids), Some(wanted), "the law of {}", operator.name());
            }
        }
    }
}

#[test]
fn counters_wrap_between_epochs() {
    let (world, shape) = (World::new(&[2, 1]).unwrap(), shape(9, 4, 2));
    for operator in operators(&shape) {
        let verified = moe::verified(&*operator, &world, &RoleCtas::default());
        let options = Options { first_epoch: u64::MAX - 2, ..Options::default() };
        let mut executor = Seeded::new(verified.clone(), options).unwrap();
        let mut fresh = Seeded::new(verified.clone(), Options::default()).unwrap();
        let mut random = fastrand::Rng::with_seed(9);
        for epoch in 0..6 {
            let values = Values::real(&shape, Choice::ALL[epoch % 5], &mut random);
            let found = run(&*operator, &mut executor, &verified, &values);
            assert_eq!(found, run(&*operator, &mut fresh, &verified, &values), "epoch {epoch}");
        }
    }
}

#[test]
fn one_rank_of_a_thousand_is_planned_in_under_a_second() {
    let world = World::uniform(128, 8).unwrap();
    let ffn = MoeFfn { tokens: 131_072, hidden: 7168, inner: 2048, experts: 1024, topk: 8, dtype: DType::Bf16 };
    let start = Instant::now();
    let program = ffn.plan(&world, Rank(517), &Profile::H200, &RoleCtas::default()).unwrap();
    let (taken, size) = (start.elapsed(), program.instructions().count());
    println!("{size} instructions in {taken:?}");
    assert!(taken.as_secs_f64() < 1.0, "{size} instructions took {taken:?}");
}

/// Of each wait of each segment of small programs, certain or picked: without it, both judges refuse.
#[test]
fn no_wait_can_be_left_out_and_validate_and_the_race_detector_agree() {
    let (world, shape) = (World::new(&[2, 1]).unwrap(), shape(5, 3, 2));
    for operator in operators(&shape) {
        let verified = moe::verified(&*operator, &world, &RoleCtas::default());
        let mut mutants = 0;
        for (rank, program) in verified.programs().iter().enumerate() {
            for (segment, s) in program.segments.iter().enumerate() {
                let lists = [(false, s.waits.clone()), (true, s.picked.clone())];
                for (is_picked, at) in lists.into_iter().flat_map(|(p, list)| list.map(move |at| (p, at))) {
                    let mut programs = verified.programs().to_vec();
                    leave_out(&mut programs[rank], segment, is_picked, at);
                    let found = find_races(&programs, 3);
                    let what = format!("{} {rank} segment {segment} picked {is_picked}", operator.name());
                    assert!(validate(programs).is_err(), "validate: {what}");
                    assert!(found.is_err(), "race detector: {what}");
                    mutants += 1;
                }
            }
        }
        println!("{}: {mutants} refused", operator.name());
    }
}

/// Gives a segment a list of waits of its own, without one.
fn leave_out(program: &mut Program, segment: usize, is_picked: bool, at: u32) {
    let s = &program.segments[segment];
    let list = if is_picked { s.picked.clone() } else { s.waits.clone() };
    let start = program.waits.len() as u32;
    let kept: Vec<_> = list.filter(|&i| i != at).map(|i| program.waits[i as usize]).collect();
    program.waits.extend(kept);
    let slice = start..program.waits.len() as u32;
    let s = &mut program.segments[segment];
    *(if is_picked { &mut s.picked } else { &mut s.waits }) = slice;
}
