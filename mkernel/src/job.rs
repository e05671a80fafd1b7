//! One rank's place in a job whose ranks are processes of one host, or of several that RDMA joins. A job keeps one thread,
//! the keeper.
//!
//! Every rank reports the same fault: the first that rank 0 heard of.

mod keeper;

use std::fmt;
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mkernel_core::{Executor, Fault, FaultKind, Rank, Verified, World};
use mkernel_sim::board::Publish;
use mkernel_sim::{Account, Board, Network, Segment, SegmentError, Shm, SimError, first_cause};

use crate::bootstrap::{self, Control, Fields, JobFault, MAX_RECORD, join, record};
use crate::config::{Config, Launcher};
use crate::error::Error;
use crate::far::{self, Begun, Line, Remote, Side};
use crate::session::{Options, Verbs};
use crate::signals::Flags;
use keeper::{BEAT, Keeper};

/// How long a rank waits to hear why a peer's memory is out of reach before it raises that itself.
const GRACE: Duration = Duration::from_millis(500);

/// The ranks of other nodes, and the side channel to them.
type Way = (Remote, Arc<Side>);
/// How long rank 0 waits for what the others were doing when all stood still.
const ANSWER: Duration = Duration::from_secs(1);

/// A rank that has met the others.
#[derive(Debug)]
pub(crate) struct Job {
    keeper: Keeper,
    world: World,
    rank: Rank,
    /// How long a peer's pulse may stand still.
    deadline: Duration,
    /// How long to wait for rank 0's word on which fault was first.
    step_deadline: Duration,
    remote: Option<Way>,
}

impl Job {
    /// Meets the other ranks, and returns when all have arrived.
    pub(crate) fn join(config: &Config, deadline: Duration, verbs: Option<&Verbs>) -> Result<Job, Error> {
        tracing::debug!("\n{config}");
        // Who sets plain variables may well start a rank and end.
        let launcher = matches!(config.launcher, Launcher::Torchrun | Launcher::OpenMpi | Launcher::Slurm);
        let launcher = launcher.then(parent_id);
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
        let keeper = Keeper::start(control, board, launcher)?;
        Ok(Job { keeper, world, rank, deadline, step_deadline: config.setup.step_deadline, remote })
    }

    /// From here on the keeper looks at the signals.
    pub(crate) fn heed(&self, signals: Flags, say: Box<dyn Fn(&str) + Send>) {
        self.keeper.heed(signals, say);
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// Waits until all ranks are here, however long they work before.
    pub(crate) fn meet(&self) -> Result<(), Error> {
        self.keeper.board().meet(self.deadline).map_err(|apart| apart.fault(self.rank).into())
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
        action(self.keeper.control().as_mut().expect("the control channel is there until the job is left"))
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
        fields.add("trace", options.is_traced.to_string());
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
        let executor = Shm::open(programs, host, Arc::clone(self.keeper.board()), &addresses, far)?;
        // All have opened what they need, and nobody can open it from here on; all are connected.
        self.meet()?;
        Ok(Box::new(executor))
    }

    /// Tells all ranks of this rank's error, unless the job has a fault already, and leaves; answers what this rank reports.
    pub(crate) fn fail(mut self, error: Error) -> Error {
        let mut control = self.keeper.take_control();
        let answer = match first_fault(&mut control, error, self.rank, self.step_deadline) {
            Error::Fault(fault) if matches!(fault.kind, FaultKind::Deadline | FaultKind::FifoFull) => {
                self.stuck(fault, &mut control)
            }
            other => other,
        };
        leave_after(control);
        answer
    }

    /// Everything stood still: rank 0 hears what every rank was doing, and finds the first cause.
    fn stuck(&self, fault: Fault, control: &mut Control) -> Error {
        let board = self.keeper.board();
        let mut accounts: Vec<Account> = board.account().into_iter().collect();
        if self.rank != Rank(0) {
            // One that is too large to send is still this rank's own error.
            let sent = accounts.iter().try_for_each(|account| control.account(&account.encode()));
            tracing::debug!(?sent, "account");
            return Error::Stuck { fault, accounts };
        }
        let start = Instant::now();
        while control.staying() > 0 && start.elapsed() < ANSWER {
            if control.step(BEAT).is_err() {
                break;
            }
        }
        let told = control.take_accounts().into_iter();
        accounts
            .extend(told.filter_map(|(rank, blob)| Account::decode(&blob).filter(|account| account.rank.0 == rank)));
        accounts.sort_by_key(|account| account.rank);
        let cause = board.programs().and_then(|programs| first_cause(&programs, &accounts));
        Error::Stuck { fault: cause.unwrap_or(fault), accounts }
    }

    /// Leaves the job: returns when all ranks do.
    pub(crate) fn leave(mut self) -> Result<(), Error> {
        let control = self.keeper.take_control();
        self.keeper.let_signals_end();
        control.leave().map_err(known)
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
    let is_abort = waited.is_some_and(|fault| fault.kind == FaultKind::Aborted);
    if control.fault().is_none() && !is_abort {
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
        Some(JobFault::Raised { rank: first, .. }) if *first == rank.0 && !is_abort => error,
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
