//! In a build without RDMA no rank of another node is reached, and no value of [`Remote`] exists.

use std::sync::Arc;
use std::time::Duration;

use mkernel_core::{Rank, Verified, World};
use mkernel_sim::Segment;
use mkernel_sim::board::{self, Publish};
use mkernel_sim::shm::Far;

use crate::bootstrap::Fields;
use crate::error::Error;
use crate::session::Verbs;

/// Never made.
#[derive(Debug)]
pub(crate) enum Remote {}

/// Never made.
#[derive(Debug)]
pub(crate) enum Begun {}

/// Never made.
#[derive(Debug)]
pub(crate) enum Side {}

impl Remote {
    pub(crate) fn open(_: &Verbs, _: &World, _: Rank) -> Result<Option<Remote>, Error> {
        Err(Error::NoExecutor)
    }

    pub(crate) fn describe(&self, _: &mut Fields) {
        match *self {}
    }

    pub(crate) fn begin_side(&self, _: &Segment) -> Result<Begun, Error> {
        match *self {}
    }

    pub(crate) fn side(&self, _: Begun, _: &[Vec<u8>]) -> Result<Arc<Side>, Error> {
        match *self {}
    }

    pub(crate) fn begin(&self, _: &Segment) -> Result<Begun, Error> {
        match *self {}
    }

    pub(crate) fn finish(
        &self,
        _: Begun,
        _: &[Vec<u8>],
        _: &Verified,
        _: &Arc<Side>,
        _: Duration,
    ) -> Result<Far, Error> {
        match *self {}
    }
}

pub(crate) fn offer(begun: &Begun) -> Vec<u8> {
    match *begun {}
}

/// Never made.
#[derive(Debug)]
pub(crate) struct Line(pub(crate) Arc<Side>);

impl Publish for Line {
    fn publish(&self, _: [u64; board::WORDS]) {
        match *self.0 {}
    }

    fn broken(&self) -> Option<(Rank, u32)> {
        match *self.0 {}
    }
}
