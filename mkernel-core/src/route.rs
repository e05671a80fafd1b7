//! Which queue pair, and so which NIC, carries a put: the one function that sender, receiver and tests share.
//!
//! Between two ranks there are `rails * queues` queue pairs. A put takes the one that its cell names, so a cell is bound to
//! one queue pair for ever, and neighbouring cells spread over rails first, then over queue pairs of a rail.

use crate::signal::CellId;

/// Queue pairs between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routes {
    rails: u32,
    queues: u32,
}

/// Most NICs of a rank.
pub const MAX_RAILS: u32 = 16;

/// Most queue pairs to one peer on one rail.
pub const MAX_QUEUES: u32 = 64;

/// There is no such set of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rails} rails of {queues} queue pairs: use 1 to {MAX_RAILS} rails of 1 to {MAX_QUEUES} queue pairs per peer")]
pub struct NoRoute {
    /// Rails asked for.
    pub rails: u32,
    /// Queue pairs per rail asked for.
    pub queues: u32,
}

/// Where a put goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Which NIC, the same number at both ends.
    pub rail: u32,
    /// Which queue pair of the peer on that rail.
    pub queue: u32,
}

impl Routes {
    /// `queues` queue pairs to each peer on each of `rails` NICs.
    ///
    /// # Errors
    /// [`NoRoute`] for a number that is zero or beyond the most.
    pub const fn new(rails: u32, queues: u32) -> Result<Routes, NoRoute> {
        if rails == 0 || queues == 0 || rails > MAX_RAILS || queues > MAX_QUEUES {
            return Err(NoRoute { rails, queues });
        }
        Ok(Routes { rails, queues })
    }

    /// Number of NICs.
    pub const fn rails(&self) -> u32 {
        self.rails
    }

    /// Queue pairs between two ranks.
    pub const fn per_peer(&self) -> u32 {
        self.rails * self.queues
    }

    /// The route of puts that fill `cell`.
    pub const fn of(&self, cell: CellId) -> Route {
        Route { rail: cell.0 % self.rails, queue: cell.0 / self.rails % self.queues }
    }

    /// The place of a route among the queue pairs of a peer: below [`Routes::per_peer`].
    pub const fn index(&self, route: Route) -> u32 {
        route.queue * self.rails + route.rail
    }

    /// The route at a place.
    pub const fn at(&self, index: u32) -> Route {
        Route { rail: index % self.rails, queue: index / self.rails }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_cell_has_one_queue_pair_and_any_queue_pair_is_used(rails in 1..=MAX_RAILS, queues in 1..=MAX_QUEUES, first: u32) {
            let routes = Routes::new(rails, queues).map_err(|e| TestCaseError::fail(e.to_string()))?;
            let first = first % (u32::MAX - routes.per_peer());
            let mut seen: Vec<u32> = (first..first + routes.per_peer()).map(|c| routes.index(routes.of(CellId(c)))).collect();
            for &index in &seen {
                prop_assert_eq!(routes.index(routes.at(index)), index);
                prop_assert!(routes.at(index).rail < rails && routes.at(index).queue < queues);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..routes.per_peer()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_rail_or_no_queue_pair_is_refused() {
        for (rails, queues) in [(0, 1), (1, 0), (MAX_RAILS + 1, 1), (1, MAX_QUEUES + 1)] {
            assert_eq!(Routes::new(rails, queues), Err(NoRoute { rails, queues }));
        }
    }
}
