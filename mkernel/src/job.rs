//! One rank's place in a job whose ranks are processes of one host, or of several that RDMA joins.
//!
//! A job keeps one thread. It steps the control channel, so that a fault of any rank raises this process's abort word
//! within milliseconds whatever the process is doing, and beats this rank's pulse on the board, so that peers who wait know
//! that the process lives.
//!
//! Every rank reports the same fault: the first that rank 0 heard of.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mkernel_core::{Executor, Fault, FaultKind, Rank, Verified, World};
use mkernel_sim::board::Publish;
use mkernel_sim::{Board, Network, Segment, SegmentError, Shm, SimError};

use crate::bootstrap::{self, Control, Event, Fields, JobFault, MAX_RECORD, join, record};
use crate::config::Config;
use crate::error::Error;
use crate::far::{self, Begun, Line, Remote, Side};
use crate::session::{Options, Verbs};

/// How often the thread steps the control channel and beats.
const BEAT: Duration = Duration::from_millis(4);

/// How long a rank waits to hear why a peer's memory is out of reach before it raises that itself.
const GRACE: Duration = Duration::from_millis(500);

/// The ranks of other nodes, and the side channel to them.
type Way = (Remote, Arc<Side>);

/// A rank that has met the others.
#[derive(Debug)]
pub(crate) struct Job {
    shared: Arc<Shared>,
    world: World,
    rank: Rank,
    /// How long a peer's pulse may stand still.
    deadline: Duration,
    /// How long to wait for rank 0's word on which fault was first.
    step_deadline: Duration,
    remote: Option<Way>,
    keeper: Option<JoinHandle<()>>,
}

/// What the job and its thread share.
#[derive(Debug)]
struct Shared {
    control: Mutex<Option<Control>>,
    board: Arc<Board>,
    is_over: AtomicBool,
}

impl Shared {
    fn control(&self) -> MutexGuard<'_, Option<Control>> {
        // Whoever panicked with the lock ends this process's part in the job; others only need the connection.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn keep(&self) {
        while !self.is_over.load(SeqCst) {
            self.board.beat();
            // The owner has it only to exchange something, and hears of faults itself then.
            if let Ok(mut control) = self.control.try_lock()
                && let Some(control) = control.as_mut()
            {
                let event = control.step(Duration::ZERO);
                if matches!(event, Ok(Some(Event::Fault(_))) | Err(_)) || control.fault().is_some() {
                    self.board.abort();
                }
            }
            thread::park_timeout(BEAT);
        }
    }
}

impl Job {
    /// Meets the other ranks, and returns when all have arrived.
    pub(crate) fn join(config: &Config, deadline: Duration, verbs: Option<&Verbs>) -> Result<Job, Error> {
        tracing::debug!("\n{config}");
        let mut control = join(&config.setup)?;
        let (world, rank) = (control.world().clone(), control.rank());
        let (board, remote) = match meet_first(&mut control, &world, rank, verbs) {
            Ok((board, remote)) => (Arc::new(board), remote),
            Err(error) => {
                let answer = first_fault(&mut control, error, rank, config.setup.step_deadline);
                leave_after(control);
                return Err(answer);
            }
        };
        let shared = Shared { control: Mutex::new(Some(control)), board, is_over: AtomicBool::new(false) };
        let shared = Arc::new(shared);
        let body = Arc::clone(&shared);
        let keeper = thread::Builder::new().name("job".to_owned()).spawn(move || body.keep()).map_err(Error::Thread)?;
        let step_deadline = config.setup.step_deadline;
        Ok(Job { shared, world, rank, deadline, step_deadline, remote, keeper: Some(keeper) })
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// Waits until all ranks are here, however long they work before.
    pub(crate) fn meet(&self) -> Result<(), Error> {
        self.shared.board.meet(self.deadline).map_err(|apart| apart.fault(self.rank).into())
    }

    /// Checks that all ranks have the same fields.
    pub(crate) fn agree(&self, fields: &Fields) -> Result<(), Error> {
        self.meet()?;
        Ok(self.with_control(|control| control.agree(fields))?)
    }

    fn exchange(&self, blob: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.meet()?;
        Ok(self.with_control(|control| control.exchange(blob))?)
    }

    fn with_control<T>(&self, action: impl FnOnce(&mut Control) -> T) -> T {
        action(self.shared.control().as_mut().expect("the control channel is there until the job is left"))
    }

    /// The executor of this rank's program, once all ranks have made theirs of the same plan.
    pub(crate) fn executor(
        &self,
        programs: Arc<Verified>,
        options: &Options,
        sequence: u64,
    ) -> Result<Box<dyn Executor>, Error> {
        let mut fields = Fields::default();
        fields.add("mkernel", env!("CARGO_PKG_VERSION"));
        fields.add("instance", sequence.to_string());
        fields.add("plan", fingerprint(&programs));
        fields.add("deadline", format!("{:?}", options.deadline));
        self.remote.iter().for_each(|(remote, _)| remote.describe(&mut fields));
        self.agree(&fields)?;
        let host = mkernel_sim::Options {
            deadline: options.deadline,
            trace: options.is_traced,
            network: Network::prompt(),
            ..mkernel_sim::Options::default()
        };
        let own = Shm::offer(&programs, self.rank, &host)?;
        let begun = self.remote.as_ref().map(|(remote, _)| remote.begin(&own)).transpose()?;
        let addresses = self.exchange(&blob(&own, begun.as_ref()))?;
        let finish = |((remote, side), begun): (&Way, Begun)| {
            remote.finish(begun, &addresses, &programs, side, options.deadline)
        };
        let far = self.remote.as_ref().zip(begun).map(finish).transpose()?;
        let executor = Shm::open(programs, host, Arc::clone(&self.shared.board), &addresses, far)?;
        // All have opened what they need, and nobody can open it from here on; all are connected.
        self.meet()?;
        Ok(Box::new(executor))
    }

    /// Tells all ranks of this rank's error, unless the job has a fault already, and leaves; answers what this rank reports.
    pub(crate) fn fail(mut self, error: Error) -> Error {
        let mut control = self.take_control();
        let answer = first_fault(&mut control, error, self.rank, self.step_deadline);
        leave_after(control);
        answer
    }

    /// Leaves the job: returns when all ranks do.
    pub(crate) fn leave(mut self) -> Result<(), Error> {
        self.take_control().leave().map_err(known)
    }

    fn take_control(&mut self) -> Control {
        self.stop();
        self.shared.control().take().expect("a job is left once")
    }

    fn stop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        if let Some(keeper) = self.keeper.take() {
            keeper.thread().unpark();
            // A thread that died has said so on stderr, and there is nothing left for it to do.
            let _ = keeper.join();
        }
    }
}

impl Drop for Job {
    /// Leaving without [`Job::leave`]: peers hear that this rank is lost.
    fn drop(&mut self) {
        self.stop();
    }
}

/// The board and the way to other nodes, by the control channel alone.
fn meet_first(
    control: &mut Control,
    world: &World,
    rank: Rank,
    verbs: Option<&Verbs>,
) -> Result<(Board, Option<Way>), Error> {
    let segment = |error: SegmentError| Error::Host(SimError::Segment(error));
    let remote = verbs.map(|verbs| Remote::open(verbs, world, rank)).transpose()?.flatten();
    let own = Board::offer(world, rank).map_err(segment)?;
    let begun = remote.as_ref().map(|remote| remote.begin_side(&own)).transpose()?;
    let addresses = control.exchange(&blob(&own, begun.as_ref()))?;
    let side = |(remote, begun): (Remote, Begun)| remote.side(begun, &addresses).map(|side| (remote, side));
    let remote = remote.zip(begun).map(side).transpose()?;
    // All are connected: nobody writes to a peer before.
    control.exchange(&[])?;
    let publish = remote.as_ref().map(|(_, side)| Box::new(Line(Arc::clone(side))) as Box<dyn Publish>);
    let board = Board::open(world, &own, &addresses, publish).map_err(segment)?;
    control.exchange(&[])?;
    Ok((board, remote))
}

/// Where peers find a segment, and how they connect.
fn blob(segment: &Segment, begun: Option<&Begun>) -> Vec<u8> {
    let mut blob = segment.address();
    if let Some(begun) = begun {
        blob.extend(far::offer(begun));
    }
    blob
}

/// Raises `error`, unless the job has a fault already, and waits for the word on which fault was first.
fn first_fault(control: &mut Control, error: Error, rank: Rank, limit: Duration) -> Error {
    let waited = match &error {
        Error::Fault(fault) => Some(*fault),
        _ => None,
    };
    // What is a fault of the job already, or what all ranks have found alike, needs no raising.
    let error = match error {
        Error::Bootstrap(inner) => match *inner {
            inner @ (bootstrap::Error::Fault { .. } | bootstrap::Error::Diverged(_)) => return known(inner),
            inner => Error::from(inner),
        },
        other => other,
    };
    // Memory out of reach is mostly that of a process that is gone: its connection says so within moments.
    if matches!(error, Error::Host(SimError::Segment(SegmentError::Open { .. }))) && hear(control, GRACE).is_err() {
        return error;
    }
    // An abort is the answer to a fault that has been heard of: it is no cause.
    if control.fault().is_none() && waited.is_none_or(|fault| fault.kind != FaultKind::Aborted) {
        let record = waited.as_ref().map_or_else(|| text(&error), record::encode);
        if control.raise(&record).is_err() {
            return error;
        }
    }
    if hear(control, limit).is_err() {
        return error;
    }
    match control.fault() {
        None => error,
        Some(JobFault::Raised { rank: first, .. }) if *first == rank.0 => error,
        Some(fault) => reported(fault.clone(), waited),
    }
}

/// Steps until the job has a fault, for at most `limit`.
fn hear(control: &mut Control, limit: Duration) -> Result<(), bootstrap::Error> {
    let start = Instant::now();
    while control.fault().is_none() && start.elapsed() < limit {
        control.step(BEAT)?;
    }
    Ok(())
}

/// Lets the last messages out. Without a word on the fault rank 0 does not answer, and nobody waits for its farewell.
fn leave_after(control: Control) {
    if control.fault().is_some() {
        // The first fault is what is reported; leaving after it has nothing to add.
        let _ = control.leave();
    }
}

/// A fault of the job as the error to report.
fn reported(fault: JobFault, waited: Option<Fault>) -> Error {
    if let JobFault::Raised { record, .. } = &fault
        && let Some(fault) = record::decode(record)
    {
        return Error::Fault(fault);
    }
    let waited = waited.filter(|fault| fault.kind == FaultKind::Aborted && fault.cell.is_some());
    Error::Job { fault, waited: waited.map(Box::new) }
}

/// An error of the control channel as the error to report.
fn known(error: bootstrap::Error) -> Error {
    match error {
        bootstrap::Error::Fault { fault, .. } => reported(fault, None),
        other => other.into(),
    }
}

/// An error in words, as a record.
fn text(error: &Error) -> Vec<u8> {
    let mut record = error.to_string();
    let mut end = record.len().min(MAX_RECORD);
    while !record.is_char_boundary(end) {
        end -= 1;
    }
    record.truncate(end);
    record.into_bytes()
}

/// A hash of everything that the programs say.
fn fingerprint(programs: &Verified) -> String {
    struct Hash(blake3::Hasher);

    impl fmt::Write for Hash {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }

    let mut hash = Hash(blake3::Hasher::new());
    fmt::write(&mut hash, format_args!("{:?}", programs.programs())).expect("a hash takes any text");
    hash.0.finalize().to_hex().to_string()
}
