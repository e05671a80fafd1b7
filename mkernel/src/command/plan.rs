//! `mkernel plan`.

use std::time::Instant;

use mkernel::{Profile, World, outline};

use super::args::{OpName, PlanArgs, ProfileName};
use super::usage::Stop;
use super::{json, print, problem};

/// What was planned.
pub(crate) struct Head<'a> {
    pub(crate) op: &'a str,
    pub(crate) world: &'a World,
    pub(crate) dtype: &'a str,
    pub(crate) shape: &'a str,
    pub(crate) profile: &'a str,
    pub(crate) plan_us: f64,
}

/// Plans, proves and reports.
pub(crate) fn plan(args: &PlanArgs) -> Result<String, Stop> {
    let world = problem::world(&args.problem)?;
    let profile = match args.profile {
        ProfileName::H200 => Profile::H200,
        ProfileName::Host => Profile::HOST,
    };
    let operator = match args.problem.op {
        OpName::AgGemm => problem::ag_gemm(&args.problem)?,
    };
    let start = Instant::now();
    let roles = args.problem.roles.unwrap_or_default();
    let outline = outline(&operator, &world, &profile, &roles).map_err(Stop::Refused)?;
    let head = Head {
        op: mkernel::Operator::name(&operator),
        world: &world,
        dtype: operator.dtype.name(),
        shape: &format!("m {} n {} k {}", operator.m, operator.n, operator.k),
        profile: profile.name,
        plan_us: start.elapsed().as_secs_f64() * 1e6,
    };
    Ok(if args.problem.json { json::plan(&head, &outline) } else { print::plan(&head, &outline) })
}
