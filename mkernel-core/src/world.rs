//! Who takes part, and who shares a node.
//!
//! Ranks are numbered node by node: node 0 holds ranks `0..g0`, node 1 the next `g1`, and so on. Nodes may hold
//! different numbers of GPUs. Ranks with the same index in their nodes form a **rail** and talk over the NIC; where a
//! node is smaller, indices fold onto it modulo its size, so that [`World::rail`] is total for every world.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One GPU of the world, numbered node by node from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u32);

/// One machine: ranks of a node reach each other's memory directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Why a world cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// There is no node at all.
    #[error("a world needs at least one node")]
    NoNodes,
    /// A node has no GPU.
    #[error("node {0} has no GPU; every node needs at least one")]
    EmptyNode(u32),
    /// Rank numbers would not fit.
    #[error("a world holds at most {max} ranks, this one has {ranks}", max = World::MAX_RANKS)]
    TooManyRanks {
        /// The ranks asked for.
        ranks: u64,
    },
}

/// The nodes of a job and the ranks on each; cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// `starts[n]` is the first rank of node `n`; one more entry than nodes.
    starts: Arc<[u32]>,
    /// The node of each rank, so that [`World::node_of`] is one look.
    nodes: Arc<[u32]>,
}

impl World {
    /// The most ranks a world may have; rank numbers and per-rank cells stay far inside u32.
    pub const MAX_RANKS: u64 = 1 << 20;

    /// Makes a world from the number of GPUs of each node.
    ///
    /// # Errors
    /// [`WorldError`] for no node, an empty node, or more than [`World::MAX_RANKS`] ranks.
    pub fn new(gpus: &[u32]) -> Result<World, WorldError> {
        if gpus.is_empty() {
            return Err(WorldError::NoNodes);
        }
        let ranks: u64 = gpus.iter().map(|&g| u64::from(g)).sum();
        if ranks > Self::MAX_RANKS {
            return Err(WorldError::TooManyRanks { ranks });
        }
        let mut starts = Vec::with_capacity(gpus.len() + 1);
        let mut next = 0;
        for (node, &g) in gpus.iter().enumerate() {
            if g == 0 {
                return Err(WorldError::EmptyNode(node as u32));
            }
            starts.push(next);
            next += g;
        }
        starts.push(next);
        let nodes = (0..).zip(gpus).flat_map(|(node, &g)| std::iter::repeat_n(node, g as usize)).collect();
        Ok(World { starts: starts.into(), nodes })
    }

    /// Makes a world of `nodes` nodes with `gpus` GPUs each.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn uniform(nodes: u32, gpus: u32) -> Result<World, WorldError> {
        // Said before the list is made: without GPUs the count of ranks bounds nothing.
        if nodes > 0 && gpus == 0 {
            return Err(WorldError::EmptyNode(0));
        }
        let ranks = u64::from(nodes) * u64::from(gpus);
        if ranks > Self::MAX_RANKS {
            return Err(WorldError::TooManyRanks { ranks });
        }
        World::new(&vec![gpus; nodes as usize])
    }

    /// Number of ranks, W.
    pub fn size(&self) -> u32 {
        self.starts[self.starts.len() - 1]
    }

    /// All ranks in order.
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator + use<> {
        (0..self.size()).map(Rank)
    }

    /// Number of nodes, N.
    pub fn node_count(&self) -> u32 {
        (self.starts.len() - 1) as u32
    }

    /// All nodes in order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = Node> + ExactSizeIterator + use<> {
        (0..self.node_count()).map(Node)
    }

    /// Number of GPUs of `node`, G.
    ///
    /// # Panics
    /// If the node is not of this world.
    pub fn gpus(&self, node: Node) -> u32 {
        self.starts[node.0 as usize + 1] - self.starts[node.0 as usize]
    }

    /// The largest number of GPUs on any node.
    pub fn max_gpus(&self) -> u32 {
        self.nodes().map(|n| self.gpus(n)).max().unwrap_or(0)
    }

    /// The ranks of `node`, as a range of rank numbers.
    pub fn ranks_of(&self, node: Node) -> Range<u32> {
        self.starts[node.0 as usize]..self.starts[node.0 as usize + 1]
    }

    /// The node that holds `rank`.
    ///
    /// # Panics
    /// If the rank is not of this world.
    pub fn node_of(&self, rank: Rank) -> Node {
        assert!(rank.0 < self.size(), "{rank} is not one of {} ranks", self.size());
        Node(self.nodes[rank.0 as usize])
    }

    /// The index of `rank` within its node.
    pub fn index_of(&self, rank: Rank) -> u32 {
        rank.0 - self.starts[self.node_of(rank).0 as usize]
    }

    /// The other ranks of this rank's node, starting after `rank` and going round, so that peers do not all begin with
    /// the same target.
    pub fn node_peers(&self, rank: Rank) -> impl Iterator<Item = Rank> + use<> {
        let range = self.ranks_of(self.node_of(rank));
        let (start, count, index) = (range.start, range.len() as u32, rank.0 - range.start);
        (1..count).map(move |step| Rank(start + (index + step) % count))
    }

    /// The other nodes, starting after this rank's node and going round.
    pub fn other_nodes(&self, rank: Rank) -> impl Iterator<Item = Node> + use<> {
        let (own, count) = (self.node_of(rank).0, self.node_count());
        (1..count).map(move |step| Node((own + step) % count))
    }

    /// The rank of `node` that talks over the NIC with ranks of index `index`: the same index, folded onto the node.
    pub fn rail(&self, node: Node, index: u32) -> Rank {
        Rank(self.starts[node.0 as usize] + index % self.gpus(node))
    }

    /// The ranks of other nodes whose rail on this rank's node is `rank`, nearest following node first.
    pub fn rail_sources(&self, rank: Rank) -> impl Iterator<Item = Rank> + use<'_> {
        let (index, gpus) = (self.index_of(rank), self.gpus(self.node_of(rank)));
        self.other_nodes(rank).flat_map(move |node| {
            self.ranks_of(node).filter(move |r| (r - self.ranks_of(node).start) % gpus == index).map(Rank)
        })
    }

    /// Whether both ranks are on one node.
    pub fn same_node(&self, a: Rank, b: Rank) -> bool {
        self.node_of(a) == self.node_of(b)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({self})")
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus: Vec<u32> = self.nodes().map(|n| self.gpus(n)).collect();
        if gpus.iter().all(|g| g == &gpus[0]) {
            write!(f, "{}x{}", gpus.len(), gpus[0])
        } else {
            write!(f, "{}", gpus.iter().map(u32::to_string).collect::<Vec<_>>().join("+"))
        }
    }
}

/// The part of `0..len` that the `index`-th of `parts` owns: the first `len % parts` parts are one longer.
///
/// # Panics
/// If `parts` is zero or `index` is not below it.
pub fn share(len: u64, parts: u64, index: u64) -> Range<u64> {
    assert!(index < parts, "part {index} of {parts}");
    let (floor, longer) = (len / parts, len % parts);
    let start = index * floor + index.min(longer);
    start..start + floor + u64::from(index < longer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_nodes_without_gpus_is_said_to_have_empty_nodes() {
        for nodes in [1, 1 << 20, (1 << 20) + 1, u32::MAX] {
            assert_eq!(World::uniform(nodes, 0), Err(WorldError::EmptyNode(0)), "{nodes} nodes");
        }
    }

    #[test]
    fn shares_are_disjoint_and_cover_everything() {
        for len in [0u64, 1, 2, 7, 64, 97] {
            for parts in 1..9u64 {
                let mut next = 0;
                for index in 0..parts {
                    let part = share(len, parts, index);
                    assert_eq!(part.start, next);
                    next = part.end;
                }
                assert_eq!(next, len);
            }
        }
    }

    #[test]
    fn uneven_nodes_number_their_ranks_in_order() {
        let world = World::new(&[3, 2, 1]).unwrap();
        assert_eq!(world.size(), 6);
        assert_eq!(world.node_of(Rank(4)), Node(1));
        assert_eq!(world.index_of(Rank(4)), 1);
        assert_eq!(world.rail(Node(2), 2), Rank(5));
        assert_eq!(world.node_peers(Rank(1)).collect::<Vec<_>>(), [Rank(2), Rank(0)]);
        assert_eq!(world.other_nodes(Rank(4)).collect::<Vec<_>>(), [Node(2), Node(0)]);
        assert_eq!(world.to_string(), "3+2+1");
        for rank in world.ranks() {
            for source in world.rail_sources(rank) {
                assert_eq!(world.rail(world.node_of(rank), world.index_of(source)), rank);
            }
        }
        let sources: usize = world.ranks().map(|r| world.rail_sources(r).count()).sum();
        assert_eq!(sources, 6 * 2, "every rank has one rail on each other node");
    }

    #[test]
    fn impossible_worlds_are_refused() {
        assert_eq!(World::new(&[]), Err(WorldError::NoNodes));
        assert_eq!(World::new(&[2, 0]), Err(WorldError::EmptyNode(1)));
        assert!(matches!(World::uniform(u32::MAX, u32::MAX), Err(WorldError::TooManyRanks { .. })));
    }
}
