//! RDMA over real verbs: needs the devices rxe0 and rxe1, which `tests/rxe/run` makes inside a virtual machine.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use mkernel_core::route::Routes;
use mkernel_core::transport::{Contract, Ordering, STATUS_FLUSHED, STATUS_LINK_DOWN, STATUS_UNREACHABLE, Signalling};
use mkernel_core::{CellId, Rank, Span, Transport};
use mkernel_rdma::verbs::device::GidKind;
use mkernel_rdma::verbs::memory::{Domain, Region, Words};
use mkernel_rdma::verbs::nic::{Offer, Pending, Rail, Settings, VerbsNic};
use mkernel_rdma::verbs::queue::Patience;
use mkernel_rdma::verbs::{VerbsError, choose};
use mkernel_rdma::{Exposed, Links, Place, Rdma};
use mkernel_tests::conformance::{self, CELLS, Fixture, REGION};

const RANKS: u32 = 3;

/// What a failing peer takes: some 0.3 s.
const HASTY: Patience = Patience { timeout: 12, retries: 3 };

struct OnVerbs {
    memory: Vec<Arc<Words>>,
    ends: Vec<Option<Rdma<VerbsNic>>>,
}

/// The rails of a rank: those of odd ranks the other way round, so that packets cross the cable.
fn rails(rank: u32, count: u32) -> Vec<Rail> {
    let mut names = vec!["rxe0".to_owned(), "rxe1".to_owned()];
    if rank % 2 == 1 {
        names.reverse();
    }
    names.truncate(count as usize);
    choose(&names, None, 0).unwrap().into_iter().map(|choice| Rail::new(choice).unwrap()).collect()
}

fn place(offset: u64, base: u64, keys: &[u32]) -> Place {
    Place { address: base + offset, keys: keys.to_vec() }
}

fn exposed(base: u64, keys: &[u32]) -> Exposed {
    Exposed { regions: vec![place(0, base, keys)], cells: place(REGION, base, keys) }
}

impl OnVerbs {
    fn new(signalling: Signalling, routes: Routes, settings: Settings, bend: fn(&mut Offer)) -> OnVerbs {
        let contract = Contract::new(Ordering::InOrder, signalling).unwrap();
        let words = (REGION / 8) as usize + CELLS as usize;
        let memory: Vec<_> = (0..RANKS).map(|_| Words::new(words)).collect();
        let begin = |own: u32| {
            let peers: Vec<Rank> = (0..RANKS).filter(|&r| r != own).map(Rank).collect();
            let memory = memory[own as usize].clone();
            Pending::new(&rails(own, routes.rails()), routes, settings, &peers, memory).unwrap()
        };
        let begun: Vec<Pending> = (0..RANKS).map(begin).collect();
        let offers: Vec<Option<Offer>> = begun.iter().map(|b| Offer::decode(&b.offer().encode())).collect();
        let connect = |(own, begun): (u32, Pending)| {
            let keys = begun.local_keys();
            let reached = |(rank, offer): (u32, &Option<Offer>)| {
                let mut offer = offer.clone().filter(|_| rank != own)?;
                bend(&mut offer);
                Some(exposed(offer.address, &offer.keys()))
            };
            let peers = (0..).zip(&offers).map(reached).collect();
            let base = offers[own as usize].as_ref().unwrap().address;
            let nic = begun.connect(Rank(own), &offers).unwrap();
            Some(Rdma::new(nic, Links { contract, routes, own: exposed(base, &keys), peers }))
        };
        OnVerbs { ends: (0..).zip(begun).map(connect).collect(), memory }
    }

    fn plain(signalling: Signalling, patience: Patience) -> OnVerbs {
        let settings = Settings { patience, ..Settings::new(signalling) };
        OnVerbs::new(signalling, Routes::new(1, 1).unwrap(), settings, |_| {})
    }
}

impl Fixture for OnVerbs {
    fn ranks(&self) -> u32 {
        RANKS
    }
    fn end(&mut self, rank: Rank) -> &mut dyn Transport {
        self.ends[rank.0 as usize].as_mut().unwrap()
    }
    fn read(&self, span: &Span, bytes: &mut [u8]) {
        let words = self.memory[span.rank.0 as usize].words();
        for (row, part) in (0..span.rows).zip(bytes.chunks_mut(span.row_bytes.max(1) as usize)) {
            for (at, byte) in (span.row(row) as usize..).zip(part) {
                *byte = words[at / 8].load(SeqCst).to_le_bytes()[at % 8];
            }
        }
    }
    fn write(&mut self, span: &Span, bytes: &[u8]) {
        let words = self.memory[span.rank.0 as usize].words();
        for (row, part) in (0..span.rows).zip(bytes.chunks(span.row_bytes.max(1) as usize)) {
            for (at, byte) in (span.row(row) as usize..).zip(part) {
                let mut word = words[at / 8].load(SeqCst).to_le_bytes();
                word[at % 8] = *byte;
                words[at / 8].store(u64::from_le_bytes(word), SeqCst);
            }
        }
    }
    fn cell(&self, rank: Rank, cell: CellId) -> u64 {
        self.memory[rank.0 as usize].words()[(REGION / 8) as usize + cell.0 as usize].load(SeqCst)
    }
    fn raise(&mut self, rank: Rank, cell: CellId) {
        self.memory[rank.0 as usize].words()[(REGION / 8) as usize + cell.0 as usize].fetch_add(1, SeqCst);
    }
}

#[test]
#[ignore = "needs RDMA devices: tests/rxe/run"]
fn verbs_conform_on_any_rails_and_queue_pairs() {
    for signalling in [Signalling::WriteAfterWrite, Signalling::Immediate] {
        for (rails, queues, requests) in [(1, 1, 256), (2, 1, 4), (2, 3, 256)] {
            println!("{signalling:?} {rails} rails {queues} queue pairs {requests} requests");
            let settings = Settings { requests, ..Settings::new(signalling) };
            let routes = Routes::new(rails, queues).unwrap();
            conformance::all(&mut || Box::new(OnVerbs::new(signalling, routes, settings, |_| {})));
        }
    }
}

#[test]
#[ignore = "needs RDMA devices: tests/rxe/run"]
fn a_wrong_key_is_a_remote_access_error() {
    let settings = Settings::new(Signalling::WriteAfterWrite);
    let bend = |offer: &mut Offer| offer.rails[0].key ^= 0xff00;
    let mut net = OnVerbs::new(Signalling::WriteAfterWrite, Routes::new(1, 1).unwrap(), settings, bend);
    conformance::failure(&mut net, &[10]);
}

#[test]
#[ignore = "needs RDMA devices: tests/rxe/run"]
fn a_queue_pair_in_the_error_state_flushes() {
    for signalling in [Signalling::WriteAfterWrite, Signalling::Immediate] {
        let mut net = OnVerbs::plain(signalling, HASTY);
        let queues = net.ends[0].as_ref().unwrap().nic().queues();
        queues.iter().for_each(|queue| queue.break_off().unwrap());
        conformance::failure(&mut net, &[STATUS_FLUSHED]);
    }
}

#[test]
#[ignore = "needs RDMA devices: tests/rxe/run"]
fn a_peer_that_is_gone_does_not_answer() {
    let start = Instant::now();
    let mut net = OnVerbs::plain(Signalling::WriteAfterWrite, HASTY);
    net.ends[1] = None;
    conformance::failure(&mut net, &[STATUS_UNREACHABLE]);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// Brings the cable's second end up again, whatever happens.
struct Down;

impl Down {
    fn new() -> Down {
        assert!(Command::new("/m/ip").args(["link", "set", "veth1", "down"]).status().unwrap().success());
        Down
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        // The machine ends with the tests.
        let _ = Command::new("/test/cable-up").status();
    }
}

#[test]
#[ignore = "needs RDMA devices: tests/rxe/run"]
fn a_link_that_is_down_is_said_before_and_felt_after_connecting() {
    let mut net = OnVerbs::plain(Signalling::WriteAfterWrite, HASTY);
    let _down = Down::new();
    conformance::failure(&mut net, &[STATUS_LINK_DOWN]);
    let start = Instant::now();
    let names = ["rxe1".to_owned()];
    while !matches!(choose(&names, None, 0), Err(VerbsError::NoPort { .. } | VerbsError::NoGid { .. })) {
        assert!(start.elapsed() < Duration::from_secs(20), "a port without a link is still chosen");
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs RDMA devices: tests/rxe/run"]
fn an_address_that_can_be_routed_is_chosen_and_the_mtu_is_that_of_the_port() {
    let choice = choose(&["rxe0".to_owned()], None, 0).unwrap().remove(0);
    assert_eq!(choice.gid.kind, GidKind::RoceV2);
    assert_eq!(choice.gid.bytes[10..], [0xff, 0xff, 10, 77, 0, 1]);
    let link: u32 = std::fs::read_to_string("/sys/class/net/veth0/mtu").unwrap().trim().parse().unwrap();
    let wanted = [256, 512, 1024, 2048, 4096].into_iter().rfind(|mtu| mtu + 58 <= link).unwrap();
    assert_eq!(choice.port.mtu_bytes(), wanted);
}

#[test]
#[ignore = "needs RDMA devices: tests/rxe/run"]
fn a_device_that_cannot_reach_gpu_memory_says_so_and_host_memory_works() {
    let domain = Domain::new(&choose(&[], None, 0).unwrap()[0].device).unwrap();
    let zero = File::open("/dev/zero").unwrap();
    let error = Region::dma_buf(&domain, zero.as_fd(), 0, 4096, 0).unwrap_err();
    assert!(matches!(error, VerbsError::NoDmaBuf { .. }), "{error:?}");
    let region = Region::host(&domain, Words::new(512)).unwrap();
    assert_ne!(region.remote_key(), 0);
}

#[test]
#[ignore = "needs RDMA devices: tests/rxe/run"]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let error = choose(&["mlx5_9".to_owned()], None, 0).unwrap_err();
    assert_eq!(error.to_string(), "there is no RDMA device mlx5_9; this machine has rxe0, rxe1");
}
