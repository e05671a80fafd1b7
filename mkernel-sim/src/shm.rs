//! One rank of the world in this process; the others are processes of the same host, or of others.
//!
//! Every rank's regions and cells live in a [`Segment`] that all processes of its host map, so an instruction reaches peers of
//! its node by plain loads and stores, and the proxy carries puts into any segment. Ranks of other hosts are reached
//! through [`Far`]. Only the rank's own instructions run here.
//!
//! A launch begins and ends with a meeting of all ranks ([`Board::meet`]): between two launches no rank is at work, and
//! any rank may read any memory.

use std::fmt::{self, Debug};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mkernel_core::executor::{LaneStats, NotResident};
use mkernel_core::{Executor, Fault, Program, Rank, RoleName, Run, Span, Verified};
use rustix::time::{ClockId, clock_gettime};

use crate::block::{Block, Words};
use crate::board::Board;
use crate::cells::{self, Cells};
use crate::error::{SegmentError, SimError};
use crate::host::{self, Host};
use crate::memory::{self, Memory};
use crate::options::Options;
use crate::peers::Peers;
use crate::segment::{Layout, reach};
use crate::split::FarTransport;
use crate::threaded::Threaded;
use crate::trace;

pub use crate::segment::Segment;

/// The part of statistics, the part of cells, the trace, then one part per region.
const STATS: usize = 0;
const CELLS: usize = 1;
const TRACE: usize = 2;
const REGIONS: usize = 3;

/// Words of the statistics: start, time, bytes within the node, bytes between nodes; then three for each lane.
const START: usize = 0;
const TIME: usize = 1;
const INTRA: usize = 2;
const INTER: usize = 3;
const LANES: usize = 4;
const LANE_WORDS: usize = 3;

fn layout(program: &Program, is_traced: bool) -> Layout {
    let stats = (LANES + LANE_WORDS * program.lanes.len()) as u64 * 8;
    let regions = program.regions.iter().map(|region| region.bytes);
    let trace = if is_traced { trace::bytes(program) } else { 0 };
    let parts = [stats, cells::bytes(program), trace].into_iter().chain(regions).collect();
    Layout { rank: program.rank, ranks: program.world.size(), parts }
}

/// What reaches ranks of other nodes.
pub struct Far {
    /// Carries puts there.
    pub transport: FarTransport,
    /// Reads their segments, between launches.
    pub memory: Box<dyn FarMemory>,
}

impl Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Far").field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// Reads segments of ranks on other nodes.
pub trait FarMemory: Debug + Send {
    /// Reads bytes of the segment of `rank`, from `offset` on.
    ///
    /// # Errors
    /// The fault that the read ended in.
    fn read(&self, rank: Rank, offset: u64, bytes: &mut [u8]) -> Result<(), Fault>;
}

/// Where things are in the segment of a program's rank, in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Cell 0.
    pub cells: u64,
    /// The regions, by id.
    pub regions: Vec<u64>,
}

impl Map {
    /// The map of a program's segment, the same in every process; another one if launches are traced.
    pub fn of(program: &Program, is_traced: bool) -> Map {
        let layout = layout(program, is_traced);
        let regions = (0..program.regions.len()).map(|region| layout.offset(REGIONS + region)).collect();
        Map { cells: layout.offset(CELLS) + cells::FIRST, regions }
    }
}

/// A rank's segment, as another process of its host sees it.
pub(crate) struct Reached {
    pub(crate) stats: Words,
    pub(crate) cells: Words,
    pub(crate) trace: Words,
    pub(crate) regions: Vec<Block>,
}

/// Maps the segment of a program's rank.
pub(crate) fn reach_rank(program: &Program, is_traced: bool, address: &[u8]) -> Result<Reached, SegmentError> {
    let mapped = reach(address, &layout(program, is_traced))?;
    let mut blocks = mapped.blocks();
    let mut words = || Words::new(blocks.next().expect("a layout has statistics and cells"));
    let (stats, cells, trace) = (words(), words(), words());
    Ok(Reached { stats, cells, trace, regions: blocks.collect() })
}

/// Stands for the segment of a rank that is out of reach.
fn beyond(program: &Program, is_traced: bool) -> Result<Reached, SimError> {
    let words = |bytes, region| {
        let missing = SimError::Memory { rank: program.rank, region, bytes };
        Block::zeroed(bytes).map(Words::new).ok_or(missing)
    };
    let parts = layout(program, is_traced).parts;
    let (stats, trace) = (words(parts[STATS], "statistics")?, words(parts[TRACE], "trace")?);
    Ok(Reached { stats, cells: words(cells::bytes(program), "cells")?, trace, regions: Vec::new() })
}

/// Runs one rank of a verified world.
#[derive(Debug)]
pub struct Shm {
    board: Arc<Board>,
    threaded: Threaded,
    verified: Arc<Verified>,
    stats: Vec<Words>,
    far: Option<Box<dyn FarMemory>>,
    /// What every CTA of each rank did in the last launch, if launches are traced.
    traces: Vec<Words>,
    is_traced: bool,
    deadline: Duration,
    fault: Option<Fault>,
    /// Why memory of another node could not be read.
    broken: OnceLock<Fault>,
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

    /// Opens the memory of all ranks at their addresses; with `far`, of those of its node. Keep the own segment until all
    /// ranks have opened theirs.
    ///
    /// # Errors
    /// [`SimError`] for memory that is out of reach, or a ring of an impossible size.
    pub fn open(
        verified: Arc<Verified>,
        options: Options,
        board: Arc<Board>,
        addresses: &[Vec<u8>],
        far: Option<Far>,
    ) -> Result<Shm, SimError> {
        host::check(&verified)?;
        let (mut stats, mut cells, mut regions, mut traces) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let is_traced = options.trace;
        for (program, address) in verified.programs().iter().zip(addresses) {
            let is_near = far.is_none() || verified.world().same_node(board.rank(), program.rank);
            let reached = if is_near { reach_rank(program, is_traced, address)? } else { beyond(program, is_traced)? };
            stats.push(reached.stats);
            cells.push(reached.cells);
            traces.push(reached.trace);
            regions.push(reached.regions);
        }
        let deadline = options.deadline;
        let host = Host::of(Arc::clone(&verified), Memory::of(regions), Cells::of(cells), options.poison);
        let peers = Peers::new(Arc::clone(&board), deadline);
        let (transport, far) = far.map(|far| (far.transport, far.memory)).unzip();
        let threaded = Threaded::with(host, options, Some(peers), transport)?;
        let (fault, broken) = (None, OnceLock::new());
        Ok(Shm { board, threaded, verified, stats, far, traces, is_traced, deadline, fault, broken })
    }

    /// What reaches a rank, if it is on another node.
    fn beyond(&self, rank: Rank) -> Option<&dyn FarMemory> {
        let is_far = !self.verified.world().same_node(self.board.rank(), rank);
        self.far.as_deref().filter(|_| is_far)
    }

    fn run(&mut self) -> Result<Run, Fault> {
        self.meet()?;
        let start_us = now_us();
        let run = self.threaded.launch()?;
        self.publish(&run, start_us);
        self.meet()?;
        self.fetch()?;
        Ok(self.collect())
    }

    /// Copies the statistics of ranks on other nodes.
    fn fetch(&self) -> Result<(), Fault> {
        for (program, stats) in self.verified.programs().iter().zip(&self.stats) {
            let Some(far) = self.beyond(program.rank) else { continue };
            let mut bytes = vec![0; 8 * stats.len()];
            far.read(program.rank, layout(program, self.is_traced).offset(STATS), &mut bytes)?;
            for (word, bytes) in stats.iter().zip(bytes.as_chunks::<8>().0) {
                word.store(u64::from_le_bytes(*bytes), Relaxed);
            }
        }
        Ok(())
    }

    fn meet(&self) -> Result<(), Fault> {
        let own = self.board.rank();
        self.board.meet(self.deadline).map_err(|apart| apart.fault(own))
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
        if let Some(fault) = self.fault.or(self.broken.get().copied()) {
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
        match self.beyond(span.rank) {
            Some(far) => {
                if let Err(fault) = self.read_far(far, span, bytes) {
                    // As every failure: what was read is poison, and the next launch says why.
                    bytes.fill(0xFF);
                    self.broken.get_or_init(|| fault);
                }
            }
            None => self.threaded.read(span, bytes),
        }
    }
}

impl Shm {
    fn read_far(&self, far: &dyn FarMemory, span: &Span, bytes: &mut [u8]) -> Result<(), Fault> {
        assert_eq!(bytes.len() as u64, span.bytes(), "the buffer is not of the length of {span}");
        if span.is_empty() {
            return Ok(());
        }
        let program = &self.verified.programs()[span.rank.0 as usize];
        let region = layout(program, self.is_traced).offset(REGIONS + span.region.0 as usize);
        let end = span.end().expect("a span of a verified program lies in its region");
        let mut all = vec![0; (end - span.offset) as usize];
        far.read(span.rank, region + span.offset, &mut all)?;
        for (row, part) in (0..span.rows).zip(bytes.chunks_exact_mut(span.row_bytes as usize)) {
            part.copy_from_slice(&all[(span.row(row) - span.offset) as usize..][..span.row_bytes as usize]);
        }
        Ok(())
    }
}

/// Microseconds of the clock that all processes of a host share.
fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // It counts from the start of the machine.
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}
