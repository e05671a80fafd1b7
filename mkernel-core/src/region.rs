//! Memory that a rank exposes, and rectangles of bytes in it.

use std::fmt;

use crate::world::Rank;

/// Names a region; the same ids mean the same region on every rank (a symmetric heap).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u32);

/// One region of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// What the region holds, for messages.
    pub name: &'static str,
    /// Its size on this rank, in bytes.
    pub bytes: u64,
}

/// A rectangle of bytes in a region of a rank: `rows` runs of `row_bytes` bytes, `stride` bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The rank whose memory this is.
    pub rank: Rank,
    /// The region.
    pub region: RegionId,
    /// First byte within the region.
    pub offset: u64,
    /// Number of rows; zero for a span of no bytes.
    pub rows: u32,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Bytes from one row's start to the next; at least `row_bytes` where there are two rows or more.
    pub stride: u64,
}

impl Span {
    /// A span of no bytes, for puts that carry a signal alone.
    pub const fn empty(rank: Rank) -> Span {
        Span { rank, region: RegionId(0), offset: 0, rows: 0, row_bytes: 0, stride: 0 }
    }

    /// `bytes` consecutive bytes from `offset`.
    pub const fn flat(rank: Rank, region: RegionId, offset: u64, bytes: u64) -> Span {
        Span { rank, region, offset, rows: 1, row_bytes: bytes, stride: bytes }
    }

    /// Bytes covered.
    pub const fn bytes(&self) -> u64 {
        self.rows as u64 * self.row_bytes
    }

    /// Whether no byte is covered.
    pub const fn is_empty(&self) -> bool {
        self.rows == 0 || self.row_bytes == 0
    }

    /// One past the last byte, or `None` if that does not fit in 64 bits.
    pub fn end(&self) -> Option<u64> {
        if self.is_empty() {
            return Some(self.offset);
        }
        (u64::from(self.rows) - 1).checked_mul(self.stride)?.checked_add(self.row_bytes)?.checked_add(self.offset)
    }

    /// The byte offset at which row `row` starts.
    pub const fn row(&self, row: u32) -> u64 {
        self.offset + row as u64 * self.stride
    }

    /// Whether rows follow each other without a gap.
    pub const fn is_contiguous(&self) -> bool {
        self.rows <= 1 || self.row_bytes == self.stride
    }

    /// Whether both spans cover at least one common byte.
    ///
    /// Exact for any pair of spans within 63-bit offsets: rows of one are intersected with the arithmetic progression
    /// of the other's.
    pub fn overlaps(&self, other: &Span) -> bool {
        if self.rank != other.rank || self.region != other.region || self.is_empty() || other.is_empty() {
            return false;
        }
        let (few, many) = if self.rows <= other.rows { (self, other) } else { (other, self) };
        (0..few.rows).any(|row| many.meets(few.row(row), few.row(row) + few.row_bytes))
    }

    /// Whether any row covers a byte of `start..end`.
    fn meets(&self, start: u64, end: u64) -> bool {
        // Row r covers [offset + r * stride, + row_bytes). It meets iff its start is below `end` and its end above `start`.
        if end <= self.offset {
            return false;
        }
        if self.rows == 1 || self.stride == 0 {
            return start < self.offset + self.row_bytes;
        }
        let last_starting_before_end = ((end - 1 - self.offset) / self.stride).min(u64::from(self.rows) - 1);
        self.offset + last_starting_before_end * self.stride + self.row_bytes > start
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} region {} at {}", self.rank, self.region.0, self.offset)?;
        write!(f, " ({} x {} B, stride {})", self.rows, self.row_bytes, self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(span: &Span) -> Vec<u64> {
        (0..span.rows).flat_map(|r| span.row(r)..span.row(r) + span.row_bytes).collect()
    }

    #[test]
    fn overlap_agrees_with_listing_every_byte() {
        let mut spans = Vec::new();
        for offset in [0, 3, 7] {
            for rows in [0, 1, 2, 3] {
                for row_bytes in [0, 1, 2, 5] {
                    for stride in [5, 6, 9] {
                        spans.push(Span { rank: Rank(0), region: RegionId(0), offset, rows, row_bytes, stride });
                    }
                }
            }
        }
        for a in &spans {
            for b in &spans {
                let truth = bytes_of(a).iter().any(|x| bytes_of(b).contains(x));
                assert_eq!(a.overlaps(b), truth, "{a} and {b}");
            }
        }
    }

    #[test]
    fn an_end_beyond_64_bits_is_none() {
        let span = Span { rank: Rank(0), region: RegionId(0), offset: u64::MAX - 3, rows: 2, row_bytes: 2, stride: 2 };
        assert_eq!(span.end(), None);
    }
}
