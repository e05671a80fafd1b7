//! In a build without host executors no process can be one rank of a job, and no value of [`Job`] exists.

use std::sync::Arc;
use std::time::Duration;

use mkernel_core::{Executor, Rank, Verified, World};

use crate::bootstrap::Fields;
use crate::config::Config;
use crate::error::Error;
use crate::session::{Options, Verbs};
use crate::signals::Flags;

/// Never made.
#[derive(Debug)]
pub(crate) enum Job {}

impl Job {
    pub(crate) fn join(_: &Config, _: Duration, _: Option<&Verbs>) -> Result<Job, Error> {
        Err(Error::NoExecutor)
    }

    pub(crate) fn heed(&self, _: Flags, _: Box<dyn Fn(&str) + Send>) {
        match *self {}
    }

    pub(crate) fn world(&self) -> &World {
        match *self {}
    }

    pub(crate) fn rank(&self) -> Rank {
        match *self {}
    }

    pub(crate) fn meet(&self) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn agree(&self, _: &Fields) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn executor(&self, _: Arc<Verified>, _: &Options, _: u64) -> Result<Box<dyn Executor>, Error> {
        match *self {}
    }

    pub(crate) fn fail(self, _: Error) -> Error {
        match self {}
    }

    pub(crate) fn leave(self) -> Result<(), Error> {
        match self {}
    }
}
