//! The one model of a bad network, and of everything else that goes wrong on purpose.

use mkernel_core::transport::Ordering;
use mkernel_core::{Fault, FaultKind, Program, PutId, Rank, Verified};

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
    /// The transport of `rank` answers `tries` times, when it gets to its post number `post`, that the queue is full;
    /// `u64::MAX` times is for ever.
    FullQueue {
        /// The rank that posts.
        rank: Rank,
        /// Which post.
        post: u64,
        /// How often.
        tries: u64,
    },
    /// The completion of post number `post` of `rank` comes twice.
    DuplicateCompletion {
        /// The rank that posts.
        rank: Rank,
        /// Which post.
        post: u64,
    },
    /// The completion of post number `post` of `rank` is held back for so many polls.
    LateCompletion {
        /// The rank that posts.
        rank: Rank,
        /// Which post.
        post: u64,
        /// Polls of the rank.
        polls: u64,
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

    /// The fault of a launch in which all others are done and a rank with work has run nothing of it.
    pub(crate) fn absence(&self, verified: &Verified) -> Option<Fault> {
        let has_work = |p: &&Program| p.instructions().next().is_some();
        let absent = verified.programs().iter().filter(has_work).find(|p| self.is_dead(p.rank))?;
        Some(Fault { peer: Some(absent.rank), ..Fault::new(FaultKind::Deadline, absent.rank) })
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

    /// How often the queue of `rank` is full for its post number `post`, whatever is in flight.
    pub(crate) fn refusals(&self, rank: Rank, post: u64) -> u64 {
        let refusals = self.injections.iter().find_map(|injection| match *injection {
            Injection::FullQueue { rank: r, post: p, tries } if (r, p) == (rank, post) => Some(tries),
            _ => None,
        });
        refusals.unwrap_or(0)
    }

    /// Polls for which the completion of post number `post` of `rank` is held back.
    pub(crate) fn lateness(&self, rank: Rank, post: u64) -> u64 {
        let lateness = self.injections.iter().find_map(|injection| match *injection {
            Injection::LateCompletion { rank: r, post: p, polls } if (r, p) == (rank, post) => Some(polls),
            _ => None,
        });
        lateness.unwrap_or(0)
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
