//! Memory of all virtual ranks on one GPU: a buffer per region, cells beside them.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use mkernel_core::{Addresses, Cell, CellId, Rank, RankAddresses, Span, Verified};

use super::error::CudaError;
use super::memory::{Buffer, Rows};

/// The regions and cells of every rank of a world, on one GPU.
#[derive(Debug)]
pub struct Heap {
    ranks: Vec<RankMemory>,
}

#[derive(Debug)]
struct RankMemory {
    regions: Vec<Buffer>,
    cells: Buffer,
}

impl Heap {
    /// Allocates everything, regions filled with NaN, cells as they are before `first_epoch`.
    ///
    /// # Errors
    /// [`CudaError::Driver`] where memory runs out.
    pub fn new(context: &Arc<CudaContext>, verified: &Verified, first_epoch: u64) -> Result<Heap, CudaError> {
        let mut ranks = Vec::new();
        for program in verified.programs() {
            let mut regions = Vec::new();
            for region in &program.regions {
                let bytes = usize::try_from(region.bytes).expect("addresses have 64 bits");
                let mut buffer = Buffer::new(context, bytes)?;
                buffer.fill(0xff)?;
                regions.push(buffer);
            }
            let initial: Vec<u64> = program.cells.iter().map(|c: &Cell| c.initial(first_epoch)).collect();
            ranks.push(RankMemory { regions, cells: Buffer::of(context, &initial)? });
        }
        Ok(Heap { ranks })
    }

    /// Where everything is.
    pub fn addresses(&self) -> Addresses {
        let mut addresses = Addresses::new(self.ranks.len() as u32);
        for (rank, memory) in self.ranks.iter().enumerate() {
            let regions = memory.regions.iter().map(Buffer::address).collect();
            addresses.set(Rank(rank as u32), RankAddresses { regions, cells: memory.cells.address() });
        }
        addresses
    }

    /// Writes `bytes` row after row.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the span is not in this heap or the lengths differ.
    pub fn write(&mut self, span: &Span, bytes: &[u8]) -> Result<(), CudaError> {
        self.ranks[span.rank.0 as usize].regions[span.region.0 as usize].write_rows(&rows_of(span), bytes)
    }

    /// Reads `bytes` row after row.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// As [`Heap::write`].
    pub fn read(&self, span: &Span, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.ranks[span.rank.0 as usize].regions[span.region.0 as usize].read_rows(&rows_of(span), bytes)
    }

    /// The value of a cell.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If there is no such cell.
    pub fn cell(&self, rank: Rank, cell: CellId) -> Result<u64, CudaError> {
        let mut bytes = [0; 8];
        self.ranks[rank.0 as usize].cells.read(u64::from(cell.0) * 8, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

fn rows_of(span: &Span) -> Rows {
    let bytes = usize::try_from(span.row_bytes).expect("addresses have 64 bits");
    if span.is_contiguous() {
        let all = usize::try_from(span.bytes()).expect("addresses have 64 bits");
        return Rows { offset: span.offset, count: 1, bytes: all, stride: span.bytes() };
    }
    Rows { offset: span.offset, count: span.rows as usize, bytes, stride: span.stride }
}
