//! A put as write requests: pure, and resumable at any request.
//!
//! A request writes one run of consecutive bytes at the target and gathers it from pieces of the source. So rows that are
//! apart at the target take a request each; rows that are apart only at the source share one, as far as pieces suffice.
//! **Invariant:** the requests of a put cover each of its bytes exactly once, in order, whatever the limits.

use mkernel_core::Span;
use mkernel_core::nic::Limits;

/// Rows of bytes at an address.
#[derive(Clone, Copy, Debug)]
struct Rows {
    address: u64,
    row_bytes: u64,
    stride: u64,
}

impl Rows {
    fn new(address: u64, span: &Span) -> Rows {
        if span.is_contiguous() {
            return Rows { address, row_bytes: span.bytes(), stride: 0 };
        }
        Rows { address, row_bytes: span.row_bytes, stride: span.stride }
    }

    /// The address of payload byte `at`, and the bytes that follow it without a gap, itself included.
    fn find(&self, at: u64) -> (u64, u64) {
        if at < self.row_bytes {
            return (self.address + at, self.row_bytes - at);
        }
        let (row, skip) = (at / self.row_bytes, at % self.row_bytes);
        (self.address + row * self.stride + skip, self.row_bytes - skip)
    }
}

/// The writes of one put that are still to be made.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    source: Rows,
    target: Rows,
    at: u64,
    bytes: u64,
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Address of the first byte written.
    pub target: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Writes {
    /// The writes that carry `source`, found at an address, to `target`, found at another.
    ///
    /// # Panics
    /// If the spans differ in their rows: a put has one shape.
    pub fn new(source: (u64, &Span), target: (u64, &Span)) -> Writes {
        let (from, to) = (source.1, target.1);
        assert_eq!((from.rows, from.row_bytes), (to.rows, to.row_bytes), "a put has one shape");
        Writes { source: Rows::new(source.0, from), target: Rows::new(target.0, to), at: 0, bytes: from.bytes() }
    }

    /// The next write within `limits`; its pieces, address and length, go to `piece` in order.
    #[inline]
    pub fn next(&mut self, limits: &Limits, mut piece: impl FnMut(u64, u32)) -> Option<Write> {
        if self.at == self.bytes {
            return None;
        }
        let (target, run) = self.target.find(self.at);
        let most = run.min(limits.message).min(u32::MAX.into());
        let mut bytes = 0;
        for _ in 0..limits.pieces {
            if bytes == most {
                break;
            }
            let (address, run) = self.source.find(self.at + bytes);
            let part = run.min(most - bytes);
            // At most `most`, which fits.
            piece(address, part as u32);
            bytes += part;
        }
        self.at += bytes;
        Some(Write { target, bytes })
    }

    /// Whether there is no write left.
    pub fn is_done(&self) -> bool {
        self.at == self.bytes
    }

    /// How many writes are left.
    pub fn count(mut self, limits: &Limits) -> u64 {
        let mut count = 0;
        while self.next(limits, |_, _| {}).is_some() {
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_core::{Rank, RegionId};
    use proptest::prelude::*;

    fn span(rows: u32, row_bytes: u64, gap: u64) -> Span {
        Span { rank: Rank(0), region: RegionId(0), offset: 0, rows, row_bytes, stride: row_bytes + gap }
    }

    /// A byte's source and target address.
    type Byte = (u64, u64);
    /// Bytes and pieces of a write.
    type Shape = (u64, usize);

    /// Each byte in order, and every write.
    fn all(source: &Span, target: &Span, limits: &Limits) -> (Vec<Byte>, Vec<Shape>) {
        let mut writes = Writes::new((1000, source), (50_000, target));
        let (mut bytes, mut shapes, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(write) = writes.next(limits, |address, len| pieces.push((address, len))) {
            let from = pieces.iter().flat_map(|&(address, len)| address..address + u64::from(len));
            bytes.extend(from.zip(write.target..write.target + write.bytes));
            shapes.push((write.bytes, pieces.len()));
            pieces.clear();
        }
        (bytes, shapes)
    }

    proptest! {
        #[test]
        fn any_put_is_carried_byte_by_byte_within_any_limits(
            rows in 0u32..9, row_bytes in 0u64..40, gaps in (0u64..3, 0u64..3), pieces in 1u32..5, message in 8u64..64,
        ) {
            let (source, target) = (span(rows, row_bytes, gaps.0 * 5), span(rows, row_bytes, gaps.1 * 7));
            let limits = Limits { requests: 1, pieces, message };
            let (bytes, shapes) = all(&source, &target, &limits);
            let truth = (0..rows).flat_map(|r| (0..row_bytes).map(move |b| (1000 + source.row(r) + b, 50_000 + target.row(r) + b)));
            prop_assert_eq!(bytes, truth.collect::<Vec<_>>());
            for (bytes, count) in &shapes {
                prop_assert!(*bytes > 0 && *bytes <= message && *count >= 1 && *count <= pieces as usize);
            }
            let writes = Writes::new((1000, &source), (50_000, &target));
            prop_assert_eq!(writes.count(&limits), shapes.len() as u64);
        }
    }

    #[test]
    fn rows_share_a_request_only_where_they_meet_at_the_target() {
        let limits = Limits { requests: 1, pieces: 3, message: 1 << 20 };
        let count = |source: &Span, target: &Span| all(source, target, &limits).1.len();
        let (packed, apart) = (span(6, 16, 0), span(6, 16, 4));
        assert_eq!(count(&packed, &packed), 1);
        assert_eq!(count(&apart, &packed), 2);
        assert_eq!(count(&packed, &apart), 6);
        assert_eq!(count(&apart, &apart), 6);
    }

    #[test]
    fn offsets_beyond_4_gib_are_kept() {
        let span = span(3, 1 << 32, 1 << 33);
        let limits = Limits { requests: 1, pieces: 1, message: 1 << 31 };
        let mut writes = Writes::new((0, &span), (8, &span));
        let targets: Vec<u64> = std::iter::from_fn(|| writes.next(&limits, |_, _| {})).map(|w| w.target).collect();
        let row = (1 << 32) + (1 << 33);
        let wanted = (0..3).flat_map(|r| [8 + r * row, 8 + r * row + (1 << 31)]);
        assert_eq!(targets, wanted.collect::<Vec<_>>());
    }
}
