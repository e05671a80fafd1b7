//! Host memory of all ranks: raw bytes that threads, or the processes of a host, share.
//!
//! # Invariant
//! Every access is inside its region: [`Memory::at`] checks it, always. No two threads touch a byte at once unless
//! both read: the only callers are the operations and transports of this crate, they touch only what a [`Verified`]
//! program lists for an instruction or a put, after its waits and before its signals, and validation has proved that
//! all those accesses are ordered by signals (a release in `Cells::add`, an acquire in `Cells::seen`) or by launch
//! boundaries. The host's own accesses take the executor by `&mut` or while no launch runs.
//!
//! Accesses go through raw pointers and never make a reference to shared bytes.
#![allow(unsafe_code)]

use std::ptr;

use mkernel_core::{Span, Verified};

use crate::block::Block;
use crate::error::SimError;

/// What dead bytes hold: a NaN in every float type, so that a stale read shows.
const POISON: u8 = 0xFF;

/// The regions of every rank of the world.
#[derive(Debug)]
pub(crate) struct Memory {
    ranks: Vec<Vec<Block>>,
}

impl Memory {
    /// Memory of this process for all regions of all ranks; poisoned or zero.
    pub(crate) fn new(verified: &Verified, poison: bool) -> Result<Memory, SimError> {
        let mut ranks = Vec::new();
        for program in verified.programs() {
            let mut blocks = Vec::new();
            for region in &program.regions {
                let missing = || SimError::Memory { rank: program.rank, region: region.name, bytes: region.bytes };
                let block = Block::zeroed(region.bytes).ok_or_else(missing)?;
                if poison {
                    fill(&block);
                }
                blocks.push(block);
            }
            ranks.push(blocks);
        }
        Ok(Memory { ranks })
    }

    /// Memory that is there already: the regions of each rank.
    pub(crate) fn of(ranks: Vec<Vec<Block>>) -> Memory {
        Memory { ranks }
    }

    /// Copies bytes `skip..skip + bytes.len()` of row `row` of a span out of memory.
    pub(crate) fn load(&self, span: &Span, row: u32, skip: u64, bytes: &mut [u8]) {
        let from = self.at(span, row, skip, bytes.len() as u64);
        // SAFETY: `at` checked that the run is inside its region; `bytes` is exclusive, hence elsewhere; no thread
        // writes the run meanwhile (module invariant).
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `bytes` into row `row` of a span, from byte `skip` of the row.
    pub(crate) fn store(&self, span: &Span, row: u32, skip: u64, bytes: &[u8]) {
        let to = self.at(span, row, skip, bytes.len() as u64);
        // SAFETY: as in `load`, with the roles swapped: no thread touches the run meanwhile.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies a whole span out of memory, row after row.
    pub(crate) fn gather(&self, span: &Span, bytes: &mut [u8]) {
        assert_eq!(bytes.len() as u64, span.bytes(), "the buffer is not of the length of {span}");
        for (row, part) in rows(span).zip(bytes.chunks_exact_mut(span.row_bytes.max(1) as usize)) {
            self.load(span, row, 0, part);
        }
    }

    /// Copies `bytes` over a whole span, row after row.
    pub(crate) fn scatter(&self, span: &Span, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, span.bytes(), "the bytes are not of the length of {span}");
        for (row, part) in rows(span).zip(bytes.chunks_exact(span.row_bytes.max(1) as usize)) {
            self.store(span, row, 0, part);
        }
    }

    /// Makes a span's bytes NaN in every float type.
    pub(crate) fn poison(&self, span: &Span) {
        for row in rows(span) {
            let to = self.at(span, row, 0, span.row_bytes);
            // SAFETY: as in `store`; `row_bytes` fits in usize since it is inside an allocation.
            unsafe { ptr::write_bytes(to, POISON, span.row_bytes as usize) }
        }
    }

    /// The address of `len` bytes of a row, checked to be inside the row and the region.
    fn at(&self, span: &Span, row: u32, skip: u64, len: u64) -> *mut u8 {
        let block = &self.ranks[span.rank.0 as usize][span.region.0 as usize];
        let in_row = skip.checked_add(len).is_some_and(|end| end <= span.row_bytes) && row < span.rows;
        let start = u64::from(row).checked_mul(span.stride).and_then(|o| o.checked_add(span.offset)?.checked_add(skip));
        let fits = |start: &u64| start.checked_add(len).is_some_and(|end| end <= block.len() as u64);
        let start = start.filter(|s| in_row && fits(s));
        let start = start.unwrap_or_else(|| panic!("row {row} of {span}, bytes {skip} + {len}: out of bounds"));
        // SAFETY: `start` is at most the block's length.
        unsafe { block.base().add(start as usize) }
    }
}

/// Makes a block that nobody else uses yet NaN in every float type.
pub(crate) fn fill(block: &Block) {
    // SAFETY: the block is of this length, and the caller says that it is not shared yet.
    unsafe { ptr::write_bytes(block.base(), POISON, block.len()) }
}

/// The rows of a span that hold bytes.
fn rows(span: &Span) -> std::ops::Range<u32> {
    0..if span.is_empty() { 0 } else { span.rows }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_core::{ProgramBuilder, Rank, RegionId, World, validate};

    fn memory(bytes: u64) -> Memory {
        let mut builder = ProgramBuilder::new(&World::new(&[1]).unwrap(), Rank(0));
        builder.region("r", bytes);
        Memory::new(&validate(vec![builder.finish()]).unwrap(), true).unwrap()
    }

    #[test]
    fn fresh_memory_is_nan_until_it_is_written() {
        let memory = memory(12);
        let span = Span { rank: Rank(0), region: RegionId(0), offset: 2, rows: 2, row_bytes: 3, stride: 5 };
        memory.scatter(&span, &[1, 2, 3, 4, 5, 6]);
        let mut all = [0; 12];
        memory.gather(&Span::flat(Rank(0), RegionId(0), 0, 12), &mut all);
        assert_eq!(all, [255, 255, 1, 2, 3, 255, 255, 4, 5, 6, 255, 255]);
        memory.poison(&span);
        memory.gather(&Span::flat(Rank(0), RegionId(0), 0, 12), &mut all);
        assert_eq!(all, [255; 12]);
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn one_byte_beyond_a_region_is_refused() {
        memory(12).poison(&Span::flat(Rank(0), RegionId(0), 1, 12));
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn an_offset_that_wraps_is_refused() {
        memory(12).poison(&Span::flat(Rank(0), RegionId(0), u64::MAX - 3, 8));
    }
}
