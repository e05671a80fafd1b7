//! Finding a GPU.

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

use super::error::{Asked, CudaError};

/// Opens GPU number `ordinal` of this process.
///
/// # Errors
/// [`CudaError::NoLibrary`] without a driver, [`CudaError::NoGpu`] without a GPU, [`CudaError::Driver`] for one that does
/// not answer.
pub fn open(ordinal: usize) -> Result<Arc<CudaContext>, CudaError> {
    // SAFETY: loads the driver's library, whose initialisers have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoLibrary { library: "libcuda.so" });
    }
    CudaContext::new(ordinal).map_err(|source| match source.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE | sys::CUresult::CUDA_ERROR_INVALID_DEVICE => CudaError::NoGpu,
        _ => CudaError::Driver { what: "open the GPU", source },
    })
}

/// Streaming multiprocessors of a GPU.
///
/// # Errors
/// The driver's.
pub fn sms(context: &CudaContext) -> Result<u32, CudaError> {
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    Ok(context.attribute(attribute).asked("count SMs")? as u32)
}
