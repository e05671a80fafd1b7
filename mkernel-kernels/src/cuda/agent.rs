//! The host's half of a rank while a kernel runs: it pops tickets and raises what their puts retire.

use std::cell::Cell;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use mkernel_core::fifo::{Consumer, HEADER_WORDS, channel_over};
use mkernel_core::proxy::Proxy;
use mkernel_core::transport::{Contract, Post, PostError, TransportError};
use mkernel_core::{Addresses, CellId, Fault, FaultKind, Program, Rank, Transport, Verified};

use super::error::CudaError;
use super::executor::Options;
use super::memory::Pinned;
use super::program::Ring;
use super::stream::WordWriter;

/// The host's half of one rank: its ring, its proxy, and how far its cells of retired sources are.
#[derive(Debug)]
pub(super) struct Agent<T> {
    rank: Rank,
    puts: u64,
    popped: u64,
    consumer: Consumer<Pinned>,
    proxy: Proxy<Counted<T>>,
    /// Address and value of each cell of the rank.
    cells: Vec<(u64, u64)>,
    retired: Vec<CellId>,
}

impl<T: Transport> Agent<T> {
    /// Makes the ring and the proxy of a rank that puts something.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        verified: &Verified,
        program: &Program,
        addresses: &Addresses,
        transport: T,
        options: &Options,
    ) -> Result<(Agent<T>, Ring), CudaError> {
        let words = Pinned::new(context, HEADER_WORDS + options.fifo_slots)?;
        let ring = Ring { address: words.address(), shift: options.fifo_slots.trailing_zeros() };
        let (_, consumer) = channel_over(words, 0)?;
        let ranks = program.world.ranks();
        let is_near = ranks.map(|peer| program.world.same_node(program.rank, peer)).collect();
        let transport = Counted { inner: transport, is_near, bytes: Cell::new((0, 0)) };
        let proxy = Proxy::new(verified, program.rank, options.first_epoch, transport)
            .expect("a verified world has every program");
        let address = |cell| addresses.cell(program.rank, cell).expect("the heap maps every rank");
        let cells = program.cells.iter().enumerate();
        let cells = cells.map(|(i, c)| (address(CellId(i as u32)), c.initial(options.first_epoch))).collect();
        let (rank, puts) = (program.rank, program.puts.len() as u64);
        Ok((Agent { rank, puts, popped: 0, consumer, proxy, cells, retired: Vec::new() }, ring))
    }

    /// The rank.
    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Starts a launch.
    pub(super) fn begin(&mut self) {
        self.popped = 0;
        self.proxy.transport().bytes.set((0, 0));
    }

    /// Payload bytes that the transport took in this launch: to peers of the node, and to others.
    pub(super) fn bytes(&self) -> (u64, u64) {
        self.proxy.transport().bytes.get()
    }

    /// One step of the proxy; raises the cells of retired sources. Whether nothing of this epoch is left to do.
    pub(super) fn step(&mut self, words: &WordWriter) -> Result<bool, Fault> {
        let progress = self.proxy.step(|| self.consumer.pop(), &mut self.retired)?;
        self.popped += u64::from(progress.popped);
        for cell in self.retired.drain(..) {
            let (address, value) = &mut self.cells[cell.0 as usize];
            *value = value.wrapping_add(1);
            // SAFETY: the cell lives in the heap, which outlives the launch; `finish` awaits the write.
            unsafe { words.write(*address, *value) }.map_err(|_| Fault::new(FaultKind::Died, self.rank))?;
        }
        Ok(self.popped == self.puts && progress.in_flight == 0 && !progress.is_held)
    }
}

/// A transport with a count of the bytes that it took.
#[derive(Debug)]
struct Counted<T> {
    inner: T,
    /// By rank: whether it is of the same node.
    is_near: Vec<bool>,
    /// To peers of the node, and to others.
    bytes: Cell<(u64, u64)>,
}

impl<T: Transport> Transport for Counted<T> {
    fn contract(&self) -> Contract {
        self.inner.contract()
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.inner.post(post)?;
        let (near, far) = self.bytes.get_mut();
        let tier = if self.is_near[post.target.rank.0 as usize] { near } else { far };
        *tier += post.source.bytes();
        Ok(())
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        self.inner.poll(retired)
    }
}
