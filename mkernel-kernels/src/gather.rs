//! Gathering in place: what AllGather + GEMM and ring attention share.
//!
//! Every rank owns a part of a tensor, and the parts of others come to it in **chunks** that land where they stay. A chunk
//! crosses the NIC once per node that needs it, to the rank of the same index there (the rail), which copies it to the
//! other ranks of its node. One cell per chunk says that it is here.
//!
//! Landing memory is used again in every epoch, under **credits**:
//! - whatever reads it, a tile or a copy, counts into `done`;
//! - after the last read one release gives it back, and raises `free` and the credit of each rank of the node that
//!   copies here;
//! - `free` lets the send role return the credit of each rank that puts here;
//! - a writer waits for its credit before it writes.
//!
//! `sent` counts own puts whose source has been read. A launch ends only after all of them: the host may rewrite the
//! inputs then.

use mkernel_core::builder::Step;
use mkernel_core::{
    Born, CellId, LaneBuilder, Node, Op, Program, ProgramBuilder, Put, Rank, Role, Signal, Span, World,
};

use crate::operator::{PlanError, ctas_of, finish};
use crate::profile::Profile;
use crate::split::RoleCtas;

/// A gather as one rank sees it.
#[derive(Clone, Copy)]
pub(crate) struct Gather<'a> {
    pub(crate) world: &'a World,
    pub(crate) rank: Rank,
    pub(crate) profile: &'a Profile,
    /// Number of cells of chunks, the same on every rank. They come first; the cells named here follow.
    pub(crate) chunk_cells: u64,
}

/// What happens on one rank in one epoch.
pub(crate) struct Counts {
    /// Reads that count into `done`.
    pub(crate) reads: u64,
    /// Releases of landing memory: one, or none where nothing lands.
    pub(crate) releases: u64,
    /// Puts that carry bytes.
    pub(crate) puts: u64,
}

impl Gather<'_> {
    /// Counts reads of landing memory.
    pub(crate) fn done(&self) -> CellId {
        self.cell(0)
    }

    /// Says that the landing memory has been given back.
    fn free(&self) -> CellId {
        self.cell(1)
    }

    /// Counts own puts whose source has been read.
    fn sent(&self) -> CellId {
        self.cell(2)
    }

    /// On a writer of the node of `reader`: the credit that `reader` raises.
    fn peer_credit(&self, reader: Rank) -> CellId {
        self.cell(3 + u64::from(self.world.index_of(reader)))
    }

    /// On `writer`: the credit that its rail on `reader` raises.
    fn rail_credit(&self, writer: Rank, reader: Node) -> CellId {
        let gpus = self.world.gpus(self.world.node_of(writer));
        self.cell(3 + u64::from(gpus) + u64::from(reader.0))
    }

    fn cell(&self, index: u64) -> CellId {
        CellId((self.chunk_cells + index) as u32)
    }

    /// Declares the cells above, with a credit from each reader that this rank copies or puts to.
    pub(crate) fn declare(
        &self,
        builder: &mut ProgramBuilder,
        counts: &Counts,
        copies_to: impl Fn(Rank) -> bool,
        puts_to: impl Fn(Node) -> bool,
    ) {
        for arrivals in [counts.reads, counts.releases, counts.puts] {
            builder.cell(arrivals as u32, Born::Empty);
        }
        let own = self.world.node_of(self.rank);
        for peer in self.world.ranks_of(own).map(Rank) {
            builder.cell(u32::from(peer != self.rank && copies_to(peer)), Born::Full);
        }
        for node in self.world.nodes() {
            builder.cell(u32::from(node != own && puts_to(node)), Born::Full);
        }
    }

    /// Modelled seconds until chunk number `order` of `source`, of `bytes` bytes, is here if every link runs at its rate.
    pub(crate) fn arrival(&self, source: Rank, order: u64, bytes: u64) -> f64 {
        if source == self.rank {
            return 0.0;
        }
        let (order, bytes, own) = (order as f64, bytes as f64, self.world.node_of(self.rank));
        let peers = f64::from(self.world.gpus(own)) - 1.0;
        let copied = |chunks: f64| chunks * peers * bytes / self.profile.link;
        if self.world.same_node(source, self.rank) {
            return copied(order + 1.0);
        }
        let nodes = self.world.node_count();
        let step = (own.0 + nodes - self.world.node_of(source).0) % nodes;
        let landed = (order * (f64::from(nodes) - 1.0) + f64::from(step)) * bytes / self.profile.nic;
        let is_copied = self.world.rail(own, self.world.index_of(source)) != self.rank;
        landed + if is_copied { copied(1.0) } else { 0.0 }
    }

    /// What an instruction that reads landing memory raises.
    pub(crate) fn read(&self) -> Signal {
        Signal { rank: self.rank, cell: self.done(), amount: 1 }
    }

    /// Copies a chunk of `source` from this rank to the rank of the node that is written; `here` is the chunk's cell.
    pub(crate) fn copy(&self, lane: &mut LaneBuilder<'_>, source: Rank, here: CellId, read: Span, write: Span) {
        let arrived = Signal { rank: write.rank, cell: here, amount: 1 };
        let credit = self.peer_credit(write.rank);
        if source == self.rank {
            lane.push(Op::Copy, Step::new(&[credit], &[read]), &[write], &[arrived]);
        } else {
            lane.push(Op::Copy, Step::new(&[credit, here], &[read]), &[write], &[arrived, self.read()]);
        }
    }

    /// Puts an own chunk to the rail on `node`; `span` says where the chunk is on a rank, and `here` is its cell.
    pub(crate) fn put(&self, lane: &mut LaneBuilder<'_>, node: Node, here: CellId, span: impl Fn(Rank) -> Span) {
        let target = span(self.world.rail(node, self.world.index_of(self.rank)));
        let put = Put { source: span(self.rank), count: None, target, cell: here, retired: Some(self.sent()) };
        lane.put(&[self.rail_credit(self.rank, node)], put);
    }

    /// Gives `landing` back after `waits`, with a credit to each of `writers`, ranks of the node that copy here.
    pub(crate) fn release(
        &self,
        lane: &mut LaneBuilder<'_>,
        waits: &[CellId],
        landing: &[Span],
        writers: impl Iterator<Item = Rank>,
    ) {
        let mut signals = vec![Signal { rank: self.rank, cell: self.free(), amount: 1 }];
        signals.extend(writers.map(|rank| Signal { rank, cell: self.peer_credit(self.rank), amount: 1 }));
        lane.push(Op::Release, Step::new(waits, &[]), landing, &signals);
    }

    /// Ends the send role: returns the credits of `writers`, who put here, and waits until the sources of all `puts`
    /// have been read.
    pub(crate) fn finish_sends(&self, lane: &mut LaneBuilder<'_>, writers: impl Iterator<Item = Rank>, puts: u64) {
        let node = self.world.node_of(self.rank);
        for writer in writers {
            lane.put(&[self.free()], Put::signal(self.rank, writer, self.rail_credit(writer, node)));
        }
        if puts > 0 {
            lane.push(Op::Release, Step::new(&[self.sent()], &[]), &[], &[]);
        }
    }
}

/// `items` in the order of their arrival; those that arrive together stay in the order given.
pub(crate) fn by_arrival<T>(items: impl Iterator<Item = T>, arrival: impl Fn(&T) -> f64) -> Vec<T> {
    let mut timed: Vec<(f64, T)> = items.map(|item| (arrival(&item), item)).collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    timed.into_iter().map(|(_, item)| item).collect()
}

/// Adds the lanes of a gather and finishes the program. CTAs of `send` go on to help `intra`, those of `intra` to help
/// `compute`.
pub(crate) fn program(
    mut builder: ProgramBuilder,
    ctas: &RoleCtas,
    [compute, intra, send]: [&dyn Role; 3],
) -> Result<Program, PlanError> {
    let mut lane = |role: &dyn Role| builder.lane(role, ctas_of(ctas, role.name()));
    let (compute, intra, send) = (lane(compute), lane(intra), lane(send));
    builder.then(intra, compute);
    builder.then(send, intra.or(compute));
    finish(builder)
}
