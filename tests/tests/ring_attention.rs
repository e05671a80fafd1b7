//! Ring attention on the host: right for any shape, world, mask and layout, and the same bits whoever runs it.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use mkernel::check::{Extent, check};
use mkernel::ring_attention::Layout;
use mkernel::{DType, Fill, Mask, Options, RingAttention, Schedule, Session, Tensor, Tensors, World, inputs};
use mkernel_core::{Rank, validate};
use mkernel_kernels::{Operator, Profile, RoleCtas};
use mkernel_sim::find_races;
use proptest::prelude::*;

/// Tiles so small that small shapes have many.
const SMALL: Profile = Profile { tile_m: 8, ..Profile::HOST };

fn session(gpus: &[u32], schedule: Schedule) -> Session {
    let options = Options { profile: SMALL, schedule, deadline: Duration::from_secs(60), ..Options::default() };
    Session::new(World::new(gpus).unwrap(), options)
}

fn run(op: &RingAttention, gpus: &[u32], schedule: Schedule, given: &Tensors) -> Tensors {
    session(gpus, schedule).operator(*op).unwrap().run(given).unwrap().0
}

/// The output by the definition, in f64, one row at a time, with no code of the product.
fn oracle(op: &RingAttention, given: &Tensors) -> Vec<f64> {
    let [q, k, v] = ["q", "k", "v"].map(|name| given.get(name).unwrap().to_f32());
    let (seq, dim) = (op.seq as usize, op.dim as usize);
    let mut out = Vec::new();
    for head in 0..(op.batch * op.heads) as usize {
        let batch = head / op.heads as usize;
        let kv = batch * op.kv_heads as usize + head % op.heads as usize / (op.heads / op.kv_heads) as usize;
        let row = |t: &[f32], h: usize, s: usize| -> Vec<f64> {
            t[(h * seq + s) * dim..][..dim].iter().map(|&x| f64::from(x)).collect()
        };
        for position in 0..seq {
            let query = row(&q, head, position);
            let seen = if op.mask == Mask::Causal { position + 1 } else { seq };
            let score = |key: Vec<f64>| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt();
            let scores: Vec<f64> = (0..seen).map(|s| score(row(&k, kv, s))).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            for column in 0..dim {
                let weighted = |s: usize| (scores[s] - top).exp() / sum * f64::from(v[(kv * seq + s) * dim + column]);
                out.push((0..seen).map(weighted).sum());
            }
        }
    }
    out
}

fn problems() -> impl Strategy<Value = RingAttention> {
    let dims = prop_oneof![Just(16u64), Just(24), Just(64), Just(128)];
    let dtypes = prop_oneof![Just(DType::Bf16), Just(DType::F16), Just(DType::F32)];
    let masks = prop_oneof![Just(Mask::None), Just(Mask::Causal)];
    let layouts = prop_oneof![Just(Layout::Plain), Just(Layout::ZigZag)];
    (1u64..3, 1u64..3, 1u64..4, 1u64..90, dims, masks, layouts, dtypes).prop_map(
        |(batch, kv_heads, group, seq, dim, mask, layout, dtype)| RingAttention {
            batch,
            heads: kv_heads * group,
            kv_heads,
            seq,
            dim,
            mask,
            layout,
            dtype,
        },
    )
}

fn worlds() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(1u32..=4, 1..=4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_problem_in_any_world_is_right_and_bit_identical(
        op in problems(), gpus in worlds(), seed in any::<u64>(), epochs in 1u64..4,
    ) {
        let (mut one, mut two) = (session(&gpus, Schedule::Seeded(seed)), session(&gpus, Schedule::Threads));
        let (one, two) = (one.operator(op).unwrap(), two.operator(op).unwrap());
        for epoch in 0..epochs {
            let given = inputs(&op, Fill::Real, seed, epoch).unwrap();
            let (outputs, report) = one.run(&given).unwrap();
            prop_assert_eq!(&report.inter_out, &report.inter_law);
            check(&op, &given, &outputs, Extent::All, &[], 0).unwrap();
            // 16-bit outputs round by at most 2^-8 of values below 1; the rest is far smaller.
            let found = outputs.get("o").unwrap().to_f32();
            for (index, (&found, wanted)) in found.iter().zip(oracle(&op, &given)).enumerate() {
                prop_assert!((f64::from(found) - wanted).abs() <= 1.0 / 256.0, "{index}: {found} is not {wanted}");
            }
            prop_assert_eq!(&two.run(&given).unwrap().0, &outputs);
        }
    }

    #[test]
    fn every_plan_is_proved_and_free_of_races(op in problems(), gpus in worlds()) {
        let world = World::new(&gpus).unwrap();
        let programs: Vec<_> =
            world.ranks().map(|r| op.plan(&world, r, &SMALL, &RoleCtas::default()).unwrap()).collect();
        for program in &programs {
            prop_assert_eq!(program.law.inter_out, needed(&op, &world, program.rank));
        }
        if world.size() <= 4 && op.seq < 40 {
            prop_assert!(find_races(&programs, 3).is_ok());
        }
        prop_assert!(validate(programs).is_ok());
    }
}

/// Bytes that `rank` must send: each of its positions once to every other node that has a query which sees it.
fn needed(op: &RingAttention, world: &World, rank: Rank) -> u64 {
    let owner = |position: u64| {
        let (size, parts) = (u64::from(world.size()), if op.layout == Layout::ZigZag { 2 } else { 1 });
        let part = (0..size * parts)
            .find(|&p| mkernel_core::world::share(op.seq, size * parts, p).contains(&position))
            .unwrap();
        Rank(if part < size { part } else { 2 * size - 1 - part } as u32)
    };
    let own = (0..op.seq).filter(|&p| owner(p) == rank);
    let sees = |node, key| (0..op.seq).any(|p| world.node_of(owner(p)) == node && (op.mask == Mask::None || p >= key));
    let pairs: usize = own.map(|key| world.other_nodes(rank).filter(|&node| sees(node, key)).count()).sum();
    pairs as u64 * 2 * op.batch * op.kv_heads * op.dim * op.dtype.bytes()
}

fn small(mask: Mask, dtype: DType) -> RingAttention {
    RingAttention { batch: 1, heads: 2, kv_heads: 1, seq: 37, dim: 16, mask, layout: Layout::ZigZag, dtype }
}

/// `q` scaled so that scores reach about `top`.
fn steep(op: &RingAttention, top: f32) -> Tensors {
    let mut given = inputs(op, Fill::Real, 5, 0).unwrap();
    let q = given.get("q").unwrap();
    let values: Vec<f32> = q.to_f32().iter().map(|x| x * top).collect();
    let q = Tensor::from_f32(q.shape().to_vec(), q.dtype(), &values).unwrap();
    given.insert("q", q);
    given
}

#[test]
fn scores_up_to_a_thousand_neither_overflow_nor_vanish() {
    for mask in [Mask::None, Mask::Causal] {
        let op = small(mask, DType::F32);
        let given = steep(&op, 1000.0);
        let found = run(&op, &[2, 1], Schedule::Seeded(1), &given);
        check(&op, &given, &found, Extent::All, &[], 0).unwrap();
        let found = found.get("o").unwrap().to_f32();
        let error = found.iter().zip(oracle(&op, &given)).map(|(f, w)| (f64::from(*f) - w).abs());
        assert!(error.fold(0.0, f64::max) < 1e-2);
    }
}

#[test]
fn a_nan_in_keys_and_values_reaches_exactly_the_rows_that_see_it() {
    let op = small(Mask::Causal, DType::Bf16);
    let mut given = inputs(&op, Fill::Real, 9, 0).unwrap();
    for name in ["k", "v"] {
        let tensor = given.get(name).unwrap();
        let mut values = tensor.to_f32();
        values[20 * 16..21 * 16].fill(f32::NAN);
        let tensor = Tensor::from_f32(tensor.shape().to_vec(), tensor.dtype(), &values).unwrap();
        given.insert(name, tensor);
    }
    let found = run(&op, &[1, 2], Schedule::Threads, &given).get("o").unwrap().to_f32();
    for (index, value) in found.iter().enumerate() {
        assert_eq!(value.is_nan(), index / 16 % 37 >= 20, "row {}", index / 16 % 37);
    }
}

#[test]
fn zeros_do_not_pass_the_check() {
    let op = small(Mask::None, DType::Bf16);
    let zeros = Tensors::from([("o", Tensor::zeros(&op.tensors()[3]).unwrap())]);
    assert!(check(&op, &inputs(&op, Fill::Real, 1, 0).unwrap(), &zeros, Extent::All, &[], 0).is_err());
}

#[test]
fn role_splits_do_not_change_a_bit() {
    let op = small(Mask::Causal, DType::F16);
    let given = inputs(&op, Fill::Real, 3, 0).unwrap();
    let wanted = run(&op, &[2, 2], Schedule::Threads, &given);
    for (compute, intra) in [(1, 1), (2, 1), (1, 2)] {
        let mut roles = RoleCtas::default();
        roles.set(mkernel::RoleName::Compute, compute);
        roles.set(mkernel::RoleName::Intra, intra);
        let options = Options { profile: SMALL, roles, ..Options::default() };
        let mut session = Session::new(World::uniform(2, 2).unwrap(), options);
        assert_eq!(session.operator(op).unwrap().run(&given).unwrap().0, wanted);
    }
}

#[test]
fn impossible_problems_are_refused() {
    let good = small(Mask::None, DType::Bf16);
    let world = World::uniform(1, 2).unwrap();
    for (bad, says) in [
        (RingAttention { dim: 12, ..good }, "--dim"),
        (RingAttention { dim: 264, ..good }, "--dim"),
        (RingAttention { heads: 3, kv_heads: 2, ..good }, "--kv-heads"),
        (RingAttention { seq: 0, ..good }, "--seq"),
        (RingAttention { dtype: DType::I32, ..good }, "i32"),
    ] {
        let error = bad.plan(&world, Rank(0), &SMALL, &RoleCtas::default()).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_rank_of_a_large_world_is_planned_in_time_that_grows_with_its_own_work() {
    let op = RingAttention { batch: 1, heads: 16, kv_heads: 4, seq: 131_072, ..small(Mask::None, DType::Bf16) };
    let world = World::uniform(128, 8).unwrap();
    let start = Instant::now();
    let program = op.plan(&world, Rank(77), &Profile::H200, &RoleCtas::default()).unwrap();
    println!("1024 ranks: {} instructions in {:?}", program.instructions().count(), start.elapsed());
    // Each head's tile has a segment per piece; nothing grows with the square of the world.
    assert!(program.segments.len() < 16 * 3 * 2048 * 4);
}
