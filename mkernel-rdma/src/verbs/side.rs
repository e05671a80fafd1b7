//! A rank's side channel to the ranks of other nodes: a few words of its own, written there again and again, and reads of
//! their memory while no launch runs.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys as sys;
use mkernel_core::Rank;
use mkernel_core::nic::Nic;
use mkernel_core::transport::{STATUS_FLUSHED, STATUS_NO_PEER, STATUS_REFUSED, STATUS_UNREACHABLE};

use super::error::VerbsError;
use super::memory::{Region, Words};
use super::nic::{Offer, Rail, VerbsNic};
use super::queue::QueuePair;
use crate::transport::GRACE;

/// Words that are read at once.
const BOUNCE: usize = 8 * 1024;

/// Words of the line that is written to peers; they follow the bounce buffer.
const LINE: usize = 8;

/// Writes of the line to a peer that may be on their way; the last ones say all that the first ones did.
const MOST_WRITES: u32 = 4;

/// The side channel.
#[derive(Debug)]
pub struct Side {
    inner: Mutex<Inner>,
    /// One read at a time: there is one bounce buffer.
    reading: Mutex<()>,
}

#[derive(Debug)]
struct Inner {
    nic: VerbsNic,
    words: Arc<Words>,
    region: Region,
    peers: Vec<Peer>,
}

#[derive(Debug)]
struct Peer {
    rank: Rank,
    /// Where the peer keeps this rank's line.
    line: u64,
    key: u32,
    writes: u32,
    /// A read is on its way.
    reads: bool,
    /// What ended the connection, and when.
    status: u32,
    since: Option<Instant>,
}

/// Marks ids of reads.
const READ: u64 = 1 << 32;

impl Side {
    /// Over the one queue pair to each of `peers`, whose offers are given by rank; `line` says how far into a
    /// peer's memory this rank's line is.
    ///
    /// # Errors
    /// [`VerbsError`] if memory cannot be registered.
    ///
    /// # Panics
    /// If a peer has made no offer.
    pub fn new(
        rail: &Rail,
        nic: VerbsNic,
        peers: &[Rank],
        offers: &[Option<Offer>],
        line: u64,
    ) -> Result<Side, VerbsError> {
        let words = Words::new(BOUNCE + LINE);
        let region = Region::host(rail.domain(), words.clone())?;
        let peer = |&rank: &Rank| {
            let offer = offers[rank.0 as usize].as_ref().expect("connected peers have made an offer");
            Peer {
                rank,
                line: offer.address + line,
                key: offer.rails[0].key,
                writes: 0,
                reads: false,
                status: 0,
                since: None,
            }
        };
        let peers = peers.iter().map(peer).collect();
        Ok(Side { inner: Mutex::new(Inner { nic, words, region, peers }), reading: Mutex::new(()) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What was being done is looked at again by the next call.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the line to every peer, where the last few writes have got through.
    ///
    /// # Panics
    /// If the line has more than 8 words.
    pub fn publish(&self, line: &[u64]) {
        let mut inner = self.lock();
        inner.poll();
        for (word, value) in inner.words.words()[BOUNCE..][..LINE].iter().zip(line) {
            word.store(*value, Relaxed);
        }
        for index in 0..inner.peers.len() {
            let peer = &inner.peers[index];
            if peer.writes < MOST_WRITES && peer.status == 0 {
                let (target, key, id) = (peer.line, peer.key, index as u64);
                let own = &inner.words.words()[BOUNCE];
                let piece = (own.as_ptr() as u64, line.len() as u32 * 8);
                let sent = inner.post(index, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, id, piece, (target, key));
                inner.peers[index].writes += u32::from(sent.is_ok());
            }
        }
    }

    /// The first peer whose connection has failed, with the cause.
    pub fn broken(&self) -> Option<(Rank, u32)> {
        let inner = self.lock();
        (0..inner.peers.len()).find_map(|index| Some((inner.peers[index].rank, inner.verdict(index)?)))
    }

    /// Reads memory of a peer into `bytes`, within `limit`.
    ///
    /// # Errors
    /// The status of what failed ([`mkernel_core::transport::status_name`]).
    pub fn read(&self, rank: Rank, address: u64, key: u32, bytes: &mut [u8], limit: Duration) -> Result<(), u32> {
        let _one = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let mut address = address;
        for part in bytes.chunks_mut(BOUNCE * 8) {
            self.read_part(rank, address, key, part, start + limit)?;
            address += part.len() as u64;
        }
        Ok(())
    }

    fn read_part(&self, rank: Rank, address: u64, key: u32, part: &mut [u8], end: Instant) -> Result<(), u32> {
        let mut inner = self.lock();
        let index = inner.peers.iter().position(|p| p.rank == rank).ok_or(STATUS_NO_PEER)?;
        let piece = (inner.words.words()[0].as_ptr() as u64, part.len() as u32);
        let opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
        inner.post(index, opcode, READ | index as u64, piece, (address, key)).map_err(|_| STATUS_REFUSED)?;
        inner.peers[index].reads = true;
        loop {
            inner.poll();
            if let Some(status) = inner.verdict(index) {
                return Err(status);
            }
            let Peer { status, reads, .. } = inner.peers[index];
            if status == 0 && !reads {
                break;
            }
            if Instant::now() >= end {
                return Err(STATUS_UNREACHABLE);
            }
            // This rank's line goes on being written meanwhile.
            drop(inner);
            thread::yield_now();
            inner = self.lock();
        }
        for (word, bytes) in inner.words.words().iter().zip(part.chunks_mut(8)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[..bytes.len()]);
        }
        Ok(())
    }
}

impl Inner {
    /// The cause that ended the connection with a peer. What was flushed is no cause: one may come up yet.
    fn verdict(&self, index: usize) -> Option<u32> {
        let peer = &self.peers[index];
        let since = peer.since?;
        let status = self.nic.cause(index as u32, peer.status);
        (status != STATUS_FLUSHED || since.elapsed() >= GRACE).then_some(status)
    }

    fn post(
        &self,
        index: usize,
        opcode: sys::ibv_wr_opcode::Type,
        id: u64,
        (address, bytes): (u64, u32),
        (target, key): (u64, u32),
    ) -> io::Result<()> {
        let mut piece = sys::ibv_sge { addr: address, length: bytes, lkey: self.region.local_key() };
        let mut wr = sys::ibv_send_wr { wr_id: id, opcode, num_sge: 1, ..sys::ibv_send_wr::default() };
        wr.sg_list = &raw mut piece;
        wr.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (target, key);
        let pair: &QueuePair = &self.nic.queues()[index];
        // SAFETY: the piece lies in `words`, which is registered as long as `self` lives, and is atomic.
        unsafe { pair.post(std::slice::from_mut(&mut wr)) }.map_err(|(_, error)| error)
    }

    fn poll(&mut self) {
        // SAFETY: all-zero bytes are a completion: numbers only.
        let mut polled: [sys::ibv_wc; 16] = unsafe { std::mem::zeroed() };
        for queue in self.nic.completions() {
            // A queue that cannot be polled shows as a peer that does not answer.
            let count = queue.poll(&mut polled).unwrap_or(0);
            for done in &polled[..count] {
                let Some(peer) = self.peers.get_mut((done.wr_id() & (READ - 1)) as usize) else { continue };
                if let Some((status, _)) = done.error() {
                    if peer.since.is_none() || peer.status == STATUS_FLUSHED {
                        peer.status = status;
                    }
                    peer.since.get_or_insert_with(Instant::now);
                }
                if done.wr_id() & READ != 0 {
                    peer.reads = false;
                } else {
                    peer.writes = peer.writes.saturating_sub(1);
                }
            }
        }
    }
}
