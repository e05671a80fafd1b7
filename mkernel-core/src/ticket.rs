//! A ticket is one u64 that names a put: `lap:1 | put:31 | argument:32`, highest bit first.
//!
//! The device pushes tickets and the host looks the rest up in the rank's put table. **Invariant:** a ticket is one
//! aligned word, written and read by one access, so it is never seen in part. The lap bit is no part of the value: the
//! ring stamps it on the way in and strips it on the way out, so two tickets are equal whatever slot they went through.

use thiserror::Error;

crate::abi_const! {
    /// Where the fields of a ticket lie in its word.
    pub struct TicketBits {
        /// Shift of the lap bit, the commit mark of the ring.
        LAP_SHIFT = 63,
        /// Shift of the put index.
        PUT_SHIFT = 32,
        /// Width of the put index.
        PUT_BITS = 31,
        /// Width of the argument, which is the low end of the word.
        ARGUMENT_BITS = 32,
    }
}

const LAP_MASK: u64 = 1 << TicketBits::LAP_SHIFT;
const PUT_LIMIT: u32 = 1 << TicketBits::PUT_BITS;

const _: () = assert!(TicketBits::ARGUMENT_BITS == TicketBits::PUT_SHIFT);
const _: () = assert!(TicketBits::PUT_SHIFT + TicketBits::PUT_BITS == TicketBits::LAP_SHIFT);
const _: () = assert!(TicketBits::LAP_SHIFT == u64::BITS - 1);

/// A put and the argument that data chose for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// A put index that does not fit a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("put {put} does not fit a ticket: a rank's put table holds at most 2^31 puts")]
pub struct PutOutOfRange {
    /// The index that was asked for.
    pub put: u64,
}

impl Ticket {
    /// Makes the ticket of a put.
    ///
    /// # Errors
    /// [`PutOutOfRange`] if `put` is 2^31 or more. The planner numbers its puts through this, so a program that
    /// cannot be told apart by tickets is never run.
    pub const fn new(put: u64, argument: u32) -> Result<Ticket, PutOutOfRange> {
        if put >= PUT_LIMIT as u64 {
            return Err(PutOutOfRange { put });
        }
        Ok(Ticket(put << TicketBits::PUT_SHIFT | argument as u64))
    }

    /// The index into the rank's put table.
    pub const fn put(self) -> u32 {
        (self.0 >> TicketBits::PUT_SHIFT) as u32
    }

    /// The row count, within the bound that the plan gave the put.
    pub const fn argument(self) -> u32 {
        self.0 as u32
    }

    /// The word that commits this ticket in a lap.
    pub const fn stamp(self, lap: Lap) -> u64 {
        self.0 | lap.0
    }

    /// The lap and the ticket of a word; every word has exactly one reading.
    pub const fn read(word: u64) -> (Lap, Ticket) {
        (Lap(word & LAP_MASK), Ticket(word & !LAP_MASK))
    }
}

/// The parity of a trip around a ring: 1 for the first, so that zeroed memory is an empty ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap(u64);

impl Lap {
    /// The lap of a position in a ring of `1 << ring_shift` slots, `ring_shift` < 64.
    ///
    /// The number of laps in 2^64 positions is even, so parity alternates across the wrap of the position too.
    pub const fn of(position: u64, ring_shift: u32) -> Lap {
        Lap(!(position >> ring_shift) << TicketBits::LAP_SHIFT)
    }

    /// The lap before, which is also the lap after.
    pub const fn other(self) -> Lap {
        Lap(self.0 ^ LAP_MASK)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_ticket_survives_any_lap(put in 0..u64::from(PUT_LIMIT), argument: u32, position: u64, shift in 1u32..63) {
            let ticket = Ticket::new(put, argument).unwrap();
            let lap = Lap::of(position, shift);
            prop_assert_eq!(Ticket::read(ticket.stamp(lap)), (lap, ticket));
            prop_assert_eq!((u64::from(ticket.put()), ticket.argument()), (put, argument));
        }

        #[test]
        fn any_word_has_one_reading(word: u64) {
            let (lap, ticket) = Ticket::read(word);
            prop_assert_eq!(ticket.stamp(lap), word);
            prop_assert_eq!(Ticket::new(ticket.put().into(), ticket.argument()), Ok(ticket));
        }

        #[test]
        fn any_put_beyond_31_bits_is_refused(put in u64::from(PUT_LIMIT).., argument: u32) {
            prop_assert_eq!(Ticket::new(put, argument), Err(PutOutOfRange { put }));
        }

        #[test]
        fn any_position_has_the_other_lap_one_ring_later(position: u64, shift in 1u32..63) {
            let later = position.wrapping_add(1 << shift);
            prop_assert_eq!(Lap::of(later, shift), Lap::of(position, shift).other());
        }
    }

    #[test]
    fn the_last_put_fits_and_the_next_does_not() {
        let last = Ticket::new((1 << 31) - 1, u32::MAX).unwrap();
        assert_eq!(last.stamp(Lap::of(0, 1)), u64::MAX);
        assert!(Ticket::new(1 << 31, 0).is_err());
    }

    #[test]
    fn zeroed_memory_is_not_the_first_lap() {
        let (lap, _) = Ticket::read(0);
        assert_ne!(lap, Lap::of(0, 1));
    }
}
