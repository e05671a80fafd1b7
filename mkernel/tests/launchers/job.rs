//! A job that a launcher runs, seen from outside: its output, and its processes by what the launcher told them.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longer than anything here takes; reached only by a hang.
const LONG: Duration = Duration::from_secs(100);

/// What a rank says before each launch.
pub(crate) const LAUNCH: &str = "launch epoch=";

const BINARY: &str = env!("CARGO_BIN_EXE_mkernel");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    Torchrun,
    OpenMpi,
    Slurm,
}

impl Launcher {
    fn command(self, ranks: usize) -> Command {
        let line = match self {
            // With no fixed port, so that jobs do not meet.
            Launcher::Torchrun => {
                "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --nnodes 1 --monitor_interval 0.2 --no_python \
                 --nproc_per_node"
            }
            Launcher::OpenMpi => {
                "mpirun --allow-run-as-root --oversubscribe -x MKERNEL_JOB -x MKERNEL_STEP_DEADLINE_MS -n"
            }
            Launcher::Slurm => "srun --overcommit --wait=3 -n",
        };
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg(ranks.to_string());
        if self == Launcher::Torchrun {
            // Else it takes our flags for its own.
            command.arg("--");
        }
        command.arg(BINARY);
        command
    }

    /// The variable with a process's rank.
    fn rank_variable(self) -> &'static str {
        match self {
            Launcher::Torchrun => "RANK",
            Launcher::OpenMpi => "OMPI_COMM_WORLD_RANK",
            Launcher::Slurm => "SLURM_PROCID",
        }
    }
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) is_success: bool,
    stdout: String,
    stderr: Vec<String>,
    /// From the last signal, or the start, to the end of the last rank.
    pub(crate) ranks_took: Duration,
}

impl Ended {
    /// The last lines that ranks said.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &str> {
        self.stderr.iter().filter_map(|line| line.find("mkernel: ").map(|at| &line[at..]))
    }

    /// The line of JSON on stdout.
    pub(crate) fn json(&self) -> &str {
        self.stdout.lines().find(|line| line.starts_with('{')).unwrap_or_default()
    }
}

/// A running job.
pub(crate) struct Job {
    launcher: Launcher,
    name: String,
    child: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
    stdout: Option<JoinHandle<String>>,
    since: Instant,
    is_orphan: bool,
}

impl Job {
    pub(crate) fn start(launcher: Launcher, ranks: usize, flags: &str) -> Job {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("launchers.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut command = launcher.command(ranks);
        command.arg("run").args(flags.split_whitespace()).args(["--transport", "shm"]);
        command.env("MKERNEL_JOB", &name).env("MKERNEL_STEP_DEADLINE_MS", "2000");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{launcher:?} is not installed: {error}"));
        let (send, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut stdout = child.stdout.take().unwrap();
        let stdout = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        let (heard, stdout, since) = (Vec::new(), Some(stdout), Instant::now());
        Job { launcher, name, child, lines, heard, stdout, since, is_orphan: false }
    }

    /// Waits until ranks have said lines with `word` on stderr `times` times, all together.
    pub(crate) fn hear(&mut self, word: &str, times: usize) {
        let start = Instant::now();
        for _ in 0..times {
            loop {
                let line = self.lines.recv_timeout(LONG - start.elapsed());
                let line = line.unwrap_or_else(|error| panic!("{error}: {:?} said {:?}", self.launcher, self.heard));
                self.heard.push(line);
                if self.heard.last().unwrap().contains(word) {
                    break;
                }
            }
        }
    }

    /// Sends a signal to a rank.
    pub(crate) fn signal(&mut self, rank: usize, signal: &str) {
        let variable = format!("{}={rank}", self.launcher.rank_variable());
        let wanted: Vec<u32> =
            self.processes().into_iter().filter(|(_, told)| told.contains(&variable)).map(|p| p.0).collect();
        let [process] = wanted[..] else { panic!("rank {rank} is {wanted:?}") };
        self.send(process, signal);
    }

    /// Kills whatever is the parent of the ranks.
    pub(crate) fn kill_launcher(&mut self) {
        let (process, _) = self.processes().into_iter().next().unwrap();
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        self.send(parent.trim().parse().unwrap(), "-KILL");
        self.is_orphan = true;
    }

    fn send(&mut self, process: u32, signal: &str) {
        assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
        self.since = Instant::now();
    }

    /// The ranks that run, with the variables of each.
    fn processes(&self) -> Vec<(u32, Vec<String>)> {
        let name = format!("MKERNEL_JOB={}", self.name);
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().map_while(Result::ok) {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // What has ended meanwhile, or is of another user, is no rank.
            let is_rank = fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe.as_os_str() == BINARY);
            let Ok(told) = fs::read(entry.path().join("environ")) else { continue };
            let told: Vec<_> = told.split(|&byte| byte == 0).map(|v| String::from_utf8_lossy(v).into_owned()).collect();
            if is_rank && told.contains(&name) {
                found.push((process, told));
            }
        }
        found
    }

    /// Waits for the end of all ranks and of the launcher.
    pub(crate) fn end(mut self) -> Ended {
        let start = Instant::now();
        // A rank that another has stopped stays until its launcher ends it: what counts is when the others have.
        while self.processes().iter().any(|(process, _)| !is_stopped(*process)) {
            assert!(start.elapsed() < LONG, "{:?} still runs: {:?}", self.launcher, self.heard);
            self.heard.extend(self.lines.recv_timeout(Duration::from_millis(2)));
        }
        let ranks_took = self.since.elapsed();
        if self.is_orphan {
            // What is left of the launcher waits for what was killed.
            self.child.kill().unwrap();
        }
        let status = self.child.wait().unwrap();
        assert!(self.processes().is_empty(), "the launcher has left ranks behind");
        self.heard.extend(self.lines.iter());
        let stdout = self.stdout.take().unwrap().join().unwrap();
        let is_success = status.success() && status.signal().is_none();
        Ended { is_success, stdout, stderr: std::mem::take(&mut self.heard), ranks_took }
    }
}

fn is_stopped(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && line.contains('T'))
}

impl Drop for Job {
    fn drop(&mut self) {
        // Gone already unless a test failed.
        for (process, _) in self.processes() {
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}
