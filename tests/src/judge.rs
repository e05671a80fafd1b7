//! What becomes of a mutant: who kills it, or why it is no change at all.
//!
//! `validate` and the race detector share no code, so every mutant is also a comparison of the two.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mkernel_core::{Executor, Op, Program, Span, Verified, Violation, validate};
use mkernel_sim::{Options, Seeded, find_races};

use crate::mutate::Mutation;

/// Launches that the race detector unrolls: one more than `validate` does.
pub const RACE_EPOCHS: u32 = 4;

/// Runs one epoch with fresh inputs from a seed, and says whether the outputs are right bit for bit. A fault is an error.
pub type Oracle<'a> = &'a dyn Fn(&Verified, &mut dyn Executor, u64) -> Result<bool, mkernel_core::Fault>;

/// The end of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `validate` refuses it, with this kind of violation.
    Validate(&'static str),
    /// It runs, and its bits are wrong.
    Oracle,
    /// It is the same computation, for this reason.
    Equivalent(&'static str),
    /// Nothing objects and nothing proves it harmless, or the judges disagree: a bug, here or there.
    Survivor(String),
}

/// The name of a violation's kind.
pub fn kind(violation: &Violation) -> &'static str {
    match violation {
        Violation::Nothing => "nothing",
        Violation::World(_) => "world",
        Violation::Incomplete { .. } => "incomplete",
        Violation::NotClosed(_) => "not-closed",
        Violation::Lane { .. } => "lane",
        Violation::Malformed { .. } => "malformed",
        Violation::UnpostedPut { .. } => "unposted-put",
        Violation::Bounds { .. } => "bounds",
        Violation::Arrivals { .. } => "arrivals",
        Violation::Sources { .. } => "sources",
        Violation::VacuousWait { .. } => "vacuous-wait",
        Violation::Deadlock { .. } => "deadlock",
        Violation::TwoWriters { .. } => "two-writers",
        Violation::NotWritten { .. } => "not-written",
        Violation::Race { .. } => "race",
        Violation::Overrun { .. } => "overrun",
        Violation::ByteLaw { .. } => "byte-law",
        Violation::TooLarge { .. } => "too-large",
    }
}

/// Whether the race detector must object too: to what depends on order and on the contents of memory. Of the rest
/// (indices, shapes, laws, who may raise what) `validate` is the only judge.
fn is_shared(violation: &Violation) -> bool {
    matches!(
        violation,
        Violation::Deadlock { .. } | Violation::NotWritten { .. } | Violation::Race { .. } | Violation::Overrun { .. }
    )
}

/// Asks both checkers; they must agree.
///
/// # Errors
/// In what they differ.
pub fn compare(programs: &[Program]) -> Result<Result<Verified, Violation>, String> {
    let verdict = validate(programs.to_vec());
    let race = match &verdict {
        Err(violation) if !is_shared(violation) => return Ok(verdict),
        _ => find_races(programs, RACE_EPOCHS),
    };
    match (&verdict, race) {
        (Ok(_), Err(race)) => Err(format!("validate accepts, the race detector says: {race}")),
        (Err(violation), Ok(())) => Err(format!("the race detector accepts, validate says: {violation}")),
        _ => Ok(verdict),
    }
}

/// Judges one mutant of `original`.
pub fn judge(original: &[Program], mutant: Vec<Program>, oracle: Oracle<'_>) -> Verdict {
    let verified = match compare(&mutant) {
        Err(difference) => return Verdict::Survivor(difference),
        Ok(Err(violation)) => return Verdict::Validate(kind(&violation)),
        Ok(Ok(verified)) => Arc::new(verified),
    };
    let run = |seed, epochs| catch_unwind(AssertUnwindSafe(|| is_right(&verified, seed, epochs, oracle)));
    for (seed, epochs) in [(1, 2), (2, 2), (3, 12)] {
        match run(seed, epochs) {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Verdict::Oracle,
            Ok(Err(fault)) => return Verdict::Survivor(format!("validate accepts, the run fails: {fault}")),
            Err(_) => return Verdict::Survivor("validate accepts, the executor panics".to_owned()),
        }
        if let Some(reason) = equivalence(original, &mutant) {
            return Verdict::Equivalent(reason);
        }
    }
    Verdict::Survivor("everybody accepts".to_owned())
}

fn is_right(verified: &Arc<Verified>, seed: u64, epochs: u64, oracle: Oracle<'_>) -> Result<bool, mkernel_core::Fault> {
    let options = Options { seed, ring: 2, ..Options::default() };
    let mut executor = Seeded::new(verified.clone(), options).expect("small programs fit in memory");
    for epoch in 0..epochs {
        if !oracle(verified, &mut executor, seed * 1000 + epoch)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Why a mutant that both checkers accept computes the same, if it can be told.
///
/// Both have proved that every byte read has one writer in the epoch and comes after it. So what is computed depends on
/// nothing but what the instructions read and write: waits, signals, cells and the order of lanes only delay.
pub fn equivalence(original: &[Program], mutant: &[Program]) -> Option<&'static str> {
    let same = |view: fn(&Program) -> Vec<String>| original.iter().map(view).eq(mutant.iter().map(view));
    if original == mutant {
        return Some("the very same programs");
    }
    if same(computes) {
        return Some(if same(releases) {
            "the same reads and writes; two checkers prove them ordered"
        } else {
            "gives back fewer bytes, or twice; nobody reads them"
        });
    }
    None
}

/// A span as the bytes that it names.
fn bytes(span: &Span) -> String {
    match span.is_empty() {
        true => "empty".to_owned(),
        false if span.is_contiguous() => format!("{:?}", Span::flat(span.rank, span.region, span.offset, span.bytes())),
        false => span.to_string(),
    }
}

/// Everything that a program reads and computes, in no order.
fn computes(program: &Program) -> Vec<String> {
    let shape = |s: &Span| (s.rows, s.row_bytes, bytes(s));
    let list = |spans: &[Span]| spans.iter().map(shape).collect::<Vec<_>>();
    let mut all: Vec<String> = program
        .instructions()
        .filter(|(_, _, i)| i.op != Op::Release)
        .map(|(_, _, i)| match i.op {
            // A put of no bytes only signals.
            Op::Put(id) if program.put(id).source.is_empty() => "a signal".to_owned(),
            Op::Put(id) => {
                let put = program.put(id);
                format!("put {} {} {:?}", bytes(&put.source), bytes(&put.target), put.count)
            }
            op => {
                let reads: Vec<_> = program.segments(i).iter().map(|s| list(program.reads(s))).collect();
                format!("{op:?} {reads:?} {:?}", list(program.writes(i)))
            }
        })
        .filter(|text| text != "a signal")
        .collect();
    let host = program.inputs.iter().chain(&program.outputs);
    all.extend(host.map(|p| format!("{} {} {} {}", p.tensor, bytes(&p.span), p.row, p.column)));
    all.sort();
    all
}

fn releases(program: &Program) -> Vec<String> {
    let releases = program.instructions().filter(|(_, _, i)| i.op == Op::Release);
    let mut all: Vec<_> = releases.flat_map(|(_, _, i)| program.writes(i)).map(bytes).collect();
    all.sort();
    all
}

/// How many mutants came to which end.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Mutants judged.
    pub mutants: u64,
    /// Counts by end.
    pub ends: BTreeMap<String, u64>,
    /// What survived.
    pub survivors: Vec<String>,
}

impl Tally {
    /// Judges `mutations` of `programs`.
    pub fn run(programs: &[Program], mutations: &[Mutation], oracle: Oracle<'_>) -> Tally {
        let mut tally = Tally::default();
        for mutation in mutations {
            let verdict = judge(programs, mutation.apply(programs), oracle);
            tally.mutants += 1;
            let end = match &verdict {
                Verdict::Validate(kind) => format!("killed by validate: {kind}"),
                Verdict::Oracle => "killed by the oracle".to_owned(),
                Verdict::Equivalent(reason) => format!("equivalent: {reason}"),
                Verdict::Survivor(_) => "SURVIVED".to_owned(),
            };
            *tally.ends.entry(end).or_default() += 1;
            if let Verdict::Survivor(why) = verdict {
                tally.survivors.push(format!("{mutation:?}: {why}"));
            }
        }
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mutants", self.mutants)?;
        self.ends.iter().try_for_each(|(end, count)| write!(f, "\n  {count:7} {end}"))?;
        self.survivors.iter().take(20).try_for_each(|s| write!(f, "\n  {s}"))
    }
}
