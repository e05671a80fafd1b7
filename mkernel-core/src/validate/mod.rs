//! Decides whether programs are sound, and makes the only thing that executors accept.

use crate::program::Program;
use crate::world::{Rank, World};

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
        self.programs.binary_search_by_key(&rank, |p| p.rank).ok().map(|i| &self.programs[i])
    }

    /// How much of the world was proved.
    pub fn scope(&self) -> Scope {
        self.scope
    }
}

/// Why programs are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// No program was given.
    #[error("no program to validate")]
    Nothing,
}

/// Proves `programs`, at most one per rank of one world.
///
/// # Errors
/// The first [`Violation`] found.
pub fn validate(mut programs: Vec<Program>) -> Result<Verified, Violation> {
    programs.sort_by_key(|p| p.rank);
    let Some(first) = programs.first() else { return Err(Violation::Nothing) };
    let scope = if programs.len() == first.world.size() as usize { Scope::World } else { Scope::Rank };
    Ok(Verified { programs, scope })
}
