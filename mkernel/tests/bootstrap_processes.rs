//! Ranks as processes that are killed or stopped, in every phase of a job's life.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{Job, LONG};
use mkernel::bootstrap::{Event, join};
use mkernel::config::Config;

/// What a rank that ran into an error prints before the error.
const ERROR: &str = "@ error ";

/// A rank: it joins, does what it is told on its standard input, and leaves.
#[test]
#[ignore = "the other tests start it as a process"]
fn rank_process() {
    let run = || -> Result<(), Box<dyn std::error::Error>> {
        let config = Config::from_env()?;
        let mut control = join(&config.setup)?;
        println!("@ joined {}", control.world());
        for line in std::io::stdin().lines() {
            match line?.as_str() {
                "exchange" => drop(control.exchange(b"blob")?),
                "watch" => loop {
                    if let Some(Event::Fault(fault)) = control.step(LONG)? {
                        return Err(fault.to_string().into());
                    }
                },
                "leave" => break,
                other => return Err(other.into()),
            }
            println!("@ done");
        }
        Ok(control.leave()?)
    };
    match run() {
        Ok(()) => println!("@ left"),
        Err(error) => println!("{ERROR}{error}"),
    }
}

struct Rank {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Rank {
    fn start(job: &Job, rank: u32) -> Self {
        let place = job.setup(rank).place;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_process", "--ignored", "--nocapture"])
            .env_clear()
            .env("MKERNEL_LAUNCHER", "torchrun")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", place.world_size.to_string())
            .env("LOCAL_RANK", place.local_rank.to_string())
            .env("LOCAL_WORLD_SIZE", place.local_world_size.to_string())
            .env("MASTER_ADDR", &job.host)
            .env("MASTER_PORT", job.ports[0].to_string())
            .env("MKERNEL_SECRET", "the secret of the tests")
            .env("MKERNEL_START_DEADLINE_MS", job.start.as_millis().to_string())
            .env("MKERNEL_STEP_DEADLINE_MS", job.step.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        thread::spawn(move || {
            // The harness of the child prints without a newline before the first line.
            let told = |line: String| line.find("@ ").map(|at| line[at..].to_owned());
            output.lines().map_while(Result::ok).filter_map(told).try_for_each(|line| send.send(line))
        });
        let input = child.stdin.take().unwrap();
        Self { child, input, lines }
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.input, "{word}").unwrap();
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(LONG).unwrap()
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Gone already in most cases; a stopped one is not.
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

/// The ranks of a job, all joined.
fn joined(job: &Job) -> Vec<Rank> {
    let ranks: Vec<_> = (0..job.size()).map(|rank| Rank::start(job, rank)).collect();
    for rank in &ranks {
        assert_eq!(rank.line(), "@ joined 2+1");
    }
    ranks
}

#[test]
fn processes_meet_by_the_variables_of_torchrun_and_leave() {
    let mut ranks = joined(&Job::new(&[2, 1]));
    for word in ["exchange", "exchange", "leave"] {
        ranks.iter_mut().for_each(|rank| rank.tell(word));
        let expected = if word == "leave" { "@ left" } else { "@ done" };
        ranks.iter().for_each(|rank| assert_eq!(rank.line(), expected));
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others_in_every_phase() {
    for phase in ["watch", "exchange", "leave"] {
        for killed in 0..3 {
            let mut ranks = joined(&Job::new(&[2, 1]));
            for (_, rank) in (0..).zip(&mut ranks).filter(|(rank, _)| *rank != killed) {
                rank.tell(phase);
            }
            ranks[killed].signal("-KILL");
            for (_, rank) in (0..).zip(&ranks).filter(|(rank, _)| *rank != killed) {
                let expected = format!("{ERROR}rank {killed} lost: its connection closed before it left");
                assert_eq!(rank.line(), expected, "{phase}");
            }
        }
    }
}

#[test]
fn a_rank_that_is_killed_while_others_are_awaited_is_named() {
    for killed in 0..2 {
        let job = Job { start: Duration::from_millis(400), ..Job::new(&[2, 1]) };
        let ranks = [Rank::start(&job, 0), Rank::start(&job, 1)];
        ranks[killed].signal("-KILL");
        let line = ranks[1 - killed].line();
        let (lost, missing) = (format!("{ERROR}rank {killed} lost"), format!("{ERROR}ranks 1-2 did not arrive"));
        let not_found = format!("{ERROR}rank 0 was not found");
        // It depends on how far it came.
        let mut expected = vec![lost, if killed == 0 { not_found } else { missing }];
        assert!(expected.drain(..).any(|expected| line.starts_with(&expected)), "{line}");
    }
}

#[test]
fn a_stopped_rank_is_named_at_the_step_deadline() {
    for stopped in 0..3 {
        let step = Duration::from_millis(300);
        let job = Job { step, ..Job::new(&[2, 1]) };
        let mut ranks = joined(&job);
        ranks[stopped].signal("-STOP");
        let start = Instant::now();
        for (_, rank) in (0..).zip(&mut ranks).filter(|(rank, _)| *rank != stopped) {
            rank.tell("exchange");
        }
        for (_, rank) in (0..).zip(&ranks).filter(|(rank, _)| *rank != stopped) {
            let expected = format!("{ERROR}rank {stopped} did not take part in the exchange before the step deadline");
            assert_eq!(rank.line(), expected);
        }
        println!("rank {stopped} stopped: named after {:?}, step deadline {step:?}", start.elapsed());
    }
}
