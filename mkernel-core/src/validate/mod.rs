//! Decides whether programs are sound, and makes the only thing that executors accept.
//!
//! What is decided, exactly, for the programs given:
//! - **structure**: every index exists, every span lies in its region, shapes fit, ranks are reached only where they
//!   can be; a cell has one source rank, a put's cell has that put alone; contributions add up to the plan.
//! - **progress**: a run with one CTA per lane ends. Counters only rise and waits never depend on data, so that run
//!   decides for every number of CTAs: take the first instruction, in its completion order, that some other run never
//!   completes; its waits hold there too, and what its CTA and its lane claimed before it is complete, so it runs.
//! - **memory**: within an epoch every byte has one writer, is written before it is read, and is read before it is
//!   released; every access of an epoch comes before the next epoch's writes of the same bytes. Order is signals and
//!   launch boundaries only. Three epochs are run, the first with its initial credits; order between any two epochs follows
//!   from that between the first ones, since edges repeat.
//! - **cells**: a contribution for the next epoch comes after every wait and every put of this one, so a full count means
//!   what it says and no cell ever falls.
//! - **forms**: what is read as an index, as a count or as the rows of a tile is written there in that form, so numbers in
//!   memory stay within their planned bounds; a wait that data may pick orders the part for which it stands.
//! - **bytes**: what crosses the NIC is what the operator's formula says.
//!
//! It never calls a planner and looks at no tensor: programs written by hand are judged alike.
//!
//! For one rank only ([`Scope::Rank`]), contributions of absent ranks are taken as declared, and memory is checked on that
//! rank, whose cells must all be accounted for. The others may be cut down to what concerns it ([`Program::toward`]).

mod cells;
mod claims;
mod forms;
mod graph;
mod memory;
mod picks;
mod progress;
mod reuse;
mod routed;
mod search;
mod structure;
mod violation;

pub use violation::{At, LaneFault, Malformed, Party, Violation};

use crate::program::Program;
use crate::world::{Rank, World};

/// Epochs that the abstract run unrolls.
pub const EPOCHS: u32 = 3;

/// How much of the world was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every rank's program was there.
    World,
    /// Only some ranks' programs were there; what absent ranks contribute is taken as declared.
    Rank,
}

impl Scope {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Scope::World => "world",
            Scope::Rank => "rank",
        }
    }
}

/// Programs that passed [`fn@validate`]; nothing else makes one.
///
/// ```compile_fail
/// // There is no other way in.
/// let verified = mkernel_core::Verified { programs: Vec::new(), scope: mkernel_core::Scope::World };
/// ```
#[derive(Clone, Debug)]
pub struct Verified {
    programs: Vec<Program>,
    scope: Scope,
}

impl Verified {
    /// The world of the programs.
    pub fn world(&self) -> &World {
        &self.programs[0].world
    }

    /// The programs, by rank.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The program of `rank`, if it is among these.
    pub fn program(&self, rank: Rank) -> Option<&Program> {
        find(&self.programs, rank).map(|i| &self.programs[i])
    }

    /// How much of the world was proved.
    pub fn scope(&self) -> Scope {
        self.scope
    }
}

/// The index of the program of `rank` among `programs`, which are sorted by rank.
fn find(programs: &[Program], rank: Rank) -> Option<usize> {
    programs.binary_search_by_key(&rank, |p| p.rank).ok()
}

/// Proves the programs of a whole world, one per rank.
///
/// # Errors
/// The first [`Violation`] found; [`Violation::Incomplete`] if a rank is missing.
pub fn validate(programs: Vec<Program>) -> Result<Verified, Violation> {
    prove(programs, None)
}

/// Proves the program of `rank`, given together with those of all ranks that raise its cells. What else those ranks wait
/// for from absent ones is taken as declared. For worlds too large to prove as a whole.
///
/// # Errors
/// The first [`Violation`] found; [`Violation::NotClosed`] if a program that raises a cell of `rank` is missing.
pub fn validate_rank(programs: Vec<Program>, rank: Rank) -> Result<Verified, Violation> {
    prove(programs, Some(rank))
}

fn prove(mut programs: Vec<Program>, rank: Option<Rank>) -> Result<Verified, Violation> {
    programs.sort_by_key(|p| p.rank);
    structure::check_world(&programs)?;
    let size = programs[0].world.size();
    if rank.is_none() && programs.len() < size as usize {
        return Err(Violation::Incomplete { given: programs.len(), size });
    }
    for program in &programs {
        structure::check_program(program)?;
    }
    structure::check_bounds(&programs)?;
    let only = match rank {
        Some(rank) => Some(find(&programs, rank).ok_or(Violation::NotClosed(rank))?),
        None => None,
    };
    structure::check_law(&programs, only)?;
    let contributions = cells::Contributions::collect(&programs, only)?;
    if let Some(only) = only.filter(|&p| !contributions.is_closed(p as u32)) {
        return Err(Violation::NotClosed(programs[only].rank));
    }
    progress::check(&programs, &contributions)?;
    let graph = graph::Graph::new(&programs, &contributions, only)?;
    memory::check(&graph)?;
    forms::check(&programs, only)?;
    Ok(Verified { programs, scope: if rank.is_none() { Scope::World } else { Scope::Rank } })
}
