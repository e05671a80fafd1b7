//! What a rank must know before it can meet the others.

use std::time::Duration;

use mkernel_core::World;

use super::auth::Secret;

/// Most ranks of a job. It bounds every list on the wire.
pub const MAX_RANKS: u32 = 4096;

/// Where one rank stands, as its launcher says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// This rank, counted over the job.
    pub rank: u32,
    /// Ranks of the job.
    pub world_size: u32,
    /// This rank, counted on its node.
    pub local_rank: u32,
    /// Ranks of the job on this node. Nodes may differ.
    pub local_world_size: u32,
}

impl Place {
    /// The only rank of a job.
    pub const ALONE: Self = Self { rank: 0, world_size: 1, local_rank: 0, local_world_size: 1 };
}

/// Where and how the ranks of a job meet.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where this rank stands.
    pub place: Place,
    /// Name of the job: the same on all its ranks, another for every other job. At most [`MAX_JOB`](super::MAX_JOB) bytes.
    pub job: String,
    /// Key that every rank of the job holds.
    pub secret: Secret,
    /// Name or address of rank 0's host, IPv4 or IPv6.
    pub host: String,
    /// Ports to meet at. Rank 0 listens at the first that is free; the others try them in turn.
    pub ports: Vec<u16>,
    /// How long all ranks have to arrive.
    pub start_deadline: Duration,
    /// How long any later step may take.
    pub step_deadline: Duration,
}

/// GPUs of each node of a world: its form on the wire.
pub(crate) fn gpus(world: &World) -> Vec<u32> {
    world.nodes().map(|node| world.gpus(node)).collect()
}

/// The world of ranks that stand at these places, one GPU each.
///
/// # Errors
/// The first rank that is not where a node of consecutive ranks would have it.
pub(crate) fn world(places: &[Place]) -> Result<World, u32> {
    let mut nodes = Vec::new();
    let mut rest = places;
    while let [first, ..] = rest {
        let size = first.local_world_size;
        let node = rest.get(..size as usize).filter(|node| !node.is_empty()).ok_or(first.rank)?;
        let misplaced =
            node.iter().zip(0..).find(|(place, local)| place.local_rank != *local || place.local_world_size != size);
        if let Some((place, _)) = misplaced {
            return Err(place.rank);
        }
        nodes.push(size);
        rest = &rest[node.len()..];
    }
    World::new(&nodes).map_err(|_| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places of a job with these many ranks per node.
    fn places(nodes: &[u32]) -> Vec<Place> {
        let world_size = nodes.iter().sum();
        let locals = nodes.iter().flat_map(|size| (0..*size).map(|local| (local, *size)));
        let place = |(rank, (local_rank, local_world_size))| Place { rank, world_size, local_rank, local_world_size };
        (0..).zip(locals).map(place).collect()
    }

    #[test]
    fn uneven_nodes_are_read_off_the_ranks() {
        for expected in [vec![1], vec![3, 2], vec![1, 1, 5], vec![8; 64]] {
            assert_eq!(world(&places(&expected)).map(|world| gpus(&world)), Ok(expected));
        }
    }

    #[test]
    fn ranks_dealt_round_robin_over_nodes_are_named() {
        let mut dealt = places(&[2, 2]);
        dealt[1] = Place { rank: 1, ..dealt[2] };
        dealt[2] = Place { rank: 2, local_rank: 1, ..dealt[0] };
        assert_eq!(world(&dealt), Err(1));
    }

    #[test]
    fn a_node_that_is_cut_short_or_empty_is_named() {
        let mut cut = places(&[2, 3]);
        cut.pop();
        assert_eq!(world(&cut), Err(2));
        cut[0].local_world_size = 0;
        assert_eq!(world(&cut), Err(0));
    }
}
