//! A CTA as an agent, with at most two instructions at a time: one that completes, one that reads ahead.

use std::collections::VecDeque;

use mkernel_core::executor::{Activity, TraceEvent};
use mkernel_core::signal::reached;
use mkernel_core::validate::At;
use mkernel_core::{CellId, Fault, FaultKind, LaneId, Op};

use super::Launch;
use crate::cells::{Waiter, Wake};
use crate::hang::at_place;
use crate::network::Fate;
use crate::ops::{Kernels, Task, Unplanned, put};
use crate::schedule::{Cta, at, claim_onward};

/// Instructions that a CTA has claimed and not completed.
const AHEAD: usize = 2;

/// One CTA.
#[derive(Debug)]
pub(super) struct CtaAgent {
    agent: usize,
    cta: Cta,
    lane: LaneId,
    slots: VecDeque<Slot>,
    started: u64,
    waits_for_ring: bool,
    /// Since when it has had nothing to do.
    blocked_at: Option<u64>,
}

/// An instruction in progress.
#[derive(Debug)]
struct Slot {
    place: At,
    kernels: Kernels,
    /// Segments read.
    segments: usize,
    /// Waits of the next segment that hold: counters only rise, so they go on to hold.
    waits: usize,
    /// What data picked for the next segment, once its other waits hold.
    picks: Option<Vec<CellId>>,
    is_written: bool,
    /// Signals raised.
    signals: usize,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Progress,
    Blocked,
    Done,
}

/// What an attempt on one slot came to.
enum Attempt {
    Progress,
    /// The instruction is complete.
    Complete,
    /// A wait does not hold.
    Waits(CellId, u64),
    /// The ring is full, or it is not this slot's turn.
    NotNow,
}

impl CtaAgent {
    pub(super) fn new(agent: usize, cta: Cta) -> CtaAgent {
        let slots = VecDeque::with_capacity(AHEAD);
        CtaAgent { agent, cta, lane: cta.home, slots, started: 0, waits_for_ring: false, blocked_at: None }
    }

    /// The instructions that it holds.
    pub(super) fn places(&self) -> impl Iterator<Item = At> + '_ {
        self.slots.iter().map(|s| s.place)
    }

    pub(super) fn waits_for_ring(&self) -> bool {
        self.waits_for_ring
    }
}

impl Launch<'_> {
    /// Lets a CTA take one step of the seed's choice.
    pub(super) fn step_cta(&mut self, agent: usize) -> Result<Outcome, Fault> {
        self.wake(agent);
        let may_claim = self.ctas[agent].slots.len() < AHEAD;
        if may_claim && (self.ctas[agent].slots.is_empty() || self.random.bool()) && self.claim(agent)? {
            return Ok(Outcome::Progress);
        }
        if self.ctas[agent].slots.is_empty() {
            return Ok(Outcome::Done);
        }
        if self.is_stopped(agent) {
            return Ok(Outcome::Blocked);
        }
        let mut order = [0, 1];
        self.random.shuffle(&mut order);
        let mut waits = Vec::new();
        for index in order {
            match self.attempt(agent, index)? {
                Attempt::Progress => return Ok(Outcome::Progress),
                Attempt::Complete => {
                    self.complete(agent);
                    return Ok(Outcome::Progress);
                }
                Attempt::Waits(cell, wanted) => waits.push((index, cell, wanted)),
                Attempt::NotNow => {}
            }
        }
        if may_claim && self.claim(agent)? {
            return Ok(Outcome::Progress);
        }
        self.block(agent, &waits);
        Ok(Outcome::Blocked)
    }

    /// Whether an injection has stopped the CTA at the one instruction that it holds.
    fn is_stopped(&self, agent: usize) -> bool {
        let cta = &self.ctas[agent];
        let before = cta.started.wrapping_sub(1);
        let fate = self.options.network.fate(cta.cta.rank, cta.cta.number, before);
        cta.started > 0 && fate == Fate::Stuck
    }

    /// Claims an instruction if there is one: the next of the lane, or with empty hands one of a lane further on.
    fn claim(&mut self, agent: usize) -> Result<bool, Fault> {
        let cta = &mut self.ctas[agent];
        let program = &self.host.verified.programs()[cta.cta.rank.0 as usize];
        let fate = self.options.network.fate(cta.cta.rank, cta.cta.number, cta.started);
        if fate != Fate::Lives && !cta.slots.is_empty() || self.is_stopped(agent) {
            return Ok(false);
        }
        let cta = &mut self.ctas[agent];
        let claimed = if cta.slots.is_empty() {
            claim_onward(&self.claims, program, cta.lane)
        } else {
            self.claims.claim(program, cta.lane).map(|index| (cta.lane, index))
        };
        let Some((lane, index)) = claimed else { return Ok(false) };
        let (place, instruction) = at(program, lane, index);
        if fate == Fate::Dies {
            return Err(at_place(FaultKind::Died, place));
        }
        cta.lane = lane;
        cta.started += 1;
        let mut kernels = self.spare.pop().unwrap_or_default();
        if let Some(kernel) = kernels.of(&instruction.op) {
            kernel.begin(&Task::new(self.host, program, instruction));
        }
        cta.slots.push_back(Slot { place, kernels, segments: 0, waits: 0, picks: None, is_written: false, signals: 0 });
        Ok(true)
    }

    /// Takes the next step of one instruction, if it can be taken now.
    fn attempt(&mut self, agent: usize, index: usize) -> Result<Attempt, Fault> {
        let epoch = self.epoch;
        let (earlier, later) = self.ctas[agent].slots.make_contiguous().split_at_mut(index);
        let Some(slot) = later.first_mut() else { return Ok(Attempt::NotNow) };
        let place = slot.place;
        let program = &self.host.verified.programs()[place.rank.0 as usize];
        let (_, instruction) = at(program, place.lane, place.instruction as usize);
        let segments = program.segments(instruction);
        if earlier.iter().any(|s| !s.has_read(program)) {
            return Ok(Attempt::NotNow);
        }
        let task = Task::new(self.host, program, instruction);
        if let Some(segment) = segments.get(slot.segments) {
            let unmet = |cell: &CellId| {
                let wanted = program.cell(*cell).threshold(epoch);
                let is_met = reached(self.host.cells.seen(place.rank, *cell), wanted);
                if is_met { None } else { Some(Attempt::Waits(*cell, wanted)) }
            };
            let certain = program.waits(segment);
            while let Some(cell) = certain.get(slot.waits) {
                if let Some(waits) = unmet(cell) {
                    return Ok(waits);
                }
                slot.waits += 1;
            }
            let refuse = |_: Unplanned| at_place(FaultKind::Index, place);
            let picks = match slot.picks.take() {
                Some(picks) => picks,
                None => slot.kernels.picks(&task, program, slot.segments).map_err(refuse)?,
            };
            let picks = slot.picks.insert(picks);
            while let Some(cell) = picks.get(slot.waits - certain.len()) {
                if let Some(waits) = unmet(cell) {
                    return Ok(waits);
                }
                slot.waits += 1;
            }
            slot.picks = None;
            if let Some(kernel) = slot.kernels.of(&instruction.op) {
                kernel.segment(&task, slot.segments, program.reads(segment)).map_err(refuse)?;
            }
            slot.segments += 1;
            slot.waits = 0;
        } else if !earlier.is_empty() {
            return Ok(Attempt::NotNow);
        } else if !slot.is_written {
            slot.is_written = true;
            match (instruction.op, slot.kernels.of(&instruction.op)) {
                (Op::Put(id), _) => {
                    let ticket = put::ticket(self.host, program, id);
                    let rank = place.rank.0 as usize;
                    slot.is_written = self.proxies[rank].push(ticket, agent);
                    self.ctas[agent].waits_for_ring = !slot.is_written;
                    if self.ctas[agent].waits_for_ring {
                        return Ok(Attempt::NotNow);
                    }
                    self.make_runnable(self.ctas.len() + rank);
                }
                (_, kernel) => kernel.expect("every other operation has a kernel").finish(&task),
            }
        } else if let Some(signal) = program.signals(instruction).get(slot.signals) {
            slot.signals += 1;
            self.host.cells.add(signal.rank, signal.cell, signal.amount);
        } else {
            return Ok(Attempt::Complete);
        }
        self.note(agent, place, Activity::Work, 1);
        Ok(Attempt::Progress)
    }

    fn complete(&mut self, agent: usize) {
        let slot = self.ctas[agent].slots.pop_front().expect("only a held instruction completes");
        self.stats[slot.place.rank.0 as usize][usize::from(slot.place.lane.0)].tasks += 1;
        self.spare.push(slot.kernels);
    }

    /// Enters the waits of a CTA that can do nothing now.
    fn block(&mut self, agent: usize, waits: &[(usize, CellId, u64)]) {
        let cta = &mut self.ctas[agent];
        cta.blocked_at.get_or_insert(self.now);
        let wake = Wake::Agent(cta.agent);
        for &(index, cell, wanted) in waits {
            let waiter = Waiter { place: cta.slots[index].place, cell, wanted, since_us: 0.0, wake };
            assert!(self.host.cells.enlist(waiter), "the wait was seen not to hold, and nothing ran since");
        }
    }

    /// Ends a block: strikes off the waits and counts the time.
    fn wake(&mut self, agent: usize) {
        let Some(since) = self.ctas[agent].blocked_at.take() else { return };
        for place in self.ctas[agent].places() {
            self.host.cells.delist(place);
        }
        if let Some(slot) = self.ctas[agent].slots.front() {
            self.note(agent, slot.place, Activity::Wait, self.now - since);
        }
    }

    fn note(&mut self, agent: usize, place: At, what: Activity, steps: u64) {
        let stats = &mut self.stats[place.rank.0 as usize][usize::from(place.lane.0)];
        *(if what == Activity::Work { &mut stats.busy_us } else { &mut stats.wait_us }) += steps as f64;
        if self.options.trace {
            let (lane, instruction) = (place.lane, place.instruction);
            let (start_us, duration_us) = ((self.now - steps) as f64, steps as f64);
            let cta = self.ctas[agent].cta.number;
            self.trace.push(TraceEvent { rank: place.rank, cta, lane, instruction, what, start_us, duration_us });
        }
    }
}

impl Slot {
    fn has_read(&self, program: &mkernel_core::Program) -> bool {
        let (_, instruction) = at(program, self.place.lane, self.place.instruction as usize);
        self.segments == instruction.segments.len()
    }
}
