//! Ranks of other nodes, reached over RDMA NICs.

use std::sync::Arc;
use std::time::Duration;

use mkernel_core::route::Routes;
use mkernel_core::transport::Contract;
use mkernel_core::{Fault, FaultKind, Program, Rank, Transport, Verified, World};
use mkernel_rdma::verbs::nic::{Offer, Pending, Rail, Settings};
pub(crate) use mkernel_rdma::verbs::side::Side;
use mkernel_rdma::verbs::{VerbsError, choose};
use mkernel_rdma::{Exposed, Links, Place, Rdma};
use mkernel_sim::Segment;
use mkernel_sim::board::{self, Publish};
use mkernel_sim::shm::{Far, FarMemory, Map};

use crate::bootstrap::Fields;
use crate::error::Error;
use crate::session::{Signalling as By, Verbs};

/// The ranks of other nodes, and this rank's NICs.
#[derive(Debug)]
pub(crate) struct Remote {
    world: World,
    own: Rank,
    peers: Vec<Rank>,
    rails: Vec<Rail>,
    routes: Routes,
    contract: Contract,
}

/// Queue pairs that wait for the offers of peers.
pub(crate) type Begun = Pending;

/// What peers are told.
pub(crate) fn offer(begun: &Begun) -> Vec<u8> {
    begun.offer().encode()
}

impl Remote {
    /// Opens the NICs of `own`; `None` if all ranks are of its node.
    pub(crate) fn open(verbs: &Verbs, world: &World, own: Rank) -> Result<Option<Remote>, Error> {
        let peers: Vec<Rank> = world.ranks().filter(|&r| !world.same_node(own, r)).collect();
        if peers.is_empty() {
            return Ok(None);
        }
        let choices = choose(&verbs.nics, None, world.index_of(own))?;
        for choice in &choices {
            tracing::debug!(device = choice.device.name(), port = choice.port.number, gid = choice.gid.index, "NIC");
        }
        let rails = choices.into_iter().map(Rail::new).collect::<Result<Vec<_>, _>>()?;
        let routes = Routes::new(rails.len() as u32, verbs.queues)?;
        let contract = verbs.signals.contract();
        Ok(Some(Remote { world: world.clone(), own, peers, rails, routes, contract }))
    }

    /// What all ranks must do alike.
    pub(crate) fn describe(&self, fields: &mut Fields) {
        fields.add("rails", self.routes.rails().to_string());
        fields.add("queue pairs", self.routes.per_peer().to_string());
        fields.add("signals", format!("{:?}", self.contract));
    }

    /// Queue pairs for the side channel, and the line of this rank.
    pub(crate) fn begin_side(&self, board: &Segment) -> Result<Begun, Error> {
        let one = Routes::new(1, 1).expect("one queue pair on one rail");
        let settings = Settings::new(self.contract.signalling());
        Ok(Pending::new(&self.rails[..1], one, Settings { receives: 0, ..settings }, &self.peers, board.memory())?)
    }

    /// The side channel.
    pub(crate) fn side(&self, begun: Begun, blobs: &[Vec<u8>]) -> Result<Arc<Side>, Error> {
        let offers = self.offers(blobs)?;
        let nic = begun.connect(self.own, &offers)?;
        let line = board::mirror(&self.world, self.own);
        Ok(Arc::new(Side::new(&self.rails[0], nic, &self.peers, &offers, line)?))
    }

    /// Queue pairs for the puts of an instance.
    pub(crate) fn begin(&self, segment: &Segment) -> Result<Begun, Error> {
        let settings = Settings::new(self.contract.signalling());
        Ok(Pending::new(&self.rails, self.routes, settings, &self.peers, segment.memory())?)
    }

    /// What carries the puts of an instance, and reads memory of other nodes.
    pub(crate) fn finish(
        &self,
        begun: Begun,
        blobs: &[Vec<u8>],
        programs: &Verified,
        side: &Arc<Side>,
        limit: Duration,
    ) -> Result<Far, Error> {
        let offers = self.offers(blobs)?;
        let program = |rank: Rank| &programs.programs()[rank.0 as usize];
        let own = exposed(program(self.own), begun.offer().address, begun.local_keys());
        let reached = |(rank, offer): (u32, &Option<Offer>)| {
            offer.as_ref().map(|offer| exposed(program(Rank(rank)), offer.address, offer.keys()))
        };
        let peers = (0..).zip(&offers).map(reached).collect();
        let nic = begun.connect(self.own, &offers)?;
        let links = Links { contract: self.contract, routes: self.routes, own, peers };
        let transport: Box<dyn Transport + Send> = Box::new(Rdma::new(nic, links));
        let side = Arc::clone(side);
        Ok(Far { transport, memory: Box::new(Memory { side, own: self.own, offers, limit }) })
    }

    fn offers(&self, blobs: &[Vec<u8>]) -> Result<Vec<Option<Offer>>, Error> {
        let offer = |(rank, blob): (u32, &Vec<u8>)| {
            if !self.peers.contains(&Rank(rank)) {
                return Ok(None);
            }
            let offer = blob.get(Segment::ADDRESS..).and_then(Offer::decode);
            offer.map(Some).ok_or(VerbsError::Offer { rank })
        };
        Ok((0..).zip(blobs).map(offer).collect::<Result<_, _>>()?)
    }
}

/// Where the memory of a program's rank is, whose segment begins at `address`.
fn exposed(program: &Program, address: u64, keys: Vec<u32>) -> Exposed {
    let map = Map::of(program, false);
    let place = |offset| Place { address: address + offset, keys: keys.clone() };
    Exposed { regions: map.regions.iter().copied().map(place).collect(), cells: place(map.cells) }
}

/// Memory of other nodes.
#[derive(Debug)]
struct Memory {
    side: Arc<Side>,
    own: Rank,
    offers: Vec<Option<Offer>>,
    limit: Duration,
}

impl FarMemory for Memory {
    fn read(&self, rank: Rank, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let offer = self.offers[rank.0 as usize].as_ref().expect("only ranks of other nodes are read from afar");
        let key = offer.rails[0].key;
        let read = self.side.read(rank, offer.address + offset, key, bytes, self.limit);
        read.map_err(|status| Fault {
            peer: Some(rank),
            status: Some(status),
            ..Fault::new(FaultKind::Transport, self.own)
        })
    }
}

/// This rank's line, on its way to other nodes.
#[derive(Debug)]
pub(crate) struct Line(pub(crate) Arc<Side>);

impl Publish for Line {
    fn publish(&self, line: [u64; board::WORDS]) {
        self.0.publish(&line);
    }

    fn broken(&self) -> Option<(Rank, u32)> {
        self.0.broken()
    }
}

impl By {
    fn contract(self) -> Contract {
        use mkernel_core::transport::{Ordering, Signalling};
        let signalling = match self {
            By::Write => Signalling::WriteAfterWrite,
            By::Immediate => Signalling::Immediate,
        };
        Contract::new(Ordering::InOrder, signalling).expect("reliable queue pairs keep order")
    }
}
