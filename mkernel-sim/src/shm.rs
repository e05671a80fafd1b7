//! One rank of the world in this process; the others are processes of the same host.
//!
//! Every rank's regions and cells live in a [`Segment`] that all processes map, so an instruction reaches peers of its node
//! by plain loads and stores, and the proxy carries puts into any segment. Only the rank's own instructions run here.
//!
//! A launch begins and ends with a meeting of all ranks ([`Board::meet`]): between two launches no rank is at work, and
//! any rank may read any memory.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use mkernel_core::executor::{LaneStats, NotResident};
use mkernel_core::{Executor, Fault, FaultKind, Program, Rank, RoleName, Run, Span, Verified};
use rustix::time::{ClockId, clock_gettime};

use crate::block::Words;
use crate::board::{Apart, Board};
use crate::cells::{self, Cells};
use crate::error::SimError;
use crate::host::{self, Host};
use crate::memory::{self, Memory};
use crate::options::Options;
use crate::peers::Peers;
use crate::segment::{Layout, reach};
use crate::threaded::Threaded;
use crate::trace;

pub use crate::segment::Segment;

/// The part of statistics, the part of cells, the trace, then one part per region.
const STATS: usize = 0;
const CELLS: usize = 1;
const TRACE: usize = 2;
const REGIONS: usize = 3;

/// Words of the statistics: progress, start, time, bytes within the node, bytes between nodes; then three for each lane.
const PROGRESS: usize = 0;
const START: usize = 1;
const TIME: usize = 2;
const INTRA: usize = 3;
const INTER: usize = 4;
const LANES: usize = 5;
const LANE_WORDS: usize = 3;

fn layout(program: &Program, is_traced: bool) -> Layout {
    let stats = (LANES + LANE_WORDS * program.lanes.len()) as u64 * 8;
    let regions = program.regions.iter().map(|region| region.bytes);
    let trace = if is_traced { trace::bytes(program) } else { 0 };
    let parts = [stats, cells::bytes(program), trace].into_iter().chain(regions).collect();
    Layout { rank: program.rank, ranks: program.world.size(), parts }
}

/// Runs one rank of a verified world.
#[derive(Debug)]
pub struct Shm {
    board: Arc<Board>,
    threaded: Threaded,
    verified: Arc<Verified>,
    stats: Vec<Words>,
    /// What every CTA of each rank did in the last launch, if launches are traced.
    traces: Vec<Words>,
    is_traced: bool,
    deadline: Duration,
    fault: Option<Fault>,
}

impl Shm {
    /// Makes the memory of `rank` as it is before the first launch, for peers to open.
    ///
    /// # Errors
    /// [`SimError`] if a program is missing or there is too little shared memory.
    pub fn offer(verified: &Verified, rank: Rank, options: &Options) -> Result<Segment, SimError> {
        host::check(verified)?;
        let all = verified.programs().iter().map(|p| layout(p, options.trace).bytes()).fold(0, u64::saturating_add);
        let program = &verified.programs()[rank.0 as usize];
        let segment = Segment::create(layout(program, options.trace), all)?;
        for (index, block) in segment.mapped.blocks().enumerate() {
            match index {
                STATS | TRACE => {}
                CELLS => drop(cells::fill(block, program, options.first_epoch)),
                _ if options.poison => memory::fill(&block),
                _ => {}
            }
        }
        segment.publish();
        Ok(segment)
    }

    /// Opens the memory of all ranks at their addresses. Keep the own segment until all ranks have opened theirs.
    ///
    /// # Errors
    /// [`SimError`] for memory that is out of reach, or a ring of an impossible size.
    pub fn open(
        verified: Arc<Verified>,
        options: Options,
        board: Arc<Board>,
        addresses: &[Vec<u8>],
    ) -> Result<Shm, SimError> {
        host::check(&verified)?;
        let (mut stats, mut progress, mut cells, mut traces) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut regions, is_traced) = (Vec::new(), options.trace);
        for (program, address) in verified.programs().iter().zip(addresses) {
            let mapped = reach(address, &layout(program, is_traced))?;
            // Two views of the same words, both atomic.
            progress.extend(mapped.blocks().take(CELLS).map(Words::new));
            stats.extend(mapped.blocks().take(CELLS).map(Words::new));
            cells.extend(mapped.blocks().skip(CELLS).take(1).map(Words::new));
            traces.extend(mapped.blocks().skip(TRACE).take(1).map(Words::new));
            regions.push(mapped.blocks().skip(REGIONS).collect());
        }
        let deadline = options.deadline;
        let host = Host::of(Arc::clone(&verified), Memory::of(regions), Cells::of(cells), options.poison);
        let peers = Peers::new(Arc::clone(&board), progress, deadline);
        let threaded = Threaded::with(host, options, Some(peers))?;
        Ok(Shm { board, threaded, verified, stats, traces, is_traced, deadline, fault: None })
    }

    fn run(&mut self) -> Result<Run, Fault> {
        self.meet()?;
        let start_us = now_us();
        let run = self.threaded.launch()?;
        self.publish(&run, start_us);
        self.meet()?;
        Ok(self.collect())
    }

    fn meet(&self) -> Result<(), Fault> {
        let own = self.board.rank();
        self.board.meet(self.deadline).map_err(|apart| match apart {
            Apart::Aborted => Fault::new(FaultKind::Aborted, own),
            Apart::Stopped(peer) => Fault { peer: Some(peer), ..Fault::new(FaultKind::Deadline, own) },
        })
    }

    /// Shows what this rank's launch did.
    fn publish(&self, run: &Run, start_us: u64) {
        let own = self.board.rank();
        let stats = &self.stats[own.0 as usize];
        stats[START].store(start_us, Relaxed);
        stats[TIME].store(run.time_us.to_bits(), Relaxed);
        stats[INTRA].store(run.intra_out[own.0 as usize], Relaxed);
        stats[INTER].store(run.inter_out[own.0 as usize], Relaxed);
        let lanes = run.lanes.iter().filter(|lane| lane.rank == own);
        for (lane, words) in lanes.zip(stats[LANES..].chunks_exact(LANE_WORDS)) {
            let values = [lane.tasks, lane.busy_us.to_bits(), lane.wait_us.to_bits()];
            words.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
        }
        if self.is_traced {
            trace::publish(&run.trace, &self.traces[own.0 as usize]);
        }
    }

    /// What the launches of all ranks did.
    fn collect(&self) -> Run {
        let word = |word: &AtomicU64| word.load(SeqCst);
        let float = |at: &AtomicU64| f64::from_bits(word(at));
        let mut run = Run::default();
        let first = self.stats.iter().map(|stats| word(&stats[START])).min().unwrap_or(0);
        for (program, stats) in self.verified.programs().iter().zip(&self.stats) {
            run.time_us = run.time_us.max(float(&stats[TIME]));
            run.intra_out.push(word(&stats[INTRA]));
            run.inter_out.push(word(&stats[INTER]));
            let lanes = program.lanes.iter().zip(stats[LANES..].chunks_exact(LANE_WORDS));
            run.lanes.extend(lanes.map(|(lane, words)| LaneStats {
                rank: program.rank,
                role: lane.role,
                ctas: lane.ctas,
                tasks: word(&words[0]),
                busy_us: float(&words[1]),
                wait_us: float(&words[2]),
            }));
        }
        for ((program, stats), words) in self.verified.programs().iter().zip(&self.stats).zip(&self.traces) {
            if self.is_traced {
                trace::collect(program, words, (word(&stats[START]) - first) as f64, &mut run.trace);
            }
        }
        run
    }
}

impl Executor for Shm {
    fn launch(&mut self) -> Result<Run, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let result = self.run();
        self.fault = result.as_ref().err().copied();
        result
    }

    fn set_ctas(&mut self, role: RoleName, ctas: NonZeroU32) -> Result<(), NotResident> {
        self.threaded.set_ctas(role, ctas)
    }

    fn write(&mut self, span: &Span, bytes: &[u8]) {
        assert_eq!(span.rank, self.board.rank(), "only its own process writes a rank's memory from outside a launch");
        self.threaded.write(span, bytes);
    }

    fn read(&self, span: &Span, bytes: &mut [u8]) {
        self.threaded.read(span, bytes);
    }
}

/// Microseconds of the clock that all processes of a host share.
fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // It counts from the start of the machine.
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

// The progress word is the first: `Peers` looks at it there.
const _: () = assert!(PROGRESS == 0);
