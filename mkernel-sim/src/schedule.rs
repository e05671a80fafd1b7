//! Which CTA claims what: the rule that both executors follow.
//!
//! CTAs of a lane claim its instructions in order. A CTA whose lane is drained goes on with the next lane, once its own
//! instructions are complete.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mkernel_core::executor::LaneStats;
use mkernel_core::validate::At;
use mkernel_core::{Instruction, Lane, LaneId, Program, Rank, RoleName, Verified};

/// One CTA of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cta {
    pub(crate) rank: Rank,
    /// Its number within the rank.
    pub(crate) number: u32,
    /// The lane that it starts with.
    pub(crate) home: LaneId,
}

/// CTAs of the roles that were given other numbers than the plan's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Split([Option<NonZeroU32>; RoleName::ALL.len()]);

impl Split {
    /// Gives a role another number of CTAs.
    pub(crate) fn set(&mut self, role: RoleName, ctas: NonZeroU32) {
        self.0[role as usize] = Some(ctas);
    }

    /// Home CTAs of a lane.
    fn of(&self, lane: &Lane) -> u32 {
        self.0[lane.role as usize].map_or(lane.ctas, NonZeroU32::get)
    }

    /// All CTAs of one rank, lane by lane.
    pub(crate) fn ctas<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = Cta> + 'a {
        let homes = program.lanes.iter().enumerate();
        let homes = homes.flat_map(|(lane, l)| (0..self.of(l)).map(move |_| LaneId(lane as u16)));
        homes.enumerate().map(|(number, home)| Cta { rank: program.rank, number: number as u32, home })
    }

    /// Empty statistics of every lane of a program.
    pub(crate) fn no_stats(&self, program: &Program) -> Vec<LaneStats> {
        let stats = |l: &Lane| {
            let (rank, role, ctas) = (program.rank, l.role, self.of(l));
            LaneStats { rank, role, ctas, tasks: 0, busy_us: 0.0, wait_us: 0.0 }
        };
        program.lanes.iter().map(stats).collect()
    }
}

/// How far each lane has been claimed in this launch. It is no signal: it orders no memory.
#[derive(Debug)]
pub(crate) struct Claims {
    next: Vec<Vec<AtomicUsize>>,
}

impl Claims {
    /// Nothing claimed yet.
    pub(crate) fn new(verified: &Verified) -> Claims {
        let lanes = |p: &Program| p.lanes.iter().map(|_| AtomicUsize::new(0)).collect();
        Claims { next: verified.programs().iter().map(lanes).collect() }
    }

    /// Claims the next instruction of `lane`, if there is one.
    pub(crate) fn claim(&self, program: &Program, lane: LaneId) -> Option<usize> {
        let (lane, next) = (usize::from(lane.0), &self.next[program.rank.0 as usize]);
        let length = program.lanes[lane].instructions.len();
        // Looked at first, so that the counter stays near the length however often a drained lane is asked.
        if next[lane].load(Relaxed) >= length {
            return None;
        }
        Some(next[lane].fetch_add(1, Relaxed)).filter(|&index| index < length)
    }

    /// Instructions of each lane of a rank that have been claimed.
    pub(crate) fn claimed(&self, program: &Program) -> Vec<u32> {
        let next = &self.next[program.rank.0 as usize];
        let claimed = |(lane, next): (&Lane, &AtomicUsize)| lane.instructions.len().min(next.load(Relaxed)) as u32;
        program.lanes.iter().zip(next).map(claimed).collect()
    }

    /// Whether an instruction has been claimed.
    pub(crate) fn is_claimed(&self, rank: Rank, lane: LaneId, index: u32) -> bool {
        self.next[rank.0 as usize][usize::from(lane.0)].load(Relaxed) > index as usize
    }
}

/// The first lane with something to claim, from `lane` on through its continuations; each is asked once.
pub(crate) fn claim_onward(claims: &Claims, program: &Program, lane: LaneId) -> Option<(LaneId, usize)> {
    let mut lane = Some(lane);
    for _ in 0..program.lanes.len() {
        let current = lane?;
        if let Some(index) = claims.claim(program, current) {
            return Some((current, index));
        }
        lane = program.lanes[usize::from(current.0)].next;
    }
    None
}

/// An instruction and its place.
pub(crate) fn at(program: &Program, lane: LaneId, index: usize) -> (At, &Instruction) {
    let l = &program.lanes[usize::from(lane.0)];
    (At { rank: program.rank, role: l.role, lane, instruction: index as u32 }, &l.instructions[index])
}
