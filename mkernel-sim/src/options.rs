//! How a host executor runs.

use std::time::Duration;

use crate::network::Network;

/// Options of both host executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Decides every choice of the seeded executor, and those of the network in both.
    pub seed: u64,
    /// The longest time for which no hosted rank may make any progress while something waits. It must exceed the time
    /// of one segment. The seeded executor sees at once that nothing can go on; for it this bounds the steps in which the
    /// network goes on and no CTA does, of a microsecond each.
    pub deadline: Duration,
    /// Whether memory that is fresh or released is filled with NaN.
    pub poison: bool,
    /// Slots of the ticket ring of each rank: a power of two, at least 2.
    pub ring: usize,
    /// How puts are delivered, and what goes wrong on purpose.
    pub network: Network,
    /// The epoch of the first launch.
    pub first_epoch: u64,
    /// Whether a launch reports what every CTA did.
    pub trace: bool,
}

impl Default for Options {
    /// Poisoned memory, a bad network without faults, a ring of 64 tickets, 10 seconds.
    fn default() -> Options {
        Options {
            seed: 0,
            deadline: Duration::from_secs(10),
            poison: true,
            ring: 64,
            network: Network::default(),
            first_epoch: 0,
            trace: false,
        }
    }
}
