//! Jobs over real sockets: every rank is a thread with a connection of its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Job, LONG, address, all, has_ipv6};
use fastrand::Rng;
use mkernel::bootstrap::{Attempt, Error, Event, Failure, Fields, HEADER_BYTES, JobFault, Reason, Secret, Step, join};
use mkernel_core::World;

fn fault_of(error: &Error) -> &JobFault {
    match error {
        Error::Fault { fault, .. } => fault,
        other => panic!("not a fault: {other:?}"),
    }
}

/// A whole life of a job: join, exchange, agree, leave.
fn lives(job: &Job) {
    let world = World::new(&job.nodes).unwrap();
    let lefts = all(job, |mut control| {
        assert_eq!(control.world(), &world);
        let rank = control.rank().0;
        for round in 0..2u32 {
            let blob = vec![(rank + round) as u8; (rank * 37 % 500) as usize];
            let blobs = control.exchange(&blob)?;
            let expected = |r: u32| vec![(r + round) as u8; (r * 37 % 500) as usize];
            assert!((0..).zip(&blobs).all(|(r, blob)| *blob == expected(r)));
            assert_eq!(blobs.len() as u32, world.size());
        }
        let mut fields = Fields::default();
        fields.add("plan", "abc");
        control.agree(&fields)?;
        control.leave()
    });
    for (rank, left) in lefts.into_iter().enumerate() {
        left.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

#[test]
fn jobs_of_every_shape_meet_exchange_agree_and_leave() {
    for nodes in [vec![1], vec![2], vec![3, 2], vec![1, 1, 5], vec![4, 4, 4, 4]] {
        lives(&Job::new(&nodes));
    }
}

#[test]
fn ranks_meet_over_ipv6_and_by_name() {
    if has_ipv6() {
        lives(&Job { host: "::1".into(), ..Job::new(&[2, 1]) });
    }
    lives(&Job { host: "localhost".into(), ..Job::new(&[3]) });
}

#[test]
fn ranks_arrive_in_any_order_each_after_the_one_before() {
    for seed in 0..8 {
        println!("seed {seed}");
        let job = Job::new(&[3, 3]);
        let mut order: Vec<u32> = (0..6).collect();
        Rng::with_seed(seed).shuffle(&mut order);
        let (joined, done) = mpsc::channel();
        let mut threads = Vec::new();
        for rank in order {
            // Each starts only when the one before has a thread that runs: an event, not a delay.
            let (started, start) = mpsc::channel();
            let (setup, joined) = (job.setup(rank), joined.clone());
            threads.push(thread::spawn(move || {
                started.send(()).unwrap();
                let control = join(&setup).unwrap();
                joined.send(rank).unwrap();
                control.leave().unwrap();
            }));
            start.recv().unwrap();
        }
        let mut ranks: Vec<u32> = (0..6).map(|_| done.recv_timeout(LONG).unwrap()).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2, 3, 4, 5]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn rank_0_may_come_last() {
    let job = Job::new(&[2]);
    let setup = job.setup(1);
    let member = thread::spawn(move || join(&setup).unwrap().leave().unwrap());
    // The member dials a port where this listener refuses it by closing; then rank 0 takes the port.
    let listener = TcpListener::bind(address(&job)).unwrap();
    drop(listener.accept().unwrap());
    drop(listener);
    join(&job.setup(0)).unwrap().leave().unwrap();
    member.join().unwrap();
}

#[test]
fn garbage_half_open_and_slow_strangers_do_not_keep_the_ranks_apart() {
    let job = Job::new(&[3, 2]);
    let rank_0 = job.start(0);
    let half_open = connect(&job);
    let mut garbage = connect(&job);
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut slow = connect(&job);
    slow.write_all(b"MKBS").unwrap();
    let mut huge = connect(&job);
    // An announced length of 4 GiB in a hello.
    huge.write_all(&[b"MKBS".as_slice(), &[1, 0, 1, 0], &[0xff; 4]].concat()).unwrap();
    let strangers: Vec<_> = (0..20).map(|_| connect(&job)).collect();
    let others: Vec<_> = (1..5).map(|rank| job.start(rank)).collect();
    for thread in std::iter::once(rank_0).chain(others) {
        thread.join().unwrap().unwrap().step(Duration::ZERO).unwrap();
    }
    for mut stream in [garbage, huge] {
        assert_refused(&mut stream, Reason::Protocol);
    }
    drop((half_open, slow, strangers));
}

#[test]
fn a_flood_of_bad_frames_does_not_keep_the_ranks_apart() {
    let job = Job::new(&[4, 4]);
    let is_over = AtomicBool::new(false);
    let frames = AtomicU64::new(0);
    let flood = |seed| {
        let mut rng = Rng::with_seed(seed);
        while !is_over.load(Ordering::Relaxed) {
            let Ok(mut stream) = TcpStream::connect(address(&job)) else { continue };
            let mut bytes: Vec<u8> = (0..rng.usize(1..400)).map(|_| rng.u8(..)).collect();
            if rng.bool() {
                bytes.splice(0..0, [b"MKBS".as_slice(), &[1, 0, 1, 0, 100, 0, 0, 0]].concat());
            }
            // Rank 0 may have refused it already.
            let _ = stream.write_all(&bytes);
            frames.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let rank_0 = job.start(0);
        (0..4).for_each(|seed| {
            drop(scope.spawn({
                let flood = &flood;
                move || flood(seed)
            }))
        });
        // The flood is on before the first honest rank comes.
        while frames.load(Ordering::Relaxed) < 1_000 {
            thread::yield_now();
        }
        let start = Instant::now();
        let others: Vec<_> = (1..8).map(|rank| job.start(rank)).collect();
        let joined: Vec<_> = std::iter::once(rank_0).chain(others).map(|thread| thread.join().unwrap()).collect();
        is_over.store(true, Ordering::Relaxed);
        println!(
            "8 ranks joined in {:?} within a flood of {} bad frames",
            start.elapsed(),
            frames.load(Ordering::Relaxed)
        );
        joined.into_iter().for_each(|result| drop(result.unwrap()));
    });
}

#[test]
fn a_silent_stranger_is_refused_at_the_step_deadline() {
    let job = Job { step: Duration::from_millis(50), ..Job::new(&[2]) };
    let rank_0 = job.start(0);
    let mut silent = connect(&job);
    assert_refused(&mut silent, Reason::Slow);
    let rank_1 = job.start(1);
    rank_0.join().unwrap().unwrap();
    rank_1.join().unwrap().unwrap();
}

#[test]
fn a_duplicate_rank_is_refused_and_the_job_starts() {
    let job = Job::new(&[3]);
    let rank_0 = job.start(0);
    let twins = [job.start(1), job.start(1)];
    let (first, second) = wait_for_one(twins);
    assert!(matches!(first, Err(Error::Join { source: Failure::Refused(Reason::Duplicate), .. })), "{first:?}");
    let rank_2 = job.start(2);
    for thread in [rank_0, second, rank_2] {
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn another_secret_another_job_another_size_are_refused_with_the_reason() {
    let job = Job::new(&[2]);
    let rank_0 = job.start(0);
    let secret = Secret::new(b"not the secret of the job").unwrap();
    let refused = |setup| match join(&setup).map(|_| ()) {
        Err(Error::Join { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    let honest = job.setup(1);
    assert_eq!(refused(mkernel::bootstrap::Setup { secret, ..honest.clone() }), Failure::Impostor);
    let other = mkernel::bootstrap::Setup { job: "other".into(), ..honest.clone() };
    assert_eq!(refused(other), Failure::Refused(Reason::Job));
    let mut larger = honest.clone();
    larger.place.world_size = 3;
    assert_eq!(refused(larger), Failure::Refused(Reason::WorldSize));
    let rank_1 = job.start(1);
    rank_0.join().unwrap().unwrap();
    rank_1.join().unwrap().unwrap();
}

#[test]
fn another_version_is_refused_both_ways() {
    let job = Job::new(&[2]);
    let rank_0 = job.start(0);
    let mut newer = connect(&job);
    newer.write_all(&[b"MKBS".as_slice(), &[2, 0, 1, 0, 0, 0, 0, 0]].concat()).unwrap();
    assert_refused(&mut newer, Reason::Version);
    job.start(1).join().unwrap().unwrap();
    rank_0.join().unwrap().unwrap();

    let job = Job::new(&[2]);
    let listener = TcpListener::bind(address(&job)).unwrap();
    let member = job.start(1);
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&[b"MKBS".as_slice(), &[2, 0, 2, 0, 0, 0, 0, 0]].concat()).unwrap();
    let error = member.join().unwrap().unwrap_err();
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert!(text.contains("version 2, this is version 1"), "{text}");
}

#[test]
fn ranks_that_never_come_are_named_on_every_rank_that_came() {
    let job = Job { start: Duration::from_millis(200), ..Job::new(&[3, 2]) };
    let start = Instant::now();
    let threads = [job.start(0), job.start(3)];
    for thread in threads {
        let error = thread.join().unwrap().unwrap_err();
        assert_eq!(fault_of(&error), &JobFault::Missing { ranks: vec![1, 2, 4] }, "{error}");
    }
    assert!(start.elapsed() < LONG);
}

#[test]
fn a_job_without_rank_0_ends_at_the_start_deadline() {
    let job = Job { start: Duration::from_millis(50), ..Job::new(&[2]) };
    match join(&job.setup(1)) {
        Err(Error::Unreachable { source: Attempt::Connect { source, .. }, .. }) => {
            assert_eq!(source.kind(), ErrorKind::ConnectionRefused);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_divergence_is_the_same_error_on_every_rank() {
    let job = Job::new(&[2, 2]);
    let results = all(&job, |mut control| {
        let mut fields = Fields::default();
        fields.add("plan", "abc");
        fields.add("m", if control.rank().0 == 2 { "65" } else { "64" });
        control.agree(&fields)
    });
    for result in results {
        let error = result.unwrap_err().to_string();
        assert_eq!(error, "ranks differ in `m`: ranks 0-1, 3 have `64`, rank 2 has `65`");
    }
}

#[test]
fn an_exchange_goes_on_while_its_owner_does_other_work() {
    let job = Job::new(&[2, 2]);
    let results = all(&job, |mut control| {
        control.share(&[control.rank().0 as u8])?;
        assert!(matches!(control.share(b"again"), Err(Error::Sharing)));
        loop {
            // Looks in, as between two pieces of work.
            match control.step(Duration::ZERO)? {
                Some(Event::Shared { blobs }) => {
                    control.share(b"next")?;
                    return Ok(blobs);
                }
                Some(Event::Fault(fault)) => panic!("{fault}"),
                _ => thread::yield_now(),
            }
        }
    });
    results.into_iter().for_each(|result| assert_eq!(result.unwrap(), [[0], [1], [2], [3]]));
}

#[test]
fn a_dropped_rank_is_lost_to_all_others_wherever_they_are() {
    for lost in 0..4 {
        let job = Job::new(&[2, 2]);
        let results = all(&job, |mut control| {
            if control.rank().0 == lost {
                return Ok(Vec::new());
            }
            // Some wait in an exchange, some only step.
            if control.rank().0.is_multiple_of(2) {
                return control.exchange(b"x");
            }
            loop {
                if let Some(Event::Fault(fault)) = control.step(LONG)? {
                    return Err(Error::Fault { fault, refusals: Default::default() });
                }
            }
        });
        for (rank, result) in (0..).zip(results) {
            if rank != lost {
                assert_eq!(fault_of(&result.unwrap_err()), &JobFault::Lost { rank: lost }, "rank {rank}");
            }
        }
    }
}

#[test]
fn a_raised_fault_reaches_every_rank() {
    for raiser in [0, 2] {
        let job = Job::new(&[4]);
        let results = all(&job, |mut control| {
            if control.rank().0 == raiser {
                control.raise(b"cell 9 wanted 4 seen 3")?;
            }
            control.exchange(b"x")
        });
        let expected = JobFault::Raised { rank: raiser, record: b"cell 9 wanted 4 seen 3".to_vec() };
        results.into_iter().for_each(|result| assert_eq!(fault_of(&result.unwrap_err()), &expected));
    }
}

#[test]
fn a_rank_that_stays_out_of_an_exchange_is_named_at_the_step_deadline() {
    let job = Job { step: Duration::from_millis(100), ..Job::new(&[3]) };
    let results = all(&job, |mut control| {
        if control.rank().0 != 1 {
            return control.exchange(b"x").map(|_| ());
        }
        while control.fault().is_none() {
            control.step(LONG)?;
        }
        Ok(())
    });
    for rank in [0, 2] {
        let error = results[rank].as_ref().unwrap_err();
        assert_eq!(fault_of(error), &JobFault::Late { step: Step::Exchange, ranks: vec![1] });
    }
}

#[test]
fn a_second_job_takes_the_next_port_and_its_ranks_find_it() {
    let first = Job::new(&[2]);
    let mut second = Job::new(&[2]);
    second.ports = vec![first.ports[0], second.ports[0]];
    let rank_0 = first.start(0);
    // The first job's rank 0 listens: it refuses a stranger.
    let mut stranger = connect(&first);
    stranger.write_all(b"x").unwrap();
    assert_refused(&mut stranger, Reason::Protocol);
    let others = [second.start(1), second.start(0)];
    others.into_iter().for_each(|thread| drop(thread.join().unwrap().unwrap()));
    first.start(1).join().unwrap().unwrap();
    rank_0.join().unwrap().unwrap();
}

#[test]
fn a_member_that_finds_another_job_on_one_of_its_ports_says_so_in_the_end() {
    let other = Job::new(&[2]);
    let mut job = Job { start: Duration::from_millis(300), ..Job::new(&[2]) };
    let rank_0 = other.start(0);
    drop(connect(&other));
    job.ports.insert(0, other.ports[0]);
    match join(&job.setup(1)).map(|_| ()) {
        Err(Error::Unreachable { source: Attempt::Join { source, .. }, .. }) => {
            assert_eq!(source, Failure::Refused(Reason::Job));
        }
        result => panic!("{result:?}"),
    }
    other.start(1).join().unwrap().unwrap();
    rank_0.join().unwrap().unwrap();
}

#[test]
fn a_name_without_an_address_is_an_error_that_says_so() {
    let job = Job { start: Duration::from_millis(1), host: "no..host".into(), ..Job::new(&[2]) };
    let error = join(&job.setup(1)).unwrap_err();
    assert!(matches!(error, Error::Unreachable { source: Attempt::Resolve(_), .. }), "{error:?}");
}

#[test]
fn the_port_is_free_once_all_ranks_have_arrived() {
    let job = Job::new(&[2]);
    let ranks = [job.start(0), job.start(1)].map(|thread| thread.join().unwrap().unwrap());
    assert_eq!(TcpStream::connect(address(&job)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let again = [job.start(0), job.start(1)].map(|thread| thread.join().unwrap().unwrap());
    drop((ranks, again));
}

#[test]
fn a_port_in_use_is_an_error_that_says_which() {
    let job = Job::new(&[2]);
    let _listener = TcpListener::bind(address(&job)).unwrap();
    let error = join(&job.setup(0)).unwrap_err();
    assert!(matches!(&error, Error::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse), "{error:?}");
    assert!(error.to_string().contains(&job.ports[0].to_string()), "{error}");
}

/// Connects to rank 0 as a stranger, waiting for it to listen.
fn connect(job: &Job) -> TcpStream {
    let start = Instant::now();
    loop {
        match TcpStream::connect(address(job)) {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
        thread::yield_now();
    }
}

/// Rank 0 says why, and closes.
fn assert_refused(stream: &mut TcpStream, reason: Reason) {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), HEADER_BYTES + 1);
    assert_eq!(bytes[HEADER_BYTES], reason as u8);
}

type Joining = thread::JoinHandle<Result<mkernel::bootstrap::Control, Error>>;

/// The result of whichever ends first, and the other.
fn wait_for_one(threads: [Joining; 2]) -> (Result<mkernel::bootstrap::Control, Error>, Joining) {
    let [a, b] = threads;
    while !a.is_finished() && !b.is_finished() {
        thread::yield_now();
    }
    if a.is_finished() { (a.join().unwrap(), b) } else { (b.join().unwrap(), a) }
}
