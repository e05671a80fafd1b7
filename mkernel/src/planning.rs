//! Plans programs on all cores, and proves those of a whole world if this machine can hold them.

use mkernel_core::{Program, Rank, RoleName, Verified, World, validate};
use mkernel_kernels::{Operator, PlanError, Profile, RoleCtas};

use crate::error::Error;
use crate::host;

/// The largest world that is proved as a whole.
pub const WORLD_RANKS: u32 = 64;

/// What is planned.
pub(crate) struct Planning<'a> {
    pub(crate) operator: &'a dyn Operator,
    pub(crate) world: &'a World,
    pub(crate) profile: &'a Profile,
    pub(crate) roles: &'a RoleCtas,
}

impl Planning<'_> {
    /// The program of rank 0, whose shares are the largest.
    pub(crate) fn first(&self) -> Result<Program, PlanError> {
        check_roles(self.operator, self.roles)?;
        self.plan(Rank(0))
    }

    /// Plans and proves the programs of all ranks; there are at most [`WORLD_RANKS`]. `check` looks at that of rank 0 before
    /// the others are made.
    pub(crate) fn world(&self, check: impl FnOnce(&Program) -> Result<(), Error>) -> Result<Verified, Error> {
        let first = self.first()?;
        check(&first)?;
        host::check_plan(program_bytes(&first), u64::from(self.world.size()))?;
        let others: Vec<Rank> = self.world.ranks().skip(1).collect();
        let mut programs = self.all(&others, |program| program)?;
        programs.push(first);
        Ok(validate(programs)?)
    }

    /// Plans many ranks on all cores; `keep` says what to keep of each program.
    pub(crate) fn all(
        &self,
        ranks: &[Rank],
        keep: impl Fn(Program) -> Program + Sync,
    ) -> Result<Vec<Program>, PlanError> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let part = &|ranks: &[Rank]| ranks.iter().map(|&rank| Ok(keep(self.plan(rank)?))).collect();
        let parts: Vec<Result<Vec<Program>, PlanError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .chunks(ranks.len().div_ceil(cores).max(1))
                .map(|ranks| scope.spawn(move || part(ranks)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        Ok(parts.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    fn plan(&self, rank: Rank) -> Result<Program, PlanError> {
        self.operator.plan(self.world, rank, self.profile, self.roles)
    }
}

/// Refuses CTAs for a role that the operator does not have in any world.
pub(crate) fn check_roles(operator: &dyn Operator, given: &RoleCtas) -> Result<(), PlanError> {
    let has = operator.roles();
    match RoleName::ALL.into_iter().find(|role| given.get(*role).is_some() && !has.contains(role)) {
        Some(role) => Err(PlanError::NoRole { operator: operator.name(), role, has }),
        None => Ok(()),
    }
}

/// Bytes of the lists of a program.
pub(crate) fn program_bytes(program: &Program) -> u64 {
    fn of<T>(list: &[T]) -> u64 {
        std::mem::size_of_val(list) as u64
    }
    let lanes: u64 = program.lanes.iter().map(|l| of(&l.instructions)).sum();
    let pools = of(&program.segments) + of(&program.waits) + of(&program.spans) + of(&program.signals);
    lanes + pools + of(&program.puts) + of(&program.cells) + of(&program.regions)
}
