//! GEMM+ReduceScatter and GEMM+AllReduce on the host executors: right, and always the same bits.
#![allow(clippy::unwrap_used)]

use mkernel_core::{DType, Executor, Rank, RoleName, Verified, World};
use mkernel_kernels::{AllReduce, GemmAr, GemmRs, Partial, Profile, RoleCtas};
use mkernel_sim::{Network, Options, Seeded, Threaded, find_races};
use mkernel_tests::split_k::{Case, round};
use proptest::prelude::*;

const FORMS: [Option<AllReduce>; 3] = [None, Some(AllReduce::TwoStep), Some(AllReduce::OneShot)];

/// Reduce-scatter, or all-reduce in the given form.
fn case(gpus: &[u32], form: Option<AllReduce>, (m, n, k): (u64, u64, u64), dtype: DType, partial: Partial) -> Case {
    match form {
        None => Case::new(gpus, GemmRs { m, n, k, dtype, partial }),
        Some(all_reduce) => Case::new(gpus, GemmAr { m, n, k, dtype, partial, all_reduce }),
    }
}

/// Two nodes of three and two ranks, with every role on every rank.
fn uneven(form: Option<AllReduce>) -> Case {
    case(&[3, 2], form, (37, 29, 17), DType::Bf16, Partial::Narrow)
}

/// Runs epochs with new inputs each and compares bit for bit with the exact product.
fn check_exact(case: &Case, verified: &Verified, executor: &mut dyn Executor, seed: u64, epochs: u64) {
    for epoch in 0..epochs {
        let inputs = case.integers(seed.wrapping_mul(5).wrapping_add(epoch));
        case.write(executor, verified, &inputs);
        let run = executor.launch().unwrap_or_else(|fault| panic!("{case:?} seed {seed} epoch {epoch}: {fault}"));
        let wanted: Vec<f32> = case.oracle(&inputs).into_iter().map(|(value, _)| value as f32).collect();
        assert_eq!(case.read(executor, verified), wanted, "{case:?} seed {seed} epoch {epoch}");
        let (intra, inter): (Vec<_>, Vec<_>) = verified.programs().iter().map(|p| p.bytes_out()).unzip();
        assert_eq!((run.intra_out, run.inter_out), (intra, inter), "{case:?}");
    }
}

/// Runs one epoch on real inputs and checks each element against its own bound.
fn check_real(case: &Case, partial: DType, verified: &Verified, executor: &mut dyn Executor, seed: u64) {
    let (inputs, (_, _, k)) = (case.reals(seed), case.shape());
    case.write(executor, verified, &inputs);
    executor.launch().unwrap_or_else(|fault| panic!("{case:?} seed {seed}: {fault}"));
    let steps = (k + case.gpus.iter().sum::<u32>() as usize) as f64 * DType::F32.unit_roundoff();
    let rounded = if case.gpus.len() > 1 { partial.unit_roundoff() } else { 0.0 };
    for (i, (found, (value, size))) in case.read(executor, verified).into_iter().zip(case.oracle(&inputs)).enumerate() {
        let before = (1.01 * steps + rounded * (1.0 + steps)) * size;
        let bound = before + case.dtype().unit_roundoff() * (value.abs() + before) + 1e-7;
        let error = (f64::from(found) - value).abs();
        assert!(error <= bound, "{case:?} seed {seed}: element {i} is {found}, not {value}: {error} > {bound}");
    }
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::Bf16), Just(DType::F16), Just(DType::F32)]
}

/// A length from 1 to a few hundred: anything, primes, and powers of two give or take one.
fn length(max: u64) -> impl Strategy<Value = u64> {
    let primes = prop_oneof![Just(2u64), Just(3), Just(13), Just(31), Just(61), Just(127), Just(251)];
    let powers = (1u32..8, 0u64..3).prop_map(|(power, off)| (1 << power) + off - 1);
    prop_oneof![1..=max, primes, powers].prop_map(move |value| value.min(max))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_shape_world_and_schedule_gives_the_exact_sum_and_reals_within_the_bound(
        gpus in proptest::collection::vec(1u32..=5, 1..=5),
        form in proptest::sample::select(FORMS.to_vec()),
        shape in (length(120), length(40), length(250)),
        dtype in dtypes(),
        partial in prop_oneof![Just(Partial::Narrow), Just(Partial::F32)],
        epochs in 1u64..=5,
        seed in any::<u64>(),
        is_seeded in any::<bool>(),
    ) {
        let case = case(&gpus, form, shape, dtype, partial);
        let (verified, options) = (case.verified(), Options { seed, ring: 2, ..Options::default() });
        let mut executor: Box<dyn Executor> = if is_seeded {
            Box::new(Seeded::new(verified.clone(), options).unwrap())
        } else {
            Box::new(Threaded::new(verified.clone(), options).unwrap())
        };
        check_exact(&case, &verified, executor.as_mut(), seed, epochs);
        check_real(&case, partial.dtype(dtype), &verified, executor.as_mut(), seed);
    }
}

#[test]
fn sums_run_in_rank_order_with_one_rounding_per_node_and_one_at_the_end() {
    for gpus in [&[3, 2][..], &[2, 2, 2], &[1, 1, 1], &[4], &[1, 3]] {
        for form in FORMS {
            for partial in [Partial::Narrow, Partial::F32] {
                // One product per rank: what a rank adds is known to the bit.
                let world = World::new(gpus).unwrap();
                let case = case(gpus, form, (11, 9, world.size().into()), DType::Bf16, partial);
                let (verified, inputs) = (case.verified(), case.reals(7));
                let mut executor = Seeded::new(verified.clone(), Options::default()).unwrap();
                case.write(&mut executor, &verified, &inputs);
                executor.launch().unwrap();
                let wanted = ordered_sum(&case, &world, form, partial.dtype(DType::Bf16), &inputs);
                assert_eq!(case.read(&executor, &verified), wanted, "{case:?} {partial:?}");
            }
        }
    }
}

/// The sum in the order that the design states: ranks of a node in f32, a rounded partial per node, nodes in order; the
/// owner's node in f32 unless its partial goes to other nodes too.
fn ordered_sum(
    case: &Case,
    world: &World,
    form: Option<AllReduce>,
    partial: DType,
    [a, b]: &[Vec<f32>; 2],
) -> Vec<f32> {
    let (m, n, k) = case.shape();
    let owner = |row: usize| {
        let (mut owner, mut end) = (0, 0);
        loop {
            end += m / k + usize::from(owner < m % k);
            if row < end {
                return Rank(owner as u32);
            }
            owner += 1;
        }
    };
    let element = |row: usize, column: usize| {
        let mut terms = Vec::new();
        for node in world.nodes() {
            let ranks = world.ranks_of(node).map(|r| a[row * k + r as usize] * b[r as usize * n + column]);
            let at_home = form != Some(AllReduce::OneShot) && node == world.node_of(owner(row));
            if at_home || world.node_count() == 1 {
                terms.extend(ranks);
            } else {
                terms.push(round(partial, ranks.reduce(|x, y| x + y).unwrap()));
            }
        }
        round(case.dtype(), terms.into_iter().reduce(|x, y| x + y).unwrap())
    };
    (0..m * n).map(|i| element(i / n, i % n)).collect()
}

#[test]
fn seeds_executors_orderings_and_role_splits_give_the_same_bits() {
    for form in FORMS {
        let case = uneven(form);
        let inputs = case.reals(3);
        let verified = case.verified();
        let run = |verified: &Verified, mut executor: Box<dyn Executor>| {
            case.write(executor.as_mut(), verified, &inputs);
            executor.launch().unwrap();
            case.read(executor.as_ref(), verified).into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let expected = run(&verified, Box::new(Threaded::new(verified.clone(), Options::default()).unwrap()));
        for seed in 0..12 {
            use mkernel_core::transport::Ordering::{InOrder, Unordered};
            let ordering = if seed % 2 == 0 { InOrder } else { Unordered };
            let network = Network { ordering, depth: 1 + seed as usize % 3, ..Network::default() };
            let options = Options { seed, ring: 2, network, ..Options::default() };
            let executor = Box::new(Seeded::new(verified.clone(), options).unwrap());
            assert_eq!(run(&verified, executor), expected, "seed {seed}");
        }
        for (compute, reduce, intra, send) in [(1, 1, 1, 1), (3, 1, 2, 1), (1, 4, 1, 2)] {
            let mut roles = RoleCtas::default();
            let split = [compute, intra, send, reduce];
            RoleName::ALL.into_iter().zip(split).for_each(|(role, ctas)| roles.set(role, ctas));
            let case = Case { roles, profile: Profile { sms: 16, ..case.profile }, ..case.clone() };
            let verified = case.verified();
            let executor = Box::new(Threaded::new(verified.clone(), Options::default()).unwrap());
            assert_eq!(run(&verified, executor), expected, "{case:?}");
        }
    }
}

#[test]
fn epochs_and_cells_go_on_across_the_wrap_of_64_bits() {
    for form in FORMS {
        let options = || Options { first_epoch: u64::MAX - 1, ring: 2, ..Options::default() };
        let (case, verified) = (uneven(form), uneven(form).verified());
        check_exact(&case, &verified, &mut Seeded::new(verified.clone(), options()).unwrap(), 1, 4);
        check_exact(&case, &verified, &mut Threaded::new(verified.clone(), options()).unwrap(), 2, 4);
    }
}

#[test]
fn worlds_with_fewer_rows_or_less_k_than_ranks_are_right() {
    for form in FORMS {
        for shape in [(1, 1, 1), (2, 7, 1), (1, 30, 3), (9, 1, 2)] {
            for gpus in [&[1][..], &[5], &[1, 1, 1], &[3, 2], &[1, 4]] {
                let case = case(gpus, form, shape, DType::F16, Partial::Narrow);
                let verified = case.verified();
                let mut executor = Seeded::new(verified.clone(), Options::default()).unwrap();
                check_exact(&case, &verified, &mut executor, 4, 2);
            }
        }
    }
}

#[test]
fn no_plan_has_a_race() {
    for form in FORMS {
        for gpus in [&[1][..], &[3], &[1, 1, 1], &[2, 2], &[3, 2]] {
            for shape in [(1, 1, 1), (13, 11, 7), (37, 9, 5)] {
                let case = case(gpus, form, shape, DType::Bf16, Partial::Narrow);
                find_races(&case.plan(), 4).unwrap_or_else(|race| panic!("{case:?}: {race}"));
            }
        }
    }
}
