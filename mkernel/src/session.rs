//! A session: one world, its options, and the operator instances made in it.
//!
//! Instances are made in the same order on every rank; [`Instance::sequence`] numbers them. Another shape is another
//! instance; the session keeps each until it is told to [`Session::retire`] it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use mkernel_core::{Rank, Verified, World, validate};
use mkernel_kernels::{Operator, Profile, RoleCtas};

use crate::error::Error;
use crate::host;
use crate::instance::Instance;
use crate::outline::WORLD_RANKS;

/// In which order the CTAs of the host executor run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One thread per CTA, as the operating system likes.
    #[default]
    Threads,
    /// One thread, which picks the next step from a seed: the same seed is the same run.
    Seeded(u64),
}

/// How a session plans and runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// What the planner believes of the hardware.
    pub profile: Profile,
    /// CTAs per role; roles left open follow from the shape.
    pub roles: RoleCtas,
    /// The longest that any wait may last.
    pub deadline: Duration,
    /// How the host executor schedules CTAs.
    pub schedule: Schedule,
    /// Whether reports carry what every CTA did.
    pub is_traced: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            profile: Profile::HOST,
            roles: RoleCtas::default(),
            deadline: Duration::from_secs(30),
            schedule: Schedule::Threads,
            is_traced: false,
        }
    }
}

/// Owns a world and the operator instances made in it.
pub struct Session {
    world: World,
    options: Options,
    /// Each is an `Instance<O>` of some operator type.
    instances: Vec<Box<dyn Any>>,
    next_sequence: u64,
}

impl Session {
    /// A session of all ranks of `world` in this process.
    pub fn new(world: World, options: Options) -> Session {
        Session { world, options, instances: Vec::new(), next_sequence: 0 }
    }

    /// The world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The instance of `operator`: planned, proved and given its memory on first use, kept for later ones.
    ///
    /// # Errors
    /// [`Error::Plan`] for a problem or roles that cannot work, [`Error::Memory`] for one that this machine cannot hold,
    /// [`Error::TooManyRanks`] for a world beyond [`WORLD_RANKS`],
    /// [`Error::NoExecutor`] for a build without one.
    pub fn operator<O: Operator + PartialEq + 'static>(&mut self, operator: O) -> Result<&mut Instance<O>, Error> {
        let index = match self.position(&operator) {
            Some(index) => index,
            None => {
                let instance = self.instantiate(operator)?;
                self.instances.push(Box::new(instance));
                self.instances.len() - 1
            }
        };
        Ok(self.instances[index].downcast_mut().expect("position() finds instances of this type"))
    }

    /// Drops the instance of `operator`, with its memory; says whether there was one.
    pub fn retire<O: Operator + PartialEq + 'static>(&mut self, operator: &O) -> bool {
        let index = self.position(operator);
        if let Some(index) = index {
            self.instances.remove(index);
        }
        index.is_some()
    }

    fn position<O: Operator + PartialEq + 'static>(&self, operator: &O) -> Option<usize> {
        self.instances
            .iter()
            .position(|entry| entry.downcast_ref::<Instance<O>>().is_some_and(|i| i.operator() == operator))
    }

    fn instantiate<O: Operator>(&mut self, operator: O) -> Result<Instance<O>, Error> {
        let verified = Arc::new(self.plan(&operator)?);
        let executor = host::executor(Arc::clone(&verified), &self.options)?;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        tracing::debug!(operator = operator.name(), sequence, "instance made");
        Ok(Instance::new(operator, sequence, verified, executor))
    }

    /// Plans and proves every rank's program.
    fn plan(&self, operator: &dyn Operator) -> Result<Verified, Error> {
        if self.world.size() > WORLD_RANKS {
            return Err(Error::TooManyRanks { ranks: self.world.size(), max: WORLD_RANKS });
        }
        let Options { profile, roles, .. } = &self.options;
        let plan = |rank| operator.plan(&self.world, rank, profile, roles);
        host::check_memory(operator, &plan(Rank(0))?)?;
        let programs = self.world.ranks().map(plan).collect::<Result<_, _>>()?;
        Ok(validate(programs)?)
    }
}
