//! The reports that people read.

use std::fmt::Write;

use mkernel::Operator;
use mkernel::check::Extent;
use mkernel::outline::Outline;

use super::bench::Measured;
use super::plan::Head;
use super::run::Outcome;

/// Appends one formatted line.
macro_rules! line {
    ($text:expr, $($arg:tt)*) => {
        writeln!($text, $($arg)*).expect("a String takes any text")
    };
}

/// What a report is about.
pub(crate) struct Subject {
    pub(crate) op: &'static str,
    pub(crate) dtype: &'static str,
    /// Every tensor with its shape.
    shapes: String,
    flops: f64,
}

impl Subject {
    /// Describes an operator.
    pub(crate) fn of(operator: &dyn Operator) -> Subject {
        let tensors = operator.tensors();
        let shape = |t: &mkernel_kernels::TensorSpec| {
            format!("{}[{}]", t.name, t.shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x"))
        };
        Subject {
            op: operator.name(),
            dtype: tensors[0].dtype.name(),
            shapes: tensors.iter().map(shape).collect::<Vec<_>>().join(" "),
            flops: operator.flops(),
        }
    }
}

/// The report of a run.
pub(crate) fn run(subject: &Subject, epochs: u64, outcome: &Outcome) -> String {
    let mut text = String::new();
    let Subject { op, dtype, shapes, flops } = subject;
    let time_us = outcome.summary.time_us();
    let world = &outcome.world;
    line!(text, "{op} {dtype} {shapes} on {world} ({} ranks), proved: {}", world.size(), outcome.validated);
    if outcome.is_virtual {
        line!(text, "time      {} (median of {epochs}; virtual, one step is one microsecond)", time(time_us));
    } else {
        let rate = flops / time_us.max(f64::MIN_POSITIVE) / 1e3;
        line!(text, "time      {} (median of {epochs}), {rate:.2} GFLOP/s", time(time_us));
    }
    match (&outcome.errors, outcome.extent) {
        (Some(e), extent) => {
            let what = if extent == Extent::Sampled { "a sample with one of every tile" } else { "all" };
            line!(text, "check     holds: {} elements ({what}), {} of them bit for bit", e.elements, e.exact);
            line!(
                text,
                "errors    max abs {:.3e}, max rel {:.3e}, at most {:.0} % of the bound",
                e.max_abs,
                e.max_rel,
                e.max_of_bound * 100.0
            );
        }
        (None, _) => line!(text, "check     skipped"),
    }
    line!(text, "\nrole       CTAs/rank      tasks         busy         wait");
    for r in outcome.summary.roles() {
        let (busy, wait) = (time(r.busy_us), time(r.wait_us));
        line!(text, "{:<10} {:>9} {:>10} {busy:>12} {wait:>12}", r.role.name(), r.ctas, r.tasks);
    }
    line!(text, "\nbytes out per epoch        intra          NIC          law");
    let last = &outcome.last;
    let rows = last.intra_out.iter().zip(&last.inter_out).zip(&last.inter_law).map(|((&a, &b), &c)| [a, b, c]);
    byte_rows(&mut text, rows);
    text
}

/// One row per run of ranks with equal bytes.
fn byte_rows(text: &mut String, rows: impl Iterator<Item = [u64; 3]>) {
    let mut groups: Vec<(u32, u32, [u64; 3])> = Vec::new();
    for (rank, row) in (0..).zip(rows) {
        match groups.last_mut() {
            Some((_, last, bytes)) if *bytes == row => *last = rank,
            _ => groups.push((rank, rank, row)),
        }
    }
    for (first, last, [intra, inter, law]) in groups {
        let ranks = if first == last { format!("rank {first}") } else { format!("ranks {first}-{last}") };
        line!(text, "{ranks:<19} {intra:>12} {inter:>12} {law:>12}");
    }
}

/// The report of a measurement.
pub(crate) fn bench(subject: &Subject, measured: &Measured) -> String {
    let mut text = String::new();
    let Subject { op, dtype, shapes, .. } = subject;
    let (world, times) = (&measured.world, &measured.times);
    line!(text, "{op} {dtype} {shapes} on {world} ({} ranks)", world.size());
    let (least, most) = (time(times[0]), time(times[times.len() - 1]));
    let median = measured.median_us();
    line!(text, "time      {} (median of {}; {least} to {most})", time(median), measured.launches);
    let share = 100.0 * measured.rate() / measured.ceiling;
    line!(
        text,
        "rate      {:.2} TFLOP/s, {share:.1} % of {:.0} TFLOP/s",
        measured.rate() / 1e12,
        measured.ceiling / 1e12
    );
    for (name, bytes) in [("intra", measured.intra_bytes), ("NIC", measured.inter_bytes)] {
        line!(text, "{name:<9} {bytes} bytes a launch, {:.1} GB/s", bytes as f64 / median / 1e3);
    }
    line!(text, "\nrole       CTAs/rank      tasks         busy         wait   (one launch, all CTAs)");
    for r in &measured.roles {
        let (busy, wait) = (time(r.busy_us), time(r.wait_us));
        line!(text, "{:<10} {:>9} {:>10} {busy:>12} {wait:>12}", r.role.name(), r.ctas, r.tasks);
    }
    text
}

/// The report of a plan.
pub(crate) fn plan(head: &Head<'_>, outline: &Outline) -> String {
    let mut text = String::new();
    let (Subject { op, dtype, shapes, .. }, world) = (&head.subject, head.world);
    line!(text, "{op} {dtype} {shapes} on {world} ({} ranks), profile {}", world.size(), head.profile);
    line!(text, "planned and proved in {}; validated: {}", time(head.plan_us), outline.scope.name());
    let first = &outline.ranks[0];
    line!(text, "\n{}", first.rank);
    line!(text, "  instructions {:>14}", first.instructions);
    line!(text, "  cells        {:>14}", first.cells);
    line!(text, "  puts         {:>14}", first.puts);
    line!(text, "  program      {:>14} bytes", first.program_bytes);
    for (name, bytes) in &first.regions {
        line!(text, "  region {name:<6}{bytes:>14} bytes");
    }
    line!(text, "  memory       {:>14} bytes", first.regions.iter().map(|(_, bytes)| bytes).sum::<u64>());
    line!(text, "\nrole       CTAs      tasks     modelled");
    for r in &outline.roles {
        line!(text, "{:<10} {:>4} {:>10} {:>12}", r.role.name(), r.ctas, r.tasks, time(r.modelled_us));
    }
    line!(text, "\nbytes out per epoch        intra          NIC          law");
    byte_rows(&mut text, outline.ranks.iter().map(|r| [r.intra_out, r.inter_out, r.inter_law]));
    text
}

/// Microseconds in a unit that fits.
fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}
