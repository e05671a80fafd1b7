//! Ranks that real launchers start: torchrun, Open MPI's mpirun, Slurm's srun. `.ci/run` installs them, and
//! `tests/launchers/slurm.sh` makes a cluster; so these tests run only when asked for by the name of a launcher.
#![expect(clippy::unwrap_used, reason = "all of this is test code")]

mod job;

use std::time::Duration;

use job::{Job, LAUNCH, Launcher};

/// Every operator, small, with shapes that do not divide by three.
const OPERATORS: [&str; 6] = [
    "ag-gemm --m 53 --n 39 --k 31",
    "ring-attention --batch 2 --heads 4 --kv-heads 2 --seq 61 --dim 16 --causal",
    "gemm-rs --m 53 --n 39 --k 31",
    "gemm-ar --m 53 --n 39 --k 31",
    "moe-dispatch-gemm --tokens 37 --hidden 24 --inner 16 --experts 5 --topk 2",
    "moe-ffn --tokens 37 --hidden 24 --inner 16 --experts 5 --topk 2",
];

const RANKS: usize = 3;

/// Kills per launcher.
const KILLS: usize = 10;

/// Runs until somebody is lost.
const FOR_EVER: &str = "--epochs 1000000000 --verbose";

/// Every operator holds, with nothing set but what the launcher sets.
fn hold(launcher: Launcher) {
    for operator in OPERATORS {
        let ended = Job::start(launcher, RANKS, &format!("{operator} --epochs 3 --json")).end();
        assert!(ended.is_success, "{launcher:?} {operator}: {ended:?}");
        let report: serde_json::Value = serde_json::from_str(ended.json()).unwrap();
        assert_eq!(report["checked"], true, "{report}");
        assert_eq!((&report["world"]["nodes"], &report["world"]["gpus"]), (&1.into(), &RANKS.into()));
    }
}

/// Kills a rank at a random launch, again and again; all others say who is lost before their launcher ends them.
fn kill(launcher: Launcher, seed: u64) {
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut longest = Duration::ZERO;
    for round in 0..KILLS {
        let (gone, operator) = (round % RANKS, OPERATORS[round % OPERATORS.len()]);
        let mut job = Job::start(launcher, RANKS, &format!("{operator} {FOR_EVER}"));
        job.hear(LAUNCH, random.usize(1..120));
        job.signal(gone, "-KILL");
        let ended = job.end();
        longest = longest.max(ended.ranks_took);
        assert!(!ended.is_success, "{ended:?}");
        let named = ended.errors().filter(|line| line.contains(&format!("rank {gone} lost"))).count();
        assert_eq!(
            (named, ended.errors().count()),
            (RANKS - 1, RANKS - 1),
            "{launcher:?} kills rank {gone}: {ended:?}"
        );
    }
    println!("{launcher:?}: {KILLS} kills, the last rank ended after at most {longest:?}");
}

/// Stops a rank; all others name it at the deadline, and the launcher ends it.
fn stop(launcher: Launcher) {
    let mut job = Job::start(launcher, RANKS, &format!("{} {FOR_EVER} --deadline-ms 1000", OPERATORS[0]));
    job.hear(LAUNCH, 20);
    job.signal(1, "-STOP");
    let ended = job.end();
    assert!(!ended.is_success, "{ended:?}");
    let named = ended.errors().filter(|line| line.contains("the other side is rank 1")).count();
    // Some launchers let the stopped rank go on before they end it: it says the same, or what it waited for itself.
    let others = ended.errors().filter(|line| !line.contains("rank 1: ")).count();
    assert!(named >= RANKS - 1 && named == others, "{launcher:?}: {ended:?}");
    println!("{launcher:?}: the last rank ended after {:?}", ended.ranks_took);
}

/// Kills the process that started the ranks: they end by themselves.
fn orphan(launcher: Launcher) {
    let mut job = Job::start(launcher, RANKS, &format!("{} {FOR_EVER}", OPERATORS[0]));
    job.hear(LAUNCH, 20);
    job.kill_launcher();
    let ended = job.end();
    assert!(!ended.is_success, "{ended:?}");
    println!(
        "{launcher:?}: the last rank ended {:?} after its launcher; said: {:?}",
        ended.ranks_took,
        ended.errors().next()
    );
}

macro_rules! launcher {
    ($name:ident, $launcher:expr, $seed:expr) => {
        mod $name {
            use super::*;

            #[test]
            #[ignore = "needs the launcher"]
            fn every_operator_holds() {
                hold($launcher);
            }

            #[test]
            #[ignore = "needs the launcher"]
            fn a_killed_rank_is_named_by_all_others() {
                kill($launcher, $seed);
            }

            #[test]
            #[ignore = "needs the launcher"]
            fn a_stopped_rank_is_named_by_all_others() {
                stop($launcher);
            }

            #[test]
            #[ignore = "needs the launcher"]
            fn ranks_do_not_outlive_their_launcher() {
                orphan($launcher);
            }
        }
    };
}

launcher!(torchrun, Launcher::Torchrun, 1);
launcher!(mpirun, Launcher::OpenMpi, 2);
launcher!(srun, Launcher::Slurm, 3);
