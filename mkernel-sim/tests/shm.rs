//! Ranks that reach each other's memory through segments, here as threads that share nothing else.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Sketch, copy, put, raise, release, span};
use mkernel_core::{Born, Executor, FaultKind, Program, PutId, Rank, Verified, World, validate};
use mkernel_sim::{Board, Injection, Network, Options, Segment, SegmentError, Shm, SimError, first_cause};

/// Rank 0 puts into rank 1, which copies what came into rank 2 of its node; rank 2 puts it back to rank 0.
fn triangle() -> Arc<Verified> {
    let world = World::new(&[1, 2]).unwrap();
    let first = Sketch::new(&world, 0, 2).cell(1, Born::Empty).cell(1, Born::Empty);
    let first = first.input(span(0, 0, 0, 64)).output(span(0, 1, 0, 64)).law(64, 64).lane(1, |lane| {
        put(lane, &[], span(0, 0, 0, 64), span(1, 0, 0, 64), 0, Some(1));
        release(lane, &[0, 1], &[], &[]);
    });
    let second = Sketch::new(&world, 1, 1).cell(1, Born::Empty).law(0, 64).lane(2, |lane| {
        copy(lane, &[0], span(1, 0, 0, 64), span(2, 0, 0, 64), &[raise(2, 0)]);
    });
    let third = Sketch::new(&world, 2, 1).cell(1, Born::Empty).cell(1, Born::Empty);
    let third = third.law(64, 0).lane(1, |lane| {
        put(lane, &[0], span(2, 0, 0, 64), span(0, 1, 0, 64), 0, Some(1));
        release(lane, &[1], &[], &[]);
    });
    verified(vec![first.finish(), second.finish(), third.finish()])
}

fn verified(programs: Vec<Program>) -> Arc<Verified> {
    Arc::new(validate(programs).unwrap_or_else(|violation| panic!("{violation}")))
}

fn addresses(segments: &[Segment]) -> Vec<Vec<u8>> {
    segments.iter().map(Segment::address).collect()
}

/// A board for each rank.
fn boards(world: &World) -> Vec<Arc<Board>> {
    let lines: Vec<_> = world.ranks().map(|rank| Board::offer(world, rank).unwrap()).collect();
    let open = |own| Arc::new(Board::open(world, own, &addresses(&lines), None).unwrap());
    lines.iter().map(open).collect()
}

/// An executor for each rank.
fn executors(verified: &Arc<Verified>, options: &Options) -> Vec<Shm> {
    executors_on(verified, options, boards(verified.world()))
}

fn executors_on(verified: &Arc<Verified>, options: &Options, boards: Vec<Arc<Board>>) -> Vec<Shm> {
    let offer = |rank| Shm::offer(verified, rank, options).unwrap();
    let segments: Vec<_> = verified.world().ranks().map(offer).collect();
    let open = |board| Shm::open(verified.clone(), options.clone(), board, &addresses(&segments), None).unwrap();
    boards.into_iter().map(open).collect()
}

#[test]
fn bytes_go_round_by_puts_and_stores_under_a_bad_network() {
    let verified = triangle();
    for seed in 0..20 {
        println!("seed {seed}");
        let mut executors = executors(&verified, &Options { seed, ring: 2, ..Options::default() });
        thread::scope(|scope| {
            for (rank, executor) in executors.iter_mut().enumerate() {
                scope.spawn(move || {
                    for epoch in 0..20u8 {
                        let sent: Vec<u8> = (0..64).map(|i| i * 3 + epoch).collect();
                        if rank == 0 {
                            executor.write(&span(0, 0, 0, 64), &sent);
                        }
                        let run = executor.launch().unwrap();
                        assert_eq!(run.inter_out, [64, 0, 64]);
                        assert_eq!(run.intra_out, [0, 64, 0]);
                        assert_eq!(run.lanes.iter().map(|lane| lane.tasks).collect::<Vec<_>>(), [2, 1, 2]);
                        // Any rank may read any memory between launches.
                        let mut came = [0; 64];
                        executor.read(&span(0, 1, 0, 64), &mut came);
                        assert_eq!(came, *sent);
                    }
                });
            }
        });
    }
}

#[test]
fn the_accounts_of_all_ranks_name_the_first_cause_and_not_its_victims() {
    let verified = triangle();
    let stuck = |rank, cta| Injection::StuckCta { rank: Rank(rank), cta, after: 0 };
    let withheld = Injection::WithholdSignal { rank: Rank(0), put: PutId(0) };
    // Who waits, for whom: rank 1 never copies; rank 2 never puts; the signal of rank 0's put to rank 1 is lost.
    let cases = [(vec![stuck(1, 0), stuck(1, 1)], 2, 1), (vec![stuck(2, 0)], 0, 2), (vec![withheld], 1, 0)];
    for (injections, waits, cause) in cases {
        let network = Network { injections: injections.clone(), ..Network::prompt() };
        let options = Options { deadline: Duration::from_millis(300), network, ..Options::default() };
        let boards = boards(verified.world());
        let mut executors = executors_on(&verified, &options, boards.clone());
        thread::scope(|scope| {
            for executor in &mut executors {
                scope.spawn(move || executor.launch().unwrap_err());
            }
        });
        let accounts: Vec<_> = boards.iter().filter_map(|board| board.account()).collect();
        assert_eq!(accounts.len(), 3, "{injections:?}");
        let fault = first_cause(&verified, &accounts).unwrap();
        assert_eq!((fault.rank, fault.peer), (Rank(waits), Some(Rank(cause))), "{injections:?}: {fault}");
        let text: Vec<String> = accounts.iter().map(ToString::to_string).collect();
        assert!(text[waits as usize].contains(&format!("which rank {cause} raises")), "{text:?}");
        // One whose account is missing counts as the one that stands still.
        let others: Vec<_> = accounts.into_iter().filter(|account| account.rank != Rank(cause)).collect();
        assert_eq!(first_cause(&verified, &others).unwrap().peer, Some(Rank(cause)), "{injections:?}");
    }
}

#[test]
fn a_rank_whose_pulse_stands_still_is_named_by_the_others() {
    let verified = triangle();
    let deadline = Duration::from_millis(400);
    let mut executors = executors(&verified, &Options { deadline, ..Options::default() });
    let (rest, _absent) = executors.split_at_mut(2);
    let faults = thread::scope(|scope| {
        let threads: Vec<_> = rest.iter_mut().map(|executor| scope.spawn(move || executor.launch())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap_err()).collect::<Vec<_>>()
    });
    for (rank, fault) in (0..).zip(faults) {
        assert_eq!((fault.kind, fault.rank, fault.peer), (FaultKind::Deadline, Rank(rank), Some(Rank(2))));
    }
}

#[test]
fn the_abort_word_ends_a_launch_that_waits_for_a_peer() {
    let verified = triangle();
    let lines: Vec<_> = verified.world().ranks().map(|rank| Board::offer(verified.world(), rank).unwrap()).collect();
    let board = Arc::new(Board::open(verified.world(), &lines[0], &addresses(&lines), None).unwrap());
    let options = Options::default();
    let segments: Vec<_> = verified.world().ranks().map(|r| Shm::offer(&verified, r, &options).unwrap()).collect();
    let mut executor = Shm::open(verified, options, board.clone(), &addresses(&segments), None).unwrap();
    let start = Instant::now();
    let fault = thread::scope(|scope| {
        let launch = scope.spawn(|| executor.launch());
        board.abort();
        launch.join().unwrap().unwrap_err()
    });
    assert_eq!((fault.kind, fault.rank), (FaultKind::Aborted, Rank(0)));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}, the deadline is 10 s", start.elapsed());
    assert_eq!(executor.launch().unwrap_err(), fault, "it is poisoned");
}

/// A program with one region of this size.
fn one(bytes: u64) -> Arc<Verified> {
    let mut builder = mkernel_core::ProgramBuilder::new(&World::new(&[1]).unwrap(), Rank(0));
    builder.region("memory", bytes);
    verified(vec![builder.finish()])
}

#[test]
fn shared_memory_that_does_not_suffice_is_said_with_the_bytes_needed() {
    let refused = Shm::offer(&one(1 << 50), Rank(0), &Options::default()).unwrap_err();
    let SimError::Segment(SegmentError::TooSmall { rank, bytes, all, available, .. }) = refused else {
        panic!("{refused}")
    };
    assert_eq!((rank, bytes), (Rank(0), all));
    assert!(bytes >= 1 << 50 && available < bytes, "{refused}");
}

#[test]
fn memory_of_another_version_or_plan_is_refused_by_the_field() {
    let (small, large, options) = (one(64), one(8192), Options::default());
    let board = || boards(small.world()).remove(0);
    let open = |segment: &Segment| {
        let opened = Shm::open(small.clone(), Options::default(), board(), &[segment.address()], None);
        opened.map(drop).map_err(|error| error.to_string())
    };
    let segment = Shm::offer(&small, Rank(0), &options).unwrap();
    assert_eq!(open(&segment), Ok(()));
    let said = open(&Shm::offer(&large, Rank(0), &options).unwrap()).unwrap_err();
    assert!(said.contains("the size is"), "{said}");

    let address = segment.address();
    let descriptor = i32::from_le_bytes(address[4..].try_into().unwrap());
    let file = fs::File::options().read(true).write(true).open(format!("/proc/self/fd/{descriptor}")).unwrap();
    assert_eq!((file.metadata().unwrap().mode() & 0o7777, file.metadata().unwrap().nlink()), (0o600, 0));
    for (word, field) in ["the first word", "the version", "the rank", "the number of ranks", "the number of parts"]
        .into_iter()
        .enumerate()
    {
        let (mut before, at) = ([0; 8], word as u64 * 8);
        file.read_exact_at(&mut before, at).unwrap();
        file.write_all_at(&77u64.to_le_bytes(), at).unwrap();
        let said = open(&segment).unwrap_err();
        assert!(said.contains(&format!("{field} is 77, not ")), "{said}");
        file.write_all_at(&before, at).unwrap();
    }
    assert_eq!(open(&segment), Ok(()));
    drop(segment);
    assert!(open_at(&small, board(), &address).contains("out of reach"));
    assert!(open_at(&small, board(), &address[1..]).contains("out of reach"));
}

fn open_at(verified: &Arc<Verified>, board: Arc<Board>, address: &[u8]) -> String {
    Shm::open(verified.clone(), Options::default(), board, &[address.to_vec()], None).unwrap_err().to_string()
}
