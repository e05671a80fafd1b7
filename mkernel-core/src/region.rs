//! Memory that a rank exposes, and rectangles of bytes in it.

use std::fmt;
use std::ops::Range;

use crate::floors;
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
    /// Exact for any pair of spans whose ends fit in 64 bits and whose rows do not overlap, at a cost that does not grow with
    /// their rows: two rectangles of one grid are intersected at once; otherwise the bytes of one span below each row's
    /// two ends of the other are summed in closed form.
    pub fn overlap(&self, other: &Span) -> u64 {
        if self.rank != other.rank || self.region != other.region || self.is_empty() || other.is_empty() {
            return 0;
        }
        let (few, many) = if self.rows <= other.rows { (self, other) } else { (other, self) };
        if let (Some(a), Some(b)) = (few.in_grid(many.stride), many.in_grid(many.stride)) {
            let shared = |x: &Range<u64>, y: &Range<u64>| x.end.min(y.end).saturating_sub(x.start.max(y.start));
            return shared(&a.0, &b.0) * shared(&a.1, &b.1);
        }
        let ([few, many], rows) = ([few, many].map(Span::joined), |few: &Span| u64::from(few.rows));
        if few.rows == 1 {
            return many.bytes_below(few.offset + few.row_bytes) - many.bytes_below(few.offset);
        }
        let below = |limit| rows_below(limit, few.stride, rows(&few), &many);
        below(few.offset + few.row_bytes).wrapping_sub(below(few.offset))
    }

    /// The same bytes as one row, if rows follow each other without a gap.
    fn joined(&self) -> Span {
        if self.is_contiguous() { Span::flat(self.rank, self.region, self.offset, self.bytes()) } else { *self }
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

/// The sum of [`Span::bytes_below`] of `span` over `count` limits from `first`, `step` apart.
fn rows_below(first: u64, step: u64, count: u64, span: &Span) -> u64 {
    let stride = if span.rows == 1 { span.row_bytes } else { span.stride };
    let (first, step, start) = (u128::from(first), u128::from(step), u128::from(span.offset));
    let end = start + u128::from(span.rows) * u128::from(stride);
    // Limits before the span count nothing, those past it all of it.
    let until = |limit: u128| limit.saturating_sub(first).div_ceil(step).min(u128::from(count));
    let (from, to) = (until(start), until(end));
    let past = (u128::from(count) - to).wrapping_mul(u128::from(span.bytes()));
    if from == to {
        return past as u64;
    }
    let inside = floors::sum_below(to - from, first + from * step - start, step, stride.into(), span.row_bytes.into());
    past.wrapping_add(inside) as u64
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
#[allow(clippy::unwrap_used)]
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
    fn overlap_of_many_rows_of_different_strides_agrees_with_walking_them() {
        let seed = 7;
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..3000 {
            let mut span = || {
                let row_bytes = random.u64(1..40);
                let (offset, stride) = (random.u64(0..2000), row_bytes + random.u64(0..60));
                Span { rank: Rank(0), region: RegionId(0), offset, rows: random.u32(1..200), row_bytes, stride }
            };
            let (a, b) = (span(), span());
            let walked: u64 =
                (0..a.rows).map(|r| b.bytes_below(a.row(r) + a.row_bytes) - b.bytes_below(a.row(r))).sum();
            assert_eq!(a.overlap(&b), walked, "{a} and {b}");
            assert_eq!(b.overlap(&a), walked, "{b} and {a}");
        }
    }

    /// A span of a hostile program may have 2^32 rows; walking them would be a hang.
    #[test]
    fn overlap_of_the_most_rows_is_found_at_once() {
        let rows = u32::MAX;
        let of =
            |offset, row_bytes, stride| Span { rank: Rank(0), region: RegionId(0), offset, rows, row_bytes, stride };
        let (a, b) = (of(0, 2, 3), of(0, 1, 4));
        // The grids meet every 12 bytes, where b has 3 rows and a covers two of them; a's last 9 bytes hold as many.
        let whole = (3 * u64::from(rows)).div_ceil(12) * 2;
        assert_eq!((a.overlap(&b), b.overlap(&a)), (whole, whole));
        let (c, d) = (of(1, 1 << 30, (1 << 31) + 1), of(5, 1 << 29, (1 << 31) - 3));
        assert_eq!(c.overlap(&d), d.overlap(&c));
    }

    #[test]
    fn an_end_beyond_64_bits_is_none() {
        let span = Span { rank: Rank(0), region: RegionId(0), offset: u64::MAX - 3, rows: 2, row_bytes: 2, stride: 2 };
        assert_eq!(span.end(), None);
    }
}
