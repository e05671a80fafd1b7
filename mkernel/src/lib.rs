//! mkernel: a dense operator and the communication around it as one persistent kernel per GPU.
//!
//! Make a [`Session`] of a [`World`], ask it for an operator, run it on global tensors:
//!
//! ```
//! use mkernel::{AgGemm, DType, Fill, Options, Session, World};
//!
//! let mut session = Session::new(World::uniform(2, 2)?, Options::default());
//! let problem = AgGemm { m: 64, n: 48, k: 32, dtype: DType::Bf16 };
//! let inputs = mkernel::inputs(&problem, Fill::Real, 1, 0)?;
//! let (outputs, report) = session.operator(problem)?.run(&inputs)?;
//! assert_eq!(outputs.get("c").map(|c| c.shape()), Some(&[64, 48][..]));
//! assert_eq!(report.inter_out, report.inter_law);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// The program in the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub mod bootstrap;
pub mod check;
pub mod config;
pub mod error;
pub mod file;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod inputs;
pub mod instance;
pub mod outline;
pub mod report;
pub mod session;
#[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "only ranks that run look at signals"))]
pub mod signals;
pub mod tensor;
pub mod trace;

#[cfg(feature = "sim")]
#[cfg_attr(not(feature = "rdma"), path = "far_absent.rs")]
mod far;
mod host;
#[cfg_attr(not(feature = "sim"), path = "job_absent.rs")]
mod job;
mod planning;

pub use error::Error;
#[cfg(feature = "cuda")]
pub use gpu::Gpu;
pub use inputs::{Fill, inputs};
pub use instance::Instance;
pub use outline::outline;
pub use report::Report;
pub use session::{Options, Path, Schedule, Session, Signalling, Verbs};
pub use signals::Signals;
pub use tensor::{Tensor, Tensors};

pub use mkernel_core::Mask;
pub use mkernel_core::{DType, Fault, FaultKind, Rank, RoleName, World};
pub use mkernel_kernels::ring_attention::{self, RingAttention};
pub use mkernel_kernels::{
    AgGemm, AllReduce, GemmAr, GemmRs, MoeDispatchGemm, MoeFfn, Operator, Partial, Profile, RoleCtas,
};
