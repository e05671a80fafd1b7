//! The loaded kernel: co-residency, launch.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::error::{Asked, CudaError};
use crate::device::{self, Specialisation};
use crate::encode::layout::LaunchEntry;

/// The kernel of one specialisation, loaded on one GPU.
///
/// Loaded as a whole: nothing is left to be loaded while a persistent kernel lives.
#[derive(Debug)]
pub struct Module {
    context: Arc<CudaContext>,
    raw: sys::CUmodule,
    run: sys::CUfunction,
    threads: u32,
    shared_bytes: u32,
}

// SAFETY: module and function handles belong to the context, which any thread may use once it is current there.
unsafe impl Send for Module {}

impl Module {
    /// Loads a cubin that was compiled for `specialisation`.
    ///
    /// # Errors
    /// The driver's, such as a cubin for another GPU.
    pub fn load(
        context: &Arc<CudaContext>,
        cubin: &[u8],
        specialisation: &Specialisation,
    ) -> Result<Module, CudaError> {
        context.bind_to_thread().asked("use the GPU")?;
        // SAFETY: a cubin from NVRTC, in memory for the length of the call.
        let raw = unsafe { result::module::load_data(cubin.as_ptr().cast()) }.asked("load the kernel")?;
        let mut module = Module {
            context: context.clone(),
            raw,
            run: std::ptr::null_mut(),
            threads: specialisation.threads(),
            shared_bytes: specialisation.shared_bytes(),
        };
        module.run = module.function(device::RUN)?;
        let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a function of a module that is loaded.
        unsafe { sys::cuFuncLoad(module.run) }.result().asked("load the kernel's code")?;
        // SAFETY: a function of a module that is loaded.
        unsafe { result::function::set_function_attribute(module.run, shared, module.shared_bytes as i32) }
            .asked("reserve shared memory")?;
        Ok(module)
    }

    /// Proves that `ctas` CTAs of the kernel are resident at once on an idle GPU.
    ///
    /// # Errors
    /// [`CudaError::NotResident`] if they are not.
    pub fn prove_resident(&self, ctas: u32) -> Result<(), CudaError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let sms = self.context.attribute(attribute).asked("count SMs")? as u32;
        let (threads, shared) = (self.threads as i32, self.shared_bytes as usize);
        // SAFETY: a function of a module that is loaded.
        let per_sm = unsafe { result::occupancy::max_active_block_per_multiprocessor(self.run, threads, shared) };
        let per_sm = per_sm.asked("compute the occupancy")? as u32;
        if sms * per_sm < ctas {
            return Err(CudaError::NotResident { asked: ctas, sms, per_sm });
        }
        Ok(())
    }

    /// Enqueues one launch. It is cooperative: the driver starts all CTAs or none.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Every address in `entry`, and in the entries that it leads to, is alive until the launch has ended.
    pub unsafe fn launch(&self, stream: &CudaStream, ctas: u32, entry: &LaunchEntry) -> Result<(), CudaError> {
        self.context.bind_to_thread().asked("use the GPU")?;
        let mut entry = *entry;
        let mut parameters = [std::ptr::from_mut(&mut entry).cast::<c_void>()];
        let stream = stream.cu_stream();
        // SAFETY: the kernel takes one `LaunchEntry`, which the driver copies before it returns; the caller vouches for
        // the addresses in it.
        unsafe {
            let (grid, threads, shared) = ((ctas, 1, 1), (self.threads, 1, 1), self.shared_bytes);
            result::launch_cooperative_kernel(self.run, grid, threads, shared, stream, &mut parameters).asked("launch")
        }
    }

    fn function(&self, name: &str) -> Result<sys::CUfunction, CudaError> {
        let name = CString::new(name).expect("kernel names hold no NUL");
        // SAFETY: the module is loaded.
        unsafe { result::module::get_function(self.raw, name) }.asked("find the kernel")
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: loaded by `load`, unloaded only here; the executor has ended its launches.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}
