//! Memory that a rank exposes, and rectangles of bytes in it.

use std::fmt;
use std::ops::Range;

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

    /// Number of bytes that both spans cover.
    ///
    /// Exact for any pair of spans whose ends fit in 64 bits and whose rows do not overlap: two rectangles of one grid are
    /// intersected at once, otherwise each row of the shorter list is measured against all rows of the other.
    pub fn overlap(&self, other: &Span) -> u64 {
        if self.rank != other.rank || self.region != other.region || self.is_empty() || other.is_empty() {
            return 0;
        }
        let (few, many) = if self.rows <= other.rows { (self, other) } else { (other, self) };
        if let (Some(a), Some(b)) = (few.in_grid(many.stride), many.in_grid(many.stride)) {
            let shared = |x: &Range<u64>, y: &Range<u64>| x.end.min(y.end).saturating_sub(x.start.max(y.start));
            return shared(&a.0, &b.0) * shared(&a.1, &b.1);
        }
        (0..few.rows).map(|r| many.bytes_below(few.row(r) + few.row_bytes) - many.bytes_below(few.row(r))).sum()
    }

    /// The rows and byte columns that the span covers in a grid of rows of `stride` bytes, if it is a rectangle there.
    fn in_grid(&self, stride: u64) -> Option<(Range<u64>, Range<u64>)> {
        if stride == 0 || (self.rows > 1 && self.stride != stride) {
            return None;
        }
        let (row, column) = (self.offset / stride, self.offset % stride);
        let end = column.checked_add(self.row_bytes)?;
        (end <= stride).then(|| (row..row + u64::from(self.rows), column..end))
    }

    /// How many of the span's bytes lie below region offset `limit`.
    fn bytes_below(&self, limit: u64) -> u64 {
        let Some(relative) = limit.checked_sub(self.offset) else { return 0 };
        if self.rows == 1 {
            return relative.min(self.row_bytes);
        }
        let full_rows = relative / self.stride;
        if full_rows >= u64::from(self.rows) {
            return self.bytes();
        }
        full_rows * self.row_bytes + (relative % self.stride).min(self.row_bytes)
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
                    for stride in [5, 6, 9].into_iter().filter(|&s| s >= row_bytes) {
                        spans.push(Span { rank: Rank(0), region: RegionId(0), offset, rows, row_bytes, stride });
                    }
                }
            }
        }
        for a in &spans {
            for b in &spans {
                let truth = bytes_of(a).iter().filter(|x| bytes_of(b).contains(x)).count() as u64;
                assert_eq!(a.overlap(b), truth, "{a} and {b}");
            }
        }
    }

    #[test]
    fn an_end_beyond_64_bits_is_none() {
        let span = Span { rank: Rank(0), region: RegionId(0), offset: u64::MAX - 3, rows: 2, row_bytes: 2, stride: 2 };
        assert_eq!(span.end(), None);
    }
}
