//! `mkernel bench`: how long launches take, beside what the hardware allows.

use std::time::Duration;

use mkernel::check::Reference;
use mkernel::report::RoleReport;
use mkernel::{Fill, Options, Report, Session, Tensors, World, inputs};

use super::args::{BenchArgs, TransportName};
use super::usage::{Stop, Usage};
use super::{json, print, problem};

/// What was measured.
pub(crate) struct Measured {
    pub(crate) world: World,
    pub(crate) launches: u64,
    /// Microseconds of each launch, rising.
    pub(crate) times: Vec<f64>,
    /// Work and waits of each role in the median launch.
    pub(crate) roles: Vec<RoleReport>,
    pub(crate) intra_bytes: u64,
    pub(crate) inter_bytes: u64,
    /// Floating-point operations of a launch, and the most that the hardware does in a second.
    pub(crate) flops: f64,
    pub(crate) ceiling: f64,
}

impl Measured {
    /// The median time of a launch, in microseconds.
    pub(crate) fn median_us(&self) -> f64 {
        self.times[self.times.len() / 2]
    }

    /// Operations per second in the median launch.
    pub(crate) fn rate(&self) -> f64 {
        self.flops / self.median_us() * 1e6
    }
}

/// Measures and reports.
pub(crate) fn bench(args: &BenchArgs) -> Result<String, Stop> {
    problem::with_operator(&args.problem, None, Bench { args })
}

struct Bench<'a> {
    args: &'a BenchArgs,
}

impl problem::Action for Bench<'_> {
    type Output = String;

    fn act<O>(self, operator: O, _: Option<Tensors>) -> Result<String, Stop>
    where
        O: Reference + PartialEq + Clone + 'static,
    {
        let subject = print::Subject::of(&operator);
        let (mut session, sms) = session(self.args)?;
        let ceiling = match self.args.ceiling_tflops {
            Some(tflops) => tflops * 1e12,
            None => session.options().profile.sm_flops * sms,
        };
        let given = inputs(&operator, Fill::Real, self.args.seed, 0).map_err(|e| Stop::Refused(e.into()))?;
        let flops = operator.flops();
        let instance = session.operator(operator).map_err(Stop::Refused)?;
        instance.scatter(&given).map_err(Stop::Failed)?;
        for _ in 0..self.args.warm_up {
            instance.launch().map_err(Stop::Failed)?;
        }
        let mut reports: Vec<Report> = Vec::new();
        for _ in 0..self.args.launches {
            reports.push(instance.launch().map_err(Stop::Failed)?);
        }
        reports.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
        let median = &reports[reports.len() / 2];
        let measured = Measured {
            world: session.world().clone(),
            launches: self.args.launches,
            times: reports.iter().map(|r| r.time_us).collect(),
            roles: median.roles.clone(),
            intra_bytes: median.intra_out.iter().sum(),
            inter_bytes: median.inter_out.iter().sum(),
            flops,
            ceiling,
        };
        Ok(if self.args.problem.json { json::bench(&subject, &measured) } else { print::bench(&subject, &measured) })
    }
}

/// The session, and the SMs of all its ranks together.
fn session(args: &BenchArgs) -> Result<(Session, f64), Stop> {
    let world = problem::world(&args.problem)?;
    let roles = args.problem.roles.unwrap_or_default();
    let options = Options { roles, deadline: Duration::from_secs(30), ..Options::default() };
    match args.transport {
        TransportName::Loopback => {
            let sms = f64::from(options.profile.sms) * f64::from(world.size());
            Ok((Session::new(world, options), sms))
        }
        #[cfg(feature = "cuda")]
        TransportName::Cuda => {
            let quick = mkernel::gpu::GpuOptions { poison: false, ..Default::default() };
            let gpu = mkernel::Gpu::open(quick).map_err(Stop::Refused)?;
            let profile = gpu.profile(world.size());
            Ok((Session::on_gpu(world, Options { profile, ..options }, &gpu), f64::from(gpu.sms())))
        }
        TransportName::Shm => Err(Usage::Alone { transport: args.transport }.into()),
        other => Err(Usage::Transport(other).into()),
    }
}
