//! A stretch of the fault campaign.

#![allow(clippy::unwrap_used)]

use mkernel_core::{DType, Executor, FaultKind, Rank};
use mkernel_kernels::AgGemm;
use mkernel_sim::{Injection, Network, Options, Seeded, Threaded};
use mkernel_tests::ag_gemm::Case;
use mkernel_tests::campaign::Tally;

/// The first seed, and how many.
const SEEDS: (u64, u64) = (0, 2000);

#[test]
fn whatever_goes_wrong_ends_in_the_right_bits_or_a_fault_that_says_what() {
    let tally = Tally::run(SEEDS.0, SEEDS.1);
    println!("{} seeds from {}\n{tally}", SEEDS.1, SEEDS.0);
    assert!(tally.findings.is_empty(), "{tally}");
}

/// Found by seeds 72 and 1978: the launch ended well, without the part of the dead rank.
#[test]
fn a_rank_that_runs_nothing_is_missed_although_nobody_waits_for_it() {
    let case = Case::new(&[1], AgGemm { m: 5, n: 4, k: 3, dtype: DType::F32 });
    let network = Network { injections: vec![Injection::DeadPeer { rank: Rank(0) }], ..Network::default() };
    let options = Options { network, ..Options::default() };
    let executors: [Box<dyn Executor>; 2] = [
        Box::new(Seeded::new(case.verified(), options.clone()).unwrap()),
        Box::new(Threaded::new(case.verified(), options).unwrap()),
    ];
    for mut executor in executors {
        let fault = executor.launch().unwrap_err();
        assert_eq!((fault.kind, fault.peer), (FaultKind::Deadline, Some(Rank(0))));
    }
}

/// Found by seeds 1232, 1383 and 2056: memory was free before it had been read, and the bits were wrong.
#[test]
fn a_completion_that_comes_twice_never_changes_a_bit() {
    for seed in [1232, 1383, 2056] {
        let tally = Tally::run(seed, 1);
        assert!(tally.to_string().contains("completion twice: 1 transport"), "{tally}");
    }
}
