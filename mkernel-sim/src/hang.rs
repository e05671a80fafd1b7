//! When nothing goes on: finds the wait that is nearest to the cause.
//!
//! Many instructions wait when one signal is missing. The fault should name the one whose missing signal is not
//! explained by another wait: its contributors have all retired (the transport lost a signal), or one of them has been
//! claimed and stands still without waiting (its CTA is stuck), or nobody works on that contributor's lane.

use std::collections::HashMap;

use mkernel_core::validate::At;
use mkernel_core::{Born, CellId, Fault, FaultKind, LaneId, Op, Program, Rank};

use crate::cells::Waiter;
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

/// A wait with what is known of its contributors.
struct Suspect {
    waiter: Waiter,
    evidence: Evidence,
    peer: Option<Rank>,
}

/// The fault of a launch in which nothing goes on. `pushing` is an instruction whose ticket finds no slot: then the proxy
/// is the cause. `held` is any instruction that a CTA holds, for when nothing waits; `rank` is to blame if there is none.
pub(crate) fn root(
    host: &Host,
    state: &dyn Fn(Rank, LaneId, u32) -> State,
    pushing: Option<At>,
    held: Option<At>,
    rank: Rank,
) -> Fault {
    if let Some(place) = pushing {
        return at_place(FaultKind::FifoFull, place);
    }
    let waiters = host.cells.waiters();
    let lanes: Vec<_> = waiters.iter().map(|w| (w.place.rank, w.place.lane)).collect();
    let places: Vec<_> = waiters.iter().map(|w| w.place).collect();
    let mut suspects: Vec<Suspect> =
        waiters.into_iter().map(|waiter| Suspect { waiter, evidence: Evidence::Lost, peer: None }).collect();
    let mut by_cell: HashMap<(Rank, CellId), Vec<usize>> = HashMap::new();
    for (index, suspect) in suspects.iter().enumerate() {
        by_cell.entry((suspect.waiter.place.rank, suspect.waiter.cell)).or_default().push(index);
    }
    for program in host.verified.programs() {
        contributions(program, &mut |place, (rank, cell), peer| {
            let evidence = match state(place.rank, place.lane, place.instruction) {
                State::Retired => Evidence::Lost,
                State::Running if !places.contains(&place) => Evidence::Stalled,
                State::Unclaimed if !lanes.contains(&(place.rank, place.lane)) => Evidence::Stalled,
                State::Running | State::Unclaimed => Evidence::Indirect,
            };
            for &index in by_cell.get(&(rank, cell)).into_iter().flatten() {
                // A credit waits for the launch before, in which every instruction retired.
                let is_credit = host.verified.programs()[rank.0 as usize].cell(cell).born == Born::Full;
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
    let key = |s: &&Suspect| (s.evidence, s.waiter.place.rank, s.waiter.place.lane, s.waiter.place.instruction);
    match suspects.iter().min_by_key(key) {
        Some(suspect) => unmet(host, &suspect.waiter, suspect.peer),
        None => held.map_or(Fault::new(FaultKind::Deadline, rank), |place| at_place(FaultKind::Deadline, place)),
    }
}

/// A fault of one instruction.
pub(crate) fn at_place(kind: FaultKind, place: At) -> Fault {
    let (role, lane, instruction) = (Some(place.role), Some(place.lane), Some(place.instruction));
    Fault { role, lane, instruction, ..Fault::new(kind, place.rank) }
}

fn unmet(host: &Host, waiter: &Waiter, peer: Option<Rank>) -> Fault {
    let seen = host.cells.seen(waiter.place.rank, waiter.cell);
    let (cell, wanted) = (Some(waiter.cell), waiter.wanted);
    Fault { cell, wanted, seen, peer, ..at_place(FaultKind::Deadline, waiter.place) }
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
