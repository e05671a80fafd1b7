//! `mkernel run`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use mkernel::bootstrap::Fields;
use mkernel::check::{self, Errors, Extent, Failure, Reference};
use mkernel::config::Config;
use mkernel::file::Pending;
use mkernel::report::Summary;
use mkernel::trace::Trace;
use mkernel::{Error, Fill, Instance, Options, Rank, Report, Schedule, Session, Signals, Tensors, World, inputs};

use mkernel_kernels::TensorKind;

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

/// Runs and reports; the report of a rank other than the first is empty.
///
/// `signals` are taken for a rank of a job, and outlive the report of its error.
pub(crate) fn run(args: &RunArgs, signals: &mut Option<Signals>) -> Result<String, Stop> {
    match args.transport {
        TransportName::Loopback => {}
        TransportName::Shm => check_plain(args)?,
        TransportName::Verbs if cfg!(feature = "rdma") => check_plain(args)?,
        TransportName::Verbs => return Err(Usage::NoRdma { what: "--transport verbs" }.into()),
        TransportName::Cuda if cfg!(feature = "cuda") => check_plain(args)?,
        other => return Err(Usage::Transport(other).into()),
    }
    if args.transport != TransportName::Verbs {
        let given = [
            ("--nic", !args.nic.is_empty()),
            ("--queues", args.queues.is_some()),
            ("--signals", args.signals.is_some()),
        ];
        if let Some((flag, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Usage::NotVerbs { flag }.into());
        }
    }
    if args.transport == TransportName::Verbs && args.path == super::args::PathName::Proxied {
        return Err(Usage::HostOnly { transport: args.transport, flag: "--path proxied" }.into());
    }
    if args.transport == TransportName::Verbs && args.trace.is_some() {
        return Err(Usage::HostOnly { transport: args.transport, flag: "--trace" }.into());
    }
    problem::with_operator(&args.problem, args.input.as_deref(), Run { args, signals })
}

/// Refuses what the transport does not do.
fn check_plain(args: &RunArgs) -> Result<(), Usage> {
    let transport = args.transport;
    match (&args.trace, args.schedule) {
        (Some(_), _) if transport == TransportName::Cuda => Err(Usage::HostOnly { transport, flag: "--trace" }),
        (_, ScheduleName::Seeded) => Err(Usage::HostOnly { transport, flag: "--schedule seeded" }),
        _ => Ok(()),
    }
}

/// Runs an operator and reports.
struct Run<'a> {
    args: &'a RunArgs,
    signals: &'a mut Option<Signals>,
}

impl problem::Action for Run<'_> {
    type Output = String;

    fn act<O>(self, operator: O, tensors: Option<Tensors>) -> Result<String, Stop>
    where
        O: Reference + PartialEq + Clone + 'static,
    {
        for spec in operator.tensors().iter().filter(|s| s.kind != TensorKind::Output) {
            let given = tensors.iter().try_for_each(|t| t.expect(spec).map(drop));
            given.map_err(|problem| Stop::Refused(problem.into()))?;
        }
        let head = print::Subject::of(&operator);
        let session = session(self.args, self.signals)?;
        let is_first = session.rank().is_none_or(|rank| rank == Rank(0));
        let outcome = execute(operator, session, self.args, tensors.as_ref(), is_first)?;
        Ok(if is_first { report(self.args, &head, &outcome) } else { String::new() })
    }
}

/// A session of all ranks, or of the rank that the launcher says this process is.
fn session(args: &RunArgs, signals: &mut Option<Signals>) -> Result<Session, Stop> {
    let options = options(args);
    match args.transport {
        TransportName::Loopback => return Ok(Session::new(problem::world(&args.problem)?, options)),
        #[cfg(feature = "cuda")]
        TransportName::Cuda => return on_gpu(problem::world(&args.problem)?, options),
        _ => {}
    }
    let mut config = Config::from_env().map_err(|error| Stop::Refused(error.into()))?;
    if let Some(deadline) = args.start_deadline_ms {
        config.setup.start_deadline = Duration::from_millis(deadline);
    }
    let asked = match (args.problem.nodes, &args.problem.gpus) {
        (None, None) => None,
        _ => Some(problem::world(&args.problem)?),
    };
    // Before anything may hang; the first one to ask may come at any time.
    let signals = signals.insert(Signals::take().map_err(|error| Stop::Failed(Error::Signals(error)))?);
    let session = join(&config, options, args).map_err(Stop::Failed)?;
    session.heed(signals, super::tell);
    let asked = asked.map(|asked| options.path.plans(asked));
    match asked.filter(|asked| asked != session.world()) {
        // Every rank is told the same, or the ranks differ in their flags and those that do not see this hear that one is lost.
        Some(asked) => Err(Usage::Launched { asked, found: session.world().clone() }.into()),
        None => Ok(session),
    }
}

#[cfg(feature = "rdma")]
fn join(config: &Config, options: Options, args: &RunArgs) -> Result<Session, Error> {
    use super::args::SignalsName;
    use mkernel::{Signalling, Verbs};
    if args.transport != TransportName::Verbs {
        return Session::join(config, options);
    }
    let mut verbs = Verbs { nics: args.nic.clone(), ..Verbs::default() };
    verbs.queues = args.queues.unwrap_or(verbs.queues);
    verbs.signals = match args.signals {
        None | Some(SignalsName::Write) => Signalling::Write,
        Some(SignalsName::Immediate) => Signalling::Immediate,
    };
    Session::join_over(config, options, &verbs)
}

#[cfg(not(feature = "rdma"))]
fn join(config: &Config, options: Options, _: &RunArgs) -> Result<Session, Error> {
    Session::join(config, options)
}

/// A session of all ranks on the first GPU.
#[cfg(feature = "cuda")]
fn on_gpu(world: World, options: Options) -> Result<Session, Stop> {
    let gpu = mkernel::Gpu::open(mkernel::gpu::GpuOptions::default()).map_err(Stop::Refused)?;
    let options = Options { profile: gpu.profile(world.size()), ..options };
    Ok(Session::on_gpu(world, options, &gpu))
}

/// What all ranks must have been asked for.
fn asked<O: Reference>(operator: &O, args: &RunArgs, given: Option<&Tensors>) -> Fields {
    let mut fields = Fields::default();
    let shape = |spec: &mkernel_kernels::TensorSpec| format!("{}{:?} {}", spec.name, spec.shape, spec.dtype);
    let tensors: Vec<String> = operator.tensors().iter().map(shape).collect();
    fields.add("operator", operator.name());
    fields.add("tensors", tensors.join(", "));
    fields.add("--path", format!("{:?}", args.path));
    fields.add("--seed", args.seed.to_string());
    fields.add("--epochs", args.epochs.to_string());
    fields.add("--input", given.map_or_else(|| "none".to_owned(), Tensors::fingerprint));
    fields
}

fn options(args: &RunArgs) -> Options {
    Options {
        roles: args.problem.roles.unwrap_or_default(),
        deadline: Duration::from_millis(args.deadline_ms),
        schedule: match args.schedule {
            ScheduleName::Threads => Schedule::Threads,
            ScheduleName::Seeded => Schedule::Seeded(args.seed),
        },
        path: args.path.into(),
        is_traced: args.trace.is_some(),
        ..Options::default()
    }
}

/// Runs every epoch, and writes the files once all have held. In a job every error is told to all ranks.
fn execute<O>(
    operator: O,
    mut session: Session,
    args: &RunArgs,
    given: Option<&Tensors>,
    is_first: bool,
) -> Result<Outcome, Stop>
where
    O: Reference + PartialEq + Clone + 'static,
{
    let files = if is_first { Files::open(args) } else { Ok(Files::default()) };
    let files = files.map_err(|(flag, problem)| Usage::Unwritable { flag, problem: session.fail(problem) })?;
    if let Some(place) = files.same_place() {
        return Err(Usage::SamePlace { place: place.to_owned() }.into());
    }
    let done = attempt(operator, &mut session, args, given, is_first).and_then(|(outcome, outputs, trace)| {
        files.finish(&outputs, &trace).map_err(Stop::Failed)?;
        Ok(outcome)
    });
    match done {
        Ok(outcome) => session.leave().map(|()| outcome).map_err(Stop::Failed),
        Err(Stop::Refused(error)) => Err(Stop::Refused(session.fail(error))),
        Err(Stop::Failed(error)) => Err(Stop::Failed(session.fail(error))),
        Err(other) => Err(other),
    }
}

/// Runs every epoch; returns once all ranks have held and the first has checked.
fn attempt<O>(
    operator: O,
    session: &mut Session,
    args: &RunArgs,
    given: Option<&Tensors>,
    is_first: bool,
) -> Result<(Outcome, Tensors, Trace), Stop>
where
    O: Reference + PartialEq + Clone + 'static,
{
    let extent = if args.no_check || !is_first { Extent::None } else { Extent::of(&operator) };
    let progress = Progress::new(if is_first { ProgressBar::new(args.epochs) } else { ProgressBar::hidden() });
    progress.say("planning");
    session.agree(&asked(&operator, args, given)).map_err(Stop::Failed)?;
    let instance = session.operator(operator).map_err(Stop::Refused)?;
    let mut epochs =
        Epochs { args, given, is_first, extent, trace: Trace::default(), summary: Summary::default(), errors: None };
    let mut last = None;
    for epoch in 0..args.epochs {
        last = Some(epochs.run(instance, epoch, &progress).map_err(Stop::Failed)?);
    }
    let (outputs, last) = last.expect("--epochs is at least 1");
    let validated = instance.programs().scope().name();
    session.meet().map_err(Stop::Failed)?;
    let Epochs { summary, errors, trace, .. } = epochs;
    let is_virtual = matches!(args.schedule, ScheduleName::Seeded);
    let outcome = Outcome { world: session.world().clone(), extent, errors, summary, last, validated, is_virtual };
    Ok((outcome, outputs, trace))
}

/// The files to write, opened before any work is done.
#[derive(Default)]
struct Files {
    output: Option<Pending>,
    trace: Option<Pending>,
}

impl Files {
    fn open(args: &RunArgs) -> Result<Files, (&'static str, Error)> {
        let open = |path: &Option<PathBuf>, flag| {
            path.as_ref().map(|path| Pending::create(path)).transpose().map_err(|problem| (flag, problem))
        };
        Ok(Files { output: open(&args.output, "--output")?, trace: open(&args.trace, "--trace")? })
    }

    /// The place that both files name, if they do.
    fn same_place(&self) -> Option<&Path> {
        let (output, trace) = (self.output.as_ref()?.place(), self.trace.as_ref()?.place());
        (output == trace).then_some(output)
    }

    fn finish(self, outputs: &Tensors, trace: &Trace) -> Result<(), Error> {
        if let Some(file) = self.output {
            file.finish_tensors(outputs)?;
        }
        self.trace.map_or(Ok(()), |file| file.finish(&trace.to_json()))
    }
}

/// What lasts from one epoch to the next.
struct Epochs<'a> {
    args: &'a RunArgs,
    given: Option<&'a Tensors>,
    is_first: bool,
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
                made = inputs(instance.operator(), Fill::Real, self.args.seed, epoch)?;
                &made
            }
        };
        progress.say("running");
        instance.scatter(tensors)?;
        let report = instance.launch()?;
        let outputs = if self.is_first { instance.gather()? } else { Tensors::new() };
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
    fn new(bar: ProgressBar) -> Progress {
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
