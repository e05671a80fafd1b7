//! Both operators of the mixture of experts on the host: exact, whatever data chooses.

use mkernel_core::{DType, Executor, Verified, World};
use mkernel_kernels::{Operator, RoleCtas};
use mkernel_sim::{Options, Seeded, Threaded};
use mkernel_tests::moe::{self, Choice, Shape, Values};
use proptest::prelude::*;

fn worlds() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        4 => proptest::collection::vec(1u32..=3, 1..=3),
        1 => proptest::collection::vec(1u32..=5, 1..=5),
        1 => Just(vec![3, 2]),
    ]
}

fn shapes() -> impl Strategy<Value = Shape> {
    let dtype = prop_oneof![Just(DType::Bf16), Just(DType::F16), Just(DType::F32)];
    (1u64..60, 1u64..20, 1u64..20, 1u64..12, 0u64..6, dtype).prop_map(|(tokens, hidden, inner, experts, topk, dtype)| {
        Shape { tokens, hidden, inner, experts, topk: 1 + topk % experts, dtype }
    })
}

fn choices() -> impl Strategy<Value = Choice> {
    proptest::sample::select(Choice::ALL.to_vec())
}

fn seeded(verified: &std::sync::Arc<Verified>, seed: u64) -> Seeded {
    Seeded::new(verified.clone(), Options { seed, ring: 2, ..Options::default() }).unwrap()
}

/// Runs one epoch; answers the output and what each rank sent over the NIC.
fn launch(
    operator: &dyn Operator,
    executor: &mut dyn Executor,
    verified: &Verified,
    values: &Values,
) -> (Vec<f64>, Vec<u64>) {
    moe::write(operator, executor, verified, values);
    let run = executor.launch().unwrap_or_else(|fault| panic!("{}: {fault}", operator.name()));
    (moe::read(operator, executor, verified), run.inter_out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn dispatched_products_are_exact_and_the_nic_carries_what_routing_needs(
        gpus in worlds(), shape in shapes(), choices in proptest::collection::vec(choices(), 1..4), seed: u64,
    ) {
        let (world, operator) = (World::new(&gpus).unwrap(), shape.dispatch());
        let verified = moe::verified(&operator, &world, &RoleCtas::default());
        let (mut executor, mut random) = (seeded(&verified, seed), fastrand::Rng::with_seed(seed));
        for choice in choices {
            let values = Values::exact(&shape, choice, &mut random);
            let (found, sent) = launch(&operator, &mut executor, &verified, &values);
            let wanted: Vec<f64> =
                moe::dispatch_oracle(&shape, &values).into_iter().map(|(v, _)| moe::round(shape.dtype, v)).collect();
            prop_assert_eq!(found, wanted, "{:?}", values.ids);
            prop_assert_eq!(sent, moe::nic_bytes(&shape, &world, &values.ids, false));
        }
    }
}
