//! What ends a job for every rank, in words and as bytes.

use std::fmt;

use super::setup::MAX_RANKS;
use super::wire::{Reader, put_bytes, put_list, put_u32};

/// Most bytes of a record that a rank raises.
pub const MAX_RECORD: usize = 4096;

/// The first thing that went wrong. Rank 0 decides which was first, so all ranks report the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobFault {
    /// The connection of a rank closed before it left.
    Lost {
        /// The rank.
        rank: u32,
    },
    /// Ranks did not arrive within the start deadline.
    Missing {
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// Ranks did not take part in a step within its deadline.
    Late {
        /// The step.
        step: Step,
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// A rank sent bytes that the protocol does not allow there.
    Garbled {
        /// The rank.
        rank: u32,
    },
    /// The ranks of a node are not consecutive.
    Layout {
        /// The first rank that is out of place.
        rank: u32,
    },
    /// A rank raised a record of its own.
    Raised {
        /// The rank.
        rank: u32,
        /// Its record, at most [`MAX_RECORD`] bytes.
        record: Vec<u8>,
    },
}

/// A step that all ranks take together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The arrival of all ranks, which rank 0 tells the others.
    Start,
    /// An exchange of blobs.
    Exchange,
    /// Leaving.
    Leave,
}

impl JobFault {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Lost { rank } => put_tagged(out, 1, *rank),
            Self::Missing { ranks } => {
                out.push(2);
                put_list(out, ranks);
            }
            Self::Late { step, ranks } => {
                out.push(match step {
                    Step::Start => 3,
                    Step::Exchange => 4,
                    Step::Leave => 5,
                });
                put_list(out, ranks);
            }
            Self::Garbled { rank } => put_tagged(out, 6, *rank),
            Self::Layout { rank } => put_tagged(out, 7, *rank),
            Self::Raised { rank, record } => {
                put_tagged(out, 8, *rank);
                put_bytes(out, record);
            }
        }
    }

    pub(crate) fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let limit = MAX_RANKS as usize;
        Some(match reader.u8()? {
            1 => Self::Lost { rank: reader.u32()? },
            2 => Self::Missing { ranks: reader.list(limit)? },
            3 => Self::Late { step: Step::Start, ranks: reader.list(limit)? },
            4 => Self::Late { step: Step::Exchange, ranks: reader.list(limit)? },
            5 => Self::Late { step: Step::Leave, ranks: reader.list(limit)? },
            6 => Self::Garbled { rank: reader.u32()? },
            7 => Self::Layout { rank: reader.u32()? },
            8 => Self::Raised { rank: reader.u32()?, record: reader.bytes(MAX_RECORD)?.to_vec() },
            _ => return None,
        })
    }
}

fn put_tagged(out: &mut Vec<u8>, tag: u8, rank: u32) {
    out.push(tag);
    put_u32(out, rank);
}

impl fmt::Display for JobFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { rank } => write!(f, "rank {rank} lost: its connection closed before it left"),
            Self::Missing { ranks } => write!(f, "{} did not arrive before the start deadline", Ranks(ranks)),
            Self::Late { step: Step::Start, ranks } => {
                write!(f, "{} did not tell before the start deadline that all ranks have arrived", Ranks(ranks))
            }
            Self::Late { step: Step::Exchange, ranks } => {
                write!(f, "{} did not take part in the exchange before the step deadline", Ranks(ranks))
            }
            Self::Late { step: Step::Leave, ranks } => {
                write!(f, "{} did not leave before the step deadline", Ranks(ranks))
            }
            Self::Garbled { rank } => write!(f, "rank {rank} broke the bootstrap protocol"),
            Self::Layout { rank } => write!(
                f,
                "rank {rank} is not next to the other ranks of its node: let the launcher place ranks in blocks \
                 (mpirun --map-by slot, srun --distribution=block)"
            ),
            Self::Raised { rank, record } => write!(f, "rank {rank} failed: {}", String::from_utf8_lossy(record)),
        }
    }
}

/// Ranks as words: `rank 3`, or `ranks 0-2, 5`.
pub(crate) struct Ranks<'a>(pub(crate) &'a [u32]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (index, run) in self.0.chunk_by(|a, b| a.checked_add(1) == Some(*b)).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [only] => write!(f, "{comma}{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_print_as_runs() {
        assert_eq!(Ranks(&[3]).to_string(), "rank 3");
        assert_eq!(Ranks(&[0, 1, 2, 5, 7, 8]).to_string(), "ranks 0-2, 5, 7-8");
        assert_eq!(Ranks(&[u32::MAX, 0]).to_string(), format!("ranks {}, 0", u32::MAX));
    }

    #[test]
    fn a_fault_names_its_ranks() {
        let fault = JobFault::Late { step: Step::Exchange, ranks: vec![1, 4] };
        assert_eq!(fault.to_string(), "ranks 1, 4 did not take part in the exchange before the step deadline");
        let fault = JobFault::Raised { rank: 2, record: b"cell 9 wanted 4 seen 3".to_vec() };
        assert_eq!(fault.to_string(), "rank 2 failed: cell 9 wanted 4 seen 3");
    }
}
