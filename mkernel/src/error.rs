//! The one error of the facade: a variant per action that a caller may take.

use std::fmt;
use std::path::PathBuf;

use mkernel_core::executor::NotResident;
use mkernel_core::{Fault, Violation};
use mkernel_kernels::PlanError;
use safetensors::SafeTensorError;

use crate::bootstrap::{self, JobFault};
use crate::check::Failure;
use crate::config::ConfigError;
use crate::tensor::TensorError;

/// Why something did not work, sorted by what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Change the problem, the world or the roles.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Ask for fewer CTAs.
    #[error(transparent)]
    Split(#[from] NotResident),
    /// Pass another tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Use a smaller problem or a larger machine.
    #[error("the world needs {needed} bytes of host memory, more than the {available} available; use smaller shapes")]
    Memory {
        /// Bytes that all ranks need.
        needed: u64,
        /// Bytes that the machine has.
        available: u64,
    },
    /// Use a smaller world, or plan without running: only what is proved as a whole is run.
    #[error("the world has {ranks} ranks, but one process runs at most {max}; use fewer nodes or GPUs, or `plan`")]
    TooManyRanks {
        /// Ranks of the world.
        ranks: u32,
        /// The most that is run.
        max: u32,
    },
    /// Build with another feature: this build has no executor.
    #[error("this build has no executor; build mkernel with feature `sim`")]
    NoExecutor,
    /// Use a smaller problem: the host executor cannot be made for this one.
    #[cfg(feature = "sim")]
    #[error(transparent)]
    Host(#[from] mkernel_sim::SimError),
    /// Repair or name the NIC, or use another transport.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Rdma(#[from] mkernel_rdma::verbs::VerbsError),
    /// Ask for fewer queue pairs or NICs.
    #[error(transparent)]
    Routes(#[from] mkernel_core::route::NoRoute),
    /// Repair the GPU's set-up, or ask for less: a GPU, its driver or its compiler stands in the way.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] Box<crate::gpu::GpuError>),
    /// Set the variables that the error names, or start the ranks with a launcher.
    #[error(transparent)]
    Config(#[from] Box<ConfigError>),
    /// The ranks did not meet, or do not run the same thing.
    #[error(transparent)]
    Bootstrap(#[from] Box<bootstrap::Error>),
    /// Start the job again: another rank is gone or has failed.
    #[error("{fault}{}", Waited(waited))]
    Job {
        /// The first fault of the job, the same on every rank.
        fault: JobFault,
        /// What this rank was waiting for, if it was in a launch.
        waited: Option<Box<Fault>>,
    },
    /// The operating system gave no thread.
    #[error("no thread for the job")]
    Thread(#[source] std::io::Error),
    /// Repair or replace the file.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        problem: FileError,
    },
    /// Drop the instance: its executor is poisoned. The fault says who waited for what.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// As [`Error::Fault`]: everything stood still until the deadline, and what each CTA waited for is known. Rank 0 names the
    /// first cause among all ranks.
    #[cfg(feature = "sim")]
    #[error("{fault}")]
    Stuck {
        /// On rank 0 the first cause, elsewhere the first fault that a rank raised.
        fault: Fault,
        /// What this rank was doing; on rank 0 what all ranks were doing that answered.
        accounts: Vec<mkernel_sim::Account>,
    },
    /// The process cannot take signals.
    #[error("the signals of this process cannot be taken")]
    Signals(#[source] std::io::Error),
    /// Report a bug: a planner made a program that does not hold.
    #[error("the planned program is refused; this is a bug of mkernel")]
    Violation(#[from] Violation),
    /// Do not trust the result: it left its bound, or bytes were not as planned.
    #[error(transparent)]
    Check(#[from] Failure),
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error.into())
    }
}

impl From<bootstrap::Error> for Error {
    fn from(error: bootstrap::Error) -> Error {
        Error::Bootstrap(error.into())
    }
}

/// The part of a message that says what a rank waited for.
struct Waited<'a>(&'a Option<Box<Fault>>);

impl fmt::Display for Waited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(fault) => write!(f, "; {fault}"),
            None => Ok(()),
        }
    }
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system said no.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A directory, a device or the like is in the way.
    #[error("this is not a regular file")]
    NotAFile,
    /// It is not a safetensors file, or it lies about its content.
    #[error("not a sound safetensors file: {0}")]
    Format(#[from] SafeTensorError),
    /// A tensor is there twice, so that no reader knows which one is meant.
    #[error("not a sound safetensors file: it names tensor `{name}` twice")]
    Twice {
        /// The tensor.
        name: String,
    },
    /// A tensor has an element type that no operator takes.
    #[error("tensor `{name}` holds {found}; use BF16, F16 or F32, and I32 or I64 for a table")]
    DType {
        /// The tensor.
        name: String,
        /// The type as the file calls it.
        found: String,
    },
    /// An integer is beyond 32 bits.
    #[error("tensor `{name}` holds {found}; integers must fit 32 bits")]
    Wide {
        /// The tensor.
        name: String,
        /// The integer.
        found: i64,
    },
    /// A tensor that the operator needs is not there, or is not as needed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
