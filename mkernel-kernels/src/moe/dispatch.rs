//! The roles that move rows: packing inside the node, puts between nodes.

use mkernel_core::builder::Step;
use mkernel_core::{Experts, LaneBuilder, Op, Put, Rank, Role, RoleName, Span};

use super::cells::Cell;
use super::combine;
use super::layout::Layout;
use super::tokens::Chunk;

/// Packs own chunks for other nodes, then for the node's ranks, then chunks that landed; then sums the results.
pub(super) struct Intra<'a>(pub(super) &'a Layout<'a>);

/// Puts packed chunks to the rail of every other node with experts, returns credits, and sends sums back.
pub(super) struct Send<'a>(pub(super) &'a Layout<'a>);

impl Role for Intra<'_> {
    fn name(&self) -> RoleName {
        RoleName::Intra
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        for chunk in l.t.chunks(l.rank) {
            for node in l.t.expert_nodes(l.rank) {
                let writes = [l.staging(&chunk, node), l.count(l.cells.staged_count(&chunk, node))];
                let op = Op::Pack { held: None, wanted: l.t.node_experts(node) };
                let reads = [l.x(l.rank, chunk.start, chunk.end), l.ids(chunk.start, chunk.end)];
                lane.push(op, Step::new(&[], &reads), &writes, &[l.signal(Cell::Staged(chunk, node))]);
            }
        }
        for chunk in l.t.chunks(l.rank) {
            for peer in l.expert_peers() {
                self.pack(lane, &chunk, peer, None);
            }
        }
        let held = l.t.node_experts(l.node);
        if !held.is_empty() {
            let landed = l.landings().into_iter().filter(|c| l.is_rail_of(c.source));
            for chunk in landed {
                for peer in l.expert_peers().chain(l.has_experts().then_some(l.rank)) {
                    self.pack(lane, &chunk, peer, Some(held));
                }
            }
            for source in l.t.rail_sources(l.rank).filter(|&s| l.t.chunk_count(s) > 0) {
                let waits = [l.id(Cell::RailDone(source))];
                let signals = [l.signal(Cell::RailFree(source))];
                lane.push(Op::Release, Step::new(&waits, &[]), &[l.rail_of(source)], &signals);
            }
        }
        if l.is_ffn() && l.has_experts() {
            combine::fill(l, lane);
        }
    }
}

impl Intra<'_> {
    /// Packs the rows of a chunk that `peer` needs into its slot there; the chunk is an own one, or landed with the rows of
    /// the experts `held`.
    fn pack(&self, lane: &mut LaneBuilder<'_>, chunk: &Chunk, peer: Rank, held: Option<Experts>) {
        let l = self.0;
        let mut waits = Vec::new();
        let mut signals = vec![l.signal_at(peer, Cell::Here(*chunk))];
        let rows: Span = match held {
            None => l.x(l.rank, chunk.start, chunk.end),
            Some(_) => {
                waits.push(l.id(Cell::Railed(*chunk)));
                signals.push(l.signal(Cell::RailDone(chunk.source)));
                l.rail(l.rank, chunk)
            }
        };
        if peer != l.rank {
            waits.push(l.id(Cell::PeerCredit(peer)));
        }
        let reads = [rows, l.ids(chunk.start, chunk.end)];
        let op = Op::Pack { held, wanted: l.t.experts(peer) };
        lane.push(op, Step::new(&waits, &reads), &[l.x(peer, chunk.start, chunk.end)], &signals);
    }
}

impl Role for Send<'_> {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        for chunk in l.t.chunks(l.rank) {
            for node in l.t.expert_nodes(l.rank) {
                let rail = l.t.rail(node, l.rank);
                let put = Put {
                    source: l.staging(&chunk, node),
                    count: Some(l.count(l.cells.staged_count(&chunk, node))),
                    target: l.rail(rail, &chunk),
                    cell: l.id(Cell::Railed(chunk)),
                    retired: Some(l.id(Cell::Sent)),
                };
                lane.put(&[l.id(Cell::Staged(chunk, node)), l.id(Cell::RailCredit(node))], put);
            }
        }
        for source in l.serving_sources() {
            let credit = Put::signal(l.rank, source, l.id(Cell::RailCredit(l.node)));
            lane.put(&[l.id(Cell::RailFree(source))], credit);
        }
        if l.is_ffn() {
            self.send_back(lane);
        }
        if l.bulk_puts() > 0 {
            // The launch ends here only once the NIC has read every source.
            lane.push(Op::Release, Step::new(&[l.id(Cell::Sent)], &[]), &[], &[]);
        }
    }
}

impl Send<'_> {
    /// The node's sums to their sources, and credits for those that came back.
    fn send_back(&self, lane: &mut LaneBuilder<'_>) {
        let l = self.0;
        for chunk in l.serving_sources().flat_map(|s| l.t.chunks(s)) {
            let put = Put {
                source: l.merged(&chunk),
                count: Some(l.count(l.cells.merged_count(&chunk))),
                target: l.returned(&chunk, l.node),
                cell: l.id(Cell::Returned(chunk, l.node)),
                retired: Some(l.id(Cell::Sent)),
            };
            lane.put(&[l.id(Cell::Merged(chunk)), l.id(Cell::ReturnCredit(chunk.source))], put);
        }
        if l.t.chunk_count(l.rank) > 0 {
            for node in l.t.expert_nodes(l.rank) {
                let credit = Put::signal(l.rank, l.t.rail(node, l.rank), l.id(Cell::ReturnCredit(l.rank)));
                lane.put(&[l.id(Cell::ReturnsFree)], credit);
            }
        }
    }
}

impl Layout<'_> {
    /// Whether chunks of `source`, a rank of another node, land here.
    pub(super) fn is_rail_of(&self, source: Rank) -> bool {
        !self.t.world.same_node(source, self.rank) && self.t.rail(self.node, source) == self.rank
    }

    /// Rail sources with tokens, if this node has experts for them.
    pub(super) fn serving_sources(&self) -> impl Iterator<Item = Rank> + '_ {
        let serves = self.t.is_expert_node(self.node);
        self.t.rail_sources(self.rank).filter(move |&s| serves && self.t.chunk_count(s) > 0)
    }

    /// Chunks of the rail sources that this rank serves.
    pub(super) fn serving_chunks(&self) -> u64 {
        self.serving_sources().map(|s| self.t.chunk_count(s)).sum()
    }

    /// Instructions that pack rows.
    pub(super) fn packs(&self) -> u64 {
        let (own, ranks) = (self.t.chunk_count(self.rank), self.t.expert_ranks(self.node).count() as u64);
        let peers = self.expert_peers().count() as u64;
        own * (self.t.expert_nodes(self.rank).count() as u64 + peers) + self.serving_chunks() * ranks
    }

    /// Puts that carry rows.
    pub(super) fn bulk_puts(&self) -> u64 {
        let out = self.t.chunk_count(self.rank) * self.t.expert_nodes(self.rank).count() as u64;
        out + if self.is_ffn() { self.serving_chunks() } else { 0 }
    }

    /// All puts.
    pub(super) fn sends(&self) -> u64 {
        let nodes = if self.is_ffn() { u64::from(self.t.world.node_count()) } else { 0 };
        self.bulk_puts() + self.serving_sources().count() as u64 + nodes
    }

    /// Bytes that the intra role moves if every row is wanted everywhere.
    pub(super) fn intra_bytes(&self) -> f64 {
        let p = self.problem();
        let rows = (self.packs() * self.t.chunk_rows) as f64;
        let sums = (self.combines() * self.t.chunk_rows) as f64;
        p.hidden as f64 * (rows * p.dtype.bytes() as f64 + sums * 4.0)
    }
}
