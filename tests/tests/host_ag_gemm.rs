//! AG+GEMM on the host executors: exact, whatever the schedule and the network.

use mkernel_core::{DType, Executor};
use mkernel_kernels::AgGemm;
use mkernel_sim::{Options, Seeded};
use mkernel_tests::ag_gemm::Case;

/// Small worlds of every kind with shapes that divide by nothing.
fn cases() -> Vec<Case> {
    let worlds: [&[u32]; 5] = [&[1], &[3], &[1, 1, 1], &[2, 2], &[3, 2]];
    let shapes = [(1, 1, 1), (13, 11, 7), (4, 29, 3), (37, 3, 17)];
    let mut cases = Vec::new();
    for gpus in worlds {
        for (m, n, k) in shapes {
            for dtype in [DType::Bf16, DType::F16, DType::F32] {
                cases.push(Case { gpus: gpus.to_vec(), op: AgGemm { m, n, k, dtype } });
            }
        }
    }
    cases
}

/// Runs three epochs with new inputs each and compares bit for bit with the exact product.
fn check(case: &Case, executor: &mut dyn Executor, seed: u64) {
    let verified = case.verified();
    for epoch in 0..3 {
        let inputs = case.inputs(seed.wrapping_mul(3).wrapping_add(epoch));
        case.write(executor, &verified, &inputs);
        let run = executor.launch().unwrap_or_else(|fault| panic!("{case:?} seed {seed} epoch {epoch}: {fault}"));
        assert_eq!(case.read(executor, &verified), case.oracle(&inputs), "{case:?} seed {seed} epoch {epoch}");
        let planned: Vec<_> = verified.programs().iter().map(|p| p.bytes_out().0).collect();
        assert_eq!(run.intra_out, planned, "{case:?}");
    }
}

#[test]
fn every_seed_of_the_seeded_executor_gives_the_exact_product() {
    for case in cases() {
        for seed in 0..6 {
            let mut executor = Seeded::new(case.verified(), Options { seed, ..Options::default() }).unwrap();
            check(&case, &mut executor, seed);
        }
    }
}
