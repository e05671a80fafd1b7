//! The abort word, the deadline and the one fault record of a launch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mkernel_core::Fault;
use mkernel_core::fifo::Stop;

/// Watches one launch. The deadline runs from the last progress of any hosted rank: on a machine with fewer cores than
/// CTAs a sound wait may be long, but something always moves.
#[derive(Debug)]
pub(crate) struct Watch {
    start: Instant,
    deadline: Duration,
    /// Microseconds from the start to the last progress.
    progress: AtomicU64,
    is_aborted: AtomicBool,
    fault: Mutex<Option<Fault>>,
}

impl Watch {
    pub(crate) fn new(deadline: Duration) -> Watch {
        let (progress, is_aborted, fault) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(None));
        Watch { start: Instant::now(), deadline, progress, is_aborted, fault }
    }

    /// Microseconds since the start.
    pub(crate) fn now_us(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1e6
    }

    /// Says that something moved at `now_us`.
    pub(crate) fn moved(&self, now_us: f64) {
        self.progress.store(now_us as u64, Relaxed);
    }

    /// When something last moved, in microseconds from the start.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Relaxed)
    }

    /// How long a waiter may still sleep.
    ///
    /// # Errors
    /// [`Stop::Aborted`] once the abort word is up, [`Stop::Deadline`] once nothing has moved for too long.
    pub(crate) fn time_left(&self) -> Result<Duration, Stop> {
        if self.is_aborted.load(SeqCst) {
            return Err(Stop::Aborted);
        }
        let until = Duration::from_micros(self.progress.load(Relaxed)).saturating_add(self.deadline);
        until.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero()).ok_or(Stop::Deadline)
    }

    /// Records the first fault and raises the abort word. Whoever sleeps must be woken by the caller.
    pub(crate) fn abort(&self, fault: Fault) {
        self.record().get_or_insert(fault);
        self.is_aborted.store(true, SeqCst);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(SeqCst)
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        *self.record()
    }

    fn record(&self) -> MutexGuard<'_, Option<Fault>> {
        // Plain data: whole even if a thread died with the lock.
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
