//! Tensor maps: the copy engine's descriptions of matrices, made by the driver.

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

use super::error::{Asked, CudaError};
use crate::encode::layout::Element;
use crate::encode::tiles::{MapSpec, bytes_of};

/// Words of an encoded map: the twin of `TensorMap` in `device/tma.cuh`.
const WORDS: usize = 16;

/// Makes all maps, one after the other.
///
/// # Errors
/// The driver's, for a map that it does not allow.
pub(super) fn encode_all(context: &Arc<CudaContext>, specs: &[MapSpec]) -> Result<Vec<u64>, CudaError> {
    context.bind_to_thread().asked("use the GPU")?;
    let mut words = Vec::with_capacity(specs.len() * WORDS);
    for spec in specs {
        words.extend(encode(spec)?);
    }
    Ok(words)
}

fn encode(spec: &MapSpec) -> Result<[u64; WORDS], CudaError> {
    use sys::CUtensorMapDataType as Type;
    let element = match spec.element {
        Element::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Element::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Element::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    };
    let size = [spec.columns, spec.rows];
    let pitch = [spec.pitch];
    let boxes = [(128 / bytes_of(spec.element)) as u32, spec.box_rows];
    let steps = [1u32, 1];
    let mut map = sys::CUtensorMap { opaque: [0; WORDS] };
    // SAFETY: all pointers are to live arrays of the two dimensions named (strides: one less); the driver reads no
    // memory at the address, which it only writes into the map.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            element,
            2,
            spec.address as *mut std::ffi::c_void,
            size.as_ptr(),
            pitch.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
    .result()
    .asked("describe a matrix to the copy engine")?;
    Ok(map.opaque)
}
