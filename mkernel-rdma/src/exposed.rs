//! Where the memory of a rank is, for its own NIC or for those of its peers.

use mkernel_core::{CellId, Span};

/// Registered memory: an address, and its key on each rail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Address of the first byte, in the process of its rank.
    pub address: u64,
    /// Local keys for the rank itself, remote keys for its peers; one for each rail.
    pub keys: Vec<u32>,
}

/// The memory of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposed {
    /// Its regions, by id.
    pub regions: Vec<Place>,
    /// Its cells, 8 bytes each, from cell 0.
    pub cells: Place,
}

impl Exposed {
    /// The address and the key of a span. A span of no bytes is where the cells are.
    ///
    /// # Panics
    /// If the rank has no such region or rail: validation has proved that programs name none.
    pub fn span(&self, span: &Span, rail: u32) -> (u64, u32) {
        if span.is_empty() {
            return (self.cells.address, self.cells.keys[rail as usize]);
        }
        let region = &self.regions[span.region.0 as usize];
        (region.address + span.offset, region.keys[rail as usize])
    }

    /// The address and the key of a cell.
    ///
    /// # Panics
    /// If the rank has no such rail.
    pub fn cell(&self, cell: CellId, rail: u32) -> (u64, u32) {
        (self.cells.address + 8 * u64::from(cell.0), self.cells.keys[rail as usize])
    }
}
