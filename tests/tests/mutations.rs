//! Every mutant of AG+GEMM dies, or is proved to be no change.
#![allow(clippy::unwrap_used)]

use mkernel_core::{DType, Executor, Fault, Verified};
use mkernel_kernels::AgGemm;
use mkernel_tests::ag_gemm::Case;
use mkernel_tests::judge::Tally;
use mkernel_tests::mutate::mutations;

/// Seeds of the samples taken where all mutants would take too long.
const SAMPLE_SEEDS: [u64; 2] = [1, 2];

fn case(gpus: &[u32], (m, n, k): (u64, u64, u64)) -> Case {
    Case::new(gpus, AgGemm { m, n, k, dtype: DType::Bf16 })
}

fn right(case: &Case, verified: &Verified, executor: &mut dyn Executor, seed: u64) -> Result<bool, Fault> {
    let inputs = case.inputs(seed);
    case.write(executor, verified, &inputs);
    executor.launch()?;
    Ok(case.read(executor, verified) == case.oracle(&inputs))
}

fn report(case: &Case, what: &str, tally: &Tally) {
    println!("{case:?}, {what}: {tally}");
    assert!(tally.survivors.is_empty(), "{case:?}, {what}: {tally}");
}

/// Judges all mutants of a case.
fn all(gpus: &[u32], shape: (u64, u64, u64)) {
    let case = case(gpus, shape);
    let programs = case.plan();
    let mutants = mutations(&programs).into_iter().map(|m| vec![m]);
    report(&case, "all", &Tally::run(&programs, mutants, &|v, e, s| right(&case, v, e, s)));
}

/// Judges, for each seed, a sample of mutants with `changes` changes each.
fn sample(gpus: &[u32], shape: (u64, u64, u64), size: usize, changes: usize) {
    let case = case(gpus, shape);
    let programs = case.plan();
    let sites = mutations(&programs);
    for seed in SAMPLE_SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let mutants = (0..size).map(|_| random.choose_multiple(sites.iter().copied(), changes));
        let what = format!("seed {seed}, {size} of {} sites, {changes} at once", sites.len());
        report(&case, &what, &Tally::run(&programs, mutants, &|v, e, s| right(&case, v, e, s)));
    }
}

#[test]
fn no_mutant_of_one_node_survives() {
    all(&[1], (9, 7, 3));
    all(&[2], (9, 7, 3));
    all(&[3], (5, 4, 3));
}

#[test]
fn no_mutant_of_nodes_of_one_survives() {
    all(&[1, 1], (9, 7, 3));
    all(&[1, 1, 1], (5, 3, 3));
}

#[test]
fn no_mutant_of_two_nodes_of_two_survives() {
    all(&[2, 2], (5, 4, 3));
}

#[test]
fn no_mutant_of_uneven_nodes_survives() {
    all(&[3, 2], (5, 5, 2));
}

#[test]
fn no_mutant_with_idle_ranks_survives() {
    all(&[2, 2], (2, 3, 4));
    all(&[1, 2], (1, 1, 2));
}

#[test]
fn no_sampled_mutant_of_more_tiles_survives() {
    sample(&[2, 2], (13, 11, 3), 3000, 1);
    sample(&[3, 2], (11, 7, 3), 3000, 1);
}

#[test]
fn no_pair_of_changes_survives() {
    sample(&[1, 1], (9, 7, 3), 4000, 2);
    sample(&[2, 2], (5, 4, 3), 4000, 2);
}
