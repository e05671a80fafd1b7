//! Memory cut into atoms: sets of bytes that every span of the programs covers alike.
//!
//! Bytes covered by the same spans have the same history, so one history per such set is exact, and there are few of
//! them however large the tensors are. Which spans cover a byte is known by the sum of their random 128-bit numbers; two
//! different sets of spans share a sum with a chance of some 2^-100.

use std::collections::HashMap;

use mkernel_core::{LaneId, Program, Span};

use super::party::Race;

/// The atoms of all memory, and those that each span covers.
#[derive(Debug)]
pub(super) struct Atoms {
    spans: HashMap<Span, Vec<u32>>,
    count: usize,
}

impl Atoms {
    pub(super) fn new(programs: &[Program]) -> Result<Atoms, Race> {
        let mut regions: HashMap<(u32, u32), Vec<Span>> = HashMap::new();
        for program in programs {
            let puts = program.puts.iter().flat_map(|put| [put.source, put.target].into_iter().chain(put.count));
            let host = program.inputs.iter().map(|p| &p.span).chain(program.host_reads()).copied();
            for span in program.spans.iter().copied().chain(puts).chain(host).filter(|s| !s.is_empty()) {
                if span.end().is_none() {
                    return Err(Race::Malformed { rank: program.rank, lane: LaneId(0), instruction: 0 });
                }
                regions.entry((span.rank.0, span.region.0)).or_default().push(span);
            }
        }
        let mut atoms = Atoms { spans: HashMap::new(), count: 0 };
        let mut random = fastrand::Rng::with_seed(0x5eed);
        for spans in regions.values_mut() {
            spans.sort_unstable_by_key(|s| (s.offset, s.rows, s.row_bytes, s.stride));
            spans.dedup();
            atoms.cut(spans, &mut random);
        }
        Ok(atoms)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The atoms that a span of the programs covers.
    pub(super) fn of(&self, span: &Span) -> &[u32] {
        self.spans.get(span).map_or(&[], Vec::as_slice)
    }

    /// Cuts one region at the edges of all rows of its spans.
    fn cut(&mut self, spans: &[Span], random: &mut fastrand::Rng) {
        let mut edges: Vec<(u64, u128)> = Vec::new();
        for span in spans {
            let number = random.u128(..);
            for (start, end) in runs(span) {
                edges.push((start, number));
                edges.push((end, number.wrapping_neg()));
            }
        }
        edges.sort_unstable();
        // Where each stretch starts, and its atom; a stretch that nothing covers has none.
        let mut stretches: Vec<(u64, Option<u32>)> = Vec::new();
        let mut known: HashMap<u128, u32> = HashMap::new();
        let mut sum = 0u128;
        for edge in edges.chunk_by(|a, b| a.0 == b.0) {
            sum = edge.iter().fold(sum, |sum, (_, number)| sum.wrapping_add(*number));
            let fresh = self.count as u32;
            let atom = (sum != 0).then(|| *known.entry(sum).or_insert(fresh));
            self.count += usize::from(atom == Some(fresh));
            stretches.push((edge[0].0, atom));
        }
        for span in spans {
            let mut atoms = Vec::new();
            for (start, end) in runs(span) {
                let first = stretches.partition_point(|&(at, _)| at < start);
                let within = stretches[first..].iter().take_while(|&&(at, _)| at < end);
                atoms.extend(within.filter_map(|&(_, atom)| atom));
            }
            atoms.sort_unstable();
            atoms.dedup();
            self.spans.insert(*span, atoms);
        }
    }
}

/// The runs of consecutive bytes of a span.
fn runs(span: &Span) -> impl Iterator<Item = (u64, u64)> + '_ {
    let is_one = span.is_contiguous();
    let (rows, bytes) = if is_one { (1, span.bytes()) } else { (span.rows, span.row_bytes) };
    (0..rows).map(move |row| (span.row(row), span.row(row) + bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_core::{ProgramBuilder, Rank, RegionId, World};

    #[test]
    fn spans_share_an_atom_exactly_where_they_overlap() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..200 {
            let mut program = ProgramBuilder::new(&World::new(&[1]).unwrap(), Rank(0)).finish();
            for _ in 0..8 {
                let row_bytes = random.u64(1..6);
                let stride = row_bytes + random.u64(0..5);
                let (offset, rows) = (random.u64(0..30), random.u32(1..5));
                program.spans.push(Span { rank: Rank(0), region: RegionId(0), offset, rows, row_bytes, stride });
            }
            let atoms = Atoms::new(std::slice::from_ref(&program)).unwrap();
            for a in &program.spans {
                for b in &program.spans {
                    let shared = atoms.of(a).iter().any(|atom| atoms.of(b).contains(atom));
                    let bytes =
                        |s: &Span| (0..s.rows).flat_map(|r| s.row(r)..s.row(r) + s.row_bytes).collect::<Vec<_>>();
                    let (a_bytes, b_bytes) = (bytes(a), bytes(b));
                    assert_eq!(shared, a_bytes.iter().any(|byte| b_bytes.contains(byte)), "{a} and {b}");
                }
            }
        }
    }
}
