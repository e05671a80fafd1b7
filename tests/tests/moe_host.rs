//! Both operators of the mixture of experts on the host: exact, whatever data chooses.
#![allow(clippy::unwrap_used)]

use mkernel_core::{DType, Executor, Verified, World};
use mkernel_kernels::{Operator, RoleCtas};
use mkernel_sim::{Options, Seeded};
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
    (1u64..60, 1u64..20, 1u64..20, 1u64..12, 0u64..6, dtype).prop_map(
        |(tokens, hidden, inner, experts, topk, dtype)| Shape {
            tokens,
            hidden,
            inner,
            experts,
            topk: 1 + topk % experts,
            dtype,
        },
    )
}

/// Shapes whose exact integers stay so small that even a node's rounded sum is exact in bf16.
fn small_sums() -> impl Strategy<Value = Shape> {
    shapes().prop_map(|shape| {
        // Sums are multiples of 32: at most 2 * topk * inner * hidden of them, and bf16 holds multiples up to 256.
        let (hidden, inner, topk) = (1 + shape.hidden % 4, 1 + shape.inner % 6, 1 + (shape.topk - 1) % 4);
        Shape { hidden, inner, topk, ..shape }
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

/// The output where every product, weight and sum is an integer that the output type holds. In f64 `silu(32)` falls short of
/// 32 by 4e-13, in f32 it does not.
fn exact(shape: &Shape, oracle: Vec<(f64, f64)>) -> Vec<f64> {
    oracle.into_iter().map(|(value, _)| moe::round(shape.dtype, value.round())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

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
            prop_assert_eq!(found, exact(&shape, moe::dispatch_oracle(&shape, &values)), "{:?}", values.ids);
            prop_assert_eq!(sent, moe::nic_bytes(&shape, &gpus, &values.ids, false));
        }
    }

    #[test]
    fn the_layer_is_exact_on_integers_and_each_token_crosses_once_there_and_once_back(
        gpus in worlds(), shape in small_sums(), choices in proptest::collection::vec(choices(), 1..4), seed: u64,
    ) {
        let (world, operator) = (World::new(&gpus).unwrap(), shape.ffn());
        let verified = moe::verified(&operator, &world, &RoleCtas::default());
        let (mut executor, mut random) = (seeded(&verified, seed), fastrand::Rng::with_seed(seed));
        for choice in choices {
            let values = Values::exact(&shape, choice, &mut random);
            let (found, sent) = launch(&operator, &mut executor, &verified, &values);
            prop_assert_eq!(found, exact(&shape, moe::ffn_oracle(&shape, &values)), "{:?}", values.ids);
            prop_assert_eq!(sent, moe::nic_bytes(&shape, &gpus, &values.ids, true));
        }
    }

    #[test]
    fn real_inputs_stay_within_the_bound_of_every_element(
        gpus in worlds(), shape in shapes(), choice in choices(), seed: u64,
    ) {
        let world = World::new(&gpus).unwrap();
        let values = Values::real(&shape, choice, &mut fastrand::Rng::with_seed(seed));
        let (dispatch, ffn) = (shape.dispatch(), shape.ffn());
        let cases: [(&dyn Operator, _); 2] =
            [(&dispatch, moe::dispatch_oracle(&shape, &values)), (&ffn, moe::ffn_oracle(&shape, &values))];
        for (operator, wanted) in cases {
            let verified = moe::verified(operator, &world, &RoleCtas::default());
            let (found, _) = launch(operator, &mut seeded(&verified, seed), &verified, &values);
            for (index, (found, (wanted, bound))) in found.into_iter().zip(wanted).enumerate() {
                let error = (found - wanted).abs();
                prop_assert!(error <= bound + 1e-7, "{} {index}: {found} for {wanted} +- {bound}", operator.name());
            }
        }
    }
}
