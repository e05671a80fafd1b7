//! Two ranks as processes: how long a put of 8 bytes with its signal takes, and how fast puts of 1 MiB go beside `memcpy`;
//! with Open MPI's send and receive at the same sizes in between, in the same run.
//!
//! `mpicc -O2 -o target/mpi_pair mkernel-sim/benches/mpi_pair.c && cargo bench -p mkernel-sim --bench shm -- $PWD/target/mpi_pair`
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use mkernel_core::builder::Step;
use mkernel_core::{
    Born, CellId, Executor, LaneBuilder, Law, Op, Placement, Program, ProgramBuilder, Put, Rank, RegionId, Role,
    RoleName, Signal, Span, Verified, World, validate,
};
use mkernel_sim::{Board, Network, Options, Segment, Shm};

/// Round trips of a launch.
const ROUNDS: u32 = 2_000;
/// Puts of 1 MiB of a launch.
const PUTS: u32 = 192;
const MIB: u64 = 1 << 20;
/// Times that everything is measured, in turn.
const TURNS: usize = 11;
/// Launches of a turn, whose median counts.
const LAUNCHES: usize = 9;

/// How bytes reach the other rank.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// Stored by the CTA.
    Direct,
    /// Through the ticket FIFO, the proxy and the transport.
    Proxied,
}

/// What a program does.
#[derive(Clone, Copy)]
enum Job {
    /// 8 bytes there, 8 bytes back, again and again.
    PingPong,
    /// Rank 0 puts, rank 1 waits for all.
    Stream,
}

const JOBS: [(By, Job); 4] =
    [(By::Direct, Job::PingPong), (By::Proxied, Job::PingPong), (By::Direct, Job::Stream), (By::Proxied, Job::Stream)];

struct Lane {
    rank: u32,
    by: By,
    job: Job,
}

impl Job {
    fn count(self) -> u32 {
        match self {
            Job::PingPong => ROUNDS,
            Job::Stream => PUTS,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Job::PingPong => 8,
            Job::Stream => MIB,
        }
    }

    fn sends(self, rank: u32) -> bool {
        rank == 0 || matches!(self, Job::PingPong)
    }
}

impl Role for Lane {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let (own, peer, count) = (self.rank, 1 - self.rank, self.job.count());
        let at = |rank, region, i| {
            Span::flat(Rank(rank), RegionId(region), u64::from(i) * self.job.bytes(), self.job.bytes())
        };
        let arrived = |i: u32| CellId(i);
        // Rank 0's: its puts have been read, and rank 1 is done with the launch before.
        let (gone, credit) = (CellId(count), CellId(count + 1));
        for i in (0..count).filter(|_| self.job.sends(own)) {
            let before = match self.job {
                Job::PingPong if own == 1 => arrived(i),
                Job::PingPong if i > 0 => arrived(i - 1),
                _ => credit,
            };
            let (from, to) = (at(own, 0, i), at(peer, 1, i));
            match self.by {
                By::Direct => {
                    let signal = Signal { rank: Rank(peer), cell: arrived(i), amount: 1 };
                    lane.push(Op::Copy, Step::new(&[before], &[from]), &[to], &[signal]);
                }
                By::Proxied => {
                    let put = Put { source: from, count: None, target: to, cell: arrived(i), retired: Some(gone) };
                    lane.put(&[before], put);
                }
            }
        }
        let mut last: Vec<CellId> = (0..count).filter(|_| self.job.sends(peer)).map(arrived).collect();
        last.extend((self.by == By::Proxied && self.job.sends(own)).then_some(gone));
        match (own, self.by) {
            (0, _) => lane.push(Op::Release, Step::new(&last, &[]), &[], &[]),
            (_, By::Direct) => {
                let signal = Signal { rank: Rank(0), cell: credit, amount: 1 };
                lane.push(Op::Release, Step::new(&last, &[]), &[], &[signal]);
            }
            (_, By::Proxied) => lane.put(&last, Put::signal(Rank(1), Rank(0), credit)),
        }
    }
}

fn programs(by: By, job: Job) -> Arc<Verified> {
    let world = World::new(if by == By::Direct { &[2] } else { &[1, 1] }).unwrap();
    let bytes = u64::from(job.count()) * job.bytes();
    let program = |rank: u32| -> Program {
        let mut builder = ProgramBuilder::new(&world, Rank(rank));
        let source = builder.region("source", bytes);
        let span = Span::flat(Rank(rank), source, 0, bytes);
        builder.input(Placement { tensor: "source", span, row: 0, column: 0 });
        builder.region("target", bytes);
        for _ in 0..job.count() {
            builder.cell(u32::from(job.sends(1 - rank)), Born::Empty);
        }
        let is_retired = by == By::Proxied && job.sends(rank);
        builder.cell(if is_retired { job.count() } else { 0 }, Born::Empty);
        builder.cell(u32::from(rank == 0), Born::Full);
        if by == By::Proxied {
            let [out, back] = [job.sends(rank), job.sends(1 - rank)].map(|sends| if sends { bytes } else { 0 });
            builder.law(Law { inter_out: out, inter_in: back });
        }
        builder.lane(&Lane { rank, by, job }, 1);
        builder.finish()
    };
    Arc::new(validate(vec![program(0), program(1)]).unwrap_or_else(|violation| panic!("{violation}")))
}

/// The other process.
struct Peer<R, W> {
    rank: u32,
    from: Lines<BufReader<R>>,
    to: W,
}

impl<R: Read, W: Write> Peer<R, W> {
    /// The addresses of both ranks.
    fn exchange(&mut self, own: &Segment) -> Vec<Vec<u8>> {
        let own = own.address();
        let numbers: Vec<String> = own.iter().map(u8::to_string).collect();
        writeln!(self.to, "{}", numbers.join(" ")).unwrap();
        self.to.flush().unwrap();
        let line = self.from.next().unwrap().unwrap();
        let other = line.split(' ').map(|number| number.parse().unwrap()).collect();
        if self.rank == 0 { vec![own, other] } else { vec![other, own] }
    }

    /// Executors of all jobs.
    fn executors(&mut self) -> Vec<Shm> {
        let options = Options { network: Network::prompt(), poison: false, ..Options::default() };
        JOBS.map(|(by, job)| {
            let programs = programs(by, job);
            let (world, rank) = (programs.world().clone(), Rank(self.rank));
            let line = Board::offer(&world, rank).unwrap();
            let board = Board::open(&world, &line, &self.exchange(&line), None).unwrap();
            let own = Shm::offer(&programs, rank, &options).unwrap();
            let executor = Shm::open(programs, options.clone(), Arc::new(board), &self.exchange(&own), None).unwrap();
            // The descriptors stay open until both have opened them.
            self.exchange(&own);
            executor
        })
        .into()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median time of a few launches, in microseconds.
fn turn(executor: &mut Shm) -> f64 {
    median((0..LAUNCHES).map(|_| executor.launch().unwrap().time_us).collect())
}

/// The same bytes within this process, in microseconds.
fn memcpy(from: &[u8], to: &mut [u8]) -> f64 {
    let run = |_| {
        let start = Instant::now();
        for (from, to) in from.chunks(MIB as usize).zip(to.chunks_mut(MIB as usize)) {
            to.copy_from_slice(from);
        }
        std::hint::black_box(&to);
        start.elapsed().as_secs_f64() * 1e6
    };
    median((0..LAUNCHES).map(run).collect())
}

/// Open MPI's microseconds for 8 bytes one way, and for all puts of 1 MiB.
fn mpi(program: &str) -> [f64; 2] {
    let flags = ["--allow-run-as-root", "--oversubscribe", "-n", "2", program];
    let output = Command::new("mpirun").args(flags).args([ROUNDS, PUTS].map(|n| n.to_string())).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if given.first().is_some_and(|word| word == "rank1") {
        let mut peer = Peer { rank: 1, from: BufReader::new(std::io::stdin()).lines(), to: std::io::stdout() };
        let mut executors = peer.executors();
        for _ in 0..=TURNS {
            executors.iter_mut().for_each(|executor| assert!(turn(executor) > 0.0));
        }
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg("rank1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let from = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut peer = Peer { rank: 0, from, to: child.stdin.take().unwrap() };
    let mut executors = peer.executors();
    let bytes = (u64::from(PUTS) * MIB) as usize;
    let (source, mut target) = (vec![1; bytes], vec![0; bytes]);
    let mut found: Vec<[f64; 7]> = Vec::new();
    // The first turn touches all memory and does not count.
    for number in 0..=TURNS {
        let ours: Vec<f64> = executors.iter_mut().map(turn).collect();
        let plain = memcpy(&source, &mut target);
        let theirs = given.first().map_or([f64::NAN; 2], |program| mpi(program));
        let way = |us: f64| us / f64::from(2 * ROUNDS);
        let rate = |us: f64| bytes as f64 / us / 1e3;
        if number > 0 {
            let rates = [ours[2], ours[3], plain, theirs[1]].map(rate);
            found.push([way(ours[0]), way(ours[1]), theirs[0], rates[0], rates[1], rates[2], rates[3]]);
        }
    }
    assert!(child.wait().unwrap().success());
    let names = [
        "8 bytes and signal, direct, us one way",
        "8 bytes and signal, proxied, us one way",
        "8 bytes, Open MPI send and receive, us one way",
        "1 MiB, direct, GB/s",
        "1 MiB, proxied, GB/s",
        "1 MiB, memcpy, GB/s",
        "1 MiB, Open MPI send and receive, GB/s",
    ];
    for (index, name) in names.iter().enumerate() {
        let values: Vec<f64> = found.iter().map(|turn| turn[index]).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        println!("{name:<48} {:>8.3}   ({least:.3} to {most:.3})", median(values));
    }
    let ratio = |index: usize| median(found.iter().map(|turn| turn[index] / turn[5]).collect());
    println!("1 MiB beside memcpy: direct {:.2}, proxied {:.2}, Open MPI {:.2}", ratio(3), ratio(4), ratio(6));
}
