//! What every transport must keep, written once; each transport supplies a [`Fixture`].
//!
//! The bodies drive all ranks from one thread, so a transport may do its worst between any two steps.

use std::time::{Duration, Instant};

use mkernel_core::transport::{Post, PostError, TransportError};
use mkernel_core::{Born, CellId, ProgramBuilder, Rank, RegionId, Span, Transport, Verified, World, validate};

/// Bytes of the one region of each rank.
pub const REGION: u64 = 16 * 1024;
/// Cells of each rank.
pub const CELLS: u32 = 64;
/// How long any body may wait for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// Ranks joined by a transport, on memory that the test may look at.
pub trait Fixture {
    /// Number of ranks, at least 2.
    fn ranks(&self) -> u32;
    /// The end of a rank.
    fn end(&mut self, rank: Rank) -> &mut dyn Transport;
    /// Reads a span.
    fn read(&self, span: &Span, bytes: &mut [u8]);
    /// Writes a span.
    fn write(&mut self, span: &Span, bytes: &[u8]);
    /// The value of a cell.
    fn cell(&self, rank: Rank, cell: CellId) -> u64;
    /// Raises a cell by one, as the receiving side does where the transport leaves it to it.
    fn raise(&mut self, rank: Rank, cell: CellId);
}

/// A fixture, and what has been retired so far.
struct Net<'a> {
    fixture: &'a mut dyn Fixture,
    retired: Vec<Vec<u64>>,
}

impl<'a> Net<'a> {
    fn new(fixture: &'a mut dyn Fixture) -> Net<'a> {
        let retired = vec![Vec::new(); fixture.ranks() as usize];
        Net { fixture, retired }
    }

    fn poll(&mut self, rank: Rank) -> Result<(), TransportError> {
        let end = self.fixture.end(rank);
        let mut landed = Vec::new();
        let polled = end.poll(&mut self.retired[rank.0 as usize]);
        end.landed(&mut landed);
        landed.into_iter().for_each(|cell| self.fixture.raise(rank, cell));
        polled
    }

    fn poll_all(&mut self) {
        (0..self.fixture.ranks()).for_each(|rank| self.poll(Rank(rank)).expect("no put fails"));
    }

    /// Polls until `is_so`; `look` sees every state in between.
    fn until(&mut self, mut is_so: impl FnMut(&Net<'_>) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < LIMIT, "nothing came of it within {LIMIT:?}");
            self.poll_all();
        }
    }

    /// Offers a put until it is taken.
    fn post(&mut self, from: Rank, post: &Post) {
        let start = Instant::now();
        loop {
            match self.fixture.end(from).post(post) {
                Ok(()) => return,
                Err(PostError::Full) => self.poll_all(),
                Err(PostError::Failed(error)) => panic!("{error}"),
            }
            assert!(start.elapsed() < LIMIT, "the queue stays full");
        }
    }

    fn read(&self, span: &Span) -> Vec<u8> {
        let mut bytes = vec![0; span.bytes() as usize];
        self.fixture.read(span, &mut bytes);
        bytes
    }

    fn all(&self, rank: Rank) -> Vec<u8> {
        self.read(&flat(rank, 0, REGION))
    }
}

fn flat(rank: Rank, offset: u64, bytes: u64) -> Span {
    Span::flat(rank, RegionId(0), offset, bytes)
}

/// `rows` rows of `row_bytes` bytes, `gap` bytes apart.
fn rows(rank: Rank, offset: u64, rows: u32, row_bytes: u64, gap: u64) -> Span {
    Span { rank, region: RegionId(0), offset, rows, row_bytes, stride: row_bytes + gap }
}

fn post(token: u64, source: Span, target: Span, cell: u32, value: u64) -> Post {
    Post { token, source, target, cell: CellId(cell), value }
}

/// Bytes that differ from put to put and from place to place.
fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(1..)).collect()
}

/// One thing to keep, in words and as a test.
type Body = (&'static str, fn(&mut dyn Fixture));

/// Runs every body.
pub fn all(make: &mut dyn FnMut() -> Box<dyn Fixture>) {
    let bodies: [Body; 6] = [
        ("a signal is never seen before its bytes", signal_after_bytes),
        ("any shape lands where it belongs and nowhere else", shapes),
        ("a put without bytes is its signal", empty_puts),
        ("any number of puts is carried, each retired once", many_puts),
        ("a source may be written again once its put is retired", epochs),
        ("bytes beyond any request's limit arrive whole", large_put),
    ];
    for (name, body) in bodies {
        println!("{name}");
        body(&mut *make());
    }
}

fn signal_after_bytes(fixture: &mut dyn Fixture) {
    let (from, to) = (Rank(0), Rank(1));
    for round in 1..=20u64 {
        let (source, target) = (flat(from, 0, 1000), flat(to, 3000, 1000));
        let bytes = pattern(round, 1000);
        fixture.write(&source, &bytes);
        fixture.write(&target, &[0; 1000]);
        let mut net = Net::new(fixture);
        net.post(from, &post(round, source, target, 5, round));
        net.until(|net| {
            let seen = net.fixture.cell(to, CellId(5));
            assert!(seen == round || seen == round - 1, "the cell holds {seen} in round {round}");
            assert!(seen < round || net.read(&target) == bytes, "a signal overtook its bytes");
            seen == round
        });
        net.until(|net| net.retired[0] == [round]);
    }
}

fn shapes(fixture: &mut dyn Fixture) {
    let (from, to) = (Rank(1), Rank(0));
    let shapes =
        [(1, 1, 0, 0), (7, 24, 0, 8), (7, 24, 8, 0), (5, 40, 24, 56), (3, 200, 8, 8), (40, 8, 0, 0), (2, 0, 0, 0)];
    for (index, (count, bytes, from_gap, to_gap)) in (0..).zip(shapes) {
        let (source, target) = (rows(from, 64, count, bytes, from_gap), rows(to, 96, count, bytes, to_gap));
        fixture.write(&flat(to, 0, REGION), &vec![0; REGION as usize]);
        let sent = pattern(index, source.bytes());
        fixture.write(&source, &sent);
        let mut net = Net::new(fixture);
        net.post(from, &post(index, source, target, index as u32, 1));
        net.until(|net| net.fixture.cell(to, CellId(index as u32)) == 1 && !net.retired[1].is_empty());
        let mut wanted = vec![0; REGION as usize];
        for (row, part) in (0..target.rows).zip(sent.chunks_exact(bytes.max(1) as usize)) {
            wanted[target.row(row) as usize..][..bytes as usize].copy_from_slice(part);
        }
        assert!(net.all(to) == wanted, "{source} to {target}");
    }
}

fn empty_puts(fixture: &mut dyn Fixture) {
    let mut net = Net::new(fixture);
    let before = net.all(Rank(1));
    for (token, cell) in (0..8u64).zip([9, 3, 60, 0, 1, 2, 4, 63]) {
        net.post(Rank(0), &post(token, Span::empty(Rank(0)), Span::empty(Rank(1)), cell, 1));
    }
    net.until(|net| [9, 3, 60, 0, 1, 2, 4, 63].iter().all(|&c| net.fixture.cell(Rank(1), CellId(c)) == 1));
    net.until(|net| net.retired[0].len() == 8);
    assert_eq!(net.all(Rank(1)), before);
}

fn many_puts(fixture: &mut dyn Fixture) {
    const EACH: u64 = 48;
    const SLOT: u64 = 112;
    let ranks = fixture.ranks();
    for round in 0..3u64 {
        for rank in 0..ranks {
            fixture.write(&flat(Rank(rank), 0, EACH * SLOT), &pattern(round * 100 + u64::from(rank), EACH * SLOT));
        }
        let mut net = Net::new(fixture);
        // From every rank to the next, in turn, so that all queues fill at once.
        for put in 0..EACH {
            for rank in 0..ranks {
                let (from, to) = (Rank(rank), Rank((rank + 1) % ranks));
                let (source, target) = (flat(from, put * SLOT, SLOT), flat(to, (EACH + put) * SLOT, SLOT));
                net.post(from, &post(put, source, target, put as u32, round + 1));
            }
        }
        net.until(|net| net.retired.iter().all(|r| r.len() as u64 == EACH));
        for rank in 0..ranks {
            let to = Rank((rank + 1) % ranks);
            net.until(|net| (0..EACH as u32).all(|cell| net.fixture.cell(to, CellId(cell)) == round + 1));
            let sent = net.read(&flat(Rank(rank), 0, EACH * SLOT));
            assert!(net.read(&flat(to, EACH * SLOT, EACH * SLOT)) == sent, "round {round}, from rank {rank}");
            let mut tokens = std::mem::take(&mut net.retired[rank as usize]);
            tokens.sort_unstable();
            assert_eq!(tokens, (0..EACH).collect::<Vec<_>>());
        }
    }
}

fn epochs(fixture: &mut dyn Fixture) {
    let mut net = Net::new(fixture);
    let span = |rank| flat(rank, 8, 8);
    for (token, value) in (0u64..).zip([1, 2, 3, 4]) {
        net.fixture.write(&span(Rank(0)), &[token as u8 + 1; 8]);
        net.post(Rank(0), &post(token, span(Rank(0)), span(Rank(1)), 7, value));
        net.until(|net| net.fixture.cell(Rank(1), CellId(7)) == value);
        assert_eq!(net.read(&span(Rank(1))), [token as u8 + 1; 8]);
        // The source is written again only once it has been read.
        net.until(|net| net.retired[0].len() as u64 == token + 1);
    }
}

fn large_put(fixture: &mut dyn Fixture) {
    let half = REGION / 2;
    let (source, target) = (flat(Rank(0), 8, half), flat(Rank(1), half, half));
    let sent = pattern(3, half);
    fixture.write(&source, &sent);
    let mut net = Net::new(fixture);
    net.post(Rank(0), &post(1, source, target, 2, 1));
    net.until(|net| net.fixture.cell(Rank(1), CellId(2)) == 1 && net.retired[0] == [1]);
    assert!(net.read(&target) == sent, "bytes differ");
}

/// A put that fails ends every call with the same error, which names the put and the peer.
///
/// # Panics
/// If it does not.
pub fn failure(fixture: &mut dyn Fixture, statuses: &[u32]) {
    let mut net = Net::new(fixture);
    let start = Instant::now();
    let mut token = 0;
    let error = loop {
        assert!(start.elapsed() < LIMIT, "nothing has failed");
        match small_put(net.fixture, token) {
            Ok(()) => token += 1,
            Err(PostError::Full) => {}
            Err(PostError::Failed(error)) => break error,
        }
        if let Err(error) = net.poll(Rank(0)) {
            break error;
        }
    };
    println!("{error}");
    assert!(error.peer == 1 && error.token < token.max(1), "{error:?}");
    assert!(statuses.contains(&error.status), "{error}");
    assert_eq!(net.poll(Rank(0)), Err(error));
    assert_eq!(small_put(net.fixture, 0), Err(error.into()));
}

/// Offers a put of 64 bytes from rank 0 to rank 1 once.
///
/// # Errors
/// Those of the transport.
pub fn small_put(fixture: &mut dyn Fixture, token: u64) -> Result<(), PostError> {
    let (source, target) = (flat(Rank(0), 0, 64), flat(Rank(1), 64, 64));
    fixture.end(Rank(0)).post(&post(token, source, target, token as u32 % CELLS, 1))
}

/// Programs of `ranks` ranks, each on a node of its own, that have the memory of a fixture and do nothing.
///
/// # Panics
/// Never: they hold.
pub fn memory_of(ranks: u32) -> Verified {
    let world = World::uniform(ranks, 1).expect("a world of single ranks");
    let program = |rank| {
        let mut builder = ProgramBuilder::new(&world, rank);
        builder.region("memory", REGION);
        (0..CELLS).for_each(|_| {
            builder.cell(0, Born::Empty);
        });
        builder.finish()
    };
    validate(world.ranks().map(program).collect()).expect("programs that do nothing hold")
}
