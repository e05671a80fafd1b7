//! Ranks that are asked what they are doing, by a signal, by the command, and by their own deadline.

use std::process::Command;

use crate::job::{Job, OPERATORS, Rank};

const FOR_EVER: &str = "--epochs 1000000000 --verbose";
const LAUNCH: &str = "launch epoch=";

#[test]
fn a_rank_that_is_asked_says_what_each_cta_waits_for_and_goes_on() {
    let job = Job::new(&[2, 1], &format!("{} {FOR_EVER}", OPERATORS[0]));
    let ranks = job.start_all();
    // A stopped rank holds the others up: in a launch if that is where it was.
    let ask = |_| {
        ranks[2].hear(LAUNCH, 1);
        ranks[2].signal("-STOP");
        ranks[0].signal("-USR1");
        let is_caught = ranks[0].hear("rank 0: ", 1).contains("CTAs at an instruction");
        let told = is_caught.then(|| ranks[0].hear("CTA ", 1));
        ranks[2].signal("-CONT");
        told
    };
    let told = (0..1000).find_map(ask).expect("a thousand times it was in no launch");
    assert!(
        told.starts_with("  CTA ")
            && told.contains(", instruction ")
            && (told.contains(" since ") || told.contains(" waits ")),
        "{told}"
    );
    let dump = Command::new(env!("CARGO_BIN_EXE_mkernel")).args(["dump", &ranks[1].process().to_string()]).output();
    assert!(dump.unwrap().status.success());
    ranks[1].hear("rank 1: ", 1);
    ranks.iter().for_each(|rank| drop(rank.hear(LAUNCH, 20)));
    ranks[0].signal("-TERM");
    ranks.into_iter().map(Rank::end).for_each(|ended| assert_eq!(ended.status, Some(1), "{ended:?}"));
}

#[test]
fn a_rank_that_waits_for_others_to_arrive_outlives_the_question() {
    let job = Job::new(&[2], &format!("{} --start-deadline-ms 1500 --verbose", OPERATORS[0]));
    let rank = job.start(0);
    rank.hear("launcher", 1);
    while !Command::new(env!("CARGO_BIN_EXE_mkernel"))
        .args(["dump", &rank.process().to_string()])
        .output()
        .unwrap()
        .status
        .success()
    {}
    let ended = rank.end();
    assert!(ended.said.contains("rank 1 did not arrive"), "{ended:?}");
}

#[test]
fn what_is_no_rank_is_not_asked() {
    let dump = Command::new(env!("CARGO_BIN_EXE_mkernel")).args(["dump", &std::process::id().to_string()]).output();
    let dump = dump.unwrap();
    assert_eq!(dump.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&dump.stderr).contains("is no rank that runs"));
}

#[test]
fn at_the_deadline_every_rank_says_what_it_did_and_rank_0_what_all_did_with_the_first_cause() {
    let job = Job::new(&[2, 1], &format!("{} {FOR_EVER} --deadline-ms 1000", OPERATORS[0]));
    let ranks = job.start_all();
    ranks[2].hear(LAUNCH, 5);
    ranks[2].signal("-STOP");
    let mut ended: Vec<_> = ranks.into_iter().take(2).map(Rank::end).collect();
    let [first, other] = [ended.remove(0), ended.remove(0)];
    let told = |text: &[String], rank: u32| text.iter().any(|line| line.starts_with(&format!("rank {rank}: ")));
    assert!(told(&first.stderr, 0) && told(&first.stderr, 1), "{first:?}");
    assert!(told(&other.stderr, 1) && !told(&other.stderr, 0), "{other:?}");
    assert!(first.said.contains("the other side is rank 2"), "{first:?}");
}
