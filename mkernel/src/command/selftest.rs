//! `mkernel selftest`: what a user runs on a new machine.
//!
//! Every operator, odd shapes and worlds, three element types. Each case launches on exact inputs, which must give the bits
//! of the host executor, then on real inputs, which must hold the bound of the check; inputs are new in every launch,
//! memory that is given back is filled with NaN, and role splits change on the way.

mod cases;
#[cfg(feature = "cuda")]
mod faults;

use std::fmt::Write as _;
use std::time::Instant;

use mkernel::check::{self, Extent, Reference};
use mkernel::{
    AgGemm, DType, Fill, MoeFfn, Options, Profile, RingAttention, RoleCtas, RoleName, Schedule, Session, Tensors,
    World, inputs,
};

use super::args::{SelftestArgs, TransportName};
use super::usage::{Stop, Usage};
use cases::{Case, OPERATORS};

/// Launches on exact inputs of a usual case, and of the long one of each operator.
const EPOCHS: u64 = 3;
const MANY_EPOCHS: u64 = 50;

/// What is tested.
pub(crate) enum Subject {
    /// The host executors, one against the other.
    Host,
    /// The executor of one GPU.
    #[cfg(feature = "cuda")]
    Gpu(mkernel::Gpu),
}

/// How many checks of one kind were made, and what failed.
#[derive(Default)]
struct Tally {
    cases: u32,
    launches: u64,
    failures: Vec<String>,
}

/// Runs everything and reports; fails if any check does.
pub(crate) fn selftest(args: &SelftestArgs) -> Result<String, Stop> {
    let subject = subject(args.transport)?;
    let mut table = String::from("check                       cases   launches     time  result\n");
    let (mut failed, mut all) = (0, 0);
    let mut row = |name: &str, tally: Tally, started: Instant| {
        let result = if tally.failures.is_empty() { "ok" } else { "FAILED" };
        let seconds = started.elapsed().as_secs_f64();
        let Tally { cases, launches, failures } = tally;
        writeln!(table, "{name:<26} {cases:>6} {launches:>10} {seconds:>7.1}s  {result}")
            .expect("a String takes any text");
        for failure in failures.iter().take(3) {
            writeln!(table, "  {failure}").expect("a String takes any text");
        }
        all += cases;
        failed += failures.len();
    };
    for operator in OPERATORS.into_iter().filter(|o| args.only.is_none_or(|only| *o == only)) {
        let started = Instant::now();
        let mut tally = Tally::default();
        cases::test(operator, &subject, args.seed, args.quick, &mut tally);
        row(&operator.name(), tally, started);
    }
    if args.only.is_none() {
        let started = Instant::now();
        let mut tally = Tally::default();
        test_turns(&subject, args.seed, &mut tally);
        row("two operators in turns", tally, started);
    }
    #[cfg(feature = "cuda")]
    if let (Subject::Gpu(gpu), None) = (&subject, &args.only) {
        let started = Instant::now();
        let mut tally = Tally::default();
        faults::test(gpu, &mut tally);
        row("faults", tally, started);
    }
    writeln!(table, "{all} cases, {failed} failed, seed {}", args.seed).expect("a String takes any text");
    if failed > 0 { Err(Stop::Selftest { table, failed }) } else { Ok(table) }
}

fn subject(transport: TransportName) -> Result<Subject, Stop> {
    match transport {
        TransportName::Loopback => Ok(Subject::Host),
        #[cfg(feature = "cuda")]
        TransportName::Cuda => Ok(Subject::Gpu(mkernel::Gpu::open(Default::default()).map_err(Stop::Refused)?)),
        TransportName::Shm => Err(Usage::Alone { transport }.into()),
        other => Err(Usage::Transport(other).into()),
    }
}

impl Subject {
    /// A session under test: for every third seed with small tiles, so that a shape has many.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "the host has no ring to shorten"))]
    fn session(&self, world: &World, seed: u64, has_short_ring: bool) -> Session {
        let options = Options::default();
        let tiles = |profile: Profile| match seed % 3 {
            0 => Profile { tile_m: 16, tile_n: 32, ..profile },
            _ => profile,
        };
        match self {
            Subject::Host => {
                let options = Options { schedule: Schedule::Seeded(seed), profile: tiles(options.profile), ..options };
                Session::new(world.clone(), options)
            }
            #[cfg(feature = "cuda")]
            Subject::Gpu(gpu) => {
                let fifo_slots = if has_short_ring { 2 } else { gpu.options().fifo_slots };
                let gpu = gpu.with(mkernel::gpu::GpuOptions { fifo_slots, ..gpu.options().clone() });
                let profile = tiles(gpu.profile(world.size()));
                Session::on_gpu(world.clone(), Options { profile, ..options }, &gpu)
            }
        }
    }
}

/// One operator of one shape in one world.
fn test_case<O>(case: Case<'_>, operator: &O, epochs: u64, tally: &mut Tally)
where
    O: Reference + PartialEq + Clone + 'static,
{
    tally.cases += 1;
    let tested = try_case(case, operator, epochs, tally);
    if let Err(failure) = tested {
        let shapes: Vec<String> = operator.tensors().iter().map(|t| format!("{}{:?}", t.name, t.shape)).collect();
        let dtype = operator.tensors()[0].dtype;
        tally.failures.push(format!("{} {dtype} {} on {}: {failure}", operator.name(), shapes.join(" "), case.world));
    }
}

/// Keys and values that no row of the first half sees are NaN: only rows that see them may be NaN.
fn test_hidden(case: Case<'_>, operator: &RingAttention, tally: &mut Tally) {
    tally.cases += 1;
    tally.launches += 1;
    let text = |error: mkernel::Error| Stop::Failed(error).line();
    let tested = || -> Result<(), String> {
        let mut given = inputs(operator, Fill::Exact, case.seed, 0).map_err(|e| e.to_string())?;
        for name in ["k", "v"] {
            let mut tensor = given.get(name).expect("attention has keys and values").clone();
            let row = (operator.dim * operator.dtype.bytes()) as usize;
            let hidden = (operator.seq / 2) as usize;
            for head in tensor.bytes_mut().chunks_exact_mut(row * operator.seq as usize) {
                head[hidden * row..].fill(0xff);
            }
            given.insert(name, tensor);
        }
        let mut session = case.subject.session(case.world, case.seed, false);
        let mut host = Session::new(case.world.clone(), Options::default());
        let (found, _) = session.operator(*operator).and_then(|o| o.run(&given)).map_err(text)?;
        let (right, _) = host.operator(*operator).and_then(|o| o.run(&given)).map_err(text)?;
        let rows =
            found.get("o").map_or(0, |o| (0..operator.seq / 2 * operator.dim).filter(|&i| o.at(i).is_nan()).count());
        if rows > 0 {
            return Err(format!("{rows} elements of rows that see no NaN are NaN"));
        }
        same_bits(&found, &right)
    };
    let failure = tested().err();
    let about = |failure| format!("{operator:?} on {} with NaN in hidden keys and values: {failure}", case.world);
    tally.failures.extend(failure.map(about));
}

/// Two operators of one session take turns, and one is made again on the way: instances share nothing.
fn test_turns(subject: &Subject, seed: u64, tally: &mut Tally) {
    let world = World::uniform(2, 2).expect("four ranks");
    let first = AgGemm { m: 70, n: 65, k: 40, dtype: DType::Bf16 };
    let second = MoeFfn { tokens: 50, hidden: 40, inner: 24, experts: 5, topk: 2, dtype: DType::Bf16 };
    let text = |error: mkernel::Error| Stop::Failed(error).line();
    let mut session = subject.session(&world, seed, true);
    let mut host = Session::new(world, Options { profile: session.options().profile, ..Options::default() });
    let mut tested = || -> Result<(), String> {
        for epoch in 0..EPOCHS * 2 {
            turn(&mut session, &mut host, &first, seed, epoch).map_err(text)??;
            turn(&mut session, &mut host, &second, seed, epoch).map_err(text)??;
            if epoch == EPOCHS {
                session.retire(&first);
            }
        }
        Ok(())
    };
    tally.failures.extend(tested().err());
    tally.cases += 1;
    tally.launches += 4 * EPOCHS;
}

/// One launch of an operator in each session, compared.
fn turn<O>(
    session: &mut Session,
    host: &mut Session,
    operator: &O,
    seed: u64,
    epoch: u64,
) -> Result<Result<(), String>, mkernel::Error>
where
    O: Reference + PartialEq + Clone + 'static,
{
    let given = inputs(operator, Fill::Exact, seed, epoch)?;
    let (found, _) = session.operator(operator.clone())?.run(&given)?;
    let (right, _) = host.operator(operator.clone())?.run(&given)?;
    Ok(same_bits(&found, &right).map_err(|e| format!("{} in turn {epoch}: {e}", operator.name())))
}

fn try_case<O>(case: Case<'_>, operator: &O, epochs: u64, tally: &mut Tally) -> Result<(), String>
where
    O: Reference + PartialEq + Clone + 'static,
{
    let text = |error: mkernel::Error| Stop::Failed(error).line();
    let Case { subject, world, seed } = case;
    let mut session = subject.session(world, seed, epochs > EPOCHS || seed.is_multiple_of(2));
    let profile = Profile { sms: Profile::HOST.sms, ..session.options().profile };
    let mut host = Session::new(world.clone(), Options { profile, ..Options::default() });
    let tested = session.operator(operator.clone()).map_err(text)?;
    let wanted = host.operator(operator.clone()).map_err(text)?;
    for epoch in 0..epochs {
        let given = inputs(operator, Fill::Exact, seed, epoch).map_err(|e| e.to_string())?;
        if epoch > 0 {
            // Down to one CTA each first: on the way no more CTAs than can run at once.
            for number in [0, seed.wrapping_add(epoch)] {
                tested.set_roles(&split(number, &working_roles(tested.programs()))).map_err(text)?;
            }
        }
        let (found, report) = tested.run(&given).map_err(|e| format!("epoch {epoch}: {}", text(e)))?;
        tally.launches += 1;
        let (right, _) = wanted.run(&given).map_err(text)?;
        same_bits(&found, &right).map_err(|e| format!("epoch {epoch}, exact inputs: {e}"))?;
        if report.inter_out != report.inter_law {
            return Err(format!(
                "epoch {epoch}: NIC bytes {:?}, but the law says {:?}",
                report.inter_out, report.inter_law
            ));
        }
    }
    let given = inputs(operator, Fill::Real, seed, epochs).map_err(|e| e.to_string())?;
    let (found, _) = tested.run(&given).map_err(text)?;
    tally.launches += 1;
    let judged = check::check(operator, &given, &found, Extent::All, &[], seed);
    judged.map(drop).map_err(|e| format!("real inputs: {e}"))
}

/// The roles that have work.
fn working_roles(programs: &mkernel_core::Verified) -> Vec<RoleName> {
    let has_work = |role: &RoleName| programs.programs().iter().flat_map(|p| &p.lanes).any(|l| l.role == *role);
    RoleName::ALL.into_iter().filter(has_work).collect()
}

/// One or two CTAs a role, as `number` says.
fn split(number: u64, roles: &[RoleName]) -> RoleCtas {
    let mut ctas = RoleCtas::default();
    for (bit, &role) in roles.iter().enumerate() {
        ctas.set(role, 1 + (number >> bit & 1) as u32);
    }
    ctas
}

fn same_bits(found: &Tensors, right: &Tensors) -> Result<(), String> {
    for (name, right) in right.iter() {
        let found = found.get(name).ok_or_else(|| format!("`{name}` is missing"))?;
        let size = right.dtype().bytes() as usize;
        let pairs = found.bytes().chunks_exact(size).zip(right.bytes().chunks_exact(size));
        let are_nan = |i: usize| found.at(i as u64).is_nan() && right.at(i as u64).is_nan();
        let wrong = pairs.enumerate().filter(|&(i, (f, r))| f != r && !are_nan(i));
        let wrong: Vec<usize> = wrong.map(|(i, _)| i).collect();
        if let Some(&first) = wrong.first() {
            let (f, r) = (found.at(first as u64), right.at(first as u64));
            let all = right.bytes().len() / size;
            return Err(format!(
                "{} of {all} elements of `{name}` differ, first {first}: {f:e} for {r:e}",
                wrong.len()
            ));
        }
    }
    Ok(())
}
