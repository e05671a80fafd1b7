//! `mkernel run`.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use mkernel::check::{self, Errors, Extent, Failure, Reference};
use mkernel::file::Pending;
use mkernel::report::Summary;
use mkernel::trace::Trace;
use mkernel::{Error, Fill, Instance, Options, Report, Schedule, Session, Tensors, World, inputs};

use super::args::{RunArgs, ScheduleName, TransportName};
use super::usage::{Stop, Usage};
use super::{json, print, problem};

/// What came out of all epochs.
pub(crate) struct Outcome {
    pub(crate) world: World,
    pub(crate) extent: Extent,
    pub(crate) errors: Option<Errors>,
    pub(crate) summary: Summary,
    /// The last epoch: bytes are the same in each.
    pub(crate) last: Report,
    pub(crate) validated: &'static str,
    /// Whether times are steps of the seeded schedule.
    pub(crate) is_virtual: bool,
}

/// Runs and reports.
pub(crate) fn run(args: &RunArgs) -> Result<String, Stop> {
    if args.transport != TransportName::Loopback {
        return Err(Usage::Transport(args.transport).into());
    }
    let world = problem::world(&args.problem)?;
    problem::with_operator(&args.problem, args.input.as_deref(), Run { args, world })
}

/// Runs an operator and reports.
struct Run<'a> {
    args: &'a RunArgs,
    world: World,
}

impl problem::Action for Run<'_> {
    type Output = String;

    fn act<O>(self, operator: O, tensors: Option<Tensors>) -> Result<String, Stop>
    where
        O: Reference + PartialEq + Clone + 'static,
    {
        let head = print::Subject::of(&operator);
        let outcome = execute(operator, self.world, self.args, tensors.as_ref())?;
        Ok(report(self.args, &head, &outcome))
    }
}

fn options(args: &RunArgs) -> Options {
    Options {
        roles: args.problem.roles.unwrap_or_default(),
        deadline: Duration::from_millis(args.deadline_ms),
        schedule: match args.schedule {
            ScheduleName::Threads => Schedule::Threads,
            ScheduleName::Seeded => Schedule::Seeded(args.seed),
        },
        is_traced: args.trace.is_some(),
        ..Options::default()
    }
}

/// Runs every epoch, and writes the files once all have held.
fn execute<O>(operator: O, world: World, args: &RunArgs, given: Option<&Tensors>) -> Result<Outcome, Stop>
where
    O: Reference + PartialEq + Clone + 'static,
{
    let open = |path: &Option<_>, flag| {
        let create = |path: &std::path::PathBuf| Pending::create(path);
        path.as_ref().map(create).transpose().map_err(|problem| Usage::Unwritable { flag, problem })
    };
    let output = open(&args.output, "--output")?;
    let trace_file = open(&args.trace, "--trace")?;
    if let (Some(output), Some(trace)) = (&output, &trace_file)
        && output.place() == trace.place()
    {
        return Err(Usage::SamePlace { place: trace.place().to_owned() }.into());
    }
    let extent = if args.no_check { Extent::None } else { Extent::of(&operator) };
    let progress = Progress::new(args.epochs);
    progress.say("planning");
    let mut session = Session::new(world.clone(), options(args));
    let instance = session.operator(operator).map_err(Stop::Refused)?;
    let mut epochs = Epochs { args, given, extent, trace: Trace::default(), summary: Summary::default(), errors: None };
    let mut last = None;
    for epoch in 0..args.epochs {
        last = Some(epochs.run(instance, epoch, &progress).map_err(Stop::Failed)?);
    }
    let (outputs, report) = last.expect("--epochs is at least 1");
    if let Some(file) = output {
        file.finish_tensors(&outputs).map_err(Stop::Failed)?;
    }
    if let Some(file) = trace_file {
        file.finish(&epochs.trace.to_json()).map_err(Stop::Failed)?;
    }
    let validated = instance.programs().scope().name();
    let Epochs { summary, errors, .. } = epochs;
    let is_virtual = matches!(args.schedule, ScheduleName::Seeded);
    Ok(Outcome { world, extent, errors, summary, last: report, validated, is_virtual })
}

/// What lasts from one epoch to the next.
struct Epochs<'a> {
    args: &'a RunArgs,
    given: Option<&'a Tensors>,
    extent: Extent,
    trace: Trace,
    summary: Summary,
    errors: Option<Errors>,
}

impl Epochs<'_> {
    /// One epoch: inputs, launch, check.
    fn run<O>(
        &mut self,
        instance: &mut Instance<O>,
        epoch: u64,
        progress: &Progress,
    ) -> Result<(Tensors, Report), Error>
    where
        O: Reference + PartialEq + Clone + 'static,
    {
        let made;
        let tensors = match self.given {
            Some(tensors) => tensors,
            None => {
                made = inputs(instance.operator(), Fill::Real, self.args.seed, epoch);
                &made
            }
        };
        progress.say("running");
        let (outputs, report) = instance.run(tensors)?;
        check_bytes(&report)?;
        self.trace.add(instance.programs().programs(), &report.trace, report.time_us);
        self.summary.add(&report);
        if self.extent != Extent::None {
            progress.say("checking");
            let tiles = if self.extent == Extent::Sampled { instance.tiles() } else { Vec::new() };
            let seed = self.args.seed.wrapping_add(epoch);
            let found = check::check(instance.operator(), tensors, &outputs, self.extent, &tiles, seed)?;
            self.errors = Some(self.errors.map_or(found, |e| e.worst(&found)));
        }
        progress.step();
        Ok((outputs, report))
    }
}

/// Bytes over the NIC must be those of the law.
fn check_bytes(report: &Report) -> Result<(), Failure> {
    for (rank, (&found, &wanted)) in (0..).zip(report.inter_out.iter().zip(&report.inter_law)) {
        if found != wanted {
            return Err(Failure::Bytes { rank, found, wanted });
        }
    }
    Ok(())
}

fn report(args: &RunArgs, subject: &print::Subject, outcome: &Outcome) -> String {
    if !args.problem.json {
        return print::run(subject, args.epochs, outcome);
    }
    let role = |r: &mkernel::report::RoleReport| {
        (r.role.name(), json::RoleJson { ctas: r.ctas, tasks: r.tasks, busy_us: r.busy_us, wait_us: r.wait_us })
    };
    json::line(&json::RunJson {
        op: subject.op,
        world: (&outcome.world).into(),
        dtype: subject.dtype,
        epochs: args.epochs,
        validated: outcome.validated,
        checked: outcome.errors.is_some(),
        check: outcome.extent.name(),
        max_abs_err: outcome.errors.map(|e| e.max_abs),
        max_rel_err: outcome.errors.map(|e| e.max_rel),
        time_us: outcome.summary.time_us(),
        bytes: json::BytesJson {
            intra_out: outcome.last.intra_out.clone(),
            inter_out: outcome.last.inter_out.clone(),
            inter_law: outcome.last.inter_law.clone(),
        },
        roles: outcome.summary.roles().iter().map(role).collect(),
    })
}

/// A progress line on stderr while it is a terminal; nothing otherwise.
struct Progress(ProgressBar);

impl Progress {
    fn new(epochs: u64) -> Progress {
        let bar = ProgressBar::new(epochs);
        if let Ok(style) = ProgressStyle::with_template("{spinner} epoch {pos}/{len} {msg} [{elapsed}]") {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Progress(bar)
    }

    fn say(&self, what: &'static str) {
        self.0.set_message(what);
    }

    fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
