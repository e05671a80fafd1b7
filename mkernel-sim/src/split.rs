//! One rank's transport: puts within the node by this process's own copies, puts to other nodes by whatever reaches them.

use std::sync::Arc;

use mkernel_core::transport::{Contract, Post, PostError, TransportError};
use mkernel_core::{CellId, Rank, Transport};

use crate::host::Host;
use crate::loopback::Loopback;

/// Carries puts to ranks of other nodes.
pub type FarTransport = Box<dyn Transport + Send>;

pub(crate) struct Split {
    host: Arc<Host>,
    rank: Rank,
    near: Loopback,
    far: Option<FarTransport>,
    /// Puts that `far` has taken and not retired.
    in_flight: usize,
}

impl std::fmt::Debug for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Split").field("near", &self.near).field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Split {
    pub(crate) fn new(host: Arc<Host>, rank: Rank, near: Loopback, far: Option<FarTransport>) -> Split {
        Split { host, rank, near, far, in_flight: 0 }
    }

    /// Whether ranks of other nodes write this rank's cells without waking anybody.
    pub(crate) fn is_far(&self) -> bool {
        self.far.is_some()
    }

    /// Whether another step of the proxy may do something without a new ticket.
    pub(crate) fn can_go_on(&self, waits: bool) -> bool {
        self.in_flight > 0 || (waits && self.is_far()) || self.near.can_go_on(waits)
    }
}

impl Transport for Split {
    fn contract(&self) -> Contract {
        self.far.as_ref().map_or_else(|| self.near.contract(), |far| far.contract())
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        let peer = post.target.rank;
        match &mut self.far {
            Some(far) if !self.host.verified.world().same_node(self.rank, peer) => {
                far.post(post)?;
                self.in_flight += 1;
                self.host.traffic.count(self.rank, peer, post.source.bytes());
                Ok(())
            }
            _ => self.near.post(post),
        }
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        if let Some(far) = &mut self.far {
            let before = retired.len();
            let polled = far.poll(retired);
            self.in_flight -= retired.len() - before;
            polled?;
        }
        self.near.poll(retired)
    }

    fn landed(&mut self, cells: &mut Vec<CellId>) {
        if let Some(far) = &mut self.far {
            far.landed(cells);
        }
    }
}
