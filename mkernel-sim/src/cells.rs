//! Cells of all ranks, and who waits for them.
//!
//! # No lost wake-up
//! A waiter enters the rank's list, then looks at the cell, then sleeps. A contributor changes the cell, then looks
//! whether the list is empty. Both do so in the one order of sequentially consistent operations, so either the waiter
//! sees the new value or the contributor sees the waiter.
//!
//! # Orderings
//! A contribution releases what its thread wrote; [`Cells::seen`] acquires it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use mkernel_core::signal::reached;
use mkernel_core::validate::At;
use mkernel_core::{CellId, Rank, Verified};

/// The cells of every rank of the world.
#[derive(Debug)]
pub(crate) struct Cells {
    ranks: Vec<RankCells>,
    /// Agents of a seeded executor whose waits have come true.
    ready: Mutex<Vec<usize>>,
}

#[derive(Debug)]
struct RankCells {
    values: Box<[AtomicU64]>,
    /// Length of `waiters`, readable without the lock.
    waiting: AtomicUsize,
    waiters: Mutex<Vec<Waiter>>,
}

/// An instruction that waits for one cell of its rank.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) place: At,
    pub(crate) cell: CellId,
    pub(crate) wanted: u64,
    pub(crate) wake: Wake,
}

/// How a waiter is woken.
#[derive(Clone, Debug)]
pub(crate) enum Wake {
    /// A parked thread.
    Thread(Thread),
    /// An agent of a seeded executor, by number.
    Agent(usize),
}

/// A list of plain data is whole even if a thread died while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cells {
    /// Cells as they are before the launch of `first_epoch`.
    pub(crate) fn new(verified: &Verified, first_epoch: u64) -> Cells {
        let ranks = verified.programs().iter().map(|program| RankCells {
            values: program.cells.iter().map(|cell| AtomicU64::new(cell.initial(first_epoch))).collect(),
            waiting: AtomicUsize::new(0),
            waiters: Mutex::new(Vec::new()),
        });
        Cells { ranks: ranks.collect(), ready: Mutex::new(Vec::new()) }
    }

    /// The value of a cell; acquires what its contributors released.
    pub(crate) fn seen(&self, rank: Rank, cell: CellId) -> u64 {
        self.of(rank).values[cell.0 as usize].load(SeqCst)
    }

    /// Adds to a cell, as instructions do.
    pub(crate) fn add(&self, rank: Rank, cell: CellId, amount: u32) {
        let amount = u64::from(amount);
        let before = self.of(rank).values[cell.0 as usize].fetch_add(amount, SeqCst);
        self.wake(rank, cell, before.wrapping_add(amount));
    }

    /// Fills a cell, as the signal of a put does.
    pub(crate) fn fill(&self, rank: Rank, cell: CellId, value: u64) {
        let before = self.of(rank).values[cell.0 as usize].swap(value, SeqCst);
        assert!(reached(value, before), "{rank} cell {} fell from {before} to {value}", cell.0);
        self.wake(rank, cell, value);
    }

    /// Enters a waiter in the list; whoever makes the wait true wakes it and strikes it off.
    ///
    /// Answers `false`, and enters nothing, if the wait is true already.
    pub(crate) fn enlist(&self, waiter: Waiter) -> bool {
        let rank = self.of(waiter.place.rank);
        let mut waiters = lock(&rank.waiters);
        rank.waiting.fetch_add(1, SeqCst);
        if reached(rank.values[waiter.cell.0 as usize].load(SeqCst), waiter.wanted) {
            rank.waiting.fetch_sub(1, SeqCst);
            return false;
        }
        waiters.push(waiter);
        true
    }

    /// Strikes off a waiter that gives up.
    pub(crate) fn delist(&self, place: At) {
        let rank = self.of(place.rank);
        let mut waiters = lock(&rank.waiters);
        let before = waiters.len();
        waiters.retain(|w| w.place != place);
        rank.waiting.fetch_sub(before - waiters.len(), SeqCst);
    }

    /// Everyone who waits now.
    pub(crate) fn waiters(&self) -> Vec<Waiter> {
        self.ranks.iter().flat_map(|rank| lock(&rank.waiters).clone()).collect()
    }

    /// Wakes every thread that waits, so that it looks at the abort word.
    pub(crate) fn wake_all(&self) {
        for waiter in self.waiters() {
            if let Wake::Thread(thread) = waiter.wake {
                thread.unpark();
            }
        }
    }

    /// Takes the agents whose waits have come true since the last call.
    pub(crate) fn take_ready(&self, into: &mut Vec<usize>) {
        into.append(&mut lock(&self.ready));
    }

    fn of(&self, rank: Rank) -> &RankCells {
        &self.ranks[rank.0 as usize]
    }

    fn wake(&self, rank: Rank, cell: CellId, value: u64) {
        let rank = self.of(rank);
        if rank.waiting.load(SeqCst) == 0 {
            return;
        }
        let mut waiters = lock(&rank.waiters);
        let before = waiters.len();
        waiters.retain(|waiter| {
            let is_met = waiter.cell == cell && reached(value, waiter.wanted);
            if is_met {
                match &waiter.wake {
                    Wake::Thread(thread) => thread.unpark(),
                    Wake::Agent(agent) => lock(&self.ready).push(*agent),
                }
            }
            !is_met
        });
        rank.waiting.fetch_sub(before - waiters.len(), SeqCst);
    }
}
