//! How long launches take, and what a ticket costs.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use mkernel_core::builder::LaneBuilder;
use mkernel_core::transport::{Contract, Ordering, Post, PostError, Signalling, TransportError};
use mkernel_core::{
    Born, CellId, DType, Executor, ProgramBuilder, Put, Rank, Role, RoleName, Run, Transport, Verified, World, validate,
};
use mkernel_kernels::cuda::Options;
use mkernel_kernels::{AgGemm, AllReduce, GemmAr, GemmRs, Operator, Partial, Profile, RoleCtas};
use mkernel_nvlink::CopyEngine;

use crate::world::{Planned, executor, options};

pub(crate) fn report(context: &Arc<CudaContext>) -> Result<String, String> {
    for (size, dtype) in [(4096, DType::Bf16), (8192, DType::Bf16), (2048, DType::F32)] {
        for gpus in [&[1][..], &[2], &[1, 1], &[2, 2]] {
            let planned = Planned::new(gpus, (size, size, size), dtype, &Profile::H200);
            let run = median(context, &planned.verified, |gpu| fill(&planned.verified, dtype, gpu))?;
            let flops = 2.0 * (size as f64).powi(3);
            println!("{gpus:?} {size}^3 {dtype}: {:.0} us, {:.1} TFLOP/s", run.time_us, flops / run.time_us / 1e6);
            let inter: u64 = run.inter_out.iter().sum();
            if inter > 0 {
                println!("  {} MiB proxied, {:.1} GB/s", inter >> 20, inter as f64 / run.time_us / 1e3);
            }
            lanes(&run);
        }
    }
    for (ctas, ring) in [(1, 2), (1, 1024), (4, 1024), (16, 1024)] {
        let run = median_of(
            context,
            &one_way(TICKETS, ctas),
            Options { fifo_slots: ring, ..plain() },
            |_| (),
            |_| Null::default(),
        )?;
        let each = run.time_us / f64::from(TICKETS);
        println!("{TICKETS} tickets from {ctas} CTAs, a ring of {ring}: {each:.3} us each, {:.2} M/s", 1.0 / each);
    }
    let chain = median(context, &ping_pong(200), |_| ())?;
    let empty = median(context, &ping_pong(1), |_| ())?;
    let hop = (chain.time_us - empty.time_us) / (2.0 * 199.0);
    Ok(format!(
        "a put of no bytes, ticket to signal seen: {hop:.2} us; a launch of one such put each way: {:.1} us",
        empty.time_us
    ))
}

/// Operators of the world 2x4 as virtual ranks, beside one product of the same size.
pub(crate) fn fused(context: &Arc<CudaContext>) -> Result<String, String> {
    let world = World::uniform(2, 4).map_err(|e| e.to_string())?;
    for size in [4096, 8192, 16384] {
        let (m, n, k, dtype) = (size, size, size, DType::Bf16);
        let alone = plan(&World::uniform(1, 1).map_err(|e| e.to_string())?, &AgGemm { m, n, k, dtype })?;
        let alone = median(context, &alone, |gpu| fill(&alone, dtype, gpu))?.time_us;
        println!("{size}^3 {dtype} alone: {alone:.0} us");
        let operators: [Box<dyn Operator>; 3] = [
            Box::new(AgGemm { m, n, k, dtype }),
            Box::new(GemmRs { m, n, k, dtype, partial: Partial::Narrow }),
            Box::new(GemmAr { m, n, k, dtype, partial: Partial::Narrow, all_reduce: AllReduce::Auto }),
        ];
        for op in operators {
            let verified = plan(&world, op.as_ref())?;
            let run = median(context, &verified, |gpu| fill(&verified, dtype, gpu))?;
            let inter: u64 = run.inter_out.iter().sum();
            let intra: u64 = run.intra_out.iter().sum();
            println!(
                "{} {size}^3: {:.0} us, {:.2} of alone; {} MiB proxied ({:.1} GB/s), {} MiB inside nodes",
                op.name(),
                run.time_us,
                run.time_us / alone,
                inter >> 20,
                inter as f64 / run.time_us / 1e3,
                intra >> 20
            );
            lanes(&run);
        }
    }
    Ok("2x4, bf16".to_owned())
}

fn plan(world: &World, op: &dyn Operator) -> Result<Arc<Verified>, String> {
    let profile = Profile { sms: Profile::H200.sms / world.size(), ..Profile::H200 };
    let programs = world.ranks().map(|r| op.plan(world, r, &profile, &RoleCtas::default()));
    let programs = programs.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    validate(programs).map(Arc::new).map_err(|violation| violation.to_string())
}

/// Prints what the lanes of rank 0 did, per CTA.
fn lanes(run: &Run) {
    for lane in run.lanes.iter().filter(|l| l.rank == Rank(0)) {
        let per_cta = f64::from(lane.ctas);
        let (busy, wait) = (lane.busy_us / per_cta, lane.wait_us / per_cta);
        println!("  {}: {} ctas, {} tasks, busy {busy:.0} us, wait {wait:.0} us", lane.role, lane.ctas, lane.tasks);
    }
}

/// The products of published shapes on one rank.
pub(crate) fn products(context: &Arc<CudaContext>) -> Result<String, String> {
    let published = [
        (4096, 256, 4096),
        (8192, 512, 8192),
        (16384, 1024, 16384),
        (32768, 2048, 32768),
        (2048, 2048, 128),
        (4096, 4096, 256),
        (8192, 8192, 512),
        (16384, 16384, 1024),
        (32768, 32768, 2048),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
    ];
    for (m, n, k) in published {
        let planned = Planned::new(&[1], (m, n, k), DType::Bf16, &Profile::H200);
        let run = median(context, &planned.verified, |gpu| fill(&planned.verified, DType::Bf16, gpu))?;
        let flops = 2.0 * m as f64 * n as f64 * k as f64;
        let (time, rate) = (run.time_us, flops / run.time_us / 1e6);
        let lane = &run.lanes[0];
        let (busy, wait) = (lane.busy_us / f64::from(lane.ctas), lane.wait_us / f64::from(lane.ctas));
        println!("{m}x{n}x{k}: {time:.1} us, {rate:.0} TFLOP/s; busy {busy:.1} us, wait {wait:.1} us");
    }
    Ok("one rank, bf16".to_owned())
}

const TICKETS: u32 = 20_000;

/// Writes normally distributed inputs: what a tensor core draws, and so its clock, depends on the bits.
fn fill(verified: &Verified, dtype: DType, gpu: &mut dyn Executor) {
    const PERIOD: usize = 1_000_003;
    let mut random = fastrand::Rng::with_seed(7);
    // Box and Muller's transform of two uniform numbers.
    let mut normal = || (-2.0 * (1.0 - random.f32()).ln()).sqrt() * (std::f32::consts::TAU * random.f32()).cos();
    let values: Vec<f32> = (0..PERIOD).map(|_| normal()).collect();
    let period: Vec<u8> = match dtype {
        DType::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    for placement in verified.programs().iter().flat_map(|p| &p.inputs) {
        let mut bytes = period.repeat(placement.span.bytes() as usize / period.len() + 1);
        bytes.truncate(placement.span.bytes() as usize);
        gpu.write(&placement.span, &bytes);
    }
}

fn plain() -> Options {
    Options { poison: false, ..options() }
}

fn median(
    context: &Arc<CudaContext>,
    verified: &Arc<Verified>,
    prepare: impl Fn(&mut dyn Executor),
) -> Result<Run, String> {
    median_of(context, verified, plain(), prepare, |engine| engine)
}

/// The launch of median time among 9, after 3.
fn median_of<T: Transport>(
    context: &Arc<CudaContext>,
    verified: &Arc<Verified>,
    options: Options,
    prepare: impl Fn(&mut dyn Executor),
    wrap: impl Fn(CopyEngine) -> T,
) -> Result<Run, String> {
    let mut gpu = executor(context, verified, options, |_, engine| wrap(engine));
    prepare(&mut gpu);
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..12 {
        runs.push(gpu.launch().map_err(|fault| fault.to_string())?);
    }
    let mut runs = runs.split_off(3);
    runs.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
    Ok(runs.swap_remove(runs.len() / 2))
}

/// Takes every put, reads every source at once, and carries nothing: what is left is the way to the proxy.
#[derive(Default)]
struct Null {
    tokens: Vec<u64>,
}

impl Transport for Null {
    fn contract(&self) -> Contract {
        Contract::new(Ordering::Unordered, Signalling::Counter).expect("a counter is sound on any order")
    }

    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.tokens.push(post.token);
        Ok(())
    }

    fn poll(&mut self, retired: &mut Vec<u64>) -> Result<(), TransportError> {
        retired.append(&mut self.tokens);
        Ok(())
    }
}

/// Rank 0 puts nothing at all, many times, to cells of rank 1 that nobody waits for.
struct Volley(u32);

impl Role for Volley {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        for i in 0..self.0 {
            lane.put(&[], Put::signal(Rank(0), Rank(1), CellId(i)));
        }
    }
}

fn one_way(count: u32, ctas: u32) -> Arc<Verified> {
    let world = World::new(&[1, 1]).expect("two nodes");
    let programs = world.ranks().map(|rank| {
        let mut builder = ProgramBuilder::new(&world, rank);
        builder.region("nothing", 8);
        for _ in 0..count {
            builder.cell(u32::from(rank == Rank(1)), Born::Empty);
        }
        if rank == Rank(0) {
            builder.lane(&Volley(count), ctas);
        }
        builder.finish()
    });
    Arc::new(validate(programs.collect()).unwrap_or_else(|violation| panic!("{violation}")))
}

/// Rank 0 and rank 1 answer each other's puts, one at a time.
struct Answers {
    rank: Rank,
    count: u32,
}

impl Role for Answers {
    fn name(&self) -> RoleName {
        RoleName::Send
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        for i in 0..self.count {
            let peer = Rank(1 - self.rank.0);
            // Rank 0 serves: its put i waits for answer i - 1. Rank 1 answers: its put i waits for ball i.
            let waits = match self.rank {
                Rank(0) if i == 0 => vec![],
                Rank(0) => vec![CellId(i - 1)],
                _ => vec![CellId(i)],
            };
            lane.put(&waits, Put::signal(self.rank, peer, CellId(i)));
        }
        if self.rank == Rank(0) {
            // The last answer is waited for, so that its cell's next contribution comes after a wait.
            let last = [CellId(self.count - 1)];
            let step = mkernel_core::builder::Step::new(&last, &[]);
            lane.push(mkernel_core::Op::Release, step, &[], &[]);
        }
    }
}

fn ping_pong(count: u32) -> Arc<Verified> {
    let world = World::new(&[1, 1]).expect("two nodes");
    let programs = world.ranks().map(|rank| {
        let mut builder = ProgramBuilder::new(&world, rank);
        builder.region("nothing", 8);
        for _ in 0..count {
            builder.cell(1, Born::Empty);
        }
        builder.lane(&Answers { rank, count }, 1);
        builder.finish()
    });
    Arc::new(validate(programs.collect()).unwrap_or_else(|violation| panic!("{violation}")))
}
