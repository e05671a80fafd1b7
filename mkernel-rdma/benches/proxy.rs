//! What a ticket costs the proxy: popped, turned into requests, posted to a NIC that does nothing, retired.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mkernel_core::builder::Step;
use mkernel_core::fifo::{self, Stop};
use mkernel_core::nic::{Chain, Completion, Limits, Nic, Refused};
use mkernel_core::route::Routes;
use mkernel_core::transport::{Contract, Ordering, Signalling};
use mkernel_core::{
    Born, CellId, LaneBuilder, Law, Op, Placement, Program, ProgramBuilder, Proxy, Put, Rank, RegionId, Role, RoleName,
    Span, Ticket, Verified, World, validate,
};
use mkernel_rdma::{Exposed, Links, Place, Rdma};

/// Puts of an epoch, and slots of the ring.
const PUTS: u32 = 1024;
const BYTES: u64 = 4096;

struct Sender;

impl Role for Sender {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        for put in 0..PUTS {
            let span = |rank| Span::flat(rank, RegionId(0), u64::from(put) * BYTES, BYTES);
            let (source, target, retired) = (span(Rank(0)), span(Rank(1)), Some(CellId(0)));
            lane.put(&[CellId(1)], Put { source, count: None, target, cell: CellId(put), retired });
        }
        lane.push(Op::Release, Step::new(&[CellId(0)], &[]), &[], &[]);
    }
}

struct Receiver;

impl Role for Receiver {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let cells: Vec<CellId> = (0..PUTS).map(CellId).collect();
        lane.put(&cells, Put::signal(Rank(1), Rank(0), CellId(1)));
    }
}

fn programs() -> Verified {
    let world = World::new(&[1, 1]).expect("two nodes");
    let bytes = u64::from(PUTS) * BYTES;
    let program = |rank: Rank| -> Program {
        let mut builder = ProgramBuilder::new(&world, rank);
        builder.region("rows", bytes);
        if rank == Rank(0) {
            builder.cell(PUTS, Born::Empty);
            builder.cell(1, Born::Full);
            let span = Span::flat(rank, RegionId(0), 0, bytes);
            builder.input(Placement { tensor: "rows", span, row: 0, column: 0 });
            builder.lane(&Sender, 1);
            builder.law(Law { inter_out: bytes, inter_in: 0 });
        } else {
            (0..PUTS).for_each(|_| {
                builder.cell(1, Born::Empty);
            });
            builder.lane(&Receiver, 1);
            builder.law(Law { inter_out: 0, inter_in: bytes });
        }
        builder.finish()
    };
    validate(vec![program(Rank(0)), program(Rank(1))]).expect("the programs hold")
}

/// Looks at what it is given, does nothing, and is done at once.
struct Null {
    done: Vec<Completion>,
}

impl Nic for Null {
    fn limits(&self) -> Limits {
        Limits { requests: 1024, pieces: 4, message: 1 << 30 }
    }

    fn post(&mut self, queue: u32, chain: &Chain) -> Result<(), Refused> {
        for request in &chain.requests {
            black_box((request.target, chain.pieces(request).len()));
            if request.is_signalled {
                self.done.push(Completion::Sent { queue, id: request.id, status: 0 });
            }
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), i32> {
        completions.append(&mut self.done);
        Ok(())
    }
}

fn proxy(verified: &Verified) -> Proxy<Rdma<Null>> {
    let place = |address| Place { address, keys: vec![7, 8] };
    let memory = |base| Exposed { regions: vec![place(base)], cells: place(base + (1 << 30)) };
    let contract = Contract::new(Ordering::InOrder, Signalling::WriteAfterWrite).expect("a sound pair");
    let routes = Routes::new(2, 2).expect("within bounds");
    let links = Links { contract, routes, own: memory(1 << 40), peers: vec![None, Some(memory(1 << 41))] };
    Proxy::new(verified, Rank(0), 0, Rdma::new(Null { done: Vec::new() }, links)).expect("the program was verified")
}

fn tickets(criterion: &mut Criterion) {
    let verified = programs();
    let mut group = criterion.benchmark_group("proxy");
    group.throughput(Throughput::Elements(PUTS.into())).sample_size(20);
    group.bench_function("pop, translate, post, retire", |bencher| {
        bencher.iter_custom(|iterations| {
            let (mut proxy, mut retired) = (proxy(&verified), Vec::new());
            let (mut producer, mut consumer) = fifo::channel(PUTS as usize).expect("a power of two");
            let mut time = Duration::ZERO;
            for _ in 0..iterations {
                for put in 0..PUTS {
                    let ticket = Ticket::new(put.into(), 0).expect("it fits");
                    producer.push(ticket, || Err(Stop::Deadline)).expect("the ring has room");
                }
                let start = Instant::now();
                while retired.len() < PUTS as usize {
                    proxy.step(|| consumer.pop(), &mut retired).expect("nothing fails");
                }
                time += start.elapsed();
                retired.clear();
            }
            time
        });
    });
}

criterion_group!(benches, tickets);
criterion_main!(benches);
