//! What a rank is doing, CTA by CTA: the answer to whoever asks why nothing happens.

use std::fmt;
use std::time::Duration;

use mkernel_core::validate::At;
use mkernel_core::{CellId, LaneId, Rank, RoleName};

/// What one rank was doing at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The rank.
    pub rank: Rank,
    /// Where it was.
    pub stage: Stage,
}

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for others to begin or end a launch with it.
    Meeting {
        /// Who is not there.
        absent: Vec<Rank>,
        /// For how long.
        since: Duration,
    },
    /// It is in a launch.
    Launch {
        /// Instructions of each lane that have been claimed.
        claimed: Vec<u32>,
        /// CTAs that have nothing left to do.
        idle: u32,
        /// CTAs that hold an instruction.
        busy: Vec<Busy>,
    },
}

/// A CTA that holds an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Its number within the rank.
    pub cta: u32,
    /// The instruction.
    pub place: At,
    /// What it does with it.
    pub doing: Doing,
    /// For how long.
    pub since: Duration,
}

/// What a CTA does with its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It works, or stands still for a reason that it does not know.
    Works,
    /// It waits for a slot in the ticket ring.
    Pushes,
    /// It waits for a cell.
    Waits {
        /// The cell, of its own rank.
        cell: CellId,
        /// The value at which the wait ends.
        wanted: u64,
        /// The value there.
        seen: u64,
        /// A rank that is to raise it.
        from: Option<Rank>,
    },
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stage {
            Stage::Meeting { absent, since } => {
                let absent: Vec<String> = absent.iter().map(Rank::to_string).collect();
                let (rank, absent) = (self.rank, absent.join(", "));
                write!(f, "{rank}: waits {since:.3?} to begin or end a launch with {absent}")
            }
            Stage::Launch { idle, busy, .. } => {
                write!(f, "{}: {} CTAs at an instruction, {idle} with nothing left to do", self.rank, busy.len())?;
                busy.iter().try_for_each(|busy| write!(f, "\n  {busy}"))
            }
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { role, lane, instruction, .. } = self.place;
        write!(f, "CTA {} ({role}, lane {}, instruction {instruction}) ", self.cta, lane.0)?;
        let since = self.since;
        match self.doing {
            Doing::Works => write!(f, "works since {since:.3?}"),
            Doing::Pushes => write!(f, "waits {since:.3?} for a slot in the ticket ring"),
            Doing::Waits { cell, wanted, seen, from } => {
                write!(f, "waits {since:.3?} for cell {}: {seen} of {wanted}", cell.0)?;
                from.map_or(Ok(()), |rank| write!(f, ", which {rank} raises"))
            }
        }
    }
}

/// First words of the two stages.
const MEETING: u64 = 0;
const LAUNCH: u64 = 1;

/// No rank.
const NOBODY: u64 = u64::MAX;

impl Account {
    /// The account as bytes, for another process: words, little endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.rank.0.into()];
        match &self.stage {
            Stage::Meeting { absent, since } => {
                words.extend([MEETING, micros(*since), absent.len() as u64]);
                words.extend(absent.iter().map(|rank| u64::from(rank.0)));
            }
            Stage::Launch { claimed, idle, busy } => {
                words.extend([LAUNCH, (*idle).into(), claimed.len() as u64]);
                words.extend(claimed.iter().map(|&next| u64::from(next)));
                words.push(busy.len() as u64);
                busy.iter().for_each(|busy| busy.put(&mut words));
            }
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// The account that was encoded; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Account> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let rank = small(words.next()?).map(Rank)?;
        let stage = match words.next()? {
            MEETING => {
                let since = Duration::from_micros(words.next()?);
                Stage::Meeting { absent: list(&mut words, |words| small(words.next()?).map(Rank))?, since }
            }
            LAUNCH => {
                let idle = small(words.next()?)?;
                let claimed = list(&mut words, |words| small(words.next()?))?;
                Stage::Launch { idle, claimed, busy: list(&mut words, |words| Busy::get(rank, words))? }
            }
            _ => return None,
        };
        (words.next().is_none() && rest.is_empty()).then_some(Account { rank, stage })
    }
}

impl Busy {
    fn put(&self, words: &mut Vec<u64>) {
        let At { role, lane, instruction, .. } = self.place;
        let role = RoleName::ALL.iter().position(|name| *name == role).expect("the table has every role");
        words.extend([self.cta.into(), role as u64, lane.0.into(), instruction.into(), micros(self.since)]);
        words.extend(match self.doing {
            Doing::Works => [0; 5],
            Doing::Pushes => [1, 0, 0, 0, 0],
            Doing::Waits { cell, wanted, seen, from } => {
                [2, cell.0.into(), wanted, seen, from.map_or(NOBODY, |rank| rank.0.into())]
            }
        });
    }

    fn get(rank: Rank, words: &mut impl Iterator<Item = u64>) -> Option<Busy> {
        let mut next = || words.next();
        let cta = small(next()?)?;
        let role = *RoleName::ALL.get(usize::try_from(next()?).ok()?)?;
        let (lane, instruction) = (LaneId(u16::try_from(next()?).ok()?), small(next()?)?);
        let since = Duration::from_micros(next()?);
        let (kind, cell, wanted, seen, from) = (next()?, CellId(small(next()?)?), next()?, next()?, next()?);
        let from = if from == NOBODY { None } else { Some(Rank(small(from)?)) };
        let doing = match kind {
            0 => Doing::Works,
            1 => Doing::Pushes,
            2 => Doing::Waits { cell, wanted, seen, from },
            _ => return None,
        };
        Some(Busy { cta, place: At { rank, role, lane, instruction }, doing, since })
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn small(word: u64) -> Option<u32> {
    u32::try_from(word).ok()
}

/// A count, and as many entries; memory grows with what is really there.
fn list<T, W: Iterator<Item = u64>>(words: &mut W, mut entry: impl FnMut(&mut W) -> Option<T>) -> Option<Vec<T>> {
    let count = words.next()?;
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(entry(words)?);
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> [Account; 2] {
        let since = Duration::from_micros(1_234_567);
        let place = At { rank: Rank(3), role: RoleName::Send, lane: LaneId(2), instruction: 9 };
        let waits = Doing::Waits { cell: CellId(7), wanted: 4, seen: 3, from: Some(Rank(1)) };
        let busy = [Doing::Works, Doing::Pushes, waits].map(|doing| Busy { cta: 5, place, doing, since });
        let launch = Stage::Launch { claimed: vec![4, 0], idle: 2, busy: busy.to_vec() };
        let meeting = Stage::Meeting { absent: vec![Rank(0), Rank(2)], since };
        [launch, meeting].map(|stage| Account { rank: Rank(3), stage })
    }

    #[test]
    fn an_account_says_what_each_cta_waits_for_and_since_when() {
        let [launch, meeting] = accounts().map(|account| account.to_string());
        assert_eq!(
            launch,
            "rank 3: 3 CTAs at an instruction, 2 with nothing left to do\n  \
             CTA 5 (send, lane 2, instruction 9) works since 1.235s\n  \
             CTA 5 (send, lane 2, instruction 9) waits 1.235s for a slot in the ticket ring\n  \
             CTA 5 (send, lane 2, instruction 9) waits 1.235s for cell 7: 3 of 4, which rank 1 raises"
        );
        assert_eq!(meeting, "rank 3: waits 1.235s to begin or end a launch with rank 0, rank 2");
    }

    #[test]
    fn an_account_survives_its_bytes_and_bytes_that_are_cut_or_lie_are_none() {
        for account in accounts() {
            let bytes = account.encode();
            assert_eq!(Account::decode(&bytes), Some(account));
            (0..bytes.len()).for_each(|end| assert_eq!(Account::decode(&bytes[..end]), None));
            assert_eq!(Account::decode(&[&bytes[..], &[0; 8]].concat()), None);
        }
        assert_eq!(Account::decode(&[0xFF; 80]), None);
    }
}
