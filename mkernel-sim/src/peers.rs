//! What a launch of one rank knows of the launches of the others.

use std::sync::Arc;
use std::time::Duration;

use mkernel_core::{Fault, FaultKind, Rank};

use crate::board::{Apart, Board, Pulses};
use crate::watch::Watch;

/// The board, and how long a peer may stand still.
#[derive(Debug)]
pub(crate) struct Peers {
    own: Rank,
    board: Arc<Board>,
    /// A peer whose pulse stands still for this long has stopped, as far as the search for a cause is concerned.
    still: Duration,
}

/// What was last seen.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    peers: &'a Peers,
    pulses: Pulses<'a>,
    own: u64,
    others: u64,
}

impl Peers {
    /// The peers of a launch in which nothing may stand still for longer than `deadline`.
    pub(crate) fn new(board: Arc<Board>, deadline: Duration) -> Peers {
        Peers { own: board.rank(), board, still: deadline / 2 }
    }

    pub(crate) fn own(&self) -> Rank {
        self.own
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    pub(crate) fn look(&self) -> Look<'_> {
        Look { peers: self, pulses: Pulses::new(&self.board), own: 0, others: self.board.progress() }
    }
}

impl Look<'_> {
    /// Tells the others that this launch goes on, and the watch that theirs do; answers whether the abort word is up.
    pub(crate) fn is_aborted(&mut self, watch: &Watch) -> bool {
        self.peers.board.beat();
        let own = watch.progress();
        if std::mem::replace(&mut self.own, own) != own {
            self.peers.board.progressed();
            self.others = self.others.wrapping_add(1);
        }
        let others = self.peers.board.progress();
        if std::mem::replace(&mut self.others, others) != others {
            watch.moved(watch.now_us());
            self.own = watch.progress();
        }
        // Looked at all the while, so that a pulse's age is known when it matters.
        self.pulses.stopped(self.peers.still).for_each(drop);
        self.peers.board.is_aborted()
    }

    /// The fault of a rank of another node that cannot be reached any more.
    pub(crate) fn broken(&self) -> Option<Fault> {
        let (rank, status) = self.peers.board.broken()?;
        Some(Apart::Broken(rank, status).fault(self.peers.own))
    }

    /// The fault of a wait that lasted too long: if a process has stopped, it is the cause.
    pub(crate) fn blame(&mut self, fault: Fault) -> Fault {
        match self.pulses.stopped(self.peers.still).next() {
            Some(peer) if fault.kind == FaultKind::Deadline => Fault { peer: Some(peer), ..fault },
            _ => fault,
        }
    }
}
