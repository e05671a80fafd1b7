//! Why a job did not start, or ended.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use super::fault::JobFault;
use super::fields::Divergence;
use super::frame::Reason;
use super::member::Failure;
use super::setup::{MAX_RANKS, Place};

/// Why a job did not start, or ended.
#[derive(Debug, Error)]
pub enum Error {
    /// The place is not one in a job of 1 to [`MAX_RANKS`] ranks, or there is no port to meet at.
    #[error("no job of 1 to {MAX_RANKS} ranks with a port to meet at has the place {0:?}")]
    Place(Place),
    /// Something that goes on the wire is larger than the protocol allows.
    #[error("{what} has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },
    /// The operating system gave no random bytes for a challenge.
    #[error("no random bytes for a challenge")]
    Random(#[source] getrandom::Error),
    /// Rank 0 cannot listen. If the port is in use, another job or the launcher has it: choose another with MKERNEL_PORT.
    #[error(
        "rank 0 cannot listen at {host} on any of the ports {ports:?} (MKERNEL_ADDR and MKERNEL_PORT choose another)"
    )]
    Listen {
        /// Rank 0's host.
        host: String,
        /// The ports that were tried.
        ports: Vec<u16>,
        /// The last cause.
        #[source]
        source: io::Error,
    },
    /// Rank 0 was not found before the start deadline.
    #[error(
        "rank 0 was not found at {host}, ports {ports:?}, within {waited:?} \
         (is rank 0 running, and has the job not started without this process?)"
    )]
    Unreachable {
        /// Rank 0's host.
        host: String,
        /// The ports that were tried.
        ports: Vec<u16>,
        /// How long.
        waited: Duration,
        /// How the last try ended.
        #[source]
        source: Attempt,
    },
    /// The connection to rank 0 did not become a place in the job, and trying again would not help.
    #[error("no place in the job at {address}")]
    Join {
        /// Address of rank 0.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: Failure,
    },
    /// The job has a fault; every rank reports the same one.
    #[error("{fault}{refusals}")]
    Fault {
        /// The first fault.
        fault: JobFault,
        /// Whom rank 0 refused; empty on other ranks.
        refusals: Refusals,
    },
    /// An exchange was begun before the last one was complete.
    #[error("the last exchange is not complete: step until it is before the next")]
    Sharing,
    /// The ranks differ in something that must be equal.
    #[error("{0}")]
    Diverged(Divergence),
    /// A rank took part in the comparison with something that is no list of fields.
    #[error("rank {rank} sent no fields to compare: its program takes another step here")]
    NoFields {
        /// The rank.
        rank: u32,
    },
    /// A socket refused an option that the protocol relies on.
    #[error("a socket failed")]
    Socket(#[source] io::Error),
}

/// How one try to reach rank 0 ended.
#[derive(Debug, Error)]
pub enum Attempt {
    /// The name of its host has no address.
    #[error("the name has no address")]
    Resolve(#[source] io::Error),
    /// No connection.
    #[error("no connection to {address}")]
    Connect {
        /// The address tried.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A connection, but no place in the job.
    #[error("no place in the job at {address}")]
    Join {
        /// The address tried.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: Failure,
    },
}

/// A connection that rank 0 refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Where it came from.
    pub address: SocketAddr,
    /// The rank it claimed, if it got so far. A claim, unless the reason is one that follows the proof.
    pub claimed_rank: Option<u32>,
    /// Why.
    pub reason: Reason,
}

/// The first connections that rank 0 refused, and how many there were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    first: Vec<Refusal>,
    count: u64,
}

impl Refusals {
    /// Most refusals that are kept.
    const KEPT: usize = 8;

    pub(crate) fn add(&mut self, refusal: Refusal) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(refusal);
        }
    }

    /// The first few.
    pub fn first(&self) -> &[Refusal] {
        &self.first
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 0 {
            return Ok(());
        }
        write!(f, "; refused {} connections:", self.count)?;
        for (index, Refusal { address, claimed_rank, reason }) in self.first.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match claimed_rank {
                Some(rank) => write!(f, "{comma} {address} as rank {rank}: {reason}")?,
                None => write!(f, "{comma} {address}: {reason}")?,
            }
        }
        if self.count > self.first.len() as u64 { f.write_str(", and others") } else { Ok(()) }
    }
}
