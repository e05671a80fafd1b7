//! When nothing goes on: finds the wait that is nearest to the cause.
//!
//! Many instructions wait when one signal is missing. The fault should name the one whose missing signal is not
//! explained by another wait: its contributors have all retired (the transport lost a signal), or one of them has been
//! claimed and stands still without waiting (its CTA is stuck), or nobody works on that contributor's lane.

use std::collections::HashMap;

use mkernel_core::validate::At;
use mkernel_core::{Born, CellId, Fault, FaultKind, LaneId, Op, Program, Rank, Verified};

use crate::account::{Account, Busy, Doing, Stage};
use crate::host::Host;

/// How far an instruction is in this launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unclaimed,
    Running,
    Retired,
}

/// How directly a wait shows the cause, most direct first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    /// Everybody has contributed, and the signal is not there.
    Lost,
    /// A contributor stands still without waiting.
    Stalled,
    /// A contributor waits itself, or for its turn.
    Indirect,
}

/// An instruction that waits for a cell of its rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) place: At,
    pub(crate) cell: CellId,
    pub(crate) wanted: u64,
    pub(crate) seen: u64,
}

/// Every wait of the ranks that this process hosts.
pub(crate) fn waits(host: &Host) -> Vec<Wait> {
    let wait = |waiter: crate::cells::Waiter| {
        let (place, cell, wanted) = (waiter.place, waiter.cell, waiter.wanted);
        Wait { place, cell, wanted, seen: host.cells.seen(place.rank, cell) }
    };
    host.cells.waiters().into_iter().map(wait).collect()
}

/// A wait with what is known of its contributors.
struct Suspect {
    wait: Wait,
    evidence: Evidence,
    peer: Option<Rank>,
}

/// The fault of a launch in which nothing goes on. `pushing` is an instruction whose ticket finds no slot: then the proxy
/// is the cause. `held` is any instruction that a CTA holds, for when nothing waits; `rank` is to blame if there is none.
pub(crate) fn root(
    verified: &Verified,
    waits: Vec<Wait>,
    state: &dyn Fn(Rank, LaneId, u32) -> State,
    pushing: Option<At>,
    held: Option<At>,
    rank: Rank,
) -> Fault {
    if let Some(place) = pushing {
        return at_place(FaultKind::FifoFull, place);
    }
    let lanes: Vec<_> = waits.iter().map(|w| (w.place.rank, w.place.lane)).collect();
    let places: Vec<_> = waits.iter().map(|w| w.place).collect();
    let mut suspects: Vec<Suspect> =
        waits.into_iter().map(|wait| Suspect { wait, evidence: Evidence::Lost, peer: None }).collect();
    let mut by_cell: HashMap<(Rank, CellId), Vec<usize>> = HashMap::new();
    for (index, suspect) in suspects.iter().enumerate() {
        by_cell.entry((suspect.wait.place.rank, suspect.wait.cell)).or_default().push(index);
    }
    for program in verified.programs() {
        contributions(program, &mut |place, (rank, cell), peer| {
            let evidence = match state(place.rank, place.lane, place.instruction) {
                State::Retired => Evidence::Lost,
                State::Running if !places.contains(&place) => Evidence::Stalled,
                State::Unclaimed if !lanes.contains(&(place.rank, place.lane)) => Evidence::Stalled,
                State::Running | State::Unclaimed => Evidence::Indirect,
            };
            for &index in by_cell.get(&(rank, cell)).into_iter().flatten() {
                // A credit waits for the launch before, in which every instruction retired.
                let is_credit = verified.programs()[rank.0 as usize].cell(cell).born == Born::Full;
                let evidence = if is_credit { Evidence::Lost } else { evidence };
                let suspect = &mut suspects[index];
                // One stalled contributor says more than others that wait; any that has not retired explains the wait.
                let is_better = match (suspect.evidence, evidence) {
                    (_, Evidence::Stalled) => suspect.evidence != Evidence::Stalled,
                    (Evidence::Lost, Evidence::Indirect) => true,
                    _ => suspect.peer.is_none(),
                };
                if is_better {
                    (suspect.evidence, suspect.peer) = (evidence, Some(peer));
                }
            }
        });
    }
    let key = |s: &&Suspect| (s.evidence, s.wait.place.rank, s.wait.place.lane, s.wait.place.instruction);
    match suspects.iter().min_by_key(key) {
        Some(suspect) => unmet(&suspect.wait, suspect.peer),
        None => held.map_or(Fault::new(FaultKind::Deadline, rank), |place| at_place(FaultKind::Deadline, place)),
    }
}

/// A fault of one instruction.
pub(crate) fn at_place(kind: FaultKind, place: At) -> Fault {
    let (role, lane, instruction) = (Some(place.role), Some(place.lane), Some(place.instruction));
    Fault { role, lane, instruction, ..Fault::new(kind, place.rank) }
}

fn unmet(wait: &Wait, peer: Option<Rank>) -> Fault {
    let Wait { place, cell, wanted, seen } = *wait;
    Fault { cell: Some(cell), wanted, seen, peer, ..at_place(FaultKind::Deadline, place) }
}

/// The fault of a launch that stood still, from the accounts of its ranks: the first cause among all of them, where one rank
/// alone sees only its own waits. A rank that gave no account counts as one that stands still.
pub fn first_cause(verified: &Verified, accounts: &[Account]) -> Option<Fault> {
    let stage = |rank: Rank| accounts.iter().find(|account| account.rank == rank).map(|account| &account.stage);
    let state = |rank: Rank, lane: LaneId, index: u32| match stage(rank) {
        None => State::Running,
        // It has ended its launch.
        Some(Stage::Meeting { .. }) => State::Retired,
        Some(Stage::Launch { claimed, busy, .. }) => {
            let is_held = |b: &Busy| (b.place.lane, b.place.instruction) == (lane, index);
            match claimed.get(usize::from(lane.0)) {
                Some(&next) if next <= index => State::Unclaimed,
                _ if busy.iter().any(is_held) => State::Running,
                _ => State::Retired,
            }
        }
    };
    let busy: Vec<Busy> = accounts
        .iter()
        .filter_map(|account| match &account.stage {
            Stage::Launch { busy, .. } => Some(busy),
            Stage::Meeting { .. } => None,
        })
        .flatten()
        .copied()
        .collect();
    let programs = verified.programs();
    let is_known =
        |b: &Busy| programs.get(b.place.rank.0 as usize).is_some_and(|p| usize::from(b.place.lane.0) < p.lanes.len());
    let wait = |b: &Busy| match b.doing {
        Doing::Waits { cell, wanted, seen, .. } => {
            let is_known = is_known(b) && (cell.0 as usize) < programs[b.place.rank.0 as usize].cells.len();
            is_known.then_some(Wait { place: b.place, cell, wanted, seen })
        }
        Doing::Works | Doing::Pushes => None,
    };
    let waits: Vec<Wait> = busy.iter().filter_map(wait).collect();
    let pushing = busy.iter().find(|b| b.doing == Doing::Pushes).map(|b| b.place);
    let held = busy.first()?;
    Some(root(verified, waits, &state, pushing, Some(held.place), held.place.rank))
}

/// The ranks that are to raise each of these cells; one for each, another than the cell's own if there is one.
pub(crate) fn raisers(verified: &Verified, cells: &[(Rank, CellId)]) -> HashMap<(Rank, CellId), Rank> {
    let mut raisers = HashMap::new();
    for program in verified.programs() {
        contributions(program, &mut |_, cell, peer| {
            if cells.contains(&cell) && raisers.get(&cell).is_none_or(|known| *known == cell.0) {
                raisers.insert(cell, peer);
            }
        });
    }
    raisers
}

/// Every cell that an instruction of `program` raises, itself or through its put, with the rank that is to blame if it
/// retires and the cell does not rise: for `retired`, the target that does not take the put.
fn contributions(program: &Program, each: &mut dyn FnMut(At, (Rank, CellId), Rank)) {
    for (lane, index, instruction) in program.instructions() {
        let role = program.lanes[usize::from(lane.0)].role;
        let place = At { rank: program.rank, role, lane, instruction: index };
        for signal in program.signals(instruction) {
            each(place, (signal.rank, signal.cell), place.rank);
        }
        if let Op::Put(id) = instruction.op {
            let put = program.put(id);
            each(place, (put.target.rank, put.cell), place.rank);
            if let Some(cell) = put.retired {
                each(place, (program.rank, cell), put.target.rank);
            }
        }
    }
}
