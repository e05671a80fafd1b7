//! Where one process sees the memory of the ranks: regions and cells as plain addresses.
//!
//! Programs name memory by rank, region and offset. Whoever maps it (a heap of one GPU, of a node, of the host) hands
//! this table to what needs addresses: the encoder of device programs and transports that copy by address. It owns
//! nothing; the owner keeps the memory alive for as long as anything made from the table runs.

use crate::region::Span;
use crate::signal::CellId;
use crate::world::Rank;

/// The memory of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankAddresses {
    /// Address of each region, by id.
    pub regions: Vec<u64>,
    /// Address of cell 0; the others follow it, 8 bytes each.
    pub cells: u64,
}

/// The memory of all ranks that are mapped here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    ranks: Vec<Option<RankAddresses>>,
}

impl Addresses {
    /// A table of `ranks` ranks, none of them mapped.
    pub fn new(ranks: u32) -> Addresses {
        Addresses { ranks: vec![None; ranks as usize] }
    }

    /// Says where the memory of `rank` is.
    ///
    /// # Panics
    /// If the table has no such rank.
    pub fn set(&mut self, rank: Rank, addresses: RankAddresses) {
        self.ranks[rank.0 as usize] = Some(addresses);
    }

    /// The address of a span's first byte, if its rank is mapped and has the region.
    pub fn span(&self, span: &Span) -> Option<u64> {
        self.rank(span.rank)?.regions.get(span.region.0 as usize)?.checked_add(span.offset)
    }

    /// The address of a cell, if its rank is mapped.
    pub fn cell(&self, rank: Rank, cell: CellId) -> Option<u64> {
        self.rank(rank)?.cells.checked_add(8 * u64::from(cell.0))
    }

    fn rank(&self, rank: Rank) -> Option<&RankAddresses> {
        self.ranks.get(rank.0 as usize)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::RegionId;

    #[test]
    fn only_mapped_memory_has_an_address() {
        let mut addresses = Addresses::new(2);
        addresses.set(Rank(1), RankAddresses { regions: vec![0x1000], cells: 0x100 });
        assert_eq!(addresses.span(&Span::flat(Rank(1), RegionId(0), 24, 8)), Some(0x1018));
        assert_eq!(addresses.cell(Rank(1), CellId(3)), Some(0x118));
        assert_eq!(addresses.span(&Span::flat(Rank(0), RegionId(0), 24, 8)), None);
        assert_eq!(addresses.span(&Span::flat(Rank(1), RegionId(1), 24, 8)), None);
        assert_eq!(addresses.cell(Rank(2), CellId(0)), None);
    }
}
