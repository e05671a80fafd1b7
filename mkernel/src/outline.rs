//! What a plan comes to, without data: counts, memory, bytes and the modelled split, for worlds of any size.
//!
//! Up to [`WORLD_RANKS`] ranks the whole world is planned and proved. Beyond, one rank and the ranks that write to it
//! are: those that it writes to or signals, as every writer gets a credit back. Each peer's program is cut down at once to
//! what it has to do with the rank, so memory follows from one rank's work, and time from its number of peers.

use std::collections::BTreeSet;

use mkernel_core::validate::validate_rank;
use mkernel_core::{Lane, Program, Rank, RoleName, Scope, World};
use mkernel_kernels::split::cost;
use mkernel_kernels::{Operator, Profile, RoleCtas};

use crate::error::Error;
use crate::planning::{Planning, program_bytes};

pub use crate::planning::WORLD_RANKS;

/// The plan of a world as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// How much was proved.
    pub scope: Scope,
    /// The ranks described: all of a world that was proved as a whole, otherwise rank 0.
    pub ranks: Vec<RankOutline>,
    /// The roles of the first rank.
    pub roles: Vec<RoleOutline>,
}

/// The plan of one rank as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct RankOutline {
    /// The rank.
    pub rank: Rank,
    /// Its regions: name and bytes.
    pub regions: Vec<(&'static str, u64)>,
    /// Its cells.
    pub cells: u64,
    /// Its instructions.
    pub instructions: u64,
    /// Its puts.
    pub puts: u64,
    /// Bytes of the program itself.
    pub program_bytes: u64,
    /// Payload bytes per epoch to peers of its node.
    pub intra_out: u64,
    /// Payload bytes per epoch over the NIC, counted from the puts.
    pub inter_out: u64,
    /// The same by the operator's formula.
    pub inter_law: u64,
}

/// A role of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleOutline {
    /// The role.
    pub role: RoleName,
    /// Its CTAs.
    pub ctas: u32,
    /// Its instructions.
    pub tasks: u64,
    /// How long the role is busy by the cost model, in microseconds.
    pub modelled_us: f64,
}

/// Plans and proves `operator` on `world`, as much of it as [`WORLD_RANKS`] says.
///
/// # Errors
/// [`Error::Plan`] for a problem or roles that cannot work, [`Error::Memory`] for a plan that this machine cannot hold.
pub fn outline(operator: &dyn Operator, world: &World, profile: &Profile, roles: &RoleCtas) -> Result<Outline, Error> {
    let planning = Planning { operator, world, profile, roles };
    let (proved, described) = if world.size() <= WORLD_RANKS {
        (planning.world(|_| Ok(()))?, world.size() as usize)
    } else {
        let first = planning.first()?;
        let peers: Vec<Rank> = peers(&first).into_iter().collect();
        let mut programs = planning.all(&peers, |peer| peer.toward(&first))?;
        programs.push(first);
        (validate_rank(programs, Rank(0))?, 1)
    };
    let ranks = proved.programs().iter().take(described).map(rank_outline).collect();
    let roles = role_outlines(&proved.programs()[0], profile);
    Ok(Outline { scope: proved.scope(), ranks, roles })
}

/// The ranks that `program` writes to or signals.
fn peers(program: &Program) -> BTreeSet<Rank> {
    let written = program.spans.iter().map(|s| s.rank);
    let signalled = program.signals.iter().map(|s| s.rank);
    let put = program.puts.iter().map(|p| p.target.rank);
    written.chain(signalled).chain(put).filter(|&r| r != program.rank).collect()
}

fn rank_outline(program: &Program) -> RankOutline {
    let (intra_out, inter_out) = program.bytes_out();
    RankOutline {
        rank: program.rank,
        regions: program.regions.iter().map(|r| (r.name, r.bytes)).collect(),
        cells: program.cells.len() as u64,
        instructions: program.lanes.iter().map(|l| l.instructions.len() as u64).sum(),
        puts: program.puts.len() as u64,
        program_bytes: program_bytes(program),
        intra_out,
        inter_out,
        inter_law: program.law.inter_out,
    }
}

/// The modelled time of each lane by the planner's own cost model.
fn role_outlines(program: &Program, profile: &Profile) -> Vec<RoleOutline> {
    let outline = |lane: &Lane| {
        let seconds: f64 = lane.instructions.iter().map(|i| cost(program, i, lane.role, profile).seconds).sum();
        let tasks = lane.instructions.len() as u64;
        RoleOutline { role: lane.role, ctas: lane.ctas, tasks, modelled_us: seconds / f64::from(lane.ctas) * 1e6 }
    };
    program.lanes.iter().map(outline).collect()
}
