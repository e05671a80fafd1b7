//! Encoded programs of all ranks in device memory, with the state that a launch counts.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use mkernel_core::abi::AbiType;

use super::error::CudaError;
use super::memory::{Buffer, read_entries};
use super::tensor_map;
use crate::encode::Image;
use crate::encode::layout::{HomeEntry, LaneTotals, RankEntry};

/// Where the ring of a rank is; all zeros for a rank that puts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ring {
    pub(super) address: u64,
    pub(super) shift: u32,
}

/// What the lanes of a rank did: counters that only rise, and where they were.
#[derive(Debug)]
struct Counted {
    buffer: Buffer,
    before: Vec<LaneTotals>,
}

const NOTHING: LaneTotals = LaneTotals { tasks: 0, busy_ns: 0, wait_ns: 0, peer_bytes: 0 };

impl Counted {
    fn since(&mut self) -> Result<Vec<LaneTotals>, CudaError> {
        let now: Vec<LaneTotals> = read_entries(&self.buffer, self.before.len())?;
        let passed = |(now, before): (&LaneTotals, &LaneTotals)| LaneTotals {
            tasks: now.tasks.wrapping_sub(before.tasks),
            busy_ns: now.busy_ns.wrapping_sub(before.busy_ns),
            wait_ns: now.wait_ns.wrapping_sub(before.wait_ns),
            peer_bytes: now.peer_bytes.wrapping_sub(before.peer_bytes),
        };
        let since = now.iter().zip(&self.before).map(passed).collect();
        self.before = now;
        Ok(since)
    }
}

/// The launch's tables on the device.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) ranks: Buffer,
    pub(super) homes: Buffer,
    /// Home CTAs by rank and lane.
    pub(super) ctas: Vec<Vec<u32>>,
    totals: Vec<Counted>,
    /// Pools, claims and heads that `ranks` leads to.
    _pools: Vec<Buffer>,
}

impl Loaded {
    /// Uploads `images`, one per rank, with the ring of each.
    pub(super) fn new(context: &Arc<CudaContext>, images: &[Image], rings: &[Ring]) -> Result<Loaded, CudaError> {
        let mut pools = Pools { context, kept: Vec::new() };
        let (mut entries, mut totals) = (Vec::new(), Vec::new());
        for (image, ring) in images.iter().zip(rings) {
            let lanes = image.lanes.len();
            let counted = Buffer::new(context, lanes * size_of::<LaneTotals>())?;
            entries.push(RankEntry {
                lanes: pools.keep(&image.lanes)?,
                instructions: pools.keep(&image.instructions)?,
                segments: pools.keep(&image.segments)?,
                waits: pools.keep(&image.waits)?,
                spans: pools.keep(&image.spans)?,
                signals: pools.keep(&image.signals)?,
                tiles: pools.keep_any(&image.tiles.tiles)?,
                boxes: pools.keep_any(&image.tiles.boxes)?,
                maps: pools.keep(&tensor_map::encode_all(context, &image.tiles.maps)?)?,
                claims: pools.keep(&vec![0u32; 2 * lanes])?,
                totals: counted.address(),
                fifo_head: pools.keep(&[0u64])?,
                fifo: ring.address,
                fifo_shift: ring.shift,
                rank: image.rank.0,
                lane_count: lanes as u32,
                reserved: 0,
            });
            totals.push(Counted { buffer: counted, before: vec![NOTHING; lanes] });
        }
        let ctas: Vec<Vec<u32>> = images.iter().map(|i| i.ctas.clone()).collect();
        let ranks = Buffer::of(context, &entries)?;
        let homes = home_entries(context, &ctas)?;
        Ok(Loaded { ranks, homes, ctas, totals, _pools: pools.kept })
    }

    /// Gives the lanes of every rank other numbers of home CTAs, for the launches to come.
    pub(super) fn assign(&mut self, context: &Arc<CudaContext>, ctas: Vec<Vec<u32>>) -> Result<(), CudaError> {
        self.homes = home_entries(context, &ctas)?;
        self.ctas = ctas;
        Ok(())
    }

    /// CTAs of a launch.
    pub(super) fn cta_count(&self) -> u32 {
        self.ctas.iter().flatten().sum()
    }

    /// Ranks of the launch.
    pub(super) fn rank_count(&self) -> u32 {
        self.totals.len() as u32
    }

    /// What the lanes of each rank did since this was asked last.
    pub(super) fn totals(&mut self) -> Result<Vec<Vec<LaneTotals>>, CudaError> {
        self.totals.iter_mut().map(Counted::since).collect()
    }
}

/// One entry per CTA: its rank and the lane that it starts with.
fn home_entries(context: &Arc<CudaContext>, ctas: &[Vec<u32>]) -> Result<Buffer, CudaError> {
    let mut homes = Vec::new();
    for (rank, lanes) in (0u32..).zip(ctas) {
        for (lane, &ctas) in (0u32..).zip(lanes) {
            homes.extend((0..ctas).map(|_| HomeEntry { rank, lane }));
        }
    }
    Buffer::of(context, &homes)
}

struct Pools<'a> {
    context: &'a Arc<CudaContext>,
    kept: Vec<Buffer>,
}

impl Pools<'_> {
    /// As `keep`; 0 for no items.
    fn keep_any<T: AbiType>(&mut self, items: &[T]) -> Result<u64, CudaError> {
        if items.is_empty() { Ok(0) } else { self.keep(items) }
    }

    fn keep<T: AbiType>(&mut self, items: &[T]) -> Result<u64, CudaError> {
        let buffer = Buffer::of(self.context, items)?;
        let address = buffer.address();
        self.kept.push(buffer);
        Ok(address)
    }
}
