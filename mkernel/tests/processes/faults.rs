//! Ranks that are killed or stopped, start late, or ask for something else.

use std::fs;
use std::time::{Duration, Instant};

use crate::job::{Ended, Job, OPERATORS, Rank, directory, left_behind};

/// Runs until somebody is lost.
const FOR_EVER: &str = "--epochs 1000000000 --verbose";

/// What a rank says before each launch.
const LAUNCH: &str = "launch epoch=";

/// The ends of all ranks but one, with the longest time that any took from now. A stopped one lives on until then.
fn others(mut ranks: Vec<Rank>, gone: usize) -> (Vec<Ended>, Duration) {
    let start = Instant::now();
    let _gone = ranks.remove(gone);
    (ranks.into_iter().map(Rank::end).collect(), start.elapsed())
}

/// All ended with status 1 and a last line that has one of `words`.
fn assert_said(ended: &[Ended], words: &[String], what: &str) {
    for ended in ended {
        assert_eq!(ended.status, Some(1), "{what}: {ended:?}");
        let is_said = words.iter().any(|word| ended.said.contains(word.as_str()));
        assert!(ended.said.starts_with("mkernel: ") && is_said, "{what}: none of {words:?} in {ended:?}");
    }
}

/// Kills every rank of three in turn, `rounds` times for two operators: right after its memory is made, and at a random
/// launch.
fn kill(rounds: usize, seed: u64) {
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = directory(&format!("killed.{seed}"));
    let output = folder.join("out.safetensors").to_str().unwrap().to_owned();
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let phase = if round % 2 == 0 { "instance made" } else { LAUNCH };
        for (number, operator) in OPERATORS[..2].iter().enumerate() {
            for gone in 0..3 {
                let job = Job::new(if number == 0 { &[2, 1] } else { &[3] }, &format!("{operator} {FOR_EVER}"));
                let job = Job { more: vec!["--output".into(), output.clone()], ..job };
                let ranks = job.start_all();
                ranks[gone].hear(phase, if phase == LAUNCH { random.usize(1..40) } else { 1 });
                ranks[gone].signal("-KILL");
                let (ended, time) = others(ranks, gone);
                longest = longest.max(time);
                assert_said(&ended, &[format!("rank {gone} lost")], &format!("{operator}, {phase}"));
            }
        }
    }
    println!("{} kills, the last survivor ended after at most {longest:?}", rounds * 6);
    assert!(longest < Duration::from_secs(20), "{longest:?}: long before the deadline of 30 s");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "no file is left");
    assert_eq!(left_behind(), [""; 0]);
}

#[test]
fn a_rank_that_is_killed_in_any_phase_is_named_by_all_others() {
    kill(2, 20_261_201);
}

#[test]
#[ignore = "a campaign, run by hand"]
fn two_hundred_and_four_kills() {
    kill(34, 4);
}

#[test]
fn flags_that_contradict_the_launcher_are_refused() {
    let job = Job::new(&[2, 1], &format!("{} --gpus 2,2", OPERATORS[0]));
    for ended in job.start_all().into_iter().map(Rank::end) {
        assert_eq!(ended.status, Some(2), "{ended:?}");
        assert!(ended.said.contains("--nodes and --gpus say 2x2, but the launcher started 2+1"), "{ended:?}");
    }
}

/// Kills every rank of three in turn, `rounds` times, right before it joins: the kill falls anywhere in the start.
fn kill_starting(rounds: usize) {
    for gone in (0..3).cycle().take(3 * rounds) {
        let job = Job::new(&[2, 1], &format!("{} {FOR_EVER} --start-deadline-ms 1500", OPERATORS[0]));
        let ranks = job.start_all();
        // It says what its environment means right before it joins.
        ranks[gone].hear("launcher", 1);
        ranks[gone].signal("-KILL");
        let (ended, _) = others(ranks, gone);
        let absent = if gone == 0 { "rank 0 was not found".to_owned() } else { format!("rank {gone} did not arrive") };
        assert_said(&ended, &[format!("rank {gone} lost"), absent], "start");
    }
    assert_eq!(left_behind(), [""; 0]);
}

#[test]
fn a_rank_that_is_killed_while_it_starts_is_named() {
    kill_starting(1);
}

#[test]
#[ignore = "a campaign, run by hand"]
fn sixty_kills_while_a_rank_starts() {
    kill_starting(20);
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_start_deadline() {
    let job = Job::new(&[2, 1], &format!("{} --start-deadline-ms 1500", OPERATORS[0]));
    let ended: Vec<_> = [0, 2].map(|rank| job.start(rank)).into_iter().map(Rank::end).collect();
    assert_said(&ended, &["rank 1 did not arrive before the start deadline".into()], "missing");
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline_with_what_was_waited_for() {
    for gone in 0..3 {
        let job = Job::new(&[2, 1], &format!("{} {FOR_EVER} --deadline-ms 1500", OPERATORS[0]));
        let ranks = job.start_all();
        ranks[gone].hear(LAUNCH, 5);
        ranks[gone].signal("-STOP");
        let (ended, time) = others(ranks, gone);
        println!("rank {gone} stopped: the last survivor ended after {time:?}, deadline 1.5 s, step deadline 2 s");
        assert_said(&ended, &[format!("the other side is rank {gone}")], "stopped");
        assert!(time < Duration::from_secs(20), "{time:?}");
    }
}

#[test]
fn ranks_that_ask_for_different_things_are_told_the_field_before_anything_runs() {
    let job = Job::new(&[2], "ag-gemm --m 8 --n 8 --k 8 --seed 1");
    let other = Job { flags: job.flags.replace("--seed 1", "--seed 2"), ..job.clone() };
    let ended = [job.start(0), other.start(1)].map(Rank::end);
    assert_said(&ended, &["ranks differ in `--seed`: rank 0 has `1`, rank 1 has `2`".into()], "seed");
    let other = Job { flags: job.flags.replace("--m 8", "--m 9"), ..job.clone() };
    let ended = [job.start(0), other.start(1)].map(Rank::end);
    assert_said(&ended, &["ranks differ in `tensors`".into()], "shape");
}

#[test]
fn an_output_that_cannot_be_written_ends_every_rank_and_says_why() {
    let folder = directory("unwritable");
    let job = Job::new(&[2], OPERATORS[0]);
    let job = Job { more: vec!["--output".into(), folder.to_str().unwrap().into()], ..job };
    let ended: Vec<_> = job.start_all().into_iter().map(Rank::end).collect();
    assert_eq!((ended[0].status, ended[1].status), (Some(2), Some(1)), "{ended:?}");
    assert!(ended.iter().all(|ended| ended.said.contains("not a regular file")), "{ended:?}");
}

#[test]
fn json_of_a_lost_rank_names_it() {
    let job = Job::new(&[2], &format!("{} {FOR_EVER} --json", OPERATORS[0]));
    let ranks = job.start_all();
    ranks[1].hear(LAUNCH, 3);
    ranks[1].signal("-KILL");
    let (ended, _) = others(ranks, 1);
    let json: serde_json::Value = serde_json::from_str(&ended[0].stdout).unwrap();
    assert_eq!((&json["error"]["kind"], &json["error"]["peer"]), (&"lost".into(), &1.into()), "{json}");
}

#[test]
fn a_rank_that_is_told_to_end_says_so_on_every_rank() {
    let job = Job::new(&[2, 1], &format!("{} {FOR_EVER}", OPERATORS[0]));
    let ranks = job.start_all();
    ranks[1].hear(LAUNCH, 3);
    ranks[1].signal("-TERM");
    let ended: Vec<_> = ranks.into_iter().map(Rank::end).collect();
    assert_said(&ended, &["rank 1 failed: it was told to end (SIGTERM)".into()], "told");
}
