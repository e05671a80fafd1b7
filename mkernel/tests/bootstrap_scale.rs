//! Hundreds of ranks in one process, with the times printed.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{Job, LONG, all};
use fastrand::Rng;
use mkernel::bootstrap::{Event, Fields};

/// Descriptors that jobs of 512 and 256 ranks in one process need at once: both ends of each connection, and some spare.
const DESCRIPTORS: u64 = 1_800;

/// Raises this process's limit of open files if it is too low; says whether it suffices.
fn has_descriptors() -> bool {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft = line.split_whitespace().nth(3).unwrap();
    if soft == "unlimited" || soft.parse::<u64>().unwrap() >= DESCRIPTORS {
        return true;
    }
    let nofile = format!("--nofile={DESCRIPTORS}:");
    let raised = Command::new("prlimit").args(["--pid", &std::process::id().to_string(), &nofile]).status();
    raised.is_ok_and(|status| status.success())
}

fn uneven(seed: u64, ranks: u32) -> Vec<u32> {
    let mut rng = Rng::with_seed(seed);
    let mut nodes = Vec::new();
    let mut left = ranks;
    while left > 0 {
        let size = rng.u32(1..=left.min(9));
        nodes.push(size);
        left -= size;
    }
    nodes
}

/// Time that this thread has spent on a processor, where the system tells.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[test]
fn rank_0_has_time_for_other_work_while_it_watches_255_ranks() {
    const WATCHED: Duration = Duration::from_millis(300);
    if !has_descriptors() {
        eprintln!("SKIPPED: this process may not open {DESCRIPTORS} files (ulimit -n)");
        return;
    }
    let job = Job::new(&[8; 32]);
    let results = all(&job, |mut control| {
        if control.rank().0 > 0 {
            return control.leave();
        }
        // The others wait in silence for rank 0 to leave.
        for _ in 1..job.size() {
            assert!(matches!(control.step(LONG)?, Some(Event::Left { .. })));
        }
        let before = processor_time();
        assert_eq!(control.step(WATCHED)?, None);
        if let (Some(before), Some(after)) = (before, processor_time()) {
            let share = (after - before).as_secs_f64() / WATCHED.as_secs_f64();
            println!("rank 0 watches 255 ranks with {:.0} % of a core", share * 100.0);
            assert!(share < 0.9, "it spins");
        }
        control.leave()
    });
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn jobs_of_1_to_512_ranks_meet_agree_and_leave() {
    if !has_descriptors() {
        eprintln!("SKIPPED: this process may not open {DESCRIPTORS} files (ulimit -n)");
        return;
    }
    for ranks in [1, 2, 3, 5, 7, 24, 43, 44, 128, 512] {
        let nodes = uneven(ranks.into(), ranks);
        let job = Job::new(&nodes);
        let start = Instant::now();
        let times = Mutex::new([Duration::ZERO; 3]);
        let at = |step: usize| {
            let mut times = times.lock().unwrap();
            times[step] = times[step].max(start.elapsed());
        };
        let results = all(&job, |mut control| {
            at(0);
            let mut fields = Fields::default();
            fields.add("plan", "0123456789abcdef0123456789abcdef");
            fields.add("shape", "m 8192 n 8192 k 8192");
            control.agree(&fields)?;
            at(1);
            control.leave()?;
            at(2);
            Ok(())
        });
        for (rank, result) in results.into_iter().enumerate() {
            result.unwrap_or_else(|error| panic!("rank {rank} of {ranks}: {error}"));
        }
        let [joined, agreed, left] = *times.lock().unwrap();
        println!(
            "{ranks} ranks on {} nodes (seed {ranks}): all joined after {joined:.1?}, agreed after {agreed:.1?}, left after {left:.1?}",
            nodes.len()
        );
    }
}
