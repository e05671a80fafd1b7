//! Puts of the RDMA transport between rxe0 and rxe1, timed as perftest times writes: `verbs_figures bandwidth BYTES COUNT` prints
//! MiB/s with 128 puts on their way, `verbs_figures latency BYTES COUNT` half of the
//! median round trip in us. `tests/rxe/run figures`.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use mkernel_core::route::Routes;
use mkernel_core::transport::{Contract, Ordering, Post, PostError, Signalling};
use mkernel_core::{CellId, Rank, RegionId, Span, Transport};
use mkernel_rdma::verbs::choose;
use mkernel_rdma::verbs::memory::Words;
use mkernel_rdma::verbs::nic::{Offer, Pending, Rail, Settings, VerbsNic};
use mkernel_rdma::{Exposed, Links, Place, Rdma};

struct End {
    transport: Rdma<VerbsNic>,
    memory: Arc<Words>,
    /// Words before the cells.
    cells: usize,
}

fn ends(bytes: u64) -> Vec<End> {
    let contract = Contract::new(Ordering::InOrder, Signalling::WriteAfterWrite).unwrap();
    let routes = Routes::new(1, 1).unwrap();
    let cells = bytes.div_ceil(8) as usize;
    let memory: Vec<_> = (0..2).map(|_| Words::new(cells + 1)).collect();
    let begin = |(own, name): (u32, &str)| {
        let choice = choose(&[name.to_owned()], None, 0).unwrap().remove(0);
        let settings = Settings::new(contract.signalling());
        let memory = memory[own as usize].clone();
        Pending::new(&[Rail::new(choice).unwrap()], routes, settings, &[Rank(1 - own)], memory).unwrap()
    };
    let begun: Vec<Pending> = [(0, "rxe0"), (1, "rxe1")].into_iter().map(begin).collect();
    let offers: Vec<Option<Offer>> = begun.iter().map(|b| Some(b.offer())).collect();
    let exposed = |rank: u32, keys: Vec<u32>| {
        let base = offers[rank as usize].as_ref().unwrap().address;
        let place = |skip| Place { address: base + skip, keys: keys.clone() };
        Exposed { regions: vec![place(0)], cells: place(cells as u64 * 8) }
    };
    let connect = |(own, begun): (u32, Pending)| {
        let mine = exposed(own, begun.local_keys());
        let theirs = Some(exposed(1 - own, offers[1 - own as usize].as_ref().unwrap().keys()));
        let peers = if own == 0 { vec![None, theirs] } else { vec![theirs, None] };
        let nic = begun.connect(Rank(own), &offers).unwrap();
        let transport = Rdma::new(nic, Links { contract, routes, own: mine, peers });
        End { transport, memory: memory[own as usize].clone(), cells }
    };
    (0..).zip(begun).map(connect).collect()
}

fn put(own: u32, bytes: u64, value: u64) -> Post {
    let span = |rank| Span::flat(Rank(rank), RegionId(0), 0, bytes);
    Post { token: value, source: span(own), target: span(1 - own), cell: CellId(0), value }
}

fn bandwidth(bytes: u64, count: u64) -> f64 {
    const DEPTH: u64 = 128;
    let mut ends = ends(bytes);
    let (mut posted, mut retired) = (0, Vec::new());
    let start = Instant::now();
    while (retired.len() as u64) < count {
        while posted < count && posted - (retired.len() as u64) < DEPTH {
            match ends[0].transport.post(&put(0, bytes, posted + 1)) {
                Ok(()) => posted += 1,
                Err(PostError::Full) => break,
                Err(PostError::Failed(error)) => panic!("{error}"),
            }
        }
        ends[0].transport.poll(&mut retired).unwrap();
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(ends[1].memory.words()[ends[1].cells].load(SeqCst), count);
    (bytes * count) as f64 / seconds / f64::from(1 << 20)
}

/// Answers each other's puts.
fn play(mut end: End, own: u32, bytes: u64, count: u64) -> Vec<Duration> {
    let (mut retired, mut times) = (Vec::new(), Vec::new());
    for round in 1..=count {
        let start = Instant::now();
        if own == 1 {
            wait(&mut end, round, &mut retired);
        }
        end.transport.post(&put(own, bytes, round)).unwrap();
        end.transport.poll(&mut retired).unwrap();
        if own == 0 {
            wait(&mut end, round, &mut retired);
        }
        times.push(start.elapsed());
    }
    while (retired.len() as u64) < count {
        end.transport.poll(&mut retired).unwrap();
    }
    times
}

fn wait(end: &mut End, round: u64, retired: &mut Vec<u64>) {
    // As the proxy does: the kernel's part of soft-RoCE needs a core too.
    while end.memory.words()[end.cells].load(Acquire) < round {
        end.transport.poll(retired).unwrap();
        thread::yield_now();
    }
}

fn latency(bytes: u64, count: u64) -> f64 {
    let mut ends = ends(bytes);
    let (second, first) = (ends.remove(1), ends.remove(0));
    let mut times = thread::scope(|scope| {
        scope.spawn(move || play(second, 1, bytes, count));
        play(first, 0, bytes, count)
    });
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6 / 2.0
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, bytes, count] = arguments.as_slice() else { panic!("verbs_figures bandwidth|latency BYTES COUNT") };
    let (bytes, count) = (bytes.parse().unwrap(), count.parse().unwrap());
    match what.as_str() {
        "bandwidth" => println!("{:.1}", bandwidth(bytes, count)),
        "latency" => println!("{:.2}", latency(bytes, count)),
        other => panic!("{other} is neither bandwidth nor latency"),
    }
}
