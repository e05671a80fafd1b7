//! Every planned AG+GEMM is proved, for any shape and world.
#![allow(clippy::unwrap_used)]

use mkernel_core::{DType, Program, World, validate};
use mkernel_kernels::{AgGemm, Operator, Profile, RoleCtas};
use proptest::prelude::*;

fn plan_world(problem: &AgGemm, world: &World, profile: &Profile) -> Vec<Program> {
    world.ranks().map(|rank| problem.plan(world, rank, profile, &RoleCtas::default()).unwrap()).collect()
}

fn worlds() -> impl Strategy<Value = World> {
    proptest::collection::vec(1u32..=5, 1..=5).prop_map(|gpus| World::new(&gpus).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_plan_is_proved(m in 1u64..600, n in 1u64..600, k in 1u64..2000, world in worlds()) {
        let problem = AgGemm { m, n, k, dtype: DType::Bf16 };
        let verified = validate(plan_world(&problem, &world, &Profile::HOST));
        prop_assert!(verified.is_ok(), "{problem:?} on {world}: {}", verified.unwrap_err());
    }
}
