//! What becomes of a mutant: who kills it, or why it is no change at all.
//!
//! `validate` and the race detector share no code, so every mutant is also a comparison of the two.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mkernel_core::validate::EPOCHS;
use mkernel_core::{Executor, Instruction, Mask, Op, Placement, Program, Segment, Span, Verified, Violation, validate};
use mkernel_sim::{Options, Seeded, find_races};

use crate::mutate::{Mutation, apply_all};

/// Launches that the race detector unrolls: one more than `validate` does.
pub const RACE_EPOCHS: u32 = EPOCHS + 1;

/// Why a mutant survives that is proved sound and gives the right bits.
pub const ACCEPTED: &str = "everybody accepts, and nothing says that it is the same";

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
        Violation::Form { .. } => "form",
        Violation::Pick { .. } => "pick",
        Violation::ByteLaw { .. } => "byte-law",
        Violation::TooLarge { .. } => "too-large",
    }
}

/// Whether the race detector must object too: to what depends on counts, order and the contents of memory. Of the rest
/// (indices, shapes, laws, who may raise what) `validate` is the only judge.
fn is_shared(violation: &Violation) -> bool {
    matches!(
        violation,
        Violation::Arrivals { .. }
            | Violation::Deadlock { .. }
            | Violation::NotWritten { .. }
            | Violation::Race { .. }
            | Violation::Overrun { .. }
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
    for (seed, epochs) in [(1, 2), (2, 2), (3, 50)] {
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
    Verdict::Survivor(ACCEPTED.to_owned())
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
/// nothing but what the instructions read and write: waits, signals, cells and the order of lanes only delay. What is
/// written where nobody reads does not count.
pub fn equivalence(original: &[Program], mutant: &[Program]) -> Option<&'static str> {
    if original == mutant {
        return Some("the very same programs");
    }
    if computes(original) != computes(mutant) {
        return None;
    }
    if everything(original) != everything(mutant) {
        return Some("differs in bytes that nobody reads");
    }
    Some("the same reads and writes; two checkers prove them ordered")
}

/// A span as the bytes that it names.
fn bytes(span: &Span) -> String {
    match span.is_empty() {
        true => "empty".to_owned(),
        false if span.is_contiguous() => format!("{:?}", Span::flat(span.rank, span.region, span.offset, span.bytes())),
        false => span.to_string(),
    }
}

/// One thing that a program does with bytes.
struct Deed {
    text: String,
    reads: Vec<Span>,
    writes: Vec<Span>,
    is_output: bool,
}

/// Everything that programs read, write and give back, in no order.
fn deeds(programs: &[Program]) -> Vec<Deed> {
    let mut all = Vec::new();
    for program in programs {
        all.extend(program.instructions().map(|(_, _, i)| deed(program, i)));
        let text = |p: &Placement| format!("{} {} {} {}", p.tensor, bytes(&p.span), p.row, p.column);
        let host =
            |p: &Placement, is_output| Deed { text: text(p), reads: vec![p.span], writes: vec![p.span], is_output };
        all.extend(program.inputs.iter().map(|p| host(p, false)));
        all.extend(program.outputs.iter().map(|p| host(p, true)));
        all.extend(program.routed.iter().map(|r| Deed {
            text: format!("{} {} by {}", r.tensor, bytes(&r.span), bytes(&r.rows)),
            reads: vec![r.span, r.rows],
            writes: Vec::new(),
            is_output: true,
        }));
    }
    all.sort_by(|a, b| a.text.cmp(&b.text));
    all
}

fn deed(program: &Program, i: &Instruction) -> Deed {
    let shape = |s: &Span| (s.rows, s.row_bytes, bytes(s));
    let list = |spans: &[Span]| spans.iter().map(shape).collect::<Vec<_>>();
    let writes = program.writes(i);
    let (text, reads, writes) = match i.op {
        Op::Release => (format!("release {:?}", writes.iter().map(bytes).collect::<Vec<_>>()), Vec::new(), Vec::new()),
        Op::Put(id) => {
            let put = program.put(id);
            let text = format!("put {:?} {:?}", (bytes(&put.source), bytes(&put.target)), put.count.map(|c| bytes(&c)));
            (text, [Some(put.source), put.count].into_iter().flatten().collect(), vec![put.target])
        }
        op => {
            let reads: Vec<_> = program.segments(i).iter().map(|s| program.reads(s).to_vec()).collect();
            let positions = program.segments(i).iter().map(|s| position(program, i, s));
            let listed: Vec<_> = reads.iter().map(|spans| list(spans)).zip(positions).collect();
            (format!("{op:?} {listed:?} {:?}", list(writes)), reads.concat(), writes.to_vec())
        }
    };
    Deed { text, reads, writes, is_output: false }
}

/// What the position of a segment means: of keys, only how many of them each row sees.
fn position(program: &Program, i: &Instruction, segment: &Segment) -> Vec<u64> {
    let Op::Attention { mask, query, .. } = i.op else { return vec![segment.position] };
    let keys = u64::from(program.reads(segment).last().map_or(0, |values| values.rows));
    let rows = program.writes(i).first().map_or(0, |output| output.rows);
    let seen = |row: u32| (query + u64::from(row) + 1).saturating_sub(segment.position).min(keys);
    (0..rows).map(|row| if mask == Mask::None { keys } else { seen(row) }).collect()
}

/// All deeds but those that only signal.
fn everything(programs: &[Program]) -> Vec<String> {
    let all = deeds(programs).into_iter().map(|deed| deed.text);
    all.filter(|text| text != "release []" && !text.starts_with("put (\"empty\"")).collect()
}

/// The deeds that an output depends on.
fn computes(programs: &[Program]) -> Vec<String> {
    let (mut live, mut rest): (Vec<Deed>, Vec<Deed>) = deeds(programs).into_iter().partition(|deed| deed.is_output);
    let mut next = 0;
    while next < live.len() {
        let reads = std::mem::take(&mut live[next].reads);
        let feeds = |deed: &mut Deed| deed.writes.iter().any(|w| reads.iter().any(|r| w.overlap(r) > 0));
        live.extend(rest.extract_if(.., feeds));
        next += 1;
    }
    let mut texts: Vec<String> = live.into_iter().map(|deed| deed.text).collect();
    texts.sort();
    texts
}

/// The kinds of the changes.
fn family(changes: &[Mutation]) -> String {
    match changes {
        [one] => one.family(),
        _ => "several changes".to_owned(),
    }
}

/// How many mutants came to which end.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Mutants judged.
    pub mutants: u64,
    /// Counts by end.
    pub ends: BTreeMap<String, u64>,
    /// What survived, and how.
    pub survivors: Vec<(Vec<Mutation>, String)>,
}

impl Tally {
    /// Judges mutants of `programs`, each a list of changes that are made one after the other.
    pub fn run(programs: &[Program], mutants: impl IntoIterator<Item = Vec<Mutation>>, oracle: Oracle<'_>) -> Tally {
        let mut tally = Tally::default();
        for changes in mutants {
            let Some(mutant) = apply_all(&changes, programs) else { continue };
            let verdict = judge(programs, mutant, oracle);
            tally.mutants += 1;
            let end = match &verdict {
                Verdict::Validate(kind) => format!("killed by validate: {kind}"),
                Verdict::Oracle => "killed by the oracle".to_owned(),
                Verdict::Equivalent(reason) => format!("equivalent: {reason} ({})", family(&changes)),
                Verdict::Survivor(_) => "SURVIVED".to_owned(),
            };
            *tally.ends.entry(end).or_default() += 1;
            if let Verdict::Survivor(why) = verdict {
                tally.survivors.push((changes, why));
            }
        }
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mutants", self.mutants)?;
        self.ends.iter().try_for_each(|(end, count)| write!(f, "\n  {count:7} {end}"))?;
        self.survivors.iter().take(20).try_for_each(|(changes, why)| write!(f, "\n  {changes:?}: {why}"))
    }
}
