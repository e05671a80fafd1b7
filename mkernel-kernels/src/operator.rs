//! What every operator planner answers.

use mkernel_core::{DType, Program, ProgramBuilder, Rank, RoleName, World};

use crate::profile::Profile;
use crate::split::RoleCtas;

/// Whether the host writes or reads a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// Written by the host before each launch.
    Input,
    /// Written by the host before each launch: integers below the limit, or -1 for none.
    Ids {
        /// One past the largest.
        limit: u64,
    },
    /// Read by the host after each launch.
    Output,
}

/// A global (unsharded) tensor of an operator, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in files and in [`mkernel_core::Placement::tensor`].
    pub name: &'static str,
    /// Its shape. As a matrix it has the last axis as columns and the others, flattened, as rows.
    pub shape: Vec<u64>,
    /// Its element type.
    pub dtype: DType,
    /// Input or output.
    pub kind: TensorKind,
}

impl TensorSpec {
    /// Rows and columns of the tensor taken as a matrix.
    pub fn matrix(&self) -> (u64, u64) {
        match self.shape.split_last() {
            Some((&columns, rows)) => (rows.iter().product(), columns),
            None => (1, 1),
        }
    }
}

/// A problem that cannot be planned; the message names what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An axis is zero or too large.
    #[error("{axis} is {value}; it must be between 1 and {max}")]
    Axis {
        /// The flag of the axis, such as `--m`.
        axis: &'static str,
        /// The value given.
        value: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// The element type is not supported by the operator.
    #[error("{operator} does not take {dtype}; use bf16, f16 or f32")]
    DType {
        /// The operator.
        operator: &'static str,
        /// The element type given.
        dtype: DType,
    },
    /// The head dimension is not supported.
    #[error("--dim is {dim}; it must be a multiple of 8 from 16 to 256")]
    HeadDim {
        /// The dimension given.
        dim: u64,
    },
    /// Query heads cannot be shared out between key heads.
    #[error("--heads {heads} is not a multiple of --kv-heads {kv_heads}")]
    KvHeads {
        /// Heads of Q.
        heads: u64,
        /// Heads of K and V.
        kv_heads: u64,
    },
    /// The plan of one rank would not fit in memory.
    #[error(
        "the plan of one rank would have {instructions} instructions, more than {max}; use a smaller shape or more ranks"
    )]
    TooLarge {
        /// Instructions that the plan would have.
        instructions: u64,
        /// The most that is planned.
        max: u64,
    },
    /// A role was given no CTA though it has work.
    #[error("--roles gives {role} no CTA, but it has instructions to run; give it at least 1")]
    Starved {
        /// The role.
        role: RoleName,
    },
    /// A role was given CTAs that the operator does not have.
    #[error("--roles names {role}, but the roles of {operator} are {}; leave {role} out", names(has))]
    NoRole {
        /// The operator.
        operator: &'static str,
        /// The role given.
        role: RoleName,
        /// The roles that it has.
        has: &'static [RoleName],
    },
    /// More CTAs than the hardware has SMs.
    #[error("--roles asks for {asked} CTAs, but a rank has {sms} SMs")]
    TooManyCtas {
        /// The sum asked for.
        asked: u32,
        /// What the profile says a rank has.
        sms: u32,
    },
}

fn names(roles: &[RoleName]) -> String {
    roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", ")
}

/// An operator with its shape: plans programs and names its tensors.
pub trait Operator: Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// Its tensors, inputs first.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Floating-point operations of the whole world, 2 per multiply-add.
    fn flops(&self) -> f64;

    /// The roles that it has in a world with a use for them.
    fn roles(&self) -> &'static [RoleName];

    /// The bytes that each rank must send over the NIC in one epoch for these values of its [`TensorKind::Ids`] input; `None`
    /// for an operator without one, whose plan says it.
    fn routed_law(&self, _world: &World, _ids: &[i32]) -> Option<Vec<u64>> {
        None
    }

    /// Plans the program of one rank. `ctas` overrides the split of SMs between roles that follows from the shape.
    ///
    /// # Errors
    /// [`PlanError`] for a problem or a split that cannot work.
    fn plan(&self, world: &World, rank: Rank, profile: &Profile, ctas: &RoleCtas) -> Result<Program, PlanError>;
}

/// The largest axis of any tensor: two axes and an element size stay inside 64 bits.
pub(crate) const MAX_AXIS: u64 = 1 << 30;

/// The most instructions planned for one rank; beyond it the planner's memory is the problem, not the GPU's.
const MAX_INSTRUCTIONS: u64 = 1 << 24;

pub(crate) fn check_axis(axis: &'static str, value: u64) -> Result<(), PlanError> {
    if value == 0 || value > MAX_AXIS {
        return Err(PlanError::Axis { axis, value, max: MAX_AXIS });
    }
    Ok(())
}

pub(crate) fn check_float(operator: &'static str, dtype: DType) -> Result<(), PlanError> {
    match dtype {
        DType::Bf16 | DType::F16 | DType::F32 => Ok(()),
        DType::I32 => Err(PlanError::DType { operator, dtype }),
    }
}

pub(crate) fn check_instructions(count: u64) -> Result<(), PlanError> {
    if count > MAX_INSTRUCTIONS {
        return Err(PlanError::TooLarge { instructions: count, max: MAX_INSTRUCTIONS });
    }
    Ok(())
}

/// The CTAs of a role in a finished split; zero for a role that the split does not know.
pub(crate) fn ctas_of(ctas: &RoleCtas, role: RoleName) -> u32 {
    ctas.get(role).unwrap_or(0)
}

/// Finishes a program, refusing lanes that have work but no CTA.
pub(crate) fn finish(builder: ProgramBuilder) -> Result<Program, PlanError> {
    let program = builder.finish();
    match program.lanes.iter().find(|lane| lane.ctas == 0) {
        Some(lane) => Err(PlanError::Starved { role: lane.role }),
        None => Ok(program),
    }
}
