//! Every mutant of AG+GEMM dies, or is proved to be no change.

use mkernel_core::{DType, Executor, Verified};
use mkernel_kernels::AgGemm;
use mkernel_tests::ag_gemm::Case;
use mkernel_tests::judge::Tally;
use mkernel_tests::mutate::mutations;

/// Seeds of the samples taken where all mutants would take too long.
const SAMPLE_SEEDS: [u64; 2] = [1, 2];

fn case(gpus: &[u32], (m, n, k): (u64, u64, u64)) -> Case {
    Case { gpus: gpus.to_vec(), op: AgGemm { m, n, k, dtype: DType::Bf16 } }
}

/// Judges all mutants of a case, or a sample of `sample` for each seed.
fn campaign(case: &Case, sample: Option<usize>) {
    let programs = case.plan();
    let oracle = |verified: &Verified, executor: &mut dyn Executor, seed: u64| {
        let inputs = case.inputs(seed);
        case.write(executor, verified, &inputs);
        executor.launch()?;
        Ok(case.read(executor, verified) == case.oracle(&inputs))
    };
    let all = mutations(&programs);
    let Some(size) = sample else {
        let tally = Tally::run(&programs, &all, &oracle);
        println!("{case:?}, all: {tally}");
        assert!(tally.survivors.is_empty(), "{case:?}: {tally}");
        return;
    };
    for seed in SAMPLE_SEEDS {
        let mut some = all.clone();
        fastrand::Rng::with_seed(seed).shuffle(&mut some);
        some.truncate(size);
        let tally = Tally::run(&programs, &some, &oracle);
        println!("{case:?}, seed {seed}, sample of {}: {tally}", all.len());
        assert!(tally.survivors.is_empty(), "{case:?} seed {seed}: {tally}");
    }
}

#[test]
fn no_mutant_of_one_node_of_two_survives() {
    campaign(&case(&[2], (9, 7, 3)), None);
}

#[test]
fn no_mutant_of_two_nodes_of_one_survives() {
    campaign(&case(&[1, 1], (9, 7, 3)), None);
}

#[test]
fn no_mutant_of_three_nodes_survives() {
    campaign(&case(&[1, 1, 1], (5, 3, 3)), None);
}

#[test]
fn no_mutant_of_two_nodes_of_two_survives() {
    campaign(&case(&[2, 2], (5, 4, 3)), None);
}

#[test]
fn no_sampled_mutant_of_uneven_nodes_survives() {
    campaign(&case(&[3, 2], (11, 7, 3)), Some(1000));
}

#[test]
fn no_sampled_mutant_with_idle_ranks_survives() {
    campaign(&case(&[2, 2], (2, 3, 4)), Some(1000));
}
