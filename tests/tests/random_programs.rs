//! Random programs: what `validate` accepts runs, what it calls a deadlock hangs, and the race detector agrees.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use mkernel_core::{Program, Violation, validate};
use mkernel_sim::{Options, Seeded};
use mkernel_tests::judge::{ACCEPTED, Tally, compare, kind};
use mkernel_tests::mutate::{apply_all, mutations};
use mkernel_tests::{model, random};

/// Seeds of the programs drawn: all below.
const PROGRAMS: u64 = 12_000;

fn with_ctas(programs: &[Program], seed: u64) -> Vec<Program> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut programs = programs.to_vec();
    programs.iter_mut().flat_map(|p| &mut p.lanes).for_each(|lane| lane.ctas = random.u32(1..=3));
    programs
}

/// Runs sound programs on the seeded executor, each time with other numbers of CTAs.
fn check_runs(programs: &[Program], name: u64) {
    for seed in 0..3 {
        let verified = Arc::new(validate(with_ctas(programs, seed)).expect("CTA counts decide nothing"));
        let options = Options { seed, ring: 2, ..Options::default() };
        let mut executor = Seeded::new(verified.clone(), options).unwrap();
        for epoch in 0..3 {
            let right = random::is_right(programs, &verified, &mut executor, 3 * seed + epoch);
            assert_eq!(right, Ok(true), "program {name}, seed {seed}, epoch {epoch}");
        }
    }
}

#[test]
fn what_is_accepted_runs_and_what_is_called_a_deadlock_hangs() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for name in 0..PROGRAMS {
        let programs = random::programs(name);
        let verdict = compare(&programs).unwrap_or_else(|difference| panic!("program {name}: {difference}"));
        *counts.entry(verdict.as_ref().map_or_else(kind, |_| "accepted")).or_default() += 1;
        let ends = |seed, most| model::ends(&programs, seed, most, 3);
        match verdict {
            Ok(_) => {
                assert!((0..4).all(|seed| ends(seed, 3)), "program {name}: accepted, and the counting machine hangs");
                check_runs(&programs, name);
            }
            Err(Violation::Deadlock { .. }) => {
                assert!((0..4).all(|seed| !ends(seed, 1)), "program {name}: a deadlock that one CTA per lane survives");
            }
            Err(Violation::Race { .. } | Violation::NotWritten { .. } | Violation::Overrun { .. }) => {
                assert!((0..4).all(|seed| ends(seed, 3)), "program {name}: found free of deadlock, and hangs");
            }
            Err(_) => {}
        }
    }
    println!("programs with seeds 0..{PROGRAMS}: {counts:?}");
    for kind in ["accepted", "deadlock", "race", "overrun"] {
        assert!(counts.get(kind).is_some_and(|&n| n > PROGRAMS / 100), "too few of kind {kind}: {counts:?}");
    }
}

#[test]
fn no_mutant_of_a_random_program_survives() {
    let (mut mutants, mut programs) = (0, 0);
    for name in 0..PROGRAMS / 60 {
        let original = random::programs(name);
        if compare(&original).is_ok_and(|verdict| verdict.is_ok()) {
            let mut random = fastrand::Rng::with_seed(name);
            let some = random.choose_multiple(mutations(&original), 100).into_iter().map(|m| vec![m]);
            let mut tally = Tally::run(&original, some, &|v, e, s| random::is_right(&original, v, e, s));
            // Copies of the same bytes are many; which of them is read makes no difference.
            tally.survivors.retain(|(changes, why)| {
                let mutant = apply_all(changes, &original).expect("it was made before");
                why != ACCEPTED || !random::has_same_origins(&original, &mutant)
            });
            assert!(tally.survivors.is_empty(), "program {name}: {tally}");
            (mutants, programs) = (mutants + tally.mutants, programs + 1);
        }
    }
    println!("{mutants} mutants of {programs} random programs, seeds 0..{}", PROGRAMS / 60);
}
