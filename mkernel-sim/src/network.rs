//! The one model of a bad network, and of everything else that goes wrong on purpose.

use mkernel_core::transport::Ordering;
use mkernel_core::{PutId, Rank};

/// How puts are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// What the transport states about order. In order: bytes and signals of a rank's puts land as they were posted.
    pub ordering: Ordering,
    /// Puts in flight per rank beyond which a post answers that the queue is full; at least 1.
    pub depth: usize,
    /// Most pieces that a put's bytes are split into; at least 1. With 1 piece, in order, a put completes once it has landed;
    /// else it may complete before, and the wire holds its bytes.
    pub pieces: u32,
    /// Most deliveries (a piece, a signal, a completion) of one poll; at least 1.
    pub deliveries: u32,
    /// Chance in 256 that a poll delivers nothing.
    pub idle: u8,
    /// What goes wrong.
    pub injections: Vec<Injection>,
}

impl Default for Network {
    /// As bad as the contract allows: any order, pieces, short queues, idle polls.
    fn default() -> Network {
        Network { ordering: Ordering::Unordered, depth: 5, pieces: 4, deliveries: 3, idle: 96, injections: Vec::new() }
    }
}

impl Network {
    /// Delivers everything at the first poll.
    pub fn prompt() -> Network {
        Network {
            ordering: Ordering::InOrder,
            depth: 64,
            pieces: 1,
            deliveries: u32::MAX,
            idle: 0,
            injections: Vec::new(),
        }
    }
}

/// One thing that goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// The transport of `rank` refuses its post number `post`, counted from 0, for good.
    RefusePost {
        /// The rank that posts.
        rank: Rank,
        /// Which post.
        post: u64,
    },
    /// The put that is post number `post` of `rank` completes with an error, without having landed.
    FailCompletion {
        /// The rank that posts.
        rank: Rank,
        /// Which post.
        post: u64,
    },
    /// The bytes of this put land but its signal never rises.
    WithholdSignal {
        /// The rank that posts.
        rank: Rank,
        /// Which put of its table.
        put: PutId,
    },
    /// The rank runs nothing, and puts to it neither land nor complete.
    DeadPeer {
        /// The rank.
        rank: Rank,
    },
    /// The CTA stops for ever before it starts its instruction number `after` of a launch, counted from 0.
    StuckCta {
        /// Its rank.
        rank: Rank,
        /// Its number within the rank.
        cta: u32,
        /// Instructions that it still runs.
        after: u64,
    },
    /// The thread of the CTA panics before it starts its instruction number `after` of a launch. The seeded executor,
    /// which has no threads, reports the death of the CTA.
    DyingCta {
        /// Its rank.
        rank: Rank,
        /// Its number within the rank.
        cta: u32,
        /// Instructions that it still runs.
        after: u64,
    },
    /// The proxy of the rank stops for ever once it has popped `after` tickets.
    StuckProxy {
        /// Its rank.
        rank: Rank,
        /// Tickets that it still pops.
        after: u64,
    },
}

impl Network {
    /// Whether `rank` takes no part.
    pub(crate) fn is_dead(&self, rank: Rank) -> bool {
        self.injections.contains(&Injection::DeadPeer { rank })
    }

    /// What happens to a CTA before it starts its instruction number `started`.
    pub(crate) fn fate(&self, rank: Rank, cta: u32, started: u64) -> Fate {
        if self.injections.contains(&Injection::StuckCta { rank, cta, after: started }) {
            Fate::Stuck
        } else if self.injections.contains(&Injection::DyingCta { rank, cta, after: started }) {
            Fate::Dies
        } else {
            Fate::Lives
        }
    }

    /// Tickets after which the proxy of `rank` stops.
    pub(crate) fn proxy_stops_after(&self, rank: Rank) -> Option<u64> {
        self.injections.iter().find_map(|injection| match *injection {
            Injection::StuckProxy { rank: r, after } if r == rank => Some(after),
            _ => None,
        })
    }
}

/// What happens to a CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lives,
    Stuck,
    Dies,
}
