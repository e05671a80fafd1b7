//! CUDA C++ to machine code by NVRTC. It needs no GPU.

use std::ffi::{CString, c_char};

use cudarc::nvrtc::{result, sys};

use super::error::CudaError;

/// The run-time compiler, once its library has been found.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc {
    version: (i32, i32),
}

/// Machine code and what the compiler had to say.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The cubin.
    pub cubin: Vec<u8>,
    /// Warnings, and with `--ptxas-options=-v` registers and spills of each kernel.
    pub log: String,
}

/// A program handle, destroyed with its owner.
struct Program {
    raw: sys::nvrtcProgram,
    /// NVRTC may refer to the source until the program is destroyed.
    _source: CString,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `create_program` and only this drop destroys it. A refusal leaves nothing to do.
        let _ = unsafe { result::destroy_program(self.raw) };
    }
}

impl Nvrtc {
    /// Finds the library.
    ///
    /// # Errors
    /// [`CudaError::NoLibrary`] if the loader finds none.
    pub fn find() -> Result<Nvrtc, CudaError> {
        const LIBRARY: CudaError = CudaError::NoLibrary { library: "libnvrtc.so" };
        // SAFETY: loads NVRTC, whose initialisers have no preconditions.
        if !unsafe { sys::is_culib_present() } {
            return Err(LIBRARY);
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there, and both pointers are to live integers.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|_| LIBRARY)?;
        Ok(Nvrtc { version: (major, minor) })
    }

    /// Its version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles `source` to machine code.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with the compiler's messages.
    pub fn compile(&self, source: &str, options: &[String]) -> Result<Compiled, CudaError> {
        let source = CString::new(source).expect("the device code holds no NUL");
        let failed = |source| CudaError::Compile { log: String::new(), source };
        let raw = result::create_program(&source, Some(c"mkernel.cu")).map_err(failed)?;
        let program = Program { raw, _source: source };
        // SAFETY: `raw` is alive until `program` drops.
        if let Err(source) = unsafe { result::compile_program(program.raw, options) } {
            return Err(CudaError::Compile { log: log(&program), source });
        }
        Ok(Compiled { cubin: cubin(&program).map_err(failed)?, log: log(&program) })
    }
}

fn log(program: &Program) -> String {
    // SAFETY: the program is alive.
    let bytes = unsafe { result::get_program_log(program.raw) }.unwrap_or_default();
    let bytes: Vec<u8> = bytes.into_iter().map(|c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn cubin(program: &Program) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0usize;
    // SAFETY: the program is alive and compiled; `size` is a live integer.
    unsafe { sys::nvrtcGetCUBINSize(program.raw, &mut size) }.result()?;
    let mut cubin = vec![0u8; size];
    // SAFETY: NVRTC writes the `size` bytes that it asked for.
    unsafe { sys::nvrtcGetCUBIN(program.raw, cubin.as_mut_ptr().cast::<c_char>()) }.result()?;
    Ok(cubin)
}
