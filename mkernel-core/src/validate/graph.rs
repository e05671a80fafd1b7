//! The graph of events over the unrolled epochs, and whether one event always comes before another.
//!
//! Events of a program in one epoch: the **host** before the launch (0), one per **segment** (its reads; the last one of
//! an instruction also its writes and signals), two per **transfer** (the read of the put's source, with `retired`; its
//! landing, with the put's signal), and one per **choice**: the reads by which a segment chooses what it waits for and
//! gathers. Edges:
//! - host -> every first segment of the launch; every last segment -> the host before the next launch. A transfer is not
//!   among them: it may outlive its launch unless something waits for it.
//! - a segment -> the next of its instruction; a put's last segment -> its read -> its landing; a choice -> its segment.
//! - every event that raises a cell -> every segment that waits for the cell: waits are for full counts, so the count
//!   cannot be reached without any one of them. A wait that data may leave out orders the reads of that segment
//!   alone: the edge counts only where a path ends, in a read.
//!
//! The order of a lane is no edge.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;

use super::cells::{Contributions, Event, choice_event, segment_event, transfer_event};
use super::structure::at;
use super::violation::{Party, Violation};
use super::{EPOCHS, Malformed};
use crate::program::{Op, Program, Slice};
use crate::signal::{Born, CellId};
use crate::world::Rank;

/// An event in one epoch.
pub(super) type Node = u32;

/// A claim that `before` always precedes `after`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) before: Node,
    pub(super) after: Node,
    /// Whether it is what `after` reads that must come later: picked waits order that, and nothing else of the event.
    pub(super) is_read: bool,
    /// What to report if it is false; the graph does not look at it.
    pub(super) subject: u32,
}

impl Claim {
    /// The event whose picked waits count.
    fn end(&self) -> Option<Node> {
        self.is_read.then_some(self.after)
    }
}

/// What the events of one program hang on, by segment or put.
struct Structure {
    /// For each segment, whether it is the first of its instruction.
    first: Vec<bool>,
    /// Last segments of all instructions.
    last: Vec<u32>,
    /// For each put, the last segment of the instruction that posts it.
    posted_by: Vec<u32>,
    /// Segments with a choice, in order.
    choosers: Vec<u32>,
    /// For each segment that is its instruction's last, the instruction's signals.
    signals: Vec<Slice>,
}

/// Events of all programs over all epochs.
pub(super) struct Graph<'a> {
    pub(super) programs: &'a [Program],
    pub(super) contributions: &'a Contributions,
    /// The one program whose memory is proved; none: all of them.
    only: Option<usize>,
    structures: Vec<Structure>,
    /// Every list of picked waits, sorted, by program and place.
    picks: HashMap<(u32, Slice), Vec<CellId>>,
    /// First event of each program within an epoch.
    bases: Vec<u32>,
    /// Events per epoch.
    stride: u32,
}

/// Where on a path an event stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Something else follows it on the path.
    Middle,
    /// The path ends here.
    End,
}

/// Nodes visited with early events at hand, before anything that only a launch boundary orders.
const NEAR: usize = 64;

impl<'a> Graph<'a> {
    pub(super) fn new(
        programs: &'a [Program],
        contributions: &'a Contributions,
        only: Option<usize>,
    ) -> Result<Graph<'a>, Violation> {
        let mut bases = Vec::with_capacity(programs.len());
        let mut events = 0u64;
        let structures: Vec<Structure> = programs.iter().map(structure).collect::<Result<_, _>>()?;
        for (program, structure) in programs.iter().zip(&structures) {
            bases.push(events as u32);
            events += u64::from(choice_event(program, structure.choosers.len() as u32));
        }
        let all = events * u64::from(EPOCHS + 1);
        let stride = u32::try_from(all).map_err(|_| Violation::TooLarge { events: all })? / (EPOCHS + 1);
        let picks = picks(programs);
        Ok(Graph { programs, contributions, only, structures, picks, bases, stride })
    }

    /// Whether the memory and the cells of a program are to be proved.
    pub(super) fn is_proved(&self, program: usize) -> bool {
        self.only.is_none_or(|only| only == program)
    }

    /// The node of an event in an epoch.
    pub(super) fn node(&self, event: Event, epoch: u32) -> Node {
        epoch * self.stride + self.bases[event.program as usize] + event.local
    }

    /// The event and epoch of a node.
    fn event(&self, node: Node) -> (Event, u32) {
        let (epoch, within) = (node / self.stride, node % self.stride);
        let program = self.bases.partition_point(|&b| b <= within) - 1;
        (Event { program: program as u32, local: within - self.bases[program] }, epoch)
    }

    /// Names the event of a node, and its epoch.
    pub(super) fn party(&self, node: Node) -> (Party, u64) {
        let (event, epoch) = self.event(node);
        (self.party_of(event), u64::from(epoch))
    }

    /// Names an event.
    pub(super) fn party_of(&self, event: Event) -> Party {
        let program = &self.programs[event.program as usize];
        if event.local == 0 {
            return Party::Host(program.rank);
        }
        let transfers = transfer_event(program, 0);
        let segment = self.segment_of(event);
        for (lane, index, instruction) in program.instructions() {
            let at = at(program, lane, index);
            match instruction.op {
                Op::Put(id) if segment.is_none() && id.0 == (event.local - transfers) / 2 => {
                    return Party::Transfer(at);
                }
                _ if segment.is_some_and(|s| instruction.segments.contains(&s)) => return Party::Instruction(at),
                _ => {}
            }
        }
        Party::Host(program.rank)
    }

    /// The segment of a segment's or a choice's event.
    fn segment_of(&self, event: Event) -> Option<u32> {
        let program = &self.programs[event.program as usize];
        let (transfers, choices) = (transfer_event(program, 0), choice_event(program, 0));
        match event.local {
            0 => None,
            local if local < transfers => Some(local - 1),
            local if local < choices => None,
            local => Some(self.structures[event.program as usize].choosers[(local - choices) as usize]),
        }
    }

    /// The choice of a segment, if it has one.
    pub(super) fn choice(&self, program: u32, segment: u32) -> Option<Event> {
        let choice = self.structures[program as usize].choosers.binary_search(&segment).ok()?;
        let local = choice_event(&self.programs[program as usize], choice as u32);
        Some(Event { program, local })
    }

    fn is_choice(&self, event: Event) -> bool {
        event.local >= choice_event(&self.programs[event.program as usize], 0)
    }

    /// The put of a transfer's event, and whether it is the landing.
    fn put_of(&self, event: Event) -> (u32, bool) {
        let local = event.local - transfer_event(&self.programs[event.program as usize], 0);
        (local / 2, local % 2 == 1)
    }

    fn is_transfer(&self, event: Event) -> bool {
        event.local > 0 && self.segment_of(event).is_none()
    }

    /// Calls `visit` for every event that directly precedes `node`, until it breaks.
    fn predecessors(
        &self,
        node: Node,
        reach: Reach,
        mut visit: impl FnMut(Node) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (event, epoch) = self.event(node);
        let program = &self.programs[event.program as usize];
        let structure = &self.structures[event.program as usize];
        let same = |local, epoch| self.node(Event { program: event.program, local }, epoch);
        if event.local == 0 {
            if epoch > 0 {
                visit(same(0, epoch - 1))?;
                structure.last.iter().try_for_each(|&s| visit(same(segment_event(s), epoch - 1)))?;
            }
            return ControlFlow::Continue(());
        }
        let Some(number) = self.segment_of(event) else {
            let (put, is_landing) = self.put_of(event);
            let before = if is_landing { event.local - 1 } else { segment_event(structure.posted_by[put as usize]) };
            return visit(same(before, epoch));
        };
        visit(same(if structure.first[number as usize] { 0 } else { segment_event(number - 1) }, epoch))?;
        let is_choice = self.is_choice(event);
        if let Some(choice) = self.choice(event.program, number).filter(|_| !is_choice) {
            visit(self.node(choice, epoch))?;
        }
        let segment = &program.segments[number as usize];
        let picked = if reach == Reach::End && !is_choice { program.picked(segment) } else { &[] };
        program.waits(segment).iter().chain(picked).try_for_each(|&cell| match self.gate(event.program, cell, epoch) {
            Some((flat, epoch)) => {
                self.contributions.events(flat).iter().try_for_each(|&raiser| visit(self.node(raiser, epoch)))
            }
            None => ControlFlow::Continue(()),
        })
    }

    /// The cell behind a wait in `epoch`, over all programs, and the epoch whose contributions the wait needs.
    fn gate(&self, program: u32, cell: CellId, epoch: u32) -> Option<(u32, u32)> {
        let needed = match self.programs[program as usize].cell(cell).born {
            Born::Empty => epoch,
            Born::Full => epoch.checked_sub(1)?,
        };
        Some((self.contributions.flat(program, cell), needed))
    }

    /// Whether a claim holds by launch boundaries alone.
    pub(super) fn is_obvious(&self, before: Node, after: Node) -> bool {
        if before == after {
            return true;
        }
        let ((x, first), (y, second)) = (self.event(before), self.event(after));
        if x.program != y.program {
            return false;
        }
        (first < second && !self.is_transfer(x)) || (first == second && x.local == 0)
    }

    /// Whether in every epoch `after`, or what it reads if that is asked for, itself waits for a cell that `before` raises in
    /// that epoch: the usual case, and the cheapest.
    pub(super) fn is_direct(&self, before: Event, after: Event, is_read: bool) -> bool {
        let program = &self.programs[after.program as usize];
        if after.local == 0 {
            return false;
        }
        let posted = || self.structures[after.program as usize].posted_by[self.put_of(after).0 as usize];
        let number = self.segment_of(after).unwrap_or_else(posted);
        let may_pick = is_read && !self.is_choice(after) && !self.is_transfer(after);
        let segment = &program.segments[number as usize];
        let picked = self.picks.get(&(after.program, segment.picked.clone())).filter(|_| may_pick);
        self.raised(before).any(|(rank, cell)| {
            let is_here = rank == program.rank && program.cell(cell).born == Born::Empty;
            let is_picked = || picked.is_some_and(|cells| cells.binary_search(&cell).is_ok());
            is_here && (program.waits(segment).contains(&cell) || is_picked())
        })
    }

    /// The cells that an event raises.
    fn raised(&self, event: Event) -> impl Iterator<Item = (Rank, CellId)> + '_ {
        let program = &self.programs[event.program as usize];
        let segment = self.segment_of(event).filter(|_| !self.is_choice(event));
        let signals = segment.map_or(0..0, |s| self.structures[event.program as usize].signals[s as usize].clone());
        let signals = program.signals[signals.start as usize..signals.end as usize].iter().map(|s| (s.rank, s.cell));
        let by_put = self.is_transfer(event).then(|| {
            let (put, is_landing) = self.put_of(event);
            let put = &program.puts[put as usize];
            if is_landing { Some((put.target.rank, put.cell)) } else { put.retired.map(|cell| (program.rank, cell)) }
        });
        signals.chain(by_put.flatten())
    }

    /// The first of `claims` that does not hold.
    ///
    /// Almost every claim holds within a hop or two of its later event, or through one cell that many later events wait
    /// for (a credit). So: a short search from each later event; then one search per cell, shared by all that wait for
    /// it, the busiest cell first; then, for what is left, a full search, which decides.
    pub(super) fn refute(&self, mut claims: Vec<Claim>) -> Option<Claim> {
        let mut search = Search::new(self);
        self.settle_at_boundaries(&mut search, &mut claims);
        claims.sort_by_key(|c| (c.after, c.is_read));
        let mut open: Vec<Claim> = Vec::new();
        for group in claims.chunk_by(|a, b| (a.after, a.is_read) == (b.after, b.is_read)) {
            search.run(&[group[0].after], group[0].end(), group.iter().map(|c| c.before), NEAR);
            open.extend(group.iter().filter(|c| !search.found(c.before)));
        }
        let mut by_cell: HashMap<(u32, u32), Vec<u32>> = HashMap::new();
        let mut index = 0;
        for group in open.chunk_by(|a, b| (a.after, a.is_read) == (b.after, b.is_read)) {
            let members = index..index + group.len() as u32;
            index = members.end;
            for key in self.gates(&group[0]) {
                by_cell.entry(key).or_default().extend(members.clone());
            }
        }
        let mut gates: Vec<_> = by_cell.into_iter().collect();
        gates.sort_by_key(|(key, claims)| (std::cmp::Reverse(claims.len()), *key));
        let mut settled = vec![false; open.len()];
        for ((flat, epoch), members) in gates {
            let left: Vec<u32> = members.into_iter().filter(|&i| !settled[i as usize]).collect();
            if left.is_empty() {
                continue;
            }
            let starts: Vec<Node> =
                self.contributions.events(flat).iter().map(|&event| self.node(event, epoch)).collect();
            search.run(&starts, None, left.iter().map(|&i| open[i as usize].before), usize::MAX);
            for i in left {
                settled[i as usize] = search.found(open[i as usize].before);
            }
        }
        let rest: Vec<Claim> = open.into_iter().zip(settled).filter(|(_, s)| !s).map(|(c, _)| c).collect();
        for group in rest.chunk_by(|a, b| (a.after, a.is_read) == (b.after, b.is_read)) {
            search.run(&[group[0].after], group[0].end(), group.iter().map(|c| c.before), usize::MAX);
            if let Some(claim) = group.iter().find(|c| !search.found(c.before)) {
                return Some(*claim);
            }
        }
        None
    }

    /// Drops claims that hold because the launch of the earlier event ends after it: a transfer that something in its
    /// launch waits for comes before all that its rank does later. One search per rank and launch.
    fn settle_at_boundaries(&self, search: &mut Search<'_>, claims: &mut Vec<Claim>) {
        let boundary = |c: &Claim| {
            let ((x, first), (y, second)) = (self.event(c.before), self.event(c.after));
            let host = Event { program: x.program, local: 0 };
            (x.program == y.program && first < second).then(|| self.node(host, first + 1))
        };
        claims.sort_by_cached_key(boundary);
        let mut left = Vec::with_capacity(claims.len());
        for group in claims.chunk_by(|a, b| boundary(a) == boundary(b)) {
            let Some(host) = boundary(&group[0]) else {
                left.extend_from_slice(group);
                continue;
            };
            search.run(&[host], None, group.iter().map(|c| c.before), usize::MAX);
            left.extend(group.iter().filter(|c| !search.found(c.before)));
        }
        *claims = left;
    }

    /// The cells, with the epoch of their contributions, that an event's own waits go through.
    fn gates(&self, claim: &Claim) -> Vec<(u32, u32)> {
        let (event, epoch) = self.event(claim.after);
        let program = &self.programs[event.program as usize];
        let structure = &self.structures[event.program as usize];
        if event.local == 0 {
            return Vec::new();
        }
        let own = self.segment_of(event);
        let mut segment = own.unwrap_or_else(|| structure.posted_by[self.put_of(event).0 as usize]);
        let may_pick = claim.is_read && own.is_some() && !self.is_choice(event);
        let picked = if may_pick { program.picked(&program.segments[segment as usize]) } else { &[] };
        let mut gates: Vec<_> = picked.iter().filter_map(|&cell| self.gate(event.program, cell, epoch)).collect();
        loop {
            let waits = program.waits(&program.segments[segment as usize]);
            gates.extend(waits.iter().filter_map(|&cell| self.gate(event.program, cell, epoch)));
            if structure.first[segment as usize] {
                return gates;
            }
            segment -= 1;
        }
    }
}

/// First, last and posting segments of a program; a segment belongs to one instruction.
fn structure(program: &Program) -> Result<Structure, Violation> {
    let mut first = vec![false; program.segments.len()];
    let mut owned = vec![false; program.segments.len()];
    let mut last = Vec::new();
    let mut posted_by = vec![0; program.puts.len()];
    let mut choosers = Vec::new();
    let mut signals = vec![0..0; program.segments.len()];
    for (lane, index, instruction) in program.instructions() {
        let segments = instruction.segments.clone();
        if owned[segments.start as usize..segments.end as usize].iter().any(|&o| o) {
            return Err(Violation::Malformed { at: at(program, lane, index), what: Malformed::Slice });
        }
        owned[segments.start as usize..segments.end as usize].fill(true);
        first[segments.start as usize] = true;
        last.push(segments.end - 1);
        signals[segments.end as usize - 1] = instruction.signals.clone();
        choosers.extend(segments.clone().filter(|&s| program.chooses(instruction, &program.segments[s as usize])));
        if let Op::Put(id) = instruction.op {
            posted_by[id.0 as usize] = segments.end - 1;
        }
    }
    choosers.sort_unstable();
    Ok(Structure { first, last, posted_by, choosers, signals })
}

/// Every list of picked waits, sorted.
fn picks(programs: &[Program]) -> HashMap<(u32, Slice), Vec<CellId>> {
    let mut picks = HashMap::new();
    for (index, program) in (0..).zip(programs) {
        for segment in program.segments.iter().filter(|s| !s.picked.is_empty()) {
            picks.entry((index, segment.picked.clone())).or_insert_with(|| {
                let mut cells = program.picked(segment).to_vec();
                cells.sort_unstable();
                cells
            });
        }
    }
    picks
}

/// A backward search with marks that need no clearing.
struct Search<'a> {
    graph: &'a Graph<'a>,
    visited: Vec<u32>,
    wanted: Vec<u32>,
    found: Vec<u32>,
    round: u32,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph<'a>) -> Search<'a> {
        let nodes = graph.stride as usize * (EPOCHS as usize + 1);
        Search { graph, visited: vec![0; nodes], wanted: vec![0; nodes], found: vec![0; nodes], round: 0 }
    }

    /// Whether the last run came across `node`.
    fn found(&self, node: Node) -> bool {
        self.found[node as usize] == self.round
    }

    /// Walks back from `starts`, nearest first, until all of `wanted` are found, nothing is left, or `limit` nodes were seen. `end` is
    /// the event whose reads' past is asked for, if it is among the starts. Earlier segments of an instruction are as near
    /// as the last: without that, a sum of many sources hides its first reads behind the past of all the others. Hosts wait
    /// until the end: their predecessors are a whole launch.
    fn run(&mut self, starts: &[Node], end: Option<Node>, wanted: impl Iterator<Item = Node>, limit: usize) {
        self.round += 1;
        let round = self.round;
        let mut missing = 0;
        for node in wanted {
            missing += usize::from(std::mem::replace(&mut self.wanted[node as usize], round) != round);
        }
        let (mut near, mut hosts, mut seen) = (VecDeque::from(starts.to_vec()), VecDeque::new(), 0);
        for &start in starts {
            self.visited[start as usize] = round;
            missing -= usize::from(self.mark(start));
        }
        let graph = self.graph;
        while missing > 0 && seen < limit {
            let Some(node) = near.pop_front().or_else(|| hosts.pop_front()) else { return };
            let reach = if Some(node) == end { Reach::End } else { Reach::Middle };
            let _ = graph.predecessors(node, reach, |p| {
                if std::mem::replace(&mut self.visited[p as usize], round) == round {
                    return ControlFlow::Continue(());
                }
                seen += 1;
                missing -= usize::from(self.mark(p));
                let is_host = graph.event(p).0.local == 0;
                if is_host {
                    hosts.push_back(p)
                } else if p + 1 == node {
                    near.push_front(p)
                } else {
                    near.push_back(p)
                }
                if missing > 0 && seen < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
    }

    /// Marks a wanted node as found; says whether it was wanted.
    fn mark(&mut self, node: Node) -> bool {
        let hit = self.wanted[node as usize] == self.round;
        if hit {
            self.found[node as usize] = self.round;
        }
        hit
    }
}
