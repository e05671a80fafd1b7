//! A race detector that knows nothing of `validate`: it runs programs, without data, and watches every access.
//!
//! The run is abstract: one CTA per lane, every put carried at once, each rank running ahead into its next launches on
//! its own. What it finds does not depend on that schedule: each event carries the set of all events that happen before
//! it, and two accesses of a byte, one of them a write, must be in one another's set.
//!
//! Events are: each segment's reads, each instruction's writes, each put's read of its source and write of its target,
//! and per launch and rank the host's writes of inputs and reads of outputs. What happens before what:
//! - a segment comes after the launch's start and after all contributions to the cells that it and its earlier segments
//!   wait for; the writes of an instruction come after all its segments; its signals cover its writes; waits that data
//!   may leave out come before the reads of their own segment and before nothing else;
//! - a put reads after its instruction; it writes after it has read; `retired` covers the read, its signal the write;
//! - a launch ends after all writes of its rank's instructions, and the rank's next one starts after that. Puts are
//!   not waited for.
//!
//! Nothing else orders anything: neither places in a lane, nor the CTA, nor the queue of the proxy.
//!
//! A wait for a full count orders all contributions of one epoch only if none of the next can come first; that is
//! checked too. Memory is O(events^2 / 8) bits in the worst case: it is meant for programs of some 10,000 events.

mod atoms;
mod clock;
mod party;
mod shadow;

use std::collections::HashMap;

use mkernel_core::{Born, CellId, LaneId, Op, Program, Rank};

use atoms::Atoms;
use clock::Clock;
pub use party::{Actor, Party, Race};
use shadow::{Access, Shadow};

/// Runs `programs`, one per rank of a world in order of ranks, for `epochs` launches.
///
/// # Errors
/// The first [`Race`] met.
pub fn find_races(programs: &[Program], epochs: u32) -> Result<(), Race> {
    check_indices(programs)?;
    Detector::new(programs, epochs)?.run()
}

/// One abstract run.
struct Detector<'a> {
    programs: &'a [Program],
    epochs: u32,
    atoms: Atoms,
    shadow: Shadow,
    /// What each event is.
    parties: Vec<Party>,
    ranks: Vec<RankState>,
    uses: HashMap<(Rank, CellId, u32), Use>,
}

/// One rank's launch in progress.
struct RankState {
    epoch: u32,
    /// Everything that comes before the instructions of this launch.
    start: Clock,
    /// Everything that comes before its end.
    end: Clock,
    lanes: Vec<LaneState>,
}

/// The one CTA of a lane.
#[derive(Default)]
struct LaneState {
    instruction: usize,
    segment: usize,
    wait: usize,
    /// What the waits of the instruction have ordered so far.
    waited: Clock,
    /// What the waits that data picks from have ordered, for the segment at hand alone.
    picked: Clock,
    /// The segments read so far, with all that comes before them.
    read: Clock,
    /// Cells whose waits held, with the event that the waits belong to still to come.
    uses: Vec<(CellId, u32)>,
}

/// The contributions of one epoch to one cell, and the waits for them.
#[derive(Default)]
struct Use {
    count: u64,
    clock: Clock,
    contributors: Vec<u32>,
    waits: Vec<u32>,
    /// A contribution of the next epoch that may come before this one's are complete.
    early: Option<u32>,
}

impl<'a> Detector<'a> {
    fn new(programs: &'a [Program], epochs: u32) -> Result<Detector<'a>, Race> {
        let atoms = Atoms::new(programs)?;
        let shadow = Shadow::new(atoms.count());
        let ranks = programs.iter().map(|p| RankState {
            epoch: 0,
            start: Clock::default(),
            end: Clock::default(),
            lanes: p.lanes.iter().map(|_| LaneState::default()).collect(),
        });
        let (ranks, parties, uses) = (ranks.collect(), Vec::new(), HashMap::new());
        Ok(Detector { programs, epochs, atoms, shadow, parties, ranks, uses })
    }

    fn run(&mut self) -> Result<(), Race> {
        for program in self.programs {
            self.start_launch(program)?;
        }
        loop {
            let mut has_moved = false;
            for program in self.programs {
                let rank = program.rank.0 as usize;
                while self.ranks[rank].epoch < self.epochs {
                    for lane in 0..program.lanes.len() {
                        while self.step(program, lane)? {
                            has_moved = true;
                        }
                    }
                    let lanes = self.ranks[rank].lanes.iter().zip(&program.lanes);
                    if !lanes.into_iter().all(|(state, lane)| state.instruction == lane.instructions.len()) {
                        break;
                    }
                    self.end_launch(program)?;
                    has_moved = true;
                }
            }
            if !has_moved {
                break;
            }
        }
        match self.programs.iter().find(|p| self.ranks[p.rank.0 as usize].epoch < self.epochs) {
            None => self.check_counts(),
            Some(_) => Err(self.stuck()),
        }
    }

    /// Takes one event, or finds that a wait does not hold or the lane is drained.
    fn step(&mut self, program: &Program, lane: usize) -> Result<bool, Race> {
        let rank = program.rank.0 as usize;
        let state = &mut self.ranks[rank].lanes[lane];
        let Some(instruction) = program.lanes[lane].instructions.get(state.instruction) else { return Ok(false) };
        let segments = program.segments(instruction);
        let Some(segment) = segments.get(state.segment) else {
            self.finish(program, lane)?;
            return Ok(true);
        };
        let waits = program.waits(segment);
        if let Some(&cell) = waits.iter().chain(program.picked(segment)).nth(state.wait) {
            let is_picked = state.wait >= waits.len();
            return Ok(self.pass(program, lane, cell, is_picked));
        }
        let index = state.segment as u32;
        state.segment += 1;
        state.wait = 0;
        let party = self.party(program, lane, |role, lane, instruction| Actor::Segment {
            role,
            lane,
            instruction,
            segment: index,
        });
        let mut clock = self.ranks[rank].start.clone();
        clock.join(&self.ranks[rank].lanes[lane].waited);
        // What a choice follows from is read before the waits that it picks.
        let gathered = instruction.op.gathered().filter(|_| program.chooses(instruction, segment));
        let reads = || program.reads(segment).iter().enumerate();
        if gathered.is_some() {
            let decisive = reads().filter(|(i, _)| Some(*i) != gathered).map(|(_, s)| (s, Access::Read));
            let choice = self.event(party, &clock, decisive)?;
            clock.insert(choice);
        }
        let mut before = std::mem::take(&mut self.ranks[rank].lanes[lane].picked);
        before.join(&clock);
        let rest = reads().filter(|(i, _)| gathered.is_none_or(|g| *i == g)).map(|(_, s)| (s, Access::Read));
        let node = self.event(party, &before, rest)?;
        clock.insert(node);
        self.note_waits(program, lane, node)?;
        self.ranks[rank].lanes[lane].read.join(&clock);
        Ok(true)
    }

    /// Passes one wait of the segment at hand, if it holds.
    fn pass(&mut self, program: &Program, lane: usize, cell: CellId, is_picked: bool) -> bool {
        let Some(used) = self.waits_for(program, cell) else { return false };
        let state = &mut self.ranks[program.rank.0 as usize].lanes[lane];
        state.wait += 1;
        if let Some(epoch) = used {
            let clock = if is_picked { &mut state.picked } else { &mut state.waited };
            clock.join(&self.uses[&(program.rank, cell, epoch)].clock);
            state.uses.push((cell, epoch));
        }
        true
    }

    /// Writes and signals of an instruction whose segments have been read, and the put that it starts.
    fn finish(&mut self, program: &Program, lane: usize) -> Result<(), Race> {
        let rank = program.rank.0 as usize;
        let state = &mut self.ranks[rank].lanes[lane];
        let instruction = &program.lanes[lane].instructions[state.instruction];
        let mut clock = std::mem::take(&mut state.read);
        let access = if instruction.op == Op::Release { Access::Release } else { Access::Write };
        let party = self.party(program, lane, |role, lane, instruction| Actor::Write { role, lane, instruction });
        let count = if let Op::Put(id) = instruction.op { program.put(id).count } else { None };
        let writes = program.writes(instruction).iter().map(|s| (s, access));
        let node = self.event(party, &clock, writes.chain(count.iter().map(|s| (s, Access::Read))))?;
        clock.insert(node);
        for signal in program.signals(instruction) {
            self.contribute(party.epoch, (signal.rank, signal.cell), signal.amount, node, &clock, false)?;
        }
        if let Op::Put(id) = instruction.op {
            let put = *program.put(id);
            let mut carried = clock.clone();
            let party = self.party(program, lane, |_, lane, instruction| Actor::PutRead { lane, instruction });
            let node = self.event(party, &carried, [(&put.source, Access::Read)].into_iter())?;
            carried.insert(node);
            if let Some(cell) = put.retired {
                self.contribute(party.epoch, (program.rank, cell), 1, node, &carried, false)?;
            }
            let party = self.party(program, lane, |_, lane, instruction| Actor::PutWrite { lane, instruction });
            let node = self.event(party, &carried, [(&put.target, Access::Write)].into_iter())?;
            carried.insert(node);
            self.contribute(party.epoch, (put.target.rank, put.cell), 1, node, &carried, true)?;
        }
        self.ranks[rank].end.join(&clock);
        let state = &mut self.ranks[rank].lanes[lane];
        *state = LaneState { instruction: state.instruction + 1, ..LaneState::default() };
        Ok(())
    }

    fn start_launch(&mut self, program: &Program) -> Result<(), Race> {
        let rank = program.rank.0 as usize;
        let mut clock = std::mem::take(&mut self.ranks[rank].end);
        let party = Party { rank: program.rank, epoch: self.ranks[rank].epoch, actor: Actor::HostWrite };
        let node = self.event(party, &clock, program.inputs.iter().map(|p| (&p.span, Access::Write)))?;
        clock.insert(node);
        let state = &mut self.ranks[rank];
        state.end = clock.clone();
        state.start = clock;
        Ok(())
    }

    fn end_launch(&mut self, program: &Program) -> Result<(), Race> {
        let rank = program.rank.0 as usize;
        let clock = self.ranks[rank].end.clone();
        let party = Party { rank: program.rank, epoch: self.ranks[rank].epoch, actor: Actor::HostRead };
        let node = self.event(party, &clock, program.host_reads().map(|s| (s, Access::Read)))?;
        let state = &mut self.ranks[rank];
        state.end.insert(node);
        state.epoch += 1;
        state.lanes.iter_mut().for_each(|lane| *lane = LaneState::default());
        if state.epoch < self.epochs {
            self.start_launch(program)?;
        }
        Ok(())
    }

    /// One event with its accesses; `before` is all that happens before it.
    fn event<'s>(
        &mut self,
        party: Party,
        before: &Clock,
        accesses: impl Iterator<Item = (&'s mkernel_core::Span, Access)>,
    ) -> Result<u32, Race> {
        let node = self.parties.len() as u32;
        self.parties.push(party);
        for (span, access) in accesses {
            for &atom in self.atoms.of(span) {
                let clash = self.shadow.touch(atom, node, party.epoch, access, before);
                clash.map_err(|clash| clash.name(party, span, &self.parties))?;
            }
        }
        Ok(node)
    }

    fn party(
        &self,
        program: &Program,
        lane: usize,
        actor: impl FnOnce(mkernel_core::RoleName, LaneId, u32) -> Actor,
    ) -> Party {
        let state = &self.ranks[program.rank.0 as usize];
        let instruction = state.lanes[lane].instruction as u32;
        let actor = actor(program.lanes[lane].role, LaneId(lane as u16), instruction);
        Party { rank: program.rank, epoch: state.epoch, actor }
    }
}

// Cells.
impl Detector<'_> {
    /// `None` if the wait does not hold yet; else the epoch whose contributions it is for, if it is for any.
    fn waits_for(&self, program: &Program, cell: CellId) -> Option<Option<u32>> {
        let (plan, epoch) = (program.cell(cell), self.ranks[program.rank.0 as usize].epoch);
        let used = match plan.born {
            Born::Empty => Some(epoch),
            // The first launch's credit is there from birth.
            Born::Full => epoch.checked_sub(1),
        };
        let Some(used) = used.filter(|_| plan.arrivals > 0) else { return Some(None) };
        let count = self.uses.get(&(program.rank, cell, used)).map_or(0, |u| u.count);
        (count == u64::from(plan.arrivals)).then_some(Some(used))
    }

    /// Enters the waits that led to event `node`.
    fn note_waits(&mut self, program: &Program, lane: usize, node: u32) -> Result<(), Race> {
        let waits = std::mem::take(&mut self.ranks[program.rank.0 as usize].lanes[lane].uses);
        for (cell, epoch) in waits {
            let used = self.uses.entry((program.rank, cell, epoch)).or_default();
            used.waits.push(node);
            if let Some(early) = used.early {
                return Err(self.early(cell, early, node));
            }
        }
        Ok(())
    }

    fn contribute(
        &mut self,
        epoch: u32,
        (rank, cell): (Rank, CellId),
        amount: u32,
        node: u32,
        clock: &Clock,
        is_put: bool,
    ) -> Result<(), Race> {
        let planned = u64::from(self.programs[rank.0 as usize].cell(cell).arrivals);
        if is_put && planned != 1 {
            return Err(Race::SharedPutCell { put: self.parties[node as usize], rank, cell });
        }
        if let Some(previous) = epoch.checked_sub(1).and_then(|e| self.uses.get_mut(&(rank, cell, e))) {
            previous.early = Some(node);
            let late = previous.waits.iter().copied().find(|&w| !clock.has(w));
            let fallen = previous.contributors.iter().copied().find(|&c| is_put && !clock.has(c));
            if let Some(late) = late.or(fallen) {
                return Err(self.early(cell, node, late));
            }
        } else if epoch > 0 && planned > 0 {
            self.uses.entry((rank, cell, epoch - 1)).or_default().early = Some(node);
        }
        let used = self.uses.entry((rank, cell, epoch)).or_default();
        used.count += u64::from(amount);
        used.contributors.push(node);
        used.clock.join(clock);
        if used.count > planned {
            let counted = used.count;
            return Err(Race::Count { rank, cell, epoch, counted, planned });
        }
        Ok(())
    }

    fn early(&self, cell: CellId, early: u32, waiter: u32) -> Race {
        let (contributor, waiter) = (self.parties[early as usize], self.parties[waiter as usize]);
        Race::Early { cell, contributor, waiter }
    }

    /// Every cell has received its planned total in every epoch.
    fn check_counts(&self) -> Result<(), Race> {
        for program in self.programs {
            for (index, plan) in program.cells.iter().enumerate() {
                let (rank, cell, planned) = (program.rank, CellId(index as u32), u64::from(plan.arrivals));
                for epoch in 0..self.epochs {
                    let counted = self.uses.get(&(rank, cell, epoch)).map_or(0, |u| u.count);
                    if counted != planned {
                        return Err(Race::Count { rank, cell, epoch, counted, planned });
                    }
                }
            }
        }
        Ok(())
    }

    /// The first wait that never holds.
    fn stuck(&self) -> Race {
        for program in self.programs {
            let state = &self.ranks[program.rank.0 as usize];
            for (lane, at) in state.lanes.iter().enumerate().filter(|_| state.epoch < self.epochs) {
                let Some(instruction) = program.lanes[lane].instructions.get(at.instruction) else { continue };
                let Some(segment) = program.segments(instruction).get(at.segment) else { continue };
                let waits = program.waits(segment).iter().chain(program.picked(segment));
                let Some(&cell) = waits.into_iter().nth(at.wait) else { continue };
                let waiter = self.party(program, lane, |role, lane, instruction| Actor::Segment {
                    role,
                    lane,
                    instruction,
                    segment: at.segment as u32,
                });
                return Race::Stuck { waiter, cell };
            }
        }
        unreachable!("a rank is short of launches only because one of its lanes waits")
    }
}

/// Everything that is named exists, so that the run cannot trip over a bad index.
fn check_indices(programs: &[Program]) -> Result<(), Race> {
    let cells = |rank: Rank| programs.get(rank.0 as usize).map_or(0, |p| p.cells.len());
    let has = |rank: Rank, cell: CellId| (cell.0 as usize) < cells(rank);
    for (index, program) in programs.iter().enumerate() {
        let bad = |lane, instruction| Race::Malformed { rank: program.rank, lane, instruction };
        if program.rank.0 as usize != index {
            return Err(bad(LaneId(0), 0));
        }
        for (lane, at, instruction) in program.instructions() {
            let segments = program.segments(instruction);
            let waits = segments.iter().flat_map(|s| program.waits(s).iter().chain(program.picked(s)));
            let waits = waits.into_iter().all(|&cell| has(program.rank, cell));
            let signals = program.signals(instruction).iter().all(|s| has(s.rank, s.cell));
            let put = match instruction.op {
                Op::Put(id) => program.puts.get(id.0 as usize).is_some_and(|put| {
                    has(put.target.rank, put.cell) && put.retired.is_none_or(|cell| has(program.rank, cell))
                }),
                _ => true,
            };
            if !waits || !signals || !put || segments.is_empty() {
                return Err(bad(lane, at));
            }
        }
    }
    Ok(())
}
