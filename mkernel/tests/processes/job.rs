//! Starts the ranks of a job as a launcher would.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longer than anything here takes; reached only by a hang.
pub(crate) const LONG: Duration = Duration::from_secs(100);

/// Every operator, small, with shapes that divide by no world here.
pub(crate) const OPERATORS: [&str; 6] = [
    "ag-gemm --m 53 --n 39 --k 31",
    "ring-attention --batch 2 --heads 4 --kv-heads 2 --seq 61 --dim 16 --causal",
    "gemm-rs --m 53 --n 39 --k 31",
    "gemm-ar --m 53 --n 39 --k 31",
    "moe-dispatch-gemm --tokens 37 --hidden 24 --inner 16 --experts 5 --topk 2",
    "moe-ffn --tokens 37 --hidden 24 --inner 16 --experts 5 --topk 2",
];

/// How a rank ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    /// The last line on stderr.
    pub(crate) said: String,
    /// All lines that were not heard before.
    pub(crate) stderr: Vec<String>,
}

/// A running rank.
pub(crate) struct Rank {
    child: Child,
    lines: Receiver<String>,
    stdout: Option<JoinHandle<String>>,
}

/// What differs between jobs.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) nodes: Vec<u32>,
    pub(crate) flags: String,
    pub(crate) more: Vec<String>,
    /// The command that runs each rank, or nothing.
    pub(crate) under: &'static str,
    pub(crate) port: u16,
}

impl Job {
    pub(crate) fn new(nodes: &[u32], flags: &str) -> Job {
        let flags = format!("run {flags} --transport shm");
        Job { nodes: nodes.to_vec(), flags, more: Vec::new(), under: "", port: free_port() }
    }

    pub(crate) fn size(&self) -> u32 {
        self.nodes.iter().sum()
    }

    /// Starts one rank.
    pub(crate) fn start(&self, rank: u32) -> Rank {
        let mut places = self.nodes.iter().flat_map(|size| (0..*size).map(|local| (local, *size)));
        let (local, local_size) = places.nth(rank as usize).unwrap();
        let binary = env!("CARGO_BIN_EXE_mkernel");
        let mut words = self.under.split_whitespace().chain([binary]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(self.flags.split_whitespace()).args(&self.more).env_clear();
        // For what it runs under.
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
        let variables = [
            ("MKERNEL_RANK", rank.to_string()),
            ("MKERNEL_WORLD_SIZE", self.size().to_string()),
            ("MKERNEL_LOCAL_RANK", local.to_string()),
            ("MKERNEL_LOCAL_WORLD_SIZE", local_size.to_string()),
            ("MKERNEL_ADDR", "127.0.0.1".to_owned()),
            ("MKERNEL_PORT", self.port.to_string()),
            ("MKERNEL_SECRET", "the secret of the tests".to_owned()),
            ("MKERNEL_STEP_DEADLINE_MS", "2000".to_owned()),
        ];
        Rank::spawn(command.envs(variables))
    }

    /// Starts all ranks.
    pub(crate) fn start_all(&self) -> Vec<Rank> {
        (0..self.size()).map(|rank| self.start(rank)).collect()
    }

    /// Runs the job to its end; all ranks must hold, and only the first speaks. Answers what it printed.
    pub(crate) fn hold(&self) -> String {
        let ended: Vec<Ended> = self.start_all().into_iter().map(Rank::end).collect();
        for (rank, ended) in ended.iter().enumerate() {
            assert_eq!(ended.status, Some(0), "{self:?} rank {rank}: {ended:?}");
            assert_eq!(ended.said, "", "rank {rank}");
            assert_eq!(ended.stdout.is_empty(), rank > 0, "rank {rank} printed {}", ended.stdout);
        }
        ended.into_iter().next().unwrap().stdout
    }
}

impl Rank {
    pub(crate) fn spawn(command: &mut Command) -> Rank {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut stdout = child.stdout.take().unwrap();
        let stdout = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        Rank { child, lines, stdout: Some(stdout) }
    }

    /// Waits until the rank has said a line with `word` on stderr `times` times; answers the last.
    pub(crate) fn hear(&self, word: &str, times: usize) -> String {
        let start = Instant::now();
        let next = || self.lines.recv_timeout(LONG - start.elapsed()).unwrap();
        let mut heard = String::new();
        for _ in 0..times {
            heard = std::iter::repeat_with(next).find(|line| line.contains(word)).unwrap();
        }
        heard
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Ended {
        let stdout = self.stdout.take().unwrap().join().unwrap();
        let status = self.child.wait().unwrap().code();
        let stderr: Vec<String> = self.lines.iter().collect();
        let said = stderr.last().cloned().unwrap_or_default();
        Ended { status, stdout, said, stderr }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Gone already in most cases; a stopped one is not.
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

/// Names in the folder of shared memory that look like ours.
pub(crate) fn left_behind() -> Vec<String> {
    let names = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("mkernel")).collect()
}

/// An empty directory of this test's own.
pub(crate) fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// A port below those that the system hands out to clients, another for every caller, from a start that differs between
/// processes.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = (std::process::id().wrapping_mul(67) + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let port = 2_500 + offset as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
