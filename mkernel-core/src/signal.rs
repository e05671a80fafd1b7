//! Signals: counters that only rise, and what a wait for one means in each epoch.
//!
//! A **cell** is a u64 in a rank's memory. Per epoch it receives a planned total of [`Cell::arrivals`]. A wait is
//! always for the whole total of the running epoch: `seen >= threshold(epoch)`, so every contribution of that epoch
//! happens before whatever follows the wait. (A wait for a part of the total would order nothing in particular:
//! contributions arrive in any order.) The epoch offsets every threshold, so nothing is reset between launches.
//!
//! A **credit** is a cell that is born holding one epoch's total ([`Born::Full`]): its wait in epoch `e` is met by the
//! contributions of epoch `e - 1`, and in the first epoch by birth.
//!
//! Comparison is by wrapping difference ([`reached`]), as for TCP sequence numbers (RFC 1982): right across the wrap of
//! u64 as long as no cell is 2^63 ahead of a waiter, which one epoch's u32 total cannot reach.

use crate::world::Rank;

/// Names a cell within one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellId(pub u32);

/// What a cell holds before the first launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Born {
    /// Nothing: waits are for arrivals of the same epoch.
    Empty,
    /// One epoch's arrivals: waits are for arrivals of the epoch before. This is a credit.
    Full,
}

/// The plan of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Sum of all amounts that are added to the cell in one epoch.
    pub arrivals: u32,
    /// What it holds before the first launch.
    pub born: Born,
}

impl Cell {
    /// The value before the launch of `first_epoch`, the first one of an instance.
    pub const fn initial(&self, first_epoch: u64) -> u64 {
        match self.born {
            Born::Empty => first_epoch.wrapping_mul(self.arrivals as u64),
            Born::Full => first_epoch.wrapping_add(1).wrapping_mul(self.arrivals as u64),
        }
    }

    /// The value that a wait in `epoch` asks for.
    pub const fn threshold(&self, epoch: u64) -> u64 {
        epoch.wrapping_add(1).wrapping_mul(self.arrivals as u64)
    }

    /// The value once all contributions of `epoch` have arrived.
    pub const fn full(&self, epoch: u64) -> u64 {
        self.initial(epoch).wrapping_add(self.arrivals as u64)
    }
}

/// Whether a cell that holds `seen` satisfies a wait for `wanted`: `seen >= wanted` across the wrap of u64.
pub const fn reached(seen: u64, wanted: u64) -> bool {
    seen.wrapping_sub(wanted) as i64 >= 0
}

/// An addition to a cell, raised once an instruction's writes are visible to the cell's rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal {
    /// The rank whose cell rises.
    pub rank: Rank,
    /// The cell.
    pub cell: CellId,
    /// By how much.
    pub amount: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_follow_each_other_across_the_wrap() {
        for arrivals in [1, 3, 100] {
            for born in [Born::Empty, Born::Full] {
                let cell = Cell { arrivals, born };
                let mut epoch = u64::MAX - 2;
                let mut value = cell.initial(epoch);
                for _ in 0..6 {
                    assert_eq!(reached(value, cell.threshold(epoch)), born == Born::Full);
                    value = value.wrapping_add(u64::from(arrivals));
                    assert_eq!(value, cell.full(epoch));
                    assert!(reached(value, cell.threshold(epoch)));
                    epoch = epoch.wrapping_add(1);
                }
            }
        }
    }
}
