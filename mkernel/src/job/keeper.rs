//! The job's one thread. It steps the control channel, so that a fault of any rank raises this process's abort word
//! within milliseconds whatever the process is doing; it beats this rank's pulse on the board, so that peers who wait know
//! that the process lives; and it looks at what comes from outside the job: signals, and the end of the launcher.

use std::fmt;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mkernel_sim::Board;

use crate::bootstrap::{Control, Event};
use crate::error::Error;
use crate::signals::Flags;

/// How often the thread steps the control channel and beats.
pub(super) const BEAT: Duration = Duration::from_millis(4);

/// How long a launch or a meeting has to answer what it is doing, before it is clear that there is none.
const ANSWER: Duration = Duration::from_millis(100);

/// How long after SIGTERM another fault may show: a launcher that lost a rank tells the others to end, and what they report
/// is the rank that is lost.
const REASON: Duration = Duration::from_millis(300);

/// How long after SIGTERM the process may take to end with an error.
const END: Duration = Duration::from_secs(2);

/// The thread, and what it shares with its owner.
#[derive(Debug)]
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    control: Mutex<Option<Control>>,
    board: Arc<Board>,
    is_over: AtomicBool,
    /// The process that started this one, if it is a launcher's: the job does not outlive it.
    launcher: Option<u32>,
    outside: Mutex<Option<Outside>>,
}

/// Signals, and who gets the answers.
struct Outside {
    signals: Flags,
    say: Box<dyn Fn(&str) + Send>,
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.signals.fmt(f)
    }
}

/// Plain data, or a channel that others need only open: whole even if a thread died with the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    pub(super) fn start(control: Control, board: Arc<Board>, launcher: Option<u32>) -> Result<Keeper, Error> {
        let (control, outside) = (Mutex::new(Some(control)), Mutex::new(None));
        let shared = Arc::new(Shared { control, board, is_over: AtomicBool::new(false), launcher, outside });
        let body = Arc::clone(&shared);
        let thread = thread::Builder::new().name("job".to_owned()).spawn(move || body.keep()).map_err(Error::Thread)?;
        Ok(Keeper { shared, thread: Some(thread) })
    }

    pub(super) fn board(&self) -> &Arc<Board> {
        &self.shared.board
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Option<Control>> {
        lock(&self.shared.control)
    }

    pub(super) fn heed(&self, signals: Flags, say: Box<dyn Fn(&str) + Send>) {
        signals.set_usual(false);
        *lock(&self.shared.outside) = Some(Outside { signals, say });
    }

    /// Stops the thread and takes the channel back.
    pub(super) fn take_control(&mut self) -> Control {
        self.stop();
        self.control().take().expect("a job is left once")
    }

    /// SIGTERM ends the process as usual: nobody looks for it any more.
    pub(super) fn let_signals_end(&self) {
        if let Some(outside) = &*lock(&self.shared.outside) {
            outside.signals.set_usual(true);
        }
    }

    fn stop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that died has said so on stderr, and there is nothing left for it to do.
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    /// A job that is dropped without being left: peers hear that this rank is lost.
    fn drop(&mut self) {
        self.stop();
    }
}

/// Since when something from outside is open.
#[derive(Debug, Default)]
struct Open {
    asked: Option<Instant>,
    told: Option<Instant>,
    is_raised: bool,
}

impl Shared {
    /// The thread.
    fn keep(&self) {
        let mut open = Open::default();
        while !self.is_over.load(SeqCst) {
            self.board.beat();
            self.look_outside(&mut open);
            let is_told = open.told.is_some_and(|since| since.elapsed() >= REASON);
            let is_orphan = self.launcher.is_some_and(|launcher| launcher != parent_id());
            // The owner has it only to exchange something, and hears of faults itself then.
            if let Ok(mut control) = self.control.try_lock()
                && let Some(control) = control.as_mut()
            {
                if (is_orphan || is_told) && !open.is_raised {
                    open.is_raised = true;
                    let reason = if is_orphan { "its launcher has ended" } else { "it was told to end (SIGTERM)" };
                    let raised = control.raise(reason.as_bytes());
                    tracing::debug!(?raised, reason);
                    self.board.abort();
                }
                let event = control.step(Duration::ZERO);
                if matches!(event, Ok(Some(Event::Fault(_))) | Err(_)) || control.fault().is_some() {
                    self.board.abort();
                }
            }
            thread::park_timeout(BEAT);
        }
    }

    fn look_outside(&self, open: &mut Open) {
        let outside = lock(&self.outside);
        let Some(Outside { signals, say }) = &*outside else { return };
        if signals.is_asked() {
            self.board.ask();
            open.asked = Some(Instant::now());
        }
        if let Some(since) = open.asked {
            if let Some(account) = self.board.account() {
                say(&account.to_string());
                open.asked = None;
            } else if since.elapsed() >= ANSWER {
                say(&format!("{}: in no launch; it plans, checks, or reads or writes files", self.board.rank()));
                open.asked = None;
            }
        }
        if signals.is_told() && open.told.get_or_insert_with(Instant::now).elapsed() >= END {
            signals.end();
        }
    }
}
