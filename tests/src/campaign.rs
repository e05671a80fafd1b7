//! The fault campaign: from one seed a problem, a world, a schedule, a network and one thing that goes wrong.
//!
//! A trial ends in the bits of the run without faults, or in a typed fault that its harm explains and that names its rank.
//! Everything else is a finding: other bits, another fault, a panic, a fault that the next launch does not repeat.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mkernel::ring_attention::Layout;
use mkernel::{AgGemm, AllReduce, GemmAr, GemmRs, Mask, MoeDispatchGemm, MoeFfn, Partial, RingAttention};
use mkernel_core::transport::Ordering;
use mkernel_core::{DType, Executor, Fault, FaultKind, Program, PutId, RoleName};
use mkernel_sim::{Injection, Network, Options, Seeded};

use crate::original::Original;

/// Launches of a trial: what a launch leaves behind shows in the next.
const EPOCHS: u64 = 3;

/// Steps of the scheduler, each a microsecond of its virtual time, in which a CTA must go on.
const DEADLINE: Duration = Duration::from_micros(20_000);

const WORLDS: [&[u32]; 9] = [&[1], &[3], &[1, 1], &[2, 1], &[1, 2], &[1, 1, 1], &[2, 2], &[3, 1], &[3, 2]];

/// What goes wrong in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nothing but the network's delays and orders.
    Nothing,
    /// The queue is full for a while.
    FullQueue,
    /// The queue is full for ever.
    ClosedQueue,
    /// A post is refused for good.
    RefusedPost,
    /// A completion is an error.
    FailedCompletion,
    /// A completion is held back.
    LateCompletion,
    /// A completion comes twice.
    DoubleCompletion,
    /// The signal of a put never rises.
    LostSignal,
    /// A rank runs nothing.
    DeadPeer,
    /// A proxy stops.
    DeadProxy,
    /// A CTA stops.
    StuckCta,
    /// A CTA dies.
    DyingCta,
}

/// Each harm with the faults that it explains, and whether the right bits may come out. A harm that is drawn for a step that
/// the trial never reaches does nothing.
const TABLE: [(Harm, &str, bool, &[FaultKind]); 12] = {
    use FaultKind::{Deadline, Died, FifoFull, Transport};
    [
        (Harm::Nothing, "nothing", true, &[]),
        (Harm::FullQueue, "queue full for a while", true, &[]),
        (Harm::ClosedQueue, "queue full for ever", true, &[Deadline, FifoFull]),
        (Harm::RefusedPost, "post refused", true, &[Transport]),
        (Harm::FailedCompletion, "failed completion", true, &[Transport]),
        (Harm::LateCompletion, "late completion", true, &[]),
        (Harm::DoubleCompletion, "completion twice", true, &[Transport]),
        (Harm::LostSignal, "lost signal", true, &[Deadline]),
        (Harm::DeadPeer, "dead peer", true, &[Deadline, FifoFull]),
        (Harm::DeadProxy, "dead proxy", true, &[Deadline, FifoFull]),
        (Harm::StuckCta, "stuck CTA", true, &[Deadline, FifoFull]),
        (Harm::DyingCta, "dying CTA", true, &[Died]),
    ]
};

impl Harm {
    fn row(self) -> (&'static str, bool, &'static [FaultKind]) {
        let row = TABLE.iter().find(|row| row.0 == self).expect("the table has every harm");
        (row.1, row.2, row.3)
    }

    /// One such injection into a random step of a random rank; `None` if no rank puts anything.
    fn draw(self, programs: &[Program], random: &mut fastrand::Rng) -> Option<Injection> {
        let posts = |p: &Program| p.puts.len() as u64;
        let needs_puts = !matches!(self, Harm::Nothing | Harm::DeadPeer | Harm::StuckCta | Harm::DyingCta);
        let fit: Vec<&Program> = programs.iter().filter(|p| !needs_puts || posts(p) > 0).collect();
        let program = *random.choice(&fit)?;
        let rank = program.rank;
        let mut post = || random.u64(0..(EPOCHS * posts(program)).max(1));
        let most = program.lanes.iter().map(|l| l.instructions.len() as u64).max().unwrap_or(0);
        Some(match self {
            Harm::Nothing => return None,
            Harm::FullQueue => Injection::FullQueue { rank, post: post(), tries: random.u64(1..300) },
            Harm::ClosedQueue => Injection::FullQueue { rank, post: post(), tries: u64::MAX },
            Harm::RefusedPost => Injection::RefusePost { rank, post: post() },
            Harm::FailedCompletion => Injection::FailCompletion { rank, post: post() },
            Harm::LateCompletion => Injection::LateCompletion { rank, post: post(), polls: random.u64(1..300) },
            Harm::DoubleCompletion => Injection::DuplicateCompletion { rank, post: post() },
            Harm::LostSignal => Injection::WithholdSignal { rank, put: PutId(random.u32(0..posts(program) as u32)) },
            Harm::DeadPeer => Injection::DeadPeer { rank },
            Harm::DeadProxy => Injection::StuckProxy { rank, after: post() },
            Harm::StuckCta => {
                Injection::StuckCta { rank, cta: random.u32(0..program.ctas().max(1)), after: random.u64(0..=most) }
            }
            Harm::DyingCta => {
                Injection::DyingCta { rank, cta: random.u32(0..program.ctas().max(1)), after: random.u64(0..=most) }
            }
        })
    }
}

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// In the bits and the traffic of the run without faults, in every epoch.
    Right,
    /// In a fault that the harm explains and that names its rank.
    Fault(Fault),
    /// In such a fault of a rank that the harm has reached through others.
    Victim(Fault),
    /// In none of these: what is wrong.
    Finding(String),
}

/// One trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What went wrong on purpose.
    pub harm: Harm,
    /// The problem, the world and the injection.
    pub what: String,
    /// How it ended.
    pub outcome: Outcome,
}

impl Trial {
    /// Runs the trial of a seed.
    pub fn run(seed: u64) -> Trial {
        let mut random = fastrand::Rng::with_seed(seed);
        let harm = TABLE[random.usize(0..TABLE.len())].0;
        let gpus = WORLDS[random.usize(0..WORLDS.len())];
        let (problem, original) = problem(gpus, &mut random);
        let injection = harm.draw(original.programs(), &mut random);
        let harm = if injection.is_some() { harm } else { Harm::Nothing };
        let options = options(injection, &mut random);
        let what = format!("{problem} on {gpus:?}, {injection:?}");
        let ends = catch_unwind(AssertUnwindSafe(|| launches(&original, options, &mut random)));
        let outcome = match ends {
            Ok(Ok(())) if harm.row().1 => Outcome::Right,
            Ok(Ok(())) => Outcome::Finding("it went unnoticed".to_owned()),
            Ok(Err(Outcome::Fault(fault))) if !harm.row().2.contains(&fault.kind) => {
                Outcome::Finding(format!("a fault that nothing explains: {fault}"))
            }
            Ok(Err(Outcome::Fault(fault))) if injection.is_some_and(|injection| !concerns(&fault, injection)) => {
                // Puts to a dead peer fill the queue, and those to others wait behind them.
                match harm {
                    Harm::DeadPeer => Outcome::Victim(fault),
                    _ => Outcome::Finding(format!("a fault of other ranks: {fault}")),
                }
            }
            Ok(Err(outcome)) => outcome,
            Err(panic) => Outcome::Finding(format!("a panic: {}", words(&*panic))),
        };
        Trial { harm, what, outcome }
    }
}

/// Whether a fault names the rank of an injection, on either side.
fn concerns(fault: &Fault, injection: Injection) -> bool {
    use Injection::*;
    let (RefusePost { rank, .. }
    | FailCompletion { rank, .. }
    | FullQueue { rank, .. }
    | DuplicateCompletion { rank, .. }
    | LateCompletion { rank, .. }
    | WithholdSignal { rank, .. }
    | DeadPeer { rank }
    | StuckCta { rank, .. }
    | DyingCta { rank, .. }
    | StuckProxy { rank, .. }) = injection;
    fault.rank == rank || fault.peer == Some(rank)
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

/// Launches until something is wrong.
fn launches(original: &Original, options: Options, random: &mut fastrand::Rng) -> Result<(), Outcome> {
    let verified = original.verified();
    let mut executor = Seeded::new(verified.clone(), options).expect("small programs fit in memory");
    for epoch in 0..EPOCHS {
        if random.bool() {
            let role = RoleName::ALL[random.usize(0..RoleName::ALL.len())];
            let ctas = random.u32(1..4).try_into().expect("at least one");
            executor.set_ctas(role, ctas).expect("the host has room for any number");
        }
        match original.is_same(verified, &mut executor, random.u64(0..64)) {
            Ok(true) => {}
            Ok(false) => return Err(Outcome::Finding(format!("wrong bits in epoch {epoch}"))),
            Err(fault) if executor.launch() == Err(fault) => return Err(Outcome::Fault(fault)),
            Err(fault) => return Err(Outcome::Finding(format!("a launch after {fault}"))),
        }
    }
    Ok(())
}

fn options(injection: Option<Injection>, random: &mut fastrand::Rng) -> Options {
    let network = Network {
        ordering: if random.bool() { Ordering::InOrder } else { Ordering::Unordered },
        depth: random.usize(1..9),
        pieces: random.u32(1..6),
        deliveries: random.u32(1..6),
        idle: random.u8(0..200),
        injections: injection.into_iter().collect(),
    };
    let first_epoch = [0, u64::MAX - 1, random.u64(..)][random.usize(0..3)];
    Options {
        seed: random.u64(..),
        deadline: DEADLINE,
        ring: 1 << random.u32(1..5),
        network,
        first_epoch,
        ..Options::default()
    }
}

/// A small problem of any operator, planned and proved.
fn problem(gpus: &[u32], random: &mut fastrand::Rng) -> (String, Original) {
    let dtype = [DType::Bf16, DType::F16, DType::F32][random.usize(0..3)];
    let partial = if random.bool() { Partial::Narrow } else { Partial::F32 };
    let all_reduce = if random.bool() { AllReduce::TwoStep } else { AllReduce::OneShot };
    let (mask, layout) = (
        if random.bool() { Mask::None } else { Mask::Causal },
        if random.bool() { Layout::Plain } else { Layout::ZigZag },
    );
    let operator = random.u32(0..6);
    let mut axis = |most: u64| random.u64(1..=most);
    let (m, n, k) = (axis(16), axis(12), axis(14));
    let (tokens, hidden, inner, experts) = (axis(12), axis(6), axis(6), axis(6));
    let topk = axis(experts.min(3));
    let (batch, kv_heads, seq, dim) = (axis(2), axis(2), axis(18), 8 + 8 * axis(2));
    let heads = kv_heads * axis(2);
    macro_rules! planned {
        ($operator:expr) => {{
            let operator = $operator;
            (format!("{operator:?}"), Original::new(operator, gpus))
        }};
    }
    match operator {
        0 => planned!(AgGemm { m, n, k, dtype }),
        1 => planned!(GemmRs { m, n, k, dtype, partial }),
        2 => planned!(GemmAr { m, n, k, dtype, partial, all_reduce }),
        3 => planned!(MoeDispatchGemm { tokens, hidden, inner, experts, topk, dtype }),
        4 => planned!(MoeFfn { tokens, hidden, inner, experts, topk, dtype }),
        _ => planned!(RingAttention { batch, heads, kv_heads, seq, dim, mask, layout, dtype }),
    }
}

/// Trials by harm and outcome.
#[derive(Debug, Default)]
pub struct Tally {
    counts: BTreeMap<(&'static str, &'static str), u64>,
    /// Seeds that ended in neither way, each with the trial.
    pub findings: Vec<(u64, Trial)>,
}

impl Tally {
    /// Runs the trials of `count` seeds from `first` on.
    pub fn run(first: u64, count: u64) -> Tally {
        let mut tally = Tally::default();
        for seed in (0..count).map(|i| first.wrapping_add(i)) {
            let trial = Trial::run(seed);
            let outcome = match &trial.outcome {
                Outcome::Right => "right bits",
                Outcome::Fault(fault) => fault.kind.name(),
                Outcome::Victim(_) => "naming a victim",
                Outcome::Finding(_) => "finding",
            };
            *tally.counts.entry((trial.harm.row().0, outcome)).or_default() += 1;
            if matches!(trial.outcome, Outcome::Finding(_)) {
                tally.findings.push((seed, trial));
            }
        }
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (_, harm, _, _) in TABLE {
            write!(f, "{harm}:")?;
            let mut of_harm = self.counts.iter().filter(|((h, _), _)| *h == harm);
            of_harm.try_for_each(|((_, outcome), count)| write!(f, " {count} {outcome}"))?;
            writeln!(f)?;
        }
        for (seed, trial) in &self.findings {
            writeln!(f, "{}: {:?}", trial.what, trial.outcome)?;
            writeln!(f, "  cargo run --release -p mkernel-tests --example fault_campaign -- {seed} 1")?;
        }
        Ok(())
    }
}
