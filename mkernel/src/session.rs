//! A session: one world, its options, and the operator instances made in it.
//!
//! Instances are made in the same order on every rank; [`Instance::sequence`] numbers them. Another shape is another
//! instance; the session keeps each until it is told to [`Session::retire`] it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use mkernel_core::{Executor, Rank, Verified, World};
use mkernel_kernels::{Operator, Profile, RoleCtas};

use crate::bootstrap::Fields;
use crate::config::Config;
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::gpu::Gpu;
use crate::host::{self, Holds};
use crate::instance::Instance;
use crate::job::Job;
use crate::planning::{Planning, WORLD_RANKS};
use crate::signals::Signals;

/// In which order the CTAs of the host executor run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One thread per CTA, as the operating system likes.
    #[default]
    Threads,
    /// One thread, which picks the next step from a seed: the same seed is the same run.
    Seeded(u64),
}

/// How ranks of different nodes are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verbs {
    /// Names of the NICs to use, one for each rail; with none, the one that is best for the rank.
    pub nics: Vec<String>,
    /// Queue pairs to each peer on each rail.
    pub queues: u32,
    /// How the signal of a put follows its bytes.
    pub signals: Signalling,
}

impl Default for Verbs {
    /// The best NIC, two queue pairs, signals as writes.
    fn default() -> Verbs {
        Verbs { nics: Vec::new(), queues: 2, signals: Signalling::Write }
    }
}

/// How the signal of a put follows its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Signalling {
    /// As a write after them.
    #[default]
    Write,
    /// With each of their messages; the receiving side counts.
    Immediate,
}

/// How ranks of one node reach each other's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Path {
    /// It is mapped: CTAs load and store there themselves.
    #[default]
    Direct,
    /// By puts through the proxy, as between nodes: every rank is planned as a node of its own.
    Proxied,
}

impl Path {
    /// The world as it is planned for.
    pub fn plans(self, world: World) -> World {
        match self {
            Path::Direct => world,
            Path::Proxied => World::uniform(world.size(), 1).expect("a world of as many ranks is there already"),
        }
    }
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
    /// How ranks of one node reach each other.
    pub path: Path,
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
            path: Path::Direct,
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
    place: Place,
}

/// Where the ranks of a session run.
enum Place {
    /// All in this process, on the host.
    Host,
    /// This process is one of them.
    Job(Box<Job>),
    /// All on a GPU.
    #[cfg(feature = "cuda")]
    Gpu(Gpu),
}

impl Session {
    /// A session of all ranks of `world` in this process.
    pub fn new(world: World, options: Options) -> Session {
        Session::at(world, options, Place::Host)
    }

    /// A session of all ranks of `world` on one GPU.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(world: World, options: Options, gpu: &Gpu) -> Session {
        Session::at(world, options, Place::Gpu(gpu.clone()))
    }

    fn at(world: World, options: Options, place: Place) -> Session {
        let world = options.path.plans(world);
        Session { world, options, instances: Vec::new(), next_sequence: 0, place }
    }

    fn job(&self) -> Option<&Job> {
        match &self.place {
            Place::Job(job) => Some(job),
            _ => None,
        }
    }

    /// A session of one rank, this process, of a job whose ranks are processes of one host. It returns when all ranks have
    /// arrived. Instances are made and launched in the same order on every rank.
    ///
    /// A process that drops its session without [`Session::leave`] is lost to the others.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] if the ranks do not meet, [`Error::Job`] if one of them fails meanwhile.
    pub fn join(config: &Config, options: Options) -> Result<Session, Error> {
        Session::meet_ranks(config, options, None)
    }

    /// As [`Session::join`], of a job whose ranks may be on several hosts: those of a node share memory, and nodes are joined
    /// by RDMA.
    ///
    /// # Errors
    /// As [`Session::join`], and `Error::Rdma` if no NIC can be used.
    #[cfg(feature = "rdma")]
    pub fn join_over(config: &Config, options: Options, verbs: &Verbs) -> Result<Session, Error> {
        Session::meet_ranks(config, options, Some(verbs))
    }

    fn meet_ranks(config: &Config, options: Options, verbs: Option<&Verbs>) -> Result<Session, Error> {
        let job = Job::join(config, options.deadline, verbs)?;
        let world = job.world().clone();
        Ok(Session::at(world, options, Place::Job(Box::new(job))))
    }

    /// Heeds signals for the length of the job: asked by SIGUSR1, `say` gets what every CTA waits for and since when, and
    /// nothing stops; told to end by SIGTERM, all ranks hear of it. SIGTERM has its usual effect again once the session is left or `signals` is
    /// dropped. Without a job nothing changes.
    pub fn heed(&self, signals: &Signals, say: impl Fn(&str) + Send + 'static) {
        if let Some(job) = self.job() {
            job.heed(signals.flags(), Box::new(say));
        }
    }

    /// The rank that this process hosts, if it does not host all.
    pub fn rank(&self) -> Option<Rank> {
        self.job().map(Job::rank)
    }

    /// Checks that all ranks of the job have the same fields; all of them call it.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] names the field and the ranks on each side.
    pub fn agree(&self, fields: &Fields) -> Result<(), Error> {
        self.job().map_or(Ok(()), |job| job.agree(fields))
    }

    /// Waits until all ranks of the job have called it.
    ///
    /// # Errors
    /// [`Error::Fault`] if a rank has stopped; ask [`Session::fail`] what the job's first fault is.
    pub fn meet(&self) -> Result<(), Error> {
        self.job().map_or(Ok(()), Job::meet)
    }

    /// Ends the job with an error that ended this rank's part. All ranks report the same one, the first: it is the answer.
    pub fn fail(&mut self, error: Error) -> Error {
        match std::mem::replace(&mut self.place, Place::Host) {
            Place::Job(job) => job.fail(error),
            _ => error,
        }
    }

    /// Leaves the job: returns when all ranks do. Without a job it only drops the session.
    ///
    /// # Errors
    /// [`Error::Job`] if a rank fails before it leaves.
    pub fn leave(self) -> Result<(), Error> {
        drop(self.instances);
        match self.place {
            Place::Job(job) => job.leave(),
            _ => Ok(()),
        }
    }

    /// The world that is planned for.
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
        let sequence = self.next_sequence;
        let executor = self.executor(Arc::clone(&verified), sequence)?;
        self.next_sequence += 1;
        tracing::debug!(operator = operator.name(), sequence, "instance made");
        Ok(Instance::new(operator, sequence, verified, executor, self.rank()))
    }

    fn executor(&self, verified: Arc<Verified>, sequence: u64) -> Result<Box<dyn Executor>, Error> {
        match &self.place {
            Place::Job(job) => job.executor(verified, &self.options, sequence),
            Place::Host => host::executor(verified, &self.options),
            #[cfg(feature = "cuda")]
            Place::Gpu(gpu) => Ok(Box::new(gpu.executor(verified, &self.options, |_, engine| engine)?)),
        }
    }

    /// Plans and proves every rank's program.
    fn plan(&self, operator: &dyn Operator) -> Result<Verified, Error> {
        if self.world.size() > WORLD_RANKS {
            return Err(Error::TooManyRanks { ranks: self.world.size(), max: WORLD_RANKS });
        }
        let Options { profile, roles, .. } = &self.options;
        let holds = match &self.place {
            Place::Host => Holds::Everything,
            Place::Job(_) => Holds::EverythingPerProcess,
            #[cfg(feature = "cuda")]
            Place::Gpu(_) => Holds::Tensors,
        };
        let planning = Planning { operator, world: &self.world, profile, roles };
        planning.world(|first| host::check_memory(operator, first, holds))
    }
}
