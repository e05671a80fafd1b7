//! One CTA's thread.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use mkernel_core::executor::{Activity, LaneStats, TraceEvent};
use mkernel_core::fifo::{FifoError, Producer, Stop};
use mkernel_core::signal::reached;
use mkernel_core::validate::At;
use mkernel_core::{CellId, FaultKind, Op, Program, PutId};

use super::{Held, Shared};
use crate::cells::{Waiter, Wake};
use crate::hang::at_place;
use crate::network::Fate;
use crate::ops::{Kernels, Task, Unplanned, put};
use crate::schedule::{Cta, at, claim_onward};

/// Looks at a cell in a row: a signal that is on its way comes within a microsecond.
const LOOKS: u32 = 64;

/// What a CTA did, by lane of its rank.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) lanes: Vec<LaneStats>,
    pub(super) trace: Vec<TraceEvent>,
}

/// The launch is aborted: unwind.
struct Aborted;

/// One CTA at work.
pub(super) struct Worker<'a> {
    shared: &'a Shared<'a>,
    program: &'a Program,
    cta: Cta,
    held: &'a Held,
    kernels: &'a mut Kernels,
    /// The bell and the ring of its rank's proxy, if the rank has puts.
    producer: Option<(usize, Producer)>,
    report: Report,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        shared: &'a Shared<'a>,
        index: usize,
        kernels: &'a mut Kernels,
        producer: Option<(usize, Producer)>,
    ) -> Worker<'a> {
        let cta = shared.ctas[index];
        let program = &shared.host.verified.programs()[cta.rank.0 as usize];
        let report = Report { lanes: shared.split.no_stats(program), trace: Vec::new() };
        Worker { shared, program, cta, held: &shared.held[index], kernels, producer, report }
    }

    pub(super) fn into_report(self) -> Report {
        self.report
    }

    /// Claims and runs instructions until there are none left or the launch is aborted.
    pub(super) fn run(&mut self) {
        let (mut lane, mut started) = (self.cta.home, 0);
        while let Some((claimed, index)) = claim_onward(&self.shared.claims, self.program, lane) {
            lane = claimed;
            let (place, _) = at(self.program, lane, index);
            let now = self.shared.watch.now_us();
            self.held.set(place, Held::RUNNING, now);
            match self.shared.options.network.fate(self.cta.rank, self.cta.number, started) {
                Fate::Lives => {}
                Fate::Stuck => return self.stand_still(),
                // Not `panic!`: a death on purpose prints nothing.
                Fate::Dies => resume_unwind(Box::new("an injected death")),
            }
            started += 1;
            if self.instruction(place, now).is_err() {
                return;
            }
            self.held.clear();
        }
    }

    /// Runs one instruction, claimed at `since`.
    fn instruction(&mut self, place: At, mut since: f64) -> Result<(), Aborted> {
        let (program, shared) = (self.program, self.shared);
        let (_, instruction) = at(program, place.lane, place.instruction as usize);
        let task = Task::new(shared.host, program, instruction);
        if let Some(kernel) = self.kernels.of(&instruction.op) {
            kernel.begin(&task);
        }
        for (index, segment) in program.segments(instruction).iter().enumerate() {
            for &cell in program.waits(segment) {
                since = self.wait(place, cell, since)?;
            }
            for cell in self.kernels.picks(&task, program, index).map_err(|unplanned| self.refuse(place, unplanned))? {
                since = self.wait(place, cell, since)?;
            }
            if let Some(kernel) = self.kernels.of(&instruction.op) {
                let read = kernel.segment(&task, index, program.reads(segment));
                read.map_err(|unplanned| self.refuse(place, unplanned))?;
            }
        }
        match (instruction.op, self.kernels.of(&instruction.op)) {
            (Op::Put(id), _) => self.push(place, id)?,
            (_, kernel) => kernel.expect("every other operation has a kernel").finish(&task),
        }
        for signal in program.signals(instruction) {
            shared.host.cells.add(signal.rank, signal.cell, signal.amount);
        }
        let now = self.note(place, Activity::Work, since);
        shared.watch.moved(now);
        self.report.lanes[usize::from(place.lane.0)].tasks += 1;
        Ok(())
    }

    /// Ends the launch: a number in memory is beyond what was planned.
    fn refuse(&self, place: At, Unplanned: Unplanned) -> Aborted {
        self.shared.abort(at_place(FaultKind::Index, place));
        Aborted
    }

    /// Waits until the cell reaches its threshold. Work that went on since `since` is noted first if the thread sleeps;
    /// answers the start of the work that follows.
    fn wait(&mut self, place: At, cell: CellId, since: f64) -> Result<f64, Aborted> {
        let (cells, watch) = (&self.shared.host.cells, &self.shared.watch);
        let wanted = self.program.cell(cell).threshold(self.shared.epoch);
        for look in 0..LOOKS + self.shared.patient_looks {
            if reached(cells.seen(place.rank, cell), wanted) {
                return Ok(since);
            }
            if look < LOOKS { std::hint::spin_loop() } else { thread::yield_now() }
        }
        let start = self.note(place, Activity::Work, since);
        if cells.enlist(Waiter { place, cell, wanted, since_us: start, wake: Wake::Thread }) {
            loop {
                let seen = cells.seen(place.rank, cell);
                if reached(seen, wanted) {
                    break;
                }
                match watch.time_left() {
                    Ok(left) => cells.sleep(place.rank, cell, seen, left),
                    Err(stop) => {
                        // The waiter is still listed: it is part of what the search for the cause sees.
                        if stop == Stop::Deadline {
                            self.shared.hang();
                        }
                        cells.delist(place);
                        return Err(Aborted);
                    }
                }
            }
            cells.delist(place);
        }
        Ok(self.note(place, Activity::Wait, start))
    }

    /// Hands a ticket to the proxy.
    fn push(&mut self, place: At, id: PutId) -> Result<(), Aborted> {
        let shared = self.shared;
        let ticket = put::ticket(shared.host, self.program, id);
        let (bell, producer) = self.producer.as_mut().expect("a rank with a put has a proxy");
        let bell = &shared.bells[*bell];
        let started_us = shared.watch.now_us();
        self.held.set(place, Held::PUSHING, started_us);
        let pushed = producer.push(ticket, || {
            bell.ring();
            shared.watch.time_left().map(drop)
        });
        self.held.set(place, Held::RUNNING, started_us);
        bell.ring();
        match pushed {
            Ok(()) => Ok(()),
            Err(FifoError::Stopped { stop: Stop::Deadline, .. }) => {
                self.held.set(place, Held::PUSHING, started_us);
                shared.hang();
                Err(Aborted)
            }
            Err(_) => Err(Aborted),
        }
    }

    /// An injection: the CTA neither works nor waits until the launch is aborted.
    fn stand_still(&self) {
        while !self.shared.watch.is_aborted() {
            // Nobody wakes it: it is in no list. So it looks now and then.
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Counts the time from `start` to now, and answers now.
    fn note(&mut self, place: At, what: Activity, start: f64) -> f64 {
        let now = self.shared.watch.now_us();
        let stats = &mut self.report.lanes[usize::from(place.lane.0)];
        *(if what == Activity::Work { &mut stats.busy_us } else { &mut stats.wait_us }) += now - start;
        if self.shared.options.trace {
            let (rank, cta, lane, instruction) = (place.rank, self.cta.number, place.lane, place.instruction);
            let duration_us = now - start;
            self.report.trace.push(TraceEvent { rank, cta, lane, instruction, what, start_us: start, duration_us });
        }
        now
    }
}
