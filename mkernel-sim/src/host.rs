//! What all agents of a host executor share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mkernel_core::{Rank, Scope, Verified};

use crate::cells::Cells;
use crate::error::SimError;
use crate::memory::Memory;

/// Programs, memory, cells and byte counters of every rank.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) verified: Arc<Verified>,
    pub(crate) memory: Memory,
    pub(crate) cells: Cells,
    pub(crate) traffic: Traffic,
    pub(crate) poison: bool,
}

impl Host {
    /// All ranks in this process.
    pub(crate) fn new(verified: Arc<Verified>, first_epoch: u64, poison: bool) -> Result<Host, SimError> {
        check(&verified)?;
        let memory = Memory::new(&verified, poison)?;
        let cells = Cells::new(&verified, first_epoch)?;
        Ok(Host::of(verified, memory, cells, poison))
    }

    /// All ranks on memory and cells that are there already.
    pub(crate) fn of(verified: Arc<Verified>, memory: Memory, cells: Cells, poison: bool) -> Host {
        let traffic = Traffic::new(&verified);
        Host { verified, memory, cells, traffic, poison }
    }
}

/// Refuses programs of a part of the world.
pub(crate) fn check(verified: &Verified) -> Result<(), SimError> {
    if verified.scope() != Scope::World {
        return Err(SimError::MissingRanks { hosted: verified.programs().len(), world: verified.world().size() });
    }
    Ok(())
}

/// Payload bytes that left each rank, counted where they are moved.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// The node of each rank.
    nodes: Vec<u32>,
    intra: Vec<AtomicU64>,
    inter: Vec<AtomicU64>,
}

impl Traffic {
    fn new(verified: &Verified) -> Traffic {
        let world = verified.world();
        let zeros = || world.ranks().map(|_| AtomicU64::new(0)).collect();
        Traffic { nodes: world.ranks().map(|r| world.node_of(r).0).collect(), intra: zeros(), inter: zeros() }
    }

    /// Counts bytes that `from` wrote or sent to `to`; bytes that stay on a rank do not count.
    pub(crate) fn count(&self, from: Rank, to: Rank, bytes: u64) {
        let (from, to) = (from.0 as usize, to.0 as usize);
        if from != to {
            let tier = if self.nodes[from] == self.nodes[to] { &self.intra } else { &self.inter };
            tier[from].fetch_add(bytes, Relaxed);
        }
    }

    /// The bytes since the last call: within nodes and between them, by rank.
    pub(crate) fn take(&self) -> (Vec<u64>, Vec<u64>) {
        let take = |tier: &[AtomicU64]| tier.iter().map(|bytes| bytes.swap(0, Relaxed)).collect();
        (take(&self.intra), take(&self.inter))
    }
}
