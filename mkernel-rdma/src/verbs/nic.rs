//! A rank's queue pairs: made, offered to peers, connected, and then used as a [`Nic`].
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ibverbs_sys as sys;
use mkernel_core::Rank;
use mkernel_core::nic::{Chain, Completion, Limits, Nic, Payload, Refused, Request, Shared};
use mkernel_core::route::Routes;
use mkernel_core::transport::{STATUS_FLUSHED, STATUS_LINK_DOWN, STATUS_UNREACHABLE, Signalling};

pub use super::offer::{Offer, RailOffer};

use super::choose::Choice;
use super::error::VerbsError;
use super::memory::{Domain, Region, Words};
use super::queue::{Completions, Depth, End, Patience, QueuePair};

/// The id of receive requests; those of others count up from 0.
const RECEIVE: u64 = u64::MAX;

/// Completions taken at once.
const BATCH: usize = 64;

/// How queue pairs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Requests of a queue pair, or what the device allows if that is less.
    pub requests: u32,
    /// Messages with immediates that a queue pair takes without being polled.
    pub receives: u32,
    /// How long a peer may be silent.
    pub patience: Patience,
}

impl Settings {
    /// For puts that signal in this way.
    pub fn new(signalling: Signalling) -> Settings {
        let receives = if signalling == Signalling::WriteAfterWrite { 0 } else { 128 };
        Settings { requests: 256, receives, patience: Patience { timeout: 18, retries: 7 } }
    }
}

/// One NIC of this rank.
#[derive(Clone, Debug)]
pub struct Rail {
    choice: Choice,
    domain: Arc<Domain>,
}

impl Rail {
    /// Begins to use a port.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn new(choice: Choice) -> Result<Rail, VerbsError> {
        Ok(Rail { domain: Domain::new(&choice.device)?, choice })
    }

    /// Its protection domain.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The port.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }
}

/// Queue pairs that are made and not connected.
#[derive(Debug)]
pub struct Pending {
    rails: Vec<Rail>,
    routes: Routes,
    settings: Settings,
    peers: Vec<Rank>,
    limits: Limits,
    memory: Arc<dyn Shared>,
    regions: Vec<Region>,
    completions: Vec<Arc<Completions>>,
    queues: Vec<QueuePair>,
}

impl Pending {
    /// Registers memory on every rail and makes the queue pairs to `peers`.
    ///
    /// # Errors
    /// [`VerbsError`], [`VerbsError::Memlock`] above all.
    ///
    /// # Panics
    /// If the routes have another number of rails.
    pub fn new(
        rails: &[Rail],
        routes: Routes,
        settings: Settings,
        peers: &[Rank],
        memory: Arc<dyn Shared>,
    ) -> Result<Pending, VerbsError> {
        assert_eq!(rails.len(), routes.rails() as usize, "routes are over these rails");
        let per_rail = (peers.len() as u32 * routes.per_peer() / routes.rails()).max(1);
        let least = |of: fn(&Rail) -> u32| rails.iter().map(of).min().unwrap_or(1);
        // A queue of completions holds one for each request and each receive of its queue pairs: `Window` says why that
        // suffices.
        let room = least(|r| r.choice.device.completions()) / per_rail;
        let receives = settings.receives.min(room / 2);
        let requests = settings.requests.min(least(|r| r.choice.device.requests())).min(room - receives).max(1);
        let pieces = least(|r| r.choice.device.pieces()).clamp(1, 16);
        let message = rails.iter().map(|r| r.choice.port.message).min().unwrap_or(8).max(8);
        let limits = Limits { requests, pieces, message };
        let regions = rails.iter().map(|r| Region::host(&r.domain, Arc::clone(&memory))).collect::<Result<_, _>>()?;
        let entries = per_rail * (requests + receives);
        let queue = |r: &Rail| Completions::new(&r.choice.device, entries);
        let completions: Vec<Arc<Completions>> = rails.iter().map(queue).collect::<Result<_, _>>()?;
        let depth = Depth { sends: requests, receives: receives.max(1), pieces };
        let mut queues = Vec::new();
        for index in peers.iter().flat_map(|_| 0..routes.per_peer()) {
            let rail = routes.at(index).rail as usize;
            queues.push(QueuePair::new(&rails[rail].domain, &completions[rail], depth)?);
        }
        let settings = Settings { receives, ..settings };
        let (rails, peers) = (rails.to_vec(), peers.to_vec());
        Ok(Pending { rails, routes, settings, peers, limits, memory, regions, completions, queues })
    }

    /// What peers need to connect and to reach the memory.
    pub fn offer(&self) -> Offer {
        let rails = self.rails.iter().zip(&self.regions).map(|(rail, region)| RailOffer {
            gid: rail.choice.gid.bytes,
            lid: rail.choice.port.lid,
            mtu: rail.choice.port.mtu,
            key: region.remote_key(),
        });
        let numbers: Vec<u32> = self.queues.iter().map(QueuePair::number).collect();
        let per_peer = self.routes.per_peer() as usize;
        let queues = self.peers.iter().map(|p| p.0).zip(numbers.chunks(per_peer).map(<[u32]>::to_vec)).collect();
        Offer { address: self.memory.address(), rails: rails.collect(), queues }
    }

    /// Keys of the memory for this rank's own requests, one for each rail.
    pub fn local_keys(&self) -> Vec<u32> {
        self.regions.iter().map(Region::local_key).collect()
    }

    /// Connects all queue pairs with those of the peers, whose offers are given by rank. Nobody sends before all have.
    ///
    /// # Errors
    /// [`VerbsError::Offer`] for an offer of other rails or queue pairs, [`VerbsError::Call`].
    pub fn connect(self, own: Rank, offers: &[Option<Offer>]) -> Result<VerbsNic, VerbsError> {
        let mut queues = self.queues.iter();
        for peer in &self.peers {
            let wrong = || VerbsError::Offer { rank: peer.0 };
            let offer = offers.get(peer.0 as usize).and_then(Option::as_ref).ok_or_else(wrong)?;
            let numbers = offer.toward(own).filter(|n| n.len() == self.routes.per_peer() as usize);
            let numbers = numbers.filter(|_| offer.rails.len() == self.rails.len()).ok_or_else(wrong)?;
            for (index, &number) in (0..).zip(numbers) {
                let rail = self.routes.at(index).rail as usize;
                let RailOffer { gid, lid, mtu, .. } = offer.rails[rail];
                let queue = queues.next().expect("each peer has its queue pairs");
                queue.connect(&self.rails[rail].choice, &End { number, lid, mtu, gid }, self.settings.patience)?;
                for _ in 0..self.settings.receives {
                    let domain = &self.rails[rail].domain;
                    queue.receive_one(RECEIVE).map_err(|e| domain.device().error("ibv_post_recv", e))?;
                }
            }
        }
        VerbsNic::new(self)
    }
}

/// Values on their way, for a device that takes none inside requests.
#[derive(Debug)]
struct Stage {
    words: Arc<Words>,
    /// One for each rail.
    regions: Vec<Region>,
}

/// A rank's queue pairs. Fields are dropped in order: queue pairs, then completions and memory.
#[derive(Debug)]
pub struct VerbsNic {
    queues: Vec<QueuePair>,
    completions: Vec<Arc<Completions>>,
    stage: Option<Stage>,
    _regions: Vec<Region>,
    routes: Routes,
    limits: Limits,
    /// The port of each rail.
    choices: Vec<Choice>,
    /// Queue pairs by their numbers, per rail.
    numbers: Vec<HashMap<u32, u32>>,
    scratch: Scratch,
}

/// What requests are written into.
#[derive(Default)]
struct Scratch {
    requests: Vec<sys::ibv_send_wr>,
    pieces: Vec<sys::ibv_sge>,
    values: Vec<u64>,
    polled: Vec<sys::ibv_wc>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

// SAFETY: the pointers of the scratch lead into itself and mean nothing between calls.
unsafe impl Send for Scratch {}

impl VerbsNic {
    fn new(pending: Pending) -> Result<VerbsNic, VerbsError> {
        let Pending { rails, routes, limits, regions, completions, queues, .. } = pending;
        let mut numbers = vec![HashMap::new(); rails.len()];
        for (index, queue) in (0..).zip(&queues) {
            numbers[routes.at(index % routes.per_peer()).rail as usize].insert(queue.number(), index);
        }
        let stage = if queues.iter().any(|q| q.inline() < 8) {
            let words = Words::new(queues.len() * limits.requests as usize);
            let region = |r: &Rail| Region::host(&r.domain, words.clone());
            Some(Stage { regions: rails.iter().map(region).collect::<Result<_, _>>()?, words })
        } else {
            None
        };
        let (scratch, choices) = (Scratch::default(), rails.into_iter().map(|rail| rail.choice).collect());
        Ok(VerbsNic { queues, completions, stage, _regions: regions, routes, limits, choices, numbers, scratch })
    }

    /// The queue pairs, in order.
    pub fn queues(&self) -> &[QueuePair] {
        &self.queues
    }

    pub(super) fn completions(&self) -> &[Arc<Completions>] {
        &self.completions
    }

    fn rail(&self, queue: u32) -> usize {
        self.routes.at(queue % self.routes.per_peer()).rail as usize
    }

    /// The value of a request as a piece.
    fn value(&self, queue: u32, request: &Request, value: &u64) -> sys::ibv_sge {
        match &self.stage {
            None => sys::ibv_sge { addr: std::ptr::from_ref(value) as u64, length: 8, lkey: 0 },
            Some(stage) => {
                // At most `requests` ids in a row are on their way, so the slot's last value has been read.
                let slots = u64::from(self.limits.requests);
                let slot = &stage.words.words()[(u64::from(queue) * slots + request.id % slots) as usize];
                slot.store(value.to_le(), Relaxed);
                let lkey = stage.regions[self.rail(queue)].local_key();
                sys::ibv_sge { addr: slot.as_ptr() as u64, length: 8, lkey }
            }
        }
    }
}

/// A request without its pieces.
fn request_of(request: &Request, is_inline: bool) -> sys::ibv_send_wr {
    let mut wr = sys::ibv_send_wr { wr_id: request.id, ..sys::ibv_send_wr::default() };
    wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    if let Some(immediate) = request.immediate {
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.__bindgen_anon_1.imm_data = immediate.to_be();
    }
    if request.is_signalled {
        wr.send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if is_inline {
        wr.send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
    }
    wr.wr.rdma.remote_addr = request.target;
    wr.wr.rdma.rkey = request.key;
    wr
}

impl Nic for VerbsNic {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn post(&mut self, queue: u32, chain: &Chain) -> Result<(), Refused> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let Scratch { requests, pieces, values, .. } = &mut scratch;
        requests.clear();
        pieces.clear();
        values.clear();
        let pair = &self.queues[queue as usize];
        // Neither list moves once it is filled: pointers into them are made after that.
        values.extend(chain.requests.iter().map(|r| if let Payload::Value(v) = r.payload { v.to_le() } else { 0 }));
        for (request, value) in chain.requests.iter().zip(values.iter()) {
            let before = pieces.len();
            match request.payload {
                Payload::Value(_) => pieces.push(self.value(queue, request, value)),
                Payload::Pieces { .. } => pieces.extend(chain.pieces(request).iter().map(|p| sys::ibv_sge {
                    addr: p.address,
                    length: p.bytes,
                    lkey: p.key,
                })),
            }
            let bytes: u64 = pieces[before..].iter().map(|p| u64::from(p.length)).sum();
            let mut wr = request_of(request, bytes > 0 && bytes <= u64::from(pair.inline()));
            wr.num_sge = (pieces.len() - before) as i32;
            requests.push(wr);
        }
        let mut rest = pieces.as_mut_slice();
        for wr in requests.iter_mut() {
            let (own, others) = rest.split_at_mut(wr.num_sge as usize);
            (wr.sg_list, rest) = (own.as_mut_ptr(), others);
        }
        // SAFETY: each list is the request's own part of `pieces`. What they name is registered by this NIC, which keeps it,
        // or lies in `values` and is copied by the call; memory of the host may be read as long as its put is on its way.
        let posted = unsafe { pair.post(requests) };
        self.scratch = scratch;
        posted.map_err(|(posted, error)| {
            let is_temporary = matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock);
            Refused { posted, error: error.raw_os_error().unwrap_or(0), is_temporary }
        })
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), i32> {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(0);
        let mut polled = std::mem::take(&mut self.scratch.polled);
        // SAFETY: all-zero bytes are a completion: numbers only.
        polled.resize_with(BATCH, || unsafe { std::mem::zeroed() });
        for (queue, numbers) in self.completions.iter().zip(&self.numbers) {
            let count = queue.poll(&mut polled).map_err(errno)?;
            for done in &polled[..count] {
                let Some(&index) = numbers.get(&done.qp_num) else { continue };
                if done.wr_id() != RECEIVE {
                    let status = done.error().map_or(0, |(status, _)| status);
                    completions.push(Completion::Sent { queue: index, id: done.wr_id(), status });
                } else if let Some(immediate) = done.imm_data() {
                    completions.push(Completion::Landed { immediate: u32::from_be(immediate) });
                    self.queues[index as usize].receive_one(RECEIVE).map_err(errno)?;
                }
            }
        }
        self.scratch.polled = polled;
        Ok(())
    }

    fn cause(&self, queue: u32, status: u32) -> u32 {
        // Without a link some devices flush all requests, the first one too, and others hear no answer.
        let is_down = || !self.choices[self.rail(queue)].is_active();
        if matches!(status, STATUS_FLUSHED | STATUS_UNREACHABLE) && is_down() { STATUS_LINK_DOWN } else { status }
    }
}
