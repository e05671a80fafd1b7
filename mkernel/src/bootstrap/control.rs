//! Joining a job, and the control channel that stays open while it runs.
//!
//! # Teardown
//! Every rank calls [`Control::leave`] when it needs nobody any more. Rank 0 waits for all of them, says farewell, and
//! closes last: no connection of a rank goes away while another may still hear of a fault. After a fault there is
//! nothing to agree on: a rank says that it leaves and closes at once. Dropping a [`Control`] without leaving closes its
//! connections, and the other ranks report this one as lost.

use std::fmt::Debug;
use std::time::Duration;

use mkernel_core::{Rank, World};

use super::Event;
use super::client::Client;
use super::error::{Error, Refusals};
use super::fault::{JobFault, MAX_RECORD};
use super::fields::{Fields, compare};
use super::frame::{MAX_BLOB, MAX_JOB};
use super::server::Server;
use super::setup::{MAX_RANKS, Setup};

/// How long the calls that wait look at the sockets before they look at their own state.
const LOOK: Duration = Duration::from_millis(50);

/// One end of the control channel: rank 0's or a member's.
pub(crate) trait End: Debug + Send {
    fn step(&mut self, wait: Duration) -> Result<Option<Event>, Error>;
    fn share(&mut self, blob: Vec<u8>);
    fn raise(&mut self, record: Vec<u8>);
    /// Tells rank 0; what rank 0 has to say it says itself.
    fn account(&mut self, blob: Vec<u8>);
    /// Ranks that rank 0 may still hear from; none on a member.
    fn staying(&self) -> usize;
    fn leave(&mut self);
    /// Lets the last messages out, then closes.
    fn finish(&mut self);
    fn refusals(&self) -> Refusals;
}

/// A rank's place in a running job.
#[derive(Debug)]
pub struct Control {
    channel: Channel,
    rank: Rank,
    world: World,
}

/// An end, and what it reported.
#[derive(Debug)]
struct Channel {
    end: Box<dyn End>,
    fault: Option<JobFault>,
    /// What ranks said that they were doing, kept for whoever asks later than it comes.
    accounts: Vec<(u32, Vec<u8>)>,
    is_sharing: bool,
}

/// Meets the other ranks of the job: returns when all have arrived.
///
/// # Errors
/// Rank 0 cannot listen or is not found, this process is refused, or the job has a fault before it starts: ranks that do
/// not arrive before the start deadline, a rank that goes away, ranks of a node that are not consecutive.
pub fn join(setup: &Setup) -> Result<Control, Error> {
    let place = setup.place;
    if !(1..=MAX_RANKS).contains(&place.world_size) || place.rank >= place.world_size || setup.ports.is_empty() {
        return Err(Error::Place(place));
    }
    within("the name of the job", setup.job.as_bytes(), MAX_JOB)?;
    let end: Box<dyn End> =
        if place.rank == 0 { Box::new(Server::listen(setup)?) } else { Box::new(Client::connect(setup)?) };
    let mut channel = Channel { end, fault: None, accounts: Vec::new(), is_sharing: false };
    match channel.wait_for(|event| match event {
        Event::Joined { world } => Some(world),
        _ => None,
    }) {
        Ok(world) => Ok(Control { channel, rank: Rank(place.rank), world }),
        Err(error) => {
            channel.end.leave();
            channel.end.finish();
            Err(error)
        }
    }
}

impl Control {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The ranks of each node.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The job's fault, once there is one.
    pub fn fault(&self) -> Option<&JobFault> {
        self.channel.fault.as_ref()
    }

    /// Moves what there is to move and returns the next event, waiting for one up to `wait`; on a member that has a fault
    /// it no longer waits. Call it often enough to hear of faults in time; on rank 0 it also carries the faults of others.
    ///
    /// # Errors
    /// A socket fails in a way that is no closed connection, or there are no random bytes.
    pub fn step(&mut self, wait: Duration) -> Result<Option<Event>, Error> {
        self.channel.step(wait)
    }

    /// Begins an exchange: once every rank has begun it, [`Control::step`] returns [`Event::Shared`] with the blob of
    /// each. Nobody waits until then.
    ///
    /// # Errors
    /// The blob is larger than [`MAX_BLOB`], the last exchange is not complete, or the job has a fault.
    pub fn share(&mut self, blob: &[u8]) -> Result<(), Error> {
        within("a blob", blob, MAX_BLOB)?;
        self.channel.check()?;
        if std::mem::replace(&mut self.channel.is_sharing, true) {
            return Err(Error::Sharing);
        }
        self.channel.end.share(blob.to_vec());
        Ok(())
    }

    /// Gives every rank the blob of every rank. All ranks call it, in the same order.
    ///
    /// # Errors
    /// As [`Control::share`], and the faults that come up while it waits, such as a rank that does not call it before the
    /// step deadline.
    pub fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.share(blob)?;
        self.channel.wait_for(|event| match event {
            Event::Shared { blobs } => Some(blobs),
            _ => None,
        })
    }

    /// Checks that all ranks have the same fields. All ranks call it, and all get the same answer.
    ///
    /// # Errors
    /// [`Error::Diverged`] names the first field on which ranks differ and the ranks on each side. Otherwise as
    /// [`Control::exchange`].
    pub fn agree(&mut self, fields: &Fields) -> Result<(), Error> {
        let blobs = self.exchange(&fields.encode())?;
        let decode = |(rank, blob): (u32, Vec<u8>)| Fields::decode(&blob).ok_or(Error::NoFields { rank });
        let ranks = (0..).zip(blobs).map(decode).collect::<Result<Vec<_>, _>>()?;
        compare(&ranks).map_err(Error::Diverged)
    }

    /// Ends the job with a record that every rank hears as [`JobFault::Raised`], unless another fault came first. Keep
    /// stepping until the fault is heard, or leave.
    ///
    /// # Errors
    /// The record is larger than [`MAX_RECORD`].
    pub fn raise(&mut self, record: &[u8]) -> Result<(), Error> {
        within("a fault record", record, MAX_RECORD)?;
        self.channel.end.raise(record.to_vec());
        Ok(())
    }

    /// Tells rank 0, after a fault, what this rank was doing; rank 0 finds it in [`Control::take_accounts`].
    ///
    /// # Errors
    /// The account is larger than [`MAX_BLOB`].
    pub fn account(&mut self, blob: &[u8]) -> Result<(), Error> {
        within("an account", blob, MAX_BLOB)?;
        self.channel.end.account(blob.to_vec());
        Ok(())
    }

    /// The accounts that rank 0 has heard, each with its rank; taken once.
    pub fn take_accounts(&mut self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut self.channel.accounts)
    }

    /// How many ranks are still there for rank 0 to hear; none on another rank.
    pub fn staying(&self) -> usize {
        self.channel.end.staying()
    }

    /// Leaves the job: returns when all ranks have, or at once after a fault.
    ///
    /// # Errors
    /// The job has a fault, such as a rank that does not leave before the step deadline.
    pub fn leave(mut self) -> Result<(), Error> {
        self.channel.end.leave();
        let left = self.channel.wait_for(|event| (event == Event::Closed).then_some(()));
        self.channel.end.finish();
        left
    }
}

impl Channel {
    fn step(&mut self, wait: Duration) -> Result<Option<Event>, Error> {
        let event = self.end.step(wait)?;
        match &event {
            Some(Event::Fault(fault)) => self.fault = Some(fault.clone()),
            Some(Event::Account { rank, blob }) => self.accounts.push((*rank, blob.clone())),
            Some(Event::Shared { .. }) => self.is_sharing = false,
            _ => {}
        }
        Ok(event)
    }

    fn wait_for<T>(&mut self, mut wanted: impl FnMut(Event) -> Option<T>) -> Result<T, Error> {
        loop {
            self.check()?;
            if let Some(found) = self.step(LOOK)?.and_then(&mut wanted) {
                return Ok(found);
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        match &self.fault {
            None => Ok(()),
            Some(fault) => Err(Error::Fault { fault: fault.clone(), refusals: self.end.refusals() }),
        }
    }
}

fn within(what: &'static str, bytes: &[u8], limit: usize) -> Result<(), Error> {
    if bytes.len() > limit { Err(Error::TooLarge { what, bytes: bytes.len(), limit }) } else { Ok(()) }
}
