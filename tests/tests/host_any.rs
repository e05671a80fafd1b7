//! Any problem in any world, under any seed, network and split of CTAs: proved, without a race, exact.
#![allow(clippy::unwrap_used)]

use mkernel_core::transport::Ordering;
use mkernel_core::{DType, Executor, RoleName};
use mkernel_kernels::{AgGemm, RoleCtas};
use mkernel_sim::{Network, Options, Seeded, Threaded, find_races};
use mkernel_tests::ag_gemm::Case;
use proptest::prelude::*;

fn cases() -> impl Strategy<Value = Case> {
    let gpus = proptest::collection::vec(1u32..=5, 1..=5);
    let dtype = prop_oneof![Just(DType::Bf16), Just(DType::F16), Just(DType::F32)];
    // Small compute lanes leave work to helpers, and a lane of many CTAs has some with nothing to do.
    (gpus, (1u64..40, 1u64..40, 1u64..20), dtype, proptest::option::of(1u32..=2)).prop_map(
        |(gpus, (m, n, k), dtype, compute)| {
            let mut case = Case::new(&gpus, AgGemm { m, n, k, dtype });
            let mut roles = RoleCtas::default();
            compute.into_iter().for_each(|ctas| roles.set(RoleName::Compute, ctas));
            case.roles = roles;
            case
        },
    )
}

fn options() -> impl Strategy<Value = Options> {
    let ordering = prop_oneof![Just(Ordering::InOrder), Just(Ordering::Unordered)];
    let network =
        (ordering, 1usize..9, 1u32..6, 1u32..6, 0u8..200).prop_map(|(ordering, depth, pieces, deliveries, idle)| {
            Network { ordering, depth, pieces, deliveries, idle, injections: Vec::new() }
        });
    (any::<u64>(), network, 1u32..5, prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]).prop_map(
        |(seed, network, ring, first_epoch)| Options {
            seed,
            network,
            ring: 1 << ring,
            first_epoch,
            ..Options::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_case_is_exact_on_both_executors_and_has_no_race(case in cases(), options in options()) {
        prop_assert_eq!(find_races(&case.plan(), 3), Ok(()));
        let verified = case.verified();
        let mut executors: [Box<dyn Executor>; 2] = [
            Box::new(Seeded::new(verified.clone(), options.clone()).unwrap()),
            Box::new(Threaded::new(verified.clone(), options.clone()).unwrap()),
        ];
        for epoch in 0..3 {
            let inputs = case.inputs(options.seed.wrapping_add(epoch));
            for executor in &mut executors {
                case.write(executor.as_mut(), &verified, &inputs);
                let run = executor.launch();
                prop_assert!(run.is_ok(), "epoch {}: {}", epoch, run.unwrap_err());
                prop_assert_eq!(case.read(executor.as_ref(), &verified), case.oracle(&inputs));
            }
        }
    }
}
