//! `mkernel plan`.

use std::time::Instant;

use mkernel::check::Reference;
use mkernel::{Profile, Tensors, World, outline};

use super::args::{PlanArgs, ProfileName};
use super::print::Subject;
use super::usage::Stop;
use super::{json, print, problem};

/// What was planned.
pub(crate) struct Head<'a> {
    pub(crate) subject: Subject,
    pub(crate) world: &'a World,
    pub(crate) profile: &'a str,
    pub(crate) plan_us: f64,
}

/// Plans, proves and reports.
pub(crate) fn plan(args: &PlanArgs) -> Result<String, Stop> {
    let world = problem::world(&args.problem)?;
    problem::with_operator(&args.problem, None, Plan { args, world })
}

/// Plans an operator and reports.
struct Plan<'a> {
    args: &'a PlanArgs,
    world: World,
}

impl problem::Action for Plan<'_> {
    type Output = String;

    fn act<O>(self, operator: O, _: Option<Tensors>) -> Result<String, Stop>
    where
        O: Reference + PartialEq + Clone + 'static,
    {
        let profile = match self.args.profile {
            ProfileName::H200 => Profile::H200,
            ProfileName::Host => Profile::HOST,
        };
        let start = Instant::now();
        let roles = self.args.problem.roles.unwrap_or_default();
        let outline = outline(&operator, &self.world, &profile, &roles).map_err(Stop::Refused)?;
        let plan_us = start.elapsed().as_secs_f64() * 1e6;
        let head = Head { subject: Subject::of(&operator), world: &self.world, profile: profile.name, plan_us };
        Ok(if self.args.problem.json { json::plan(&head, &outline) } else { print::plan(&head, &outline) })
    }
}
