//! One rank's memory that all processes of the job on a host map.
//!
//! A segment is a file in `/dev/shm` that never has a name (`O_TMPFILE`): nobody else can open it by guessing, there is
//! nothing to collide with, and it is gone with the last process that maps it, however that process ends. Peers reach it
//! through its owner's descriptor in `/proc`, which the kernel grants to processes of the same user only. The owner closes
//! the descriptor once all have opened it.
//!
//! All its bytes are reserved when it is made, so that no access ever runs out of memory.
//!
//! Layout: a header of [`HEADER_WORDS`] words, then parts, each at the next multiple of [`PAGE`]. The magic word is
//! stored last (release) and looked at first (acquire).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memmap2::MmapRaw;
use mkernel_core::Rank;
use mkernel_core::nic::Shared;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatvfs, open};
use rustix::io::Errno;

use crate::block::{Block, Mapping, Words};
use crate::error::SegmentError;

const FOLDER: &str = "/dev/shm";

/// `mkernel` with a zero, little endian.
const MAGIC: u64 = u64::from_le_bytes(*b"mkernel\0");

/// Version of the layout.
const VERSION: u64 = 1;

/// Words of the header.
const HEADER_WORDS: usize = 16;

/// Parts start at multiples of it.
const PAGE: u64 = 4096;

/// The header after its magic word, in order.
const FIELDS: [&str; 5] = ["the version", "the rank", "the number of ranks", "the number of parts", "the size"];

/// What a rank's segment holds: its parts in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) rank: Rank,
    pub(crate) ranks: u32,
    pub(crate) parts: Vec<u64>,
}

impl Layout {
    /// Bytes of the segment, beyond what any memory holds if they do not fit in 64 bits.
    pub(crate) fn bytes(&self) -> u64 {
        let pages = |bytes: u64| bytes.div_ceil(PAGE).saturating_mul(PAGE);
        self.parts.iter().map(|&bytes| pages(bytes)).fold(PAGE, u64::saturating_add)
    }

    /// Where a part begins.
    pub(crate) fn offset(&self, part: usize) -> u64 {
        Layout { parts: self.parts[..part].to_vec(), ..*self }.bytes()
    }

    fn fields(&self) -> [u64; FIELDS.len()] {
        [VERSION, self.rank.0.into(), self.ranks.into(), self.parts.len() as u64, self.bytes()]
    }
}

/// A segment of this or another process, mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    map: Arc<MmapRaw>,
    parts: Vec<(usize, usize)>,
}

impl Mapped {
    fn new(file: &File, layout: &Layout) -> io::Result<Mapped> {
        let map = Arc::new(MmapRaw::map_raw(file)?);
        let mut next = PAGE as usize;
        let mut parts = Vec::new();
        for &bytes in &layout.parts {
            // All of it is mapped, so it fits the address space.
            parts.push((next, bytes as usize));
            next += bytes.div_ceil(PAGE) as usize * PAGE as usize;
        }
        Ok(Mapped { map, parts })
    }

    fn header(&self) -> Words {
        Words::new(Block::part(&self.map, 0, HEADER_WORDS * 8))
    }

    /// `len` bytes from `offset` on.
    pub(crate) fn part(&self, offset: u64, len: u64) -> Block {
        Block::part(&self.map, offset as usize, len as usize)
    }

    /// The parts as blocks, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.parts.iter().map(|&(offset, len)| Block::part(&self.map, offset, len))
    }
}

/// A segment of this process that peers have yet to open.
#[derive(Debug)]
pub struct Segment {
    pub(crate) layout: Layout,
    pub(crate) mapped: Mapped,
    file: File,
}

impl Segment {
    /// Bytes of [`Segment::address`].
    pub const ADDRESS: usize = 8;

    /// Reserves and maps a segment of zeros. `all` is what all ranks need, for the message.
    pub(crate) fn create(layout: Layout, all: u64) -> Result<Segment, SegmentError> {
        let (rank, bytes) = (layout.rank, layout.bytes());
        let failed = |error: io::Error| SegmentError::Create { rank, folder: FOLDER, cause: error.kind() };
        let mode = Mode::RUSR | Mode::WUSR;
        let file = open(FOLDER, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode);
        let file = File::from(file.map_err(|error| failed(error.into()))?);
        let space = fstatvfs(&file).map_err(|error| failed(error.into()))?;
        let available = space.f_bavail.saturating_mul(space.f_frsize);
        let too_small = SegmentError::TooSmall { rank, folder: FOLDER, bytes, all, available };
        // A file system without a limit says that it has no blocks at all.
        if space.f_blocks > 0 && bytes > available {
            return Err(too_small);
        }
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => {}
            Err(Errno::NOSPC | Errno::NOMEM) => return Err(too_small),
            Err(error) => return Err(failed(error.into())),
        }
        let mapped = Mapped::new(&file, &layout).map_err(failed)?;
        Ok(Segment { layout, mapped, file })
    }

    /// Says that the segment is as peers may find it.
    pub(crate) fn publish(&self) {
        let header = self.mapped.header();
        for (word, value) in header[1..].iter().zip(self.layout.fields()) {
            word.store(value, Relaxed);
        }
        header[0].store(MAGIC, Release);
    }

    /// The memory, for a NIC to read and write.
    pub fn memory(&self) -> Arc<dyn Shared> {
        Arc::new(Mapping::new(&self.mapped.map))
    }

    /// Where peers find it: bytes for them to be told.
    pub fn address(&self) -> Vec<u8> {
        let (process, descriptor) = (std::process::id(), self.file.as_raw_fd());
        [process.to_le_bytes(), descriptor.to_le_bytes()].concat()
    }
}

/// Maps the segment of a peer, which must be as `layout` says.
pub(crate) fn reach(address: &[u8], layout: &Layout) -> Result<Mapped, SegmentError> {
    let rank = layout.rank;
    let failed = |error: io::Error| SegmentError::Open { rank, cause: error.kind() };
    let file = find(address).map_err(failed)?;
    let differs = |field, found, wanted| SegmentError::Header { rank, field, found, wanted };
    let size = file.metadata().map_err(failed)?.len();
    if size != layout.bytes() {
        return Err(differs("the size", size, layout.bytes()));
    }
    let mapped = Mapped::new(&file, layout).map_err(failed)?;
    let header = mapped.header();
    let magic = header[0].load(Acquire);
    if magic != MAGIC {
        return Err(differs("the first word", magic, MAGIC));
    }
    for ((field, wanted), word) in FIELDS.into_iter().zip(layout.fields()).zip(&header[1..]) {
        let found = word.load(Relaxed);
        if found != wanted {
            return Err(differs(field, found, wanted));
        }
    }
    Ok(mapped)
}

/// Opens what [`Segment::address`] names.
fn find(address: &[u8]) -> io::Result<File> {
    // What follows is not of this module.
    let address = address.get(..Segment::ADDRESS).ok_or(io::ErrorKind::InvalidData)?;
    let (process, descriptor) = address.split_first_chunk::<4>().ok_or(io::ErrorKind::InvalidData)?;
    let descriptor = <[u8; 4]>::try_from(descriptor).map_err(|_| io::ErrorKind::InvalidData)?;
    let (process, descriptor) = (u32::from_le_bytes(*process), u32::from_le_bytes(descriptor));
    // A descriptor of a job that is gone may stand for anything by now; what opens must look like a segment.
    File::options().read(true).write(true).open(format!("/proc/{process}/fd/{descriptor}"))
}
