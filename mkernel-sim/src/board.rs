//! What the processes of a job know of each other while they run: that each lives, and how often they have met.
//!
//! Every rank has a line of words that only it writes: its pulse, its meetings, the progress of its launch. All only rise. A
//! meeting is over for a rank once every rank has counted it, so what any rank wrote before is visible to all after. A rank
//! whose pulse stands still for the whole deadline, although its process is there, is stopped.
//!
//! Lines of ranks on other nodes are copies in this process's memory, which those ranks write ([`Publish`]): a copy may be
//! late, and the next one makes up for one that was lost.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mkernel_core::{Fault, FaultKind, Rank, Verified, World};

use crate::account::{Account, Stage};
use crate::block::{self, Words};
use crate::error::SegmentError;
use crate::segment::{Layout, Segment, reach};

const PULSE: usize = 0;
const MEETINGS: usize = 1;
const PROGRESS: usize = 2;

/// Words of a line.
pub const WORDS: usize = 3;

/// Bytes of a line.
const LINE: u64 = WORDS as u64 * 8;

/// Writes this rank's line to its copies on other nodes. It never waits; what does not get through is made up for by
/// the next call, a few milliseconds later.
pub trait Publish: Debug + Send + Sync {
    /// Writes the line.
    fn publish(&self, line: [u64; WORDS]);

    /// The first rank that can no longer be written to, with the transport's status.
    fn broken(&self) -> Option<(Rank, u32)>;
}

/// How long whoever waits for a peer sleeps before it looks at the abort word.
pub(crate) const NAP: Duration = Duration::from_millis(2);

/// The lines of all ranks, and this process's abort word.
#[derive(Debug)]
pub struct Board {
    own: Rank,
    lines: Vec<Words>,
    is_aborted: AtomicBool,
    publish: Option<Box<dyn Publish>>,
    is_asked: AtomicBool,
    told: Mutex<Told>,
}

impl Apart {
    /// The fault of a launch of `own` that this ends.
    pub fn fault(self, own: Rank) -> Fault {
        match self {
            Apart::Aborted => Fault::new(FaultKind::Aborted, own),
            Apart::Stopped(peer) => Fault { peer: Some(peer), ..Fault::new(FaultKind::Deadline, own) },
            Apart::Broken(peer, status) => {
                Fault { peer: Some(peer), status: Some(status), ..Fault::new(FaultKind::Transport, own) }
            }
        }
    }
}

/// What this rank said of itself last.
#[derive(Debug, Default)]
struct Told {
    account: Option<Account>,
    /// The programs of the last launch.
    programs: Option<Arc<Verified>>,
}

/// Why a meeting did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Apart {
    /// The abort word is up.
    #[error("the abort word is up")]
    Aborted,
    /// A rank has not come and its pulse stands still.
    #[error("{0} has stopped")]
    Stopped(Rank),
    /// A rank of another node cannot be written to any more.
    #[error("{0} cannot be reached: status {1}")]
    Broken(Rank, u32),
}

/// The line, then copies of the lines of all ranks.
fn layout(world: &World, rank: Rank) -> Layout {
    Layout { rank, ranks: world.size(), parts: vec![LINE, u64::from(world.size()) * MIRROR] }
}

/// Bytes from one copy to the next: parts of a mapping are aligned so.
const MIRROR: u64 = 32;

/// Where in the segment of a board's rank the copy of the line of `rank` is.
pub fn mirror(world: &World, rank: Rank) -> u64 {
    layout(world, rank).offset(1) + u64::from(rank.0) * MIRROR
}

impl Board {
    /// Makes the line of `rank`, for peers to open.
    ///
    /// # Errors
    /// [`SegmentError`] if there is no shared memory.
    pub fn offer(world: &World, rank: Rank) -> Result<Segment, SegmentError> {
        let layout = layout(world, rank);
        let all = layout.bytes().saturating_mul(world.size().into());
        let segment = Segment::create(layout, all)?;
        segment.publish();
        Ok(segment)
    }

    /// Opens the lines of all ranks at their addresses; with `publish`, those of other nodes are the copies in `own`. Keep
    /// `own` until all ranks have opened theirs.
    ///
    /// # Errors
    /// [`SegmentError`] for a line that is out of reach.
    pub fn open(
        world: &World,
        own: &Segment,
        addresses: &[Vec<u8>],
        publish: Option<Box<dyn Publish>>,
    ) -> Result<Board, SegmentError> {
        let rank = own.layout.rank;
        let line = |(peer, address): (Rank, &Vec<u8>)| {
            if publish.is_some() && !world.same_node(rank, peer) {
                return Ok(Words::new(own.mapped.part(mirror(world, peer), LINE)));
            }
            let mapped = reach(address, &layout(world, peer))?;
            Ok(mapped.blocks().map(Words::new).next().expect("the layout has a first part"))
        };
        let lines = world.ranks().zip(addresses).map(line).collect::<Result<_, _>>()?;
        let (is_aborted, is_asked) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Board { own: rank, lines, is_aborted, is_asked, told: Mutex::default(), publish })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.own
    }

    /// Shows that this process lives. Call it many times within any deadline.
    pub fn beat(&self) {
        self.own()[PULSE].fetch_add(1, SeqCst);
        self.show();
    }

    /// Notes that this rank's launch has moved.
    pub(crate) fn progressed(&self) {
        self.own()[PROGRESS].fetch_add(1, SeqCst);
    }

    /// Changes with the progress of any rank.
    pub(crate) fn progress(&self) -> u64 {
        self.lines.iter().map(|line| line[PROGRESS].load(SeqCst)).fold(0, u64::wrapping_add)
    }

    /// The first rank of another node that can no longer be written to, with the transport's status.
    pub(crate) fn broken(&self) -> Option<(Rank, u32)> {
        self.publish.as_ref()?.broken()
    }

    fn show(&self) {
        if let Some(publish) = &self.publish {
            publish.publish(std::array::from_fn(|word| self.own()[word].load(SeqCst)));
        }
    }

    /// Raises the abort word: launches and meetings of this process end within a few milliseconds.
    pub fn abort(&self) {
        self.is_aborted.store(true, SeqCst);
    }

    /// Whether the abort word is up.
    pub fn is_aborted(&self) -> bool {
        self.is_aborted.load(SeqCst)
    }

    /// Asks this process what it is doing; within milliseconds [`Board::account`] has the answer, if it is in a launch or a
    /// meeting.
    pub fn ask(&self) {
        self.is_asked.store(true, SeqCst);
    }

    /// Takes what this process last said of itself: when it was asked, or when a launch or a meeting failed.
    pub fn account(&self) -> Option<Account> {
        self.told().account.take()
    }

    /// The programs of the last launch.
    pub fn programs(&self) -> Option<Arc<Verified>> {
        self.told().programs.clone()
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(SeqCst) && self.is_asked.swap(false, SeqCst)
    }

    pub(crate) fn tell(&self, stage: Stage) {
        self.told().account = Some(Account { rank: self.own, stage });
    }

    pub(crate) fn launches(&self, programs: &Arc<Verified>) {
        self.told().programs = Some(Arc::clone(programs));
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // Plain data: whole even if a thread died with the lock.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every rank has called it as often as this one.
    ///
    /// # Errors
    /// [`Apart`] if the abort word is up, or a rank is not there that cannot be reached or whose pulse has stood still for
    /// `deadline`.
    pub fn meet(&self, deadline: Duration) -> Result<(), Apart> {
        let meeting = self.own()[MEETINGS].fetch_add(1, SeqCst).wrapping_add(1);
        block::wake(&self.own()[MEETINGS]);
        self.show();
        let mut pulses = Pulses::new(self);
        let start = Instant::now();
        let tell = || {
            let is_absent = |rank: &Rank| self.lines[rank.0 as usize][MEETINGS].load(SeqCst) < meeting;
            let absent = (0..self.lines.len() as u32).map(Rank).filter(is_absent).collect();
            self.tell(Stage::Meeting { absent, since: start.elapsed() });
        };
        for line in &self.lines {
            loop {
                let seen = line[MEETINGS].load(SeqCst);
                if seen >= meeting {
                    break;
                }
                self.beat();
                if self.is_asked() {
                    tell();
                }
                if self.is_aborted() {
                    tell();
                    return Err(Apart::Aborted);
                }
                if let Some((rank, status)) = self.broken() {
                    return Err(Apart::Broken(rank, status));
                }
                let is_absent = |rank: &Rank| self.lines[rank.0 as usize][MEETINGS].load(SeqCst) < meeting;
                if let Some(rank) = pulses.stopped(deadline).find(is_absent) {
                    tell();
                    return Err(Apart::Stopped(rank));
                }
                block::sleep(&line[MEETINGS], seen, NAP);
            }
        }
        Ok(())
    }

    fn own(&self) -> &Words {
        &self.lines[self.own.0 as usize]
    }
}

/// When the pulse of each rank was last seen to change.
#[derive(Debug)]
pub(crate) struct Pulses<'a> {
    board: &'a Board,
    seen: Vec<(u64, Instant)>,
}

impl Pulses<'_> {
    pub(crate) fn new(board: &Board) -> Pulses<'_> {
        let now = Instant::now();
        Pulses { board, seen: board.lines.iter().map(|line| (line[PULSE].load(SeqCst), now)).collect() }
    }

    /// Looks at all pulses; the ranks other than this one whose pulse has stood still for `limit`.
    pub(crate) fn stopped(&mut self, limit: Duration) -> impl Iterator<Item = Rank> + '_ {
        let (now, own) = (Instant::now(), self.board.own);
        for ((pulse, since), line) in self.seen.iter_mut().zip(&self.board.lines) {
            let seen = line[PULSE].load(SeqCst);
            if seen != *pulse {
                (*pulse, *since) = (seen, now);
            }
        }
        let is_still = move |since: &Instant| now.duration_since(*since) >= limit;
        (0..)
            .map(Rank)
            .zip(&self.seen)
            .filter(move |(rank, (_, since))| *rank != own && is_still(since))
            .map(|(r, _)| r)
    }
}
