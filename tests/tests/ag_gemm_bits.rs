//! AG+GEMM with real inputs: any two ways to run one problem give the same bits, near the f64 product.
#![allow(clippy::unwrap_used)]

use mkernel_core::transport::Ordering;
use mkernel_core::{DType, Executor, RoleName, World};
use mkernel_kernels::{AgGemm, RoleCtas};
use mkernel_sim::{Network, Options, Seeded, Threaded};
use mkernel_tests::ag_gemm::Case;
use proptest::prelude::*;

/// Primes, powers of two and their neighbours, and one.
fn axis() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), 1u64..60, proptest::sample::select(vec![7, 8, 9, 13, 31, 32, 33, 61, 63, 64, 65])]
}

fn cases() -> impl Strategy<Value = Case> {
    let dtype = prop_oneof![Just(DType::Bf16), Just(DType::F16), Just(DType::F32)];
    (proptest::collection::vec(1u32..=5, 1..=5), axis(), axis(), axis(), dtype)
        .prop_map(|(gpus, m, n, k, dtype)| Case::new(&gpus, AgGemm { m, n, k, dtype }))
}

/// The case with its roles' CTAs given.
fn with_roles(case: &Case, ctas: [u32; 3]) -> Case {
    let mut roles = RoleCtas::default();
    let names = [RoleName::Compute, RoleName::Intra, RoleName::Send];
    names.into_iter().zip(ctas).for_each(|(role, ctas)| roles.set(role, ctas));
    Case { roles, ..case.clone() }
}

/// Inputs in [-1, 1) that every element type holds exactly.
fn real(len: u64, random: &mut fastrand::Rng) -> Vec<f32> {
    (0..len).map(|_| f32::from(random.i8(..)) / 128.0).collect()
}

/// The outputs of two epochs, the second with other inputs.
fn bits(case: &Case, executor: &mut dyn Executor, inputs: &[[Vec<f32>; 2]; 2]) -> [Vec<f32>; 2] {
    let verified = case.verified();
    [0, 1].map(|epoch: usize| {
        case.write(executor, &verified, &inputs[epoch]);
        executor.launch().unwrap_or_else(|fault| panic!("{case:?}: {fault}"));
        case.read(executor, &verified)
    })
}

/// Whether every element is within its own bound of the f64 product: one rounding of each sum in f32, one to the output.
fn is_near(case: &Case, [a, b]: &[Vec<f32>; 2], c: &[f32]) -> bool {
    let (n, k) = (case.op.n as usize, case.op.k as usize);
    c.iter().enumerate().all(|(index, &value)| {
        let (row, column) = (index / n, index % n);
        let terms = (0..k).map(|i| f64::from(a[row * k + i]) * f64::from(b[i * n + column]));
        let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let roundings = DType::F32.unit_roundoff() * (k as f64 + 1.0) * size;
        let bound = roundings + case.op.dtype.unit_roundoff() * (exact.abs() + roundings) + 1e-7;
        (f64::from(value) - exact).abs() <= bound
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_seed_split_executor_and_ordering_give_the_same_bits(
        case in cases(),
        seed: u64,
        splits in proptest::collection::vec((1u32..=2, 1u32..=1, 1u32..=1), 2),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (m, n, k) = (case.op.m, case.op.n, case.op.k);
        let inputs = [(); 2].map(|()| [real(m * k, &mut random), real(k * n, &mut random)]);
        let first = bits(&case, &mut Seeded::new(case.verified(), Options::default()).unwrap(), &inputs);
        for (inputs, output) in inputs.iter().zip(&first) {
            prop_assert!(is_near(&case, inputs, output), "{case:?} seed {seed}: beyond the bound");
        }
        for (index, (compute, intra, send)) in splits.into_iter().enumerate() {
            let ordering = if index == 0 { Ordering::InOrder } else { Ordering::Unordered };
            let options = Options { seed, ring: 2, network: Network { ordering, ..Network::default() }, ..Options::default() };
            let split = with_roles(&case, [compute, intra, send]);
            let seeded = bits(&split, &mut Seeded::new(split.verified(), options.clone()).unwrap(), &inputs);
            prop_assert_eq!(&seeded, &first, "{:?} seeded {}", split, seed);
            let threaded = bits(&split, &mut Threaded::new(split.verified(), options).unwrap(), &inputs);
            prop_assert_eq!(&threaded, &first, "{:?} threaded {}", split, seed);
        }
    }

    #[test]
    fn a_split_of_roles_changes_counts_of_ctas_and_nothing_else(case in cases(), compute in 1u32..=2) {
        let mut split = with_roles(&case, [compute, 1, 1]).plan();
        for (program, planned) in split.iter_mut().zip(case.plan()) {
            for (lane, other) in program.lanes.iter_mut().zip(&planned.lanes) {
                lane.ctas = other.ctas;
            }
            prop_assert_eq!(&*program, &planned);
        }
    }

    /// Every shard crosses to each other node once, and lands there on the rank of its index, folded onto the node.
    #[test]
    fn nic_bytes_are_the_law_reckoned_from_shards(case in cases()) {
        let world = World::new(&case.gpus).unwrap();
        let (size, row) = (u64::from(world.size()), case.op.k * case.op.dtype.bytes());
        let shard = |rank: u32| (case.op.m / size + u64::from(u64::from(rank) < case.op.m % size)) * row;
        let programs = case.plan();
        for (rank, program) in world.ranks().zip(&programs) {
            prop_assert_eq!(program.bytes_out().1, shard(rank.0) * (case.gpus.len() as u64 - 1));
            let lands = world.ranks().filter(|&other| {
                let gpus = world.gpus(world.node_of(rank));
                !world.same_node(other, rank) && world.index_of(other) % gpus == world.index_of(rank)
            });
            let to_me = programs.iter().flat_map(|p| &p.puts).filter(|put| put.target.rank == rank);
            prop_assert_eq!(to_me.map(|put| put.source.bytes()).sum::<u64>(), lands.map(|r| shard(r.0)).sum::<u64>());
        }
    }
}
