//! Signals as immediates: every message of a put says which cell it fills and how many messages the put has.
//!
//! The receiving side counts the messages of a cell; when all are there, in whatever order, the put has landed. A cell has one
//! put per epoch, and the next epoch's put of a cell is sent after this one's was waited for, so messages of two
//! puts are never counted together.

use mkernel_core::CellId;

/// Width of the number of messages, less one.
const COUNT_BITS: u32 = 12;

/// Most messages of a put.
pub const MAX_MESSAGES: u64 = 1 << COUNT_BITS;

/// Cells that an immediate can name.
pub const MAX_CELLS: u32 = 1 << (u32::BITS - COUNT_BITS);

/// The immediate of a put's messages; `None` if there are too many of them, or the cell cannot be named.
pub fn encode(cell: CellId, messages: u64) -> Option<u32> {
    let is_fit = cell.0 < MAX_CELLS && (1..=MAX_MESSAGES).contains(&messages);
    is_fit.then(|| cell.0 << COUNT_BITS | (messages - 1) as u32)
}

/// The cell and the number of messages; every immediate has exactly one reading.
pub fn decode(immediate: u32) -> (CellId, u32) {
    (CellId(immediate >> COUNT_BITS), (immediate & (MAX_MESSAGES as u32 - 1)) + 1)
}

/// The messages that have landed, by cell.
#[derive(Debug, Default)]
pub struct Arrivals {
    landed: Vec<u32>,
}

impl Arrivals {
    /// Counts a message; answers the cell if its put has landed as a whole.
    pub fn count(&mut self, immediate: u32) -> Option<CellId> {
        let (cell, messages) = decode(immediate);
        let index = cell.0 as usize;
        if index >= self.landed.len() {
            self.landed.resize(index + 1, 0);
        }
        self.landed[index] += 1;
        let is_whole = self.landed[index] >= messages;
        if is_whole {
            self.landed[index] = 0;
        }
        is_whole.then_some(cell)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_cell_and_count_survive(cell in 0..MAX_CELLS, messages in 1..=MAX_MESSAGES) {
            prop_assert_eq!(decode(encode(CellId(cell), messages).unwrap()), (CellId(cell), messages as u32));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(encode(CellId(MAX_CELLS), 1), None);
        assert_eq!(encode(CellId(0), MAX_MESSAGES + 1), None);
        assert_eq!(encode(CellId(0), 0), None);
    }

    #[test]
    fn a_cell_rises_with_its_last_message_in_every_epoch() {
        let mut arrivals = Arrivals::default();
        let (three, one) = (encode(CellId(5), 3).unwrap(), encode(CellId(2), 1).unwrap());
        for _ in 0..2 {
            assert_eq!((arrivals.count(three), arrivals.count(three)), (None, None));
            assert_eq!(arrivals.count(one), Some(CellId(2)));
            assert_eq!(arrivals.count(three), Some(CellId(5)));
        }
    }
}
