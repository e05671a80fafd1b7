//! A walk back through the graph of events, nearest first, until what was asked for is found.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::cells::Event;
use super::graph::{Graph, Place, Reach};

/// Places visited by a near walk.
pub(super) const NEAR: usize = 64;

/// A cell that more events raise than this waits its turn: its events hide what is near.
const WIDE: usize = 8;

/// How far a walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// A few steps, past no launch boundary and no wide cell.
    Near,
    /// So many places.
    Limit(usize),
    /// The running launch of one program alone.
    Launch(u32),
}

/// A walk with marks that need no clearing.
pub(super) struct Search<'a> {
    graph: &'a Graph<'a>,
    /// By place: the last round that came by.
    visited: Vec<u32>,
    /// By event of the first epoch: the last round that asked for it.
    wanted: Vec<u32>,
    round: u32,
    /// Events asked for that were not found yet.
    missing: usize,
    seen: usize,
    near: VecDeque<Place>,
    wide: VecDeque<Place>,
    hosts: VecDeque<Place>,
    /// Cells that the last near walk came by: whatever lies behind one of them lies behind its start.
    pub(super) gates: Vec<(u32, u32)>,
}

impl<'a> Search<'a> {
    pub(super) fn new(graph: &'a Graph<'a>) -> Search<'a> {
        let queue = VecDeque::new;
        Search {
            graph,
            visited: vec![0; graph.places()],
            wanted: vec![0; graph.events()],
            round: 0,
            missing: 0,
            seen: 0,
            near: queue(),
            wide: queue(),
            hosts: queue(),
            gates: Vec::new(),
        }
    }

    /// Begins a round without anything asked for.
    pub(super) fn begin(&mut self) {
        (self.round, self.missing) = (self.round + 1, 0);
    }

    /// Asks for events of the first epoch, in this round.
    pub(super) fn want(&mut self, events: &[Event]) {
        for &event in events {
            let mark = &mut self.wanted[self.graph.number(event)];
            self.missing += usize::from(std::mem::replace(mark, self.round) != self.round);
        }
    }

    /// Whether the last walk came by all of these events in the first epoch.
    pub(super) fn found(&self, events: &[Event]) -> bool {
        events.iter().all(|&event| self.visited[self.graph.number(event)] == self.round)
    }

    /// Walks back from `start` until all that is asked for is found, or nothing is left, or far enough; a near walk
    /// looks for cells besides. `reach` says whether picked waits of the start count.
    ///
    /// Earlier segments of an instruction are as near as the last: without that, a sum of many sources hides its first
    /// reads behind the past of all the others. Hosts wait until the end: their past is a whole launch.
    pub(super) fn walk(&mut self, start: Place, reach: Reach, depth: Depth) {
        for queue in [&mut self.near, &mut self.wide, &mut self.hosts] {
            queue.clear();
        }
        self.gates.clear();
        self.seen = 0;
        self.visit(start, None, depth);
        let mut reach = reach;
        let limit = match depth {
            Depth::Near => NEAR,
            Depth::Limit(limit) => limit,
            Depth::Launch(_) => usize::MAX,
        };
        let is_near = depth == Depth::Near;
        while (self.missing > 0 || is_near) && self.seen < limit {
            let next = self.near.pop_front();
            let far = || self.wide.pop_front().or_else(|| self.hosts.pop_front());
            let Some(place) = (if is_near { next } else { next.or_else(far) }) else { return };
            let graph = self.graph;
            let _ = graph.predecessors(place, std::mem::replace(&mut reach, Reach::Middle), |before| {
                self.visit(before, Some(place), depth);
                let is_over = (self.missing == 0 && !is_near) || self.seen >= limit;
                if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
    }

    /// Comes by a place, the first time in this round: marks it and notes where to go on.
    fn visit(&mut self, place: Place, after: Option<Place>, depth: Depth) {
        let slot = self.graph.slot(place);
        if std::mem::replace(&mut self.visited[slot], self.round) == self.round {
            return;
        }
        self.seen += 1;
        match place {
            Place::Cell(flat, epoch) => {
                self.gates.push((flat, epoch));
                let is_wide = self.graph.contributions.events(flat).len() > WIDE;
                if is_wide { &mut self.wide } else { &mut self.near }.push_back(place);
            }
            Place::Event(event, epoch) => {
                self.missing -= usize::from(epoch == 0 && self.wanted[slot] == self.round);
                let is_outside = |program| event.program != program || (epoch > 0 && after.is_some());
                match (depth, after) {
                    (Depth::Launch(program), _) if is_outside(program) => {}
                    _ if event.local == 0 => self.hosts.push_back(place),
                    (_, Some(Place::Event(next, _)))
                        if next.program == event.program && event.local + 1 == next.local =>
                    {
                        self.near.push_front(place);
                    }
                    _ => self.near.push_back(place),
                }
            }
        }
    }
}
