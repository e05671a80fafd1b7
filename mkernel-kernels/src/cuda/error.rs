//! Why a GPU cannot be used.

use cudarc::driver::DriverError;
use cudarc::nvrtc::result::NvrtcError;

use crate::encode::EncodeError;

/// What stands between a program and a GPU.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A library of CUDA is not on this machine: install the driver, or the compiler, or name its folder to the loader.
    #[error("{library} was not found; install NVIDIA's driver and NVRTC, or put their folder in LD_LIBRARY_PATH")]
    NoLibrary {
        /// The library's file name.
        library: &'static str,
    },
    /// The driver sees no GPU.
    #[error("no GPU was found; the driver sees none, or CUDA_VISIBLE_DEVICES hides them")]
    NoGpu,
    /// The driver refused a call.
    #[error("the CUDA driver refused to {what}")]
    Driver {
        /// What was asked for.
        what: &'static str,
        /// The driver's answer.
        #[source]
        source: DriverError,
    },
    /// The run-time compiler refused the device code.
    #[error("NVRTC did not compile the device code:\n{log}")]
    Compile {
        /// The compiler's messages.
        log: String,
        /// Its answer.
        #[source]
        source: NvrtcError,
    },
    /// The program has no device form.
    #[error("the program cannot be encoded")]
    Encode(#[from] EncodeError),
    /// Not all CTAs fit on the GPU at once, so a launch could wait for ever: use fewer CTAs.
    #[error("{asked} CTAs must be resident at once, but {sms} SMs hold {per_sm} each")]
    NotResident {
        /// CTAs of the launch.
        asked: u32,
        /// SMs of the GPU.
        sms: u32,
        /// CTAs of the kernel that one SM holds.
        per_sm: u32,
    },
    /// The programs are of some ranks only, and this executor hosts whole worlds.
    #[error("a GPU runs all ranks of a world or one process each; {present} of {ranks} programs are here")]
    PartialWorld {
        /// Programs given.
        present: usize,
        /// Ranks of the world.
        ranks: u32,
    },
    /// The ring of tickets has a size that rings do not have.
    #[error("the ring of tickets cannot be made")]
    Fifo(#[from] mkernel_core::fifo::FifoError),
}

/// Names what the driver was asked for.
pub(crate) trait Asked<T> {
    /// Turns the driver's refusal into a [`CudaError::Driver`].
    fn asked(self, what: &'static str) -> Result<T, CudaError>;
}

impl<T> Asked<T> for Result<T, DriverError> {
    fn asked(self, what: &'static str) -> Result<T, CudaError> {
        self.map_err(|source| CudaError::Driver { what, source })
    }
}
