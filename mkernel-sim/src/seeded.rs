//! The seeded executor: one thread, and one seed that decides every choice.
//!
//! Agents (CTAs and proxies) take steps one at a time. Waits, the reads of each segment, writes and every single signal
//! are steps of their own, and a CTA may claim and read for its next instruction before it writes the results of the
//! one before. Each launch draws priorities for its agents and how strictly they count, so that some seeds interleave
//! evenly and others starve agents for as long as anything else can run.
//!
//! Time is virtual: one step is one microsecond, in reports and of the deadline.

mod cta;
mod proxy;

use std::num::NonZeroU32;
use std::sync::Arc;

use mkernel_core::executor::{LaneStats, NotResident, TraceEvent};
use mkernel_core::validate::At;
use mkernel_core::{Executor, Fault, Rank, RoleName, Run, Span, Verified};

use crate::error::SimError;
use crate::hang::{self, State};
use crate::host::Host;
use crate::ops::Kernels;
use crate::options::Options;
use crate::schedule::{Claims, Split};
use cta::{CtaAgent, Outcome};
use proxy::ProxyAgent;

/// Runs verified programs of a whole world on one thread, replaying a seed exactly.
#[derive(Debug)]
pub struct Seeded {
    host: Arc<Host>,
    options: Options,
    random: fastrand::Rng,
    epoch: u64,
    split: Split,
    proxies: Vec<ProxyAgent>,
    spare: Vec<Kernels>,
    fault: Option<Fault>,
}

/// One launch in progress.
struct Launch<'a> {
    host: &'a Host,
    options: &'a Options,
    random: &'a mut fastrand::Rng,
    epoch: u64,
    claims: Claims,
    ctas: Vec<CtaAgent>,
    proxies: &'a mut Vec<ProxyAgent>,
    spare: &'a mut Vec<Kernels>,
    /// Agents that may be able to step: CTAs by number, then proxies.
    runnable: Vec<usize>,
    is_runnable: Vec<bool>,
    priorities: Vec<u32>,
    /// How many agents compete by priority for a step; 1 is an even choice.
    strictness: u32,
    now: u64,
    stats: Vec<Vec<LaneStats>>,
    trace: Vec<TraceEvent>,
}

impl Seeded {
    /// Hosts every rank of `verified`.
    ///
    /// # Errors
    /// [`SimError`] if a rank is missing or memory does not suffice.
    pub fn new(verified: Arc<Verified>, options: Options) -> Result<Seeded, SimError> {
        let host = Arc::new(Host::new(verified, options.first_epoch, options.poison)?);
        let proxies = host.verified.world().ranks();
        let proxies = proxies.map(|rank| ProxyAgent::new(&host, rank, &options)).collect::<Result<_, _>>()?;
        let (random, epoch) = (fastrand::Rng::with_seed(options.seed), options.first_epoch);
        let split = Split::default();
        Ok(Seeded { host, options, random, epoch, split, proxies, spare: Vec::new(), fault: None })
    }
}

impl Executor for Seeded {
    fn launch(&mut self) -> Result<Run, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let mut launch = Launch::new(self);
        let result = launch.run().map(|()| launch.report());
        self.epoch = self.epoch.wrapping_add(1);
        self.fault = result.as_ref().err().copied();
        result
    }

    fn set_ctas(&mut self, role: RoleName, ctas: NonZeroU32) -> Result<(), NotResident> {
        self.split.set(role, ctas);
        Ok(())
    }

    fn write(&mut self, span: &Span, bytes: &[u8]) {
        self.host.memory.scatter(span, bytes);
    }

    fn read(&self, span: &Span, bytes: &mut [u8]) {
        self.host.memory.gather(span, bytes);
    }
}

impl<'a> Launch<'a> {
    fn new(seeded: &'a mut Seeded) -> Launch<'a> {
        let programs = seeded.host.verified.programs();
        let network = &seeded.options.network;
        let ctas: Vec<_> = programs
            .iter()
            .filter(|p| !network.is_dead(p.rank))
            .flat_map(|p| seeded.split.ctas(p))
            .enumerate()
            .map(|(agent, cta)| CtaAgent::new(agent, cta))
            .collect();
        let agents = ctas.len() + seeded.proxies.len();
        let mut priorities: Vec<u32> = (0..agents as u32).collect();
        seeded.random.shuffle(&mut priorities);
        Launch {
            host: &seeded.host,
            options: &seeded.options,
            epoch: seeded.epoch,
            claims: Claims::new(&seeded.host.verified),
            ctas,
            proxies: &mut seeded.proxies,
            spare: &mut seeded.spare,
            runnable: (0..agents).collect(),
            is_runnable: vec![true; agents],
            priorities,
            strictness: 1 << seeded.random.u32(0..5),
            now: 0,
            stats: programs.iter().map(|p| seeded.split.no_stats(p)).collect(),
            trace: Vec::new(),
            random: &mut seeded.random,
        }
    }

    fn run(&mut self) -> Result<(), Fault> {
        let mut left = self.ctas.len();
        let mut ready = Vec::new();
        let deadline = u64::try_from(self.options.deadline.as_micros()).unwrap_or(u64::MAX);
        let mut progress_at = 0;
        while left > 0 {
            if self.now - progress_at > deadline {
                return Err(self.hang());
            }
            let Some(position) = self.pick() else { return Err(self.hang()) };
            let agent = self.runnable[position];
            self.now += 1;
            let goes_on = match agent.checked_sub(self.ctas.len()) {
                Some(proxy) => self.step_proxy(proxy, &mut ready)?,
                None => {
                    let outcome = self.step_cta(agent)?;
                    left -= usize::from(outcome == Outcome::Done);
                    if outcome != Outcome::Blocked {
                        progress_at = self.now;
                    }
                    outcome == Outcome::Progress
                }
            };
            if !goes_on {
                self.runnable.swap_remove(position);
                self.is_runnable[agent] = false;
            }
            self.host.cells.take_ready(&mut ready);
            for agent in ready.drain(..) {
                self.make_runnable(agent);
            }
        }
        self.options.network.absence(&self.host.verified).map_or(Ok(()), Err)
    }

    /// The position in `runnable` of the agent that steps next.
    fn pick(&mut self) -> Option<usize> {
        let count = self.runnable.len();
        if count == 0 {
            return None;
        }
        let (random, priorities, runnable) = (&mut *self.random, &self.priorities, &self.runnable);
        (0..self.strictness).map(|_| random.usize(0..count)).max_by_key(|&position| priorities[runnable[position]])
    }

    fn make_runnable(&mut self, agent: usize) {
        if !std::mem::replace(&mut self.is_runnable[agent], true) {
            self.runnable.push(agent);
        }
    }

    fn step_proxy(&mut self, proxy: usize, ready: &mut Vec<usize>) -> Result<bool, Fault> {
        self.proxies[proxy].step(self.host, ready)
    }

    /// Nothing can go on: says where the missing signal is missed first.
    fn hang(&self) -> Fault {
        // What a CTA has read ahead of its first instruction is behind that one, like what nobody has claimed.
        let (held, ahead): (Vec<_>, Vec<_>) =
            self.ctas.iter().flat_map(|c| c.places().enumerate()).partition(|(position, _)| *position == 0);
        let is = |held: &[(usize, At)], rank, lane, index| {
            held.iter().any(|(_, p)| (p.rank, p.lane, p.instruction) == (rank, lane, index))
        };
        let state = |rank: Rank, lane, index| {
            if !self.claims.is_claimed(rank, lane, index) || is(&ahead, rank, lane, index) {
                State::Unclaimed
            } else if is(&held, rank, lane, index) {
                State::Running
            } else {
                State::Retired
            }
        };
        let pushing = self.ctas.iter().find(|c| c.waits_for_ring()).and_then(|c| c.places().next());
        hang::root(
            &self.host.verified,
            hang::waits(self.host),
            &state,
            pushing,
            held.first().map(|(_, place)| *place),
            Rank(0),
        )
    }

    fn report(&mut self) -> Run {
        let (intra_out, inter_out) = self.host.traffic.take();
        Run {
            time_us: self.now as f64,
            lanes: self.stats.concat(),
            intra_out,
            inter_out,
            trace: std::mem::take(&mut self.trace),
        }
    }
}
