//! The proxy: turns tickets into puts.
//!
//! [`Proxy::step`] never blocks and never waits for the program, so back-pressure always ends: a put that the transport
//! does not take now is kept and offered again by the next step.
//!
//! # Bounds
//! The proxy keeps at most one put back and pops nothing while it does. What is in flight is what the transport has
//! accepted, and a transport answers [`PostError::Full`] beyond its queue. A step pops at most [`BURST`] tickets.
//!
//! # Epochs
//! Every put of the table has one ticket per epoch, and tickets of an epoch are pushed before those of the next. So the
//! number of tickets popped so far says which epoch a ticket belongs to; no epoch crosses the FIFO.
//!
//! # Completions
//! The token of a post is its put and its epoch, so a completion that comes twice is a fault, however late, and never frees
//! a source that a later epoch reads.

use crate::fault::{Fault, FaultKind};
use crate::program::{LaneId, Op, Program, PutId};
use crate::role::RoleName;
use crate::signal::{Cell, CellId};
use crate::ticket::Ticket;
use crate::transport::{Post, PostError, Transport, TransportError};
use crate::validate::Verified;
use crate::world::Rank;

/// Most tickets popped by one step, so that completions are polled in between.
pub const BURST: u32 = 64;

/// Why a proxy cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// No program of that rank was verified.
    #[error("{0} has no verified program")]
    NoProgram(Rank),
    /// The plan of a target's cell is not known: the target's program was not verified together with this one.
    #[error("put {} goes to {peer}, whose program was not verified together with this one", put.0)]
    UnknownTarget {
        /// The put.
        put: PutId,
        /// Its target.
        peer: Rank,
    },
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    /// Tickets popped.
    pub popped: u32,
    /// Puts whose sources the transport has yet to read.
    pub in_flight: u64,
    /// Whether a put is kept because the transport's queue is full.
    pub is_held: bool,
}

/// Where a put comes from and what its signal means.
#[derive(Clone, Debug)]
struct Entry {
    post: Post,
    cell: Cell,
    /// Whether the ticket says how many rows are carried.
    is_counted: bool,
    retired: Option<CellId>,
    role: RoleName,
    lane: LaneId,
    instruction: u32,
    /// Tickets seen, to tell a ticket that comes twice in an epoch.
    tickets: u64,
    /// Epochs, counted from the first launch, whose puts have been posted and not completed: rarely more than one.
    open: Vec<u32>,
}

/// Drains one rank's tickets into a transport.
#[derive(Debug)]
pub struct Proxy<T> {
    rank: Rank,
    transport: T,
    entries: Vec<Entry>,
    first_epoch: u64,
    tickets: u64,
    in_flight: u64,
    held: Option<Post>,
    tokens: Vec<u64>,
}

impl<T: Transport> Proxy<T> {
    /// Makes the proxy of `rank`, whose first launch is `first_epoch`.
    ///
    /// # Errors
    /// [`ProxyError`] if a program that it needs was not verified.
    pub fn new(verified: &Verified, rank: Rank, first_epoch: u64, transport: T) -> Result<Proxy<T>, ProxyError> {
        let program = verified.program(rank).ok_or(ProxyError::NoProgram(rank))?;
        let entries = entries(program, verified)?;
        let (tickets, in_flight, held, tokens) = (0, 0, None, Vec::new());
        Ok(Proxy { rank, transport, entries, first_epoch, tickets, in_flight, held, tokens })
    }

    /// Pops tickets from `next`, posts their puts, polls, and appends the cells of this rank that rise by one because a
    /// source has been read, or because the transport leaves it to the receiving side. The caller raises them.
    ///
    /// # Errors
    /// A [`Fault`] of kind [`FaultKind::Transport`] for a put that failed, or a ticket that the plan does not allow.
    pub fn step(
        &mut self,
        mut next: impl FnMut() -> Option<Ticket>,
        retired: &mut Vec<CellId>,
    ) -> Result<Progress, Fault> {
        let mut popped = 0;
        while popped < BURST {
            let post = match self.held.take() {
                Some(post) => post,
                None => match next() {
                    Some(ticket) => {
                        popped += 1;
                        self.resolve(ticket)?
                    }
                    None => break,
                },
            };
            match self.transport.post(&post) {
                Ok(()) => {
                    let (put, round) = parts(post.token);
                    self.entries[put].open.push(round);
                    self.in_flight += 1;
                }
                Err(PostError::Full) => {
                    self.held = Some(post);
                    break;
                }
                Err(PostError::Failed(error)) => return Err(self.failed(&error)),
            }
        }
        self.poll(retired)?;
        Ok(Progress { popped, in_flight: self.in_flight, is_held: self.held.is_some() })
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    fn poll(&mut self, retired: &mut Vec<CellId>) -> Result<(), Fault> {
        self.tokens.clear();
        let polled = self.transport.poll(&mut self.tokens);
        for &token in &self.tokens {
            let (put, round) = parts(token);
            let Some(entry) = self.entries.get_mut(put) else {
                return Err(Fault::new(FaultKind::Transport, self.rank));
            };
            let Some(position) = entry.open.iter().position(|&open| open == round) else {
                return Err(entry.fault(self.rank));
            };
            entry.open.swap_remove(position);
            retired.extend(entry.retired);
            self.in_flight -= 1;
        }
        self.transport.landed(retired);
        polled.map_err(|error| self.failed(&error))
    }

    /// The put of a ticket with the rows that it carries and the value that its cell takes in the ticket's epoch.
    fn resolve(&mut self, ticket: Ticket) -> Result<Post, Fault> {
        let round = self.tickets.checked_div(self.entries.len() as u64).unwrap_or(0);
        let Some(entry) = self.entries.get_mut(ticket.put() as usize) else {
            return Err(Fault::new(FaultKind::Transport, self.rank));
        };
        let mut post = entry.post;
        let rows = if entry.is_counted { ticket.argument() } else { post.source.rows };
        if entry.tickets != round || rows > post.source.rows {
            return Err(entry.fault(self.rank));
        }
        entry.tickets += 1;
        self.tickets += 1;
        (post.source.rows, post.target.rows) = (rows, rows);
        post.token = token(ticket.put(), round);
        post.value = entry.cell.full(self.first_epoch.wrapping_add(round));
        Ok(post)
    }

    fn failed(&self, error: &TransportError) -> Fault {
        let fault = match self.entries.get(parts(error.token).0) {
            Some(entry) => entry.fault(self.rank),
            None => Fault { peer: Some(Rank(error.peer)), ..Fault::new(FaultKind::Transport, self.rank) },
        };
        Fault { status: Some(error.status), ..fault }
    }
}

/// What a transport hands back for a put: its index below, its epoch counted from the first launch above.
fn token(put: u32, round: u64) -> u64 {
    u64::from(round as u32) << 32 | u64::from(put)
}

/// The index of a token's put, and the epoch.
fn parts(token: u64) -> (usize, u32) {
    (token as u32 as usize, (token >> 32) as u32)
}

impl Entry {
    fn fault(&self, rank: Rank) -> Fault {
        Fault {
            role: Some(self.role),
            lane: Some(self.lane),
            instruction: Some(self.instruction),
            peer: Some(self.post.target.rank),
            ..Fault::new(FaultKind::Transport, rank)
        }
    }
}

fn entries(program: &Program, verified: &Verified) -> Result<Vec<Entry>, ProxyError> {
    let mut entries = vec![None; program.puts.len()];
    for (lane, index, instruction) in program.instructions() {
        let Op::Put(id) = instruction.op else { continue };
        let put = program.put(id);
        let peer = put.target.rank;
        let target = verified.program(peer).ok_or(ProxyError::UnknownTarget { put: id, peer })?;
        let post = Post { token: u64::from(id.0), source: put.source, target: put.target, cell: put.cell, value: 0 };
        entries[id.0 as usize] = Some(Entry {
            post,
            cell: *target.cell(put.cell),
            is_counted: put.count.is_some(),
            retired: put.retired,
            role: program.lanes[usize::from(lane.0)].role,
            lane,
            instruction: index,
            tickets: 0,
            open: Vec::new(),
        });
    }
    Ok(entries.into_iter().map(|e| e.expect("validate proved that every put has its one instruction")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{LaneBuilder, ProgramBuilder, Step};
    use crate::program::{Law, Placement, Put};
    use crate::region::{RegionId, Span};
    use crate::role::Role;
    use crate::signal::Born;
    use crate::transport::{Contract, Ordering, Signalling};
    use crate::validate::validate;
    use crate::world::World;

    /// Two puts to rank 1, each with a cell of its own and one counter of retired sources; the second carries up to four
    /// rows, as its ticket says.
    struct TwoPuts;

    impl Role for TwoPuts {
        fn name(&self) -> RoleName {
            RoleName::Send
        }

        fn fill(&self, lane: &mut LaneBuilder<'_>) {
            let empty = Put { retired: Some(CellId(2)), ..Put::signal(Rank(0), Rank(1), CellId(0)) };
            let (source, target) = (rows(Rank(0)), rows(Rank(1)));
            let count = Some(Span::flat(Rank(0), RegionId(0), 8, 8));
            // The credit: what landed in the epoch before was seen, and its memory is free.
            lane.put(&[CellId(3)], empty);
            lane.put(&[CellId(3)], Put { source, count, target, cell: CellId(1), ..empty });
            lane.push(Op::Release, Step::new(&[CellId(2)], &[]), &[], &[]);
        }
    }

    /// Four rows of two bytes.
    fn rows(rank: Rank) -> Span {
        Span { rank, region: RegionId(0), offset: 0, rows: 4, row_bytes: 2, stride: 2 }
    }

    /// Gives what landed back.
    struct Credit;

    impl Role for Credit {
        fn name(&self) -> RoleName {
            RoleName::Send
        }

        fn fill(&self, lane: &mut LaneBuilder<'_>) {
            lane.put(&[CellId(0), CellId(1)], Put::signal(Rank(1), Rank(0), CellId(3)));
        }
    }

    /// Takes `room` puts, retires all of them at the next poll, and fails the token `bad`. If it `repeats`, the last token comes
    /// again at the poll after.
    #[derive(Debug, Default)]
    struct Fake {
        room: usize,
        bad: Option<u64>,
        flights: Vec<Post>,
        seen: Vec<(u64, u64)>,
        rows: Vec<u32>,
        repeats: bool,
        again: Option<u64>,
    }

    impl Transport for Fake {
        fn contract(&self) -> Contract {
            Contract::new(Ordering::Unordered, Signalling::Counter).unwrap()
        }

        fn post(&mut self, post: &Post) -> Result<(), PostError> {
            if self.bad == Some(post.token) {
                let (token, peer) = (post.token, post.target.rank.0);
                return Err(PostError::Failed(TransportError { token, peer, status: 5 }));
            }
            if self.flights.len() == self.room {
                return Err(PostError::Full);
            }
            self.flights.push(*post);
            self.seen.push((parts(post.token).0 as u64, post.value));
            self.rows.push(post.target.rows);
            Ok(())
        }

        fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
            retired.extend(self.again.take());
            retired.extend(self.flights.drain(..).map(|p| p.token));
            if self.repeats {
                self.again = retired.last().copied();
            }
            Ok(())
        }
    }

    fn proxy(first_epoch: u64, transport: Fake) -> Proxy<Fake> {
        let world = World::new(&[1, 1]).unwrap();
        let programs = world.ranks().map(|rank| {
            let mut builder = ProgramBuilder::new(&world, rank);
            let (sends, lands) = (u32::from(rank == Rank(0)), u32::from(rank == Rank(1)));
            builder.region("rows", 16);
            builder.cell(lands, Born::Empty);
            builder.cell(lands, Born::Empty);
            builder.cell(2 * sends, Born::Empty);
            builder.cell(sends, Born::Full);
            if rank == Rank(0) {
                for (tensor, offset) in [("rows", 0), ("count", 8)] {
                    let span = Span::flat(rank, RegionId(0), offset, 8);
                    builder.input(Placement { tensor, span, row: 0, column: 0 });
                }
                builder.lane(&TwoPuts, 1);
                builder.law(Law { inter_out: 8, inter_in: 0 });
            } else {
                builder.lane(&Credit, 1);
                builder.law(Law { inter_out: 0, inter_in: 8 });
            }
            builder.finish()
        });
        Proxy::new(&validate(programs.collect()).unwrap(), Rank(0), first_epoch, transport).unwrap()
    }

    fn tickets(puts: &[u64]) -> std::vec::IntoIter<Ticket> {
        puts.iter().map(|&p| Ticket::new(p, 0).unwrap()).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn a_full_queue_keeps_the_put_and_nothing_is_lost_or_reordered() {
        let mut proxy = proxy(7, Fake { room: 1, ..Fake::default() });
        let (mut queue, mut retired) = (tickets(&[1, 0, 0, 1]), Vec::new());
        for left in (0..4u32).rev() {
            let progress = proxy.step(|| queue.next(), &mut retired).unwrap();
            assert_eq!(progress.is_held, left > 0);
        }
        let values: Vec<_> = proxy.transport().seen.clone();
        assert_eq!(values, [(1, 8), (0, 8), (0, 9), (1, 9)]);
        assert_eq!(retired, [CellId(2); 4]);
    }

    #[test]
    fn the_epoch_is_counted_across_the_wrap() {
        let mut proxy = proxy(u64::MAX, Fake { room: 9, ..Fake::default() });
        let mut queue = tickets(&[0, 1, 0, 1]);
        proxy.step(|| queue.next(), &mut Vec::new()).unwrap();
        assert_eq!(proxy.transport().seen, [(0, 0), (1, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn a_failed_post_names_the_instruction_and_the_peer() {
        let mut proxy = proxy(0, Fake { room: 9, bad: Some(1), ..Fake::default() });
        let mut queue = tickets(&[0, 1]);
        let fault = proxy.step(|| queue.next(), &mut Vec::new()).unwrap_err();
        assert_eq!((fault.kind, fault.instruction, fault.peer), (FaultKind::Transport, Some(1), Some(Rank(1))));
        assert_eq!(fault.status, Some(5));
    }

    #[test]
    fn a_completion_that_comes_twice_is_a_fault_even_when_the_put_is_in_flight_again() {
        let mut proxy = proxy(0, Fake { room: 9, repeats: true, ..Fake::default() });
        let mut retired = Vec::new();
        proxy.step(|| None, &mut retired).unwrap();
        let mut first = tickets(&[0, 1]);
        proxy.step(|| first.next(), &mut retired).unwrap();
        assert_eq!(retired, [CellId(2); 2]);
        let mut second = tickets(&[0, 1]);
        let fault = proxy.step(|| second.next(), &mut retired).unwrap_err();
        assert_eq!((fault.kind, fault.instruction, fault.peer), (FaultKind::Transport, Some(1), Some(Rank(1))));
        assert_eq!(retired.len(), 2, "nothing is freed a second time");
    }

    #[test]
    fn a_counted_put_carries_the_rows_of_its_ticket_and_never_more_than_planned() {
        let mut proxy = proxy(0, Fake { room: 9, ..Fake::default() });
        for (argument, carried) in [(3, Some(3)), (0, Some(0)), (5, None)] {
            let mut queue = [Ticket::new(0, 0).unwrap(), Ticket::new(1, argument).unwrap()].into_iter();
            proxy.transport.rows.clear();
            let result = proxy.step(|| queue.next(), &mut Vec::new());
            assert_eq!(result.is_ok(), carried.is_some());
            assert_eq!(proxy.transport().rows, [0].into_iter().chain(carried).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_ticket_that_comes_twice_in_an_epoch_or_names_no_put_is_a_fault() {
        for puts in [&[0, 0][..], &[2]] {
            let mut proxy = proxy(0, Fake { room: 9, ..Fake::default() });
            let mut queue = tickets(puts);
            let fault = proxy.step(|| queue.next(), &mut Vec::new()).unwrap_err();
            assert_eq!(fault.kind, FaultKind::Transport);
        }
    }
}
