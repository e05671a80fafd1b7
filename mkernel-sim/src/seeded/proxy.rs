//! A proxy as an agent: a bounded queue of tickets in front of the proxy of the core.

use std::collections::VecDeque;
use std::sync::Arc;

use mkernel_core::{CellId, Fault, Proxy, Rank, Ticket};

use crate::error::SimError;
use crate::host::Host;
use crate::loopback::Loopback;
use crate::options::Options;

/// One rank's proxy with its queue.
#[derive(Debug)]
pub(super) struct ProxyAgent {
    rank: Rank,
    proxy: Proxy<Loopback>,
    queue: VecDeque<Ticket>,
    slots: usize,
    /// CTA agents that wait for a free slot.
    starved: Vec<usize>,
    retired: Vec<CellId>,
    popped: u64,
    stops_after: Option<u64>,
}

impl ProxyAgent {
    pub(super) fn new(host: &Arc<Host>, rank: Rank, options: &Options) -> Result<ProxyAgent, SimError> {
        let transport = Loopback::new(host.clone(), rank, &options.network, options.seed);
        Ok(ProxyAgent {
            rank,
            proxy: Proxy::new(&host.verified, rank, options.first_epoch, transport)?,
            queue: VecDeque::new(),
            slots: options.ring,
            starved: Vec::new(),
            retired: Vec::new(),
            popped: 0,
            stops_after: if options.network.is_dead(rank) { Some(0) } else { options.network.proxy_stops_after(rank) },
        })
    }

    /// Takes a ticket of CTA agent `agent`, or notes that it waits for a slot.
    pub(super) fn push(&mut self, ticket: Ticket, agent: usize) -> bool {
        let has_room = self.queue.len() < self.slots;
        if has_room {
            self.queue.push_back(ticket);
        } else if !self.starved.contains(&agent) {
            self.starved.push(agent);
        }
        has_room
    }

    /// Pops at most one ticket and polls once; `ready` gets the CTAs for which a slot came free. Answers whether
    /// another step may do anything.
    pub(super) fn step(&mut self, host: &Host, ready: &mut Vec<usize>) -> Result<bool, Fault> {
        if self.stops_after.is_some_and(|after| self.popped >= after) {
            return Ok(false);
        }
        let mut ticket = None;
        let mut may_pop = true;
        let queue = &mut self.queue;
        let next = || {
            ticket = if std::mem::take(&mut may_pop) { queue.pop_front() } else { None };
            ticket
        };
        let progress = self.proxy.step(next, &mut self.retired)?;
        for cell in self.retired.drain(..) {
            host.cells.add(self.rank, cell, 1);
        }
        self.popped += u64::from(progress.popped);
        if progress.popped > 0 {
            ready.append(&mut self.starved);
        }
        let can_pop = !progress.is_held && !self.queue.is_empty();
        Ok(can_pop || self.proxy.transport().can_go_on(progress.is_held))
    }
}
