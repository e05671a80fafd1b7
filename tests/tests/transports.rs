//! Every transport of the host keeps what `conformance` says; over verbs it is shown in `verbs.rs`.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use mkernel_core::nic::{Limits, QueueEnd};
use mkernel_core::route::Routes;
use mkernel_core::transport::{Contract, Ordering, STATUS_NO_PEER, STATUS_UNREACHABLE, Signalling};
use mkernel_core::{CellId, Rank, Span, Transport};
use mkernel_rdma::{Exposed, Links, Place, Rdma};
use mkernel_sim::fabric::{Fabric, FabricNic, Weather};
use mkernel_sim::{Injection, Network, Options, Wires};
use mkernel_tests::conformance::{self, CELLS, Fixture, REGION};

const RANKS: u32 = 3;

struct OnWires(Wires);

impl Fixture for OnWires {
    fn ranks(&self) -> u32 {
        RANKS
    }
    fn end(&mut self, rank: Rank) -> &mut dyn Transport {
        self.0.end(rank)
    }
    fn read(&self, span: &Span, bytes: &mut [u8]) {
        self.0.read(span, bytes);
    }
    fn write(&mut self, span: &Span, bytes: &[u8]) {
        self.0.write(span, bytes);
    }
    fn cell(&self, rank: Rank, cell: CellId) -> u64 {
        self.0.cell(rank, cell)
    }
    fn raise(&mut self, rank: Rank, cell: CellId) {
        unreachable!("the loopback fills cells itself, {rank} cell {}", cell.0)
    }
}

fn options(seed: u64, ordering: Ordering) -> Options {
    let network = Network { ordering, ..Network::default() };
    Options { seed, poison: false, network, ..Options::default() }
}

fn wires(options: &Options) -> Wires {
    Wires::new(Arc::new(conformance::memory_of(RANKS)), options).unwrap()
}

#[test]
fn the_loopback_conforms_in_one_process_and_over_shared_memory() {
    for seed in 0..20 {
        for ordering in [Ordering::InOrder, Ordering::Unordered] {
            println!("seed {seed} {ordering:?}");
            let options = options(seed, ordering);
            conformance::all(&mut || Box::new(OnWires(wires(&options))));
            let shared = || Wires::shared(Arc::new(conformance::memory_of(RANKS)), &options).unwrap();
            conformance::all(&mut || Box::new(OnWires(shared())));
        }
    }
}

#[test]
fn the_loopback_ends_in_one_error_that_names_the_put() {
    let mut options = options(1, Ordering::InOrder);
    options.network.injections = vec![Injection::RefusePost { rank: Rank(0), post: 3 }];
    let mut wires = OnWires(wires(&options));
    let posts: Vec<_> = (0..4).map(|token| conformance::small_put(&mut wires, token)).collect();
    assert!(posts[..3].iter().all(Result::is_ok) && posts[3].is_err(), "{posts:?}");
}

/// The RDMA transport over modelled NICs.
struct OnFabric {
    fabric: Fabric,
    ends: Vec<Rdma<FabricNic>>,
}

/// Which peers a rank has queue pairs to.
fn peers(own: u32) -> impl Iterator<Item = u32> {
    (0..RANKS).filter(move |&r| r != own)
}

impl OnFabric {
    fn new(weather: Weather, signalling: Signalling, routes: Routes) -> OnFabric {
        let contract = Contract::new(weather.ordering, signalling).unwrap();
        let fabric = Fabric::new(RANKS, REGION as usize + 8 * CELLS as usize, weather);
        let end = |own: u32| {
            let place = |rank: u32, skip: u64| Place {
                address: Fabric::address(Rank(rank)) + skip,
                keys: (0..routes.rails()).map(|rail| Fabric::key(Rank(rank), rail)).collect(),
            };
            let exposed = |rank| Exposed { regions: vec![place(rank, 0)], cells: place(rank, REGION) };
            let ends: Vec<QueueEnd> = peers(own)
                .flat_map(|p| (0..routes.per_peer()).map(move |i| QueueEnd { peer: Rank(p), rail: routes.at(i).rail }))
                .collect();
            let peers = (0..RANKS).map(|r| (r != own).then(|| exposed(r))).collect();
            Rdma::new(fabric.nic(Rank(own), &ends), Links { contract, routes, own: exposed(own), peers })
        };
        OnFabric { ends: (0..RANKS).map(end).collect(), fabric }
    }
}

impl Fixture for OnFabric {
    fn ranks(&self) -> u32 {
        RANKS
    }
    fn end(&mut self, rank: Rank) -> &mut dyn Transport {
        &mut self.ends[rank.0 as usize]
    }
    fn read(&self, span: &Span, bytes: &mut [u8]) {
        for (row, part) in (0..span.rows).zip(bytes.chunks_mut(span.row_bytes.max(1) as usize)) {
            self.fabric.read(span.rank, span.row(row) as usize, part);
        }
    }
    fn write(&mut self, span: &Span, bytes: &[u8]) {
        for (row, part) in (0..span.rows).zip(bytes.chunks(span.row_bytes.max(1) as usize)) {
            self.fabric.write(span.rank, span.row(row) as usize, part);
        }
    }
    fn cell(&self, rank: Rank, cell: CellId) -> u64 {
        let mut bytes = [0; 8];
        self.fabric.read(rank, REGION as usize + 8 * cell.0 as usize, &mut bytes);
        u64::from_le_bytes(bytes)
    }
    fn raise(&mut self, rank: Rank, cell: CellId) {
        let next = self.cell(rank, cell) + 1;
        self.fabric.write(rank, REGION as usize + 8 * cell.0 as usize, &next.to_le_bytes());
    }
}

const SOUND: [(Ordering, Signalling); 3] = [
    (Ordering::InOrder, Signalling::WriteAfterWrite),
    (Ordering::InOrder, Signalling::Immediate),
    (Ordering::Unordered, Signalling::Immediate),
];

#[test]
fn rdma_conforms_in_any_weather_on_any_rails_and_queue_pairs() {
    for seed in 0..12 {
        for (ordering, signalling) in SOUND {
            for (rails, queues) in [(1, 1), (2, 1), (2, 3), (3, 2)] {
                println!("seed {seed} {ordering:?} {signalling:?} {rails} rails {queues} queue pairs");
                let routes = Routes::new(rails, queues).unwrap();
                conformance::all(&mut || Box::new(OnFabric::new(Weather::bad(ordering, seed), signalling, routes)));
            }
        }
    }
}

#[test]
fn rdma_conforms_with_room_for_one_request_and_no_cap() {
    for (ordering, signalling) in SOUND {
        let limits = Limits { requests: 1, pieces: 1, message: 8 };
        let tight = Weather { limits, in_flight: 1, receives: 1, ..Weather::bad(ordering, 5) };
        let limits = Limits { requests: 128, pieces: 30, message: 1 << 20 };
        let wide = Weather { limits, in_flight: 10_000, receives: 1000, refuse: 0, ..Weather::bad(ordering, 6) };
        for weather in [tight, wide] {
            let routes = Routes::new(1, 2).unwrap();
            conformance::all(&mut || Box::new(OnFabric::new(weather.clone(), signalling, routes)));
        }
    }
}

#[test]
fn the_first_cause_is_reported_and_not_what_was_flushed_after_it() {
    for seed in 0..40 {
        for (ordering, signalling) in SOUND {
            println!("seed {seed} {ordering:?} {signalling:?}");
            let fails = Some((seed % 7, STATUS_UNREACHABLE));
            let weather = Weather { fails, ..Weather::bad(ordering, seed) };
            let mut net = OnFabric::new(weather, signalling, Routes::new(2, 2).unwrap());
            let known: &[u32] = match ordering {
                Ordering::InOrder => &[STATUS_UNREACHABLE],
                // Without order the consequence may be reported before the cause.
                Ordering::Unordered => &[STATUS_UNREACHABLE, 5],
            };
            conformance::failure(&mut net, known);
        }
    }
}

#[test]
fn a_wrong_key_is_refused_and_a_rank_that_nothing_leads_to_is_named() {
    let routes = Routes::new(1, 1).unwrap();
    let mut net = OnFabric::new(Weather::bad(Ordering::InOrder, 3), Signalling::WriteAfterWrite, routes);
    let place = |skip| Place { address: Fabric::address(Rank(1)) + skip, keys: vec![0xbad] };
    let own = |skip| Place { address: Fabric::address(Rank(0)) + skip, keys: vec![Fabric::key(Rank(0), 0)] };
    let contract = Contract::new(Ordering::InOrder, Signalling::WriteAfterWrite).unwrap();
    let links = |peers| Links { contract, routes, own: Exposed { regions: vec![own(0)], cells: own(REGION) }, peers };
    let wrong = Exposed { regions: vec![place(0)], cells: place(REGION) };
    let nic = net.fabric.nic(Rank(0), &[QueueEnd { peer: Rank(1), rail: 0 }]);
    net.ends[0] = Rdma::new(nic, links(vec![None, Some(wrong)]));
    conformance::failure(&mut net, &[10]);
    let nic = net.fabric.nic(Rank(0), &[]);
    net.ends[0] = Rdma::new(nic, links(vec![None, None]));
    conformance::failure(&mut net, &[STATUS_NO_PEER]);
}
