//! Cells of all ranks, and who waits for them.
//!
//! A rank's cells are words in memory that the threads of one process share, or all processes of the job: first the
//! number of its instructions that wait, then the cells. A thread that waits sleeps on the cell itself.
//!
//! # No lost wake-up
//! A waiter counts itself, then looks at the cell, then sleeps unless the cell has changed since. A contributor changes the
//! cell, then looks whether anybody is counted. Both do so in the one order of sequentially consistent operations, so
//! either the waiter sees the new value or the contributor sees the waiter.
//!
//! # Orderings
//! A contribution releases what its thread wrote; [`Cells::seen`] acquires it.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mkernel_core::signal::reached;
use mkernel_core::validate::At;
use mkernel_core::{CellId, Program, Rank, Verified};

use crate::block::{self, Block, Words};
use crate::error::SimError;

/// The cells of every rank of the world.
#[derive(Debug)]
pub(crate) struct Cells {
    ranks: Vec<RankCells>,
    /// Agents of a seeded executor whose waits have come true.
    ready: Mutex<Vec<usize>>,
}

#[derive(Debug)]
struct RankCells {
    words: Words,
    /// Those of this process: only it runs instructions of the rank.
    waiters: Mutex<Vec<Waiter>>,
}

/// Where cell 0 is: after the number of waiting instructions.
pub(crate) const FIRST: u64 = 8;

/// Bytes that the cells of a rank take.
pub(crate) fn bytes(program: &Program) -> u64 {
    (program.cells.len() as u64 + 1) * 8
}

/// The cells of a rank as they are before the launch of `first_epoch`, in a block of [`bytes`] that is not shared yet.
pub(crate) fn fill(block: Block, program: &Program, first_epoch: u64) -> Words {
    let words = Words::new(block);
    for (word, cell) in words[1..].iter().zip(&program.cells) {
        word.store(cell.initial(first_epoch), SeqCst);
    }
    words
}

impl RankCells {
    /// How many instructions wait, readable without the lock.
    fn waiting(&self) -> &AtomicU64 {
        &self.words[0]
    }

    fn value(&self, cell: CellId) -> &AtomicU64 {
        &self.words[cell.0 as usize + 1]
    }
}

/// An instruction that waits for one cell of its rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) place: At,
    pub(crate) cell: CellId,
    pub(crate) wanted: u64,
    /// When the wait began, in microseconds of its launch.
    pub(crate) since_us: f64,
    pub(crate) wake: Wake,
}

/// How a waiter is woken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wake {
    /// A thread that sleeps on the cell.
    Thread,
    /// An agent of a seeded executor, by number.
    Agent(usize),
}

/// A list of plain data is whole even if a thread died while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cells {
    /// Cells of this process as they are before the launch of `first_epoch`.
    pub(crate) fn new(verified: &Verified, first_epoch: u64) -> Result<Cells, SimError> {
        let words = |program: &Program| -> Result<Words, SimError> {
            let bytes = bytes(program);
            let block = Block::zeroed(bytes).ok_or(SimError::Memory { rank: program.rank, region: "cells", bytes })?;
            Ok(fill(block, program, first_epoch))
        };
        Ok(Cells::of(verified.programs().iter().map(words).collect::<Result<_, _>>()?))
    }

    /// Cells that are there already: the words of each rank.
    pub(crate) fn of(ranks: Vec<Words>) -> Cells {
        let ranks = ranks.into_iter().map(|words| RankCells { words, waiters: Mutex::new(Vec::new()) });
        Cells { ranks: ranks.collect(), ready: Mutex::new(Vec::new()) }
    }

    /// The value of a cell; acquires what its contributors released.
    pub(crate) fn seen(&self, rank: Rank, cell: CellId) -> u64 {
        self.rank(rank).value(cell).load(SeqCst)
    }

    /// Adds to a cell, as instructions do.
    pub(crate) fn add(&self, rank: Rank, cell: CellId, amount: u32) {
        let amount = u64::from(amount);
        let before = self.rank(rank).value(cell).fetch_add(amount, SeqCst);
        self.wake(rank, cell, before.wrapping_add(amount));
    }

    /// Fills a cell, as the signal of a put does.
    pub(crate) fn fill(&self, rank: Rank, cell: CellId, value: u64) {
        let before = self.rank(rank).value(cell).swap(value, SeqCst);
        assert!(reached(value, before), "{rank} cell {} fell from {before} to {value}", cell.0);
        self.wake(rank, cell, value);
    }

    /// Enters a waiter in the list; whoever makes the wait true wakes it and strikes it off.
    ///
    /// Answers `false`, and enters nothing, if the wait is true already.
    pub(crate) fn enlist(&self, waiter: Waiter) -> bool {
        let rank = self.rank(waiter.place.rank);
        let mut waiters = lock(&rank.waiters);
        rank.waiting().fetch_add(1, SeqCst);
        if reached(rank.value(waiter.cell).load(SeqCst), waiter.wanted) {
            rank.waiting().fetch_sub(1, SeqCst);
            return false;
        }
        waiters.push(waiter);
        true
    }

    /// Sleeps for at most `limit`, unless the cell no longer holds `seen`. It may wake early.
    pub(crate) fn sleep(&self, rank: Rank, cell: CellId, seen: u64, limit: Duration) {
        block::sleep(self.rank(rank).value(cell), seen, limit);
    }

    /// Strikes off a waiter that gives up, or whose wait a thread of another process made true.
    pub(crate) fn delist(&self, place: At) {
        let rank = self.rank(place.rank);
        let mut waiters = lock(&rank.waiters);
        let before = waiters.len();
        waiters.retain(|w| w.place != place);
        rank.waiting().fetch_sub((before - waiters.len()) as u64, SeqCst);
    }

    /// Everyone who waits now.
    pub(crate) fn waiters(&self) -> Vec<Waiter> {
        self.ranks.iter().flat_map(|rank| lock(&rank.waiters).clone()).collect()
    }

    /// Wakes every thread that sleeps, so that it looks at the abort word. One that is about to sleep is missed: call it
    /// again until all have ended.
    pub(crate) fn wake_all(&self) {
        for waiter in self.waiters() {
            if let Wake::Thread = waiter.wake {
                block::wake(self.rank(waiter.place.rank).value(waiter.cell));
            }
        }
    }

    /// Wakes threads whose waits a NIC has made true, which wakes nobody itself.
    pub(crate) fn rouse(&self, rank: Rank) {
        let cells = self.rank(rank);
        if cells.waiting().load(SeqCst) == 0 {
            return;
        }
        let mut waiters = lock(&cells.waiters);
        let before = waiters.len();
        waiters.retain(|waiter| {
            let is_met = reached(cells.value(waiter.cell).load(SeqCst), waiter.wanted);
            if is_met {
                block::wake(cells.value(waiter.cell));
            }
            !is_met
        });
        cells.waiting().fetch_sub((before - waiters.len()) as u64, SeqCst);
    }

    /// Takes the agents whose waits have come true since the last call.
    pub(crate) fn take_ready(&self, into: &mut Vec<usize>) {
        into.append(&mut lock(&self.ready));
    }

    fn rank(&self, rank: Rank) -> &RankCells {
        &self.ranks[rank.0 as usize]
    }

    fn wake(&self, rank: Rank, cell: CellId, value: u64) {
        let rank = self.rank(rank);
        if rank.waiting().load(SeqCst) == 0 {
            return;
        }
        let mut waiters = lock(&rank.waiters);
        // Whoever is counted but not listed waits in the process that hosts the rank.
        let mut is_slept_on = rank.waiting().load(SeqCst) > waiters.len() as u64;
        let before = waiters.len();
        waiters.retain(|waiter| {
            let is_met = waiter.cell == cell && reached(value, waiter.wanted);
            match waiter.wake {
                Wake::Thread => is_slept_on |= is_met,
                Wake::Agent(agent) if is_met => lock(&self.ready).push(agent),
                Wake::Agent(_) => {}
            }
            !is_met
        });
        rank.waiting().fetch_sub((before - waiters.len()) as u64, SeqCst);
        drop(waiters);
        if is_slept_on {
            block::wake(rank.value(cell));
        }
    }
}
