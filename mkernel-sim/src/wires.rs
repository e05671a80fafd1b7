//! The loopback transports of all ranks with nothing else: what carries puts, without programs that ask for them.

use std::sync::Arc;

use mkernel_core::{CellId, Rank, Span, Transport, Verified};

use crate::cells::Cells;
use crate::error::SimError;
use crate::host::Host;
use crate::loopback::Loopback;
use crate::memory::Memory;
use crate::options::Options;
use crate::shm;

/// Ends of all ranks of a world, and the memory between them.
#[derive(Debug)]
pub struct Wires {
    host: Arc<Host>,
    ends: Vec<Loopback>,
}

impl Wires {
    /// Over memory of this process.
    ///
    /// # Errors
    /// [`SimError`] if a rank is missing or memory does not suffice.
    pub fn new(verified: Arc<Verified>, options: &Options) -> Result<Wires, SimError> {
        Ok(Wires::of(Host::new(verified, options.first_epoch, options.poison)?, options))
    }

    /// Over shared memory, as between processes.
    ///
    /// # Errors
    /// [`SimError`] if a rank is missing or there is too little shared memory.
    pub fn shared(verified: Arc<Verified>, options: &Options) -> Result<Wires, SimError> {
        let ranks: Vec<Rank> = verified.world().ranks().collect();
        let segments = ranks.iter().map(|&r| shm::Shm::offer(&verified, r, options)).collect::<Result<Vec<_>, _>>()?;
        let (mut cells, mut regions) = (Vec::new(), Vec::new());
        for (program, segment) in verified.programs().iter().zip(&segments) {
            let memory = shm::reach_rank(program, options.trace, &segment.address())?;
            cells.push(memory.cells);
            regions.push(memory.regions);
        }
        let host = Host::of(verified, Memory::of(regions), Cells::of(cells), options.poison);
        Ok(Wires::of(host, options))
    }

    fn of(host: Host, options: &Options) -> Wires {
        let host = Arc::new(host);
        let end = |rank| Loopback::new(host.clone(), rank, &options.network, options.seed);
        Wires { ends: host.verified.world().ranks().map(end).collect(), host }
    }

    /// The end of a rank.
    ///
    /// # Panics
    /// If the world has no such rank.
    pub fn end(&mut self, rank: Rank) -> &mut dyn Transport {
        &mut self.ends[rank.0 as usize]
    }

    /// Reads a span, row after row.
    ///
    /// # Panics
    /// If it is out of bounds or of another length.
    pub fn read(&self, span: &Span, bytes: &mut [u8]) {
        self.host.memory.gather(span, bytes);
    }

    /// Writes a span, row after row.
    ///
    /// # Panics
    /// As [`Wires::read`].
    pub fn write(&mut self, span: &Span, bytes: &[u8]) {
        self.host.memory.scatter(span, bytes);
    }

    /// The value of a cell.
    pub fn cell(&self, rank: Rank, cell: CellId) -> u64 {
        self.host.cells.seen(rank, cell)
    }
}
