//! Elements in memory to f32 and back, with one rounding to nearest even.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use mkernel_core::DType;

/// Turns little-endian elements into f32; exact for every float type. `bits` is scratch.
///
/// # Panics
/// If the lengths differ or the type is not a float.
pub(super) fn widen(dtype: DType, bytes: &[u8], bits: &mut Vec<u16>, out: &mut [f32]) {
    assert_eq!(bytes.len() as u64, out.len() as u64 * dtype.bytes(), "elements of {dtype}");
    match dtype {
        DType::F32 => out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(v, raw)| *v = f32::from_le_bytes(*raw)),
        // The upper half of a f32, in one pass.
        DType::Bf16 => out
            .iter_mut()
            .zip(bytes.as_chunks::<2>().0)
            .for_each(|(v, raw)| *v = f32::from_bits(u32::from(u16::from_le_bytes(*raw)) << 16)),
        DType::F16 => {
            bits.clear();
            bits.extend(bytes.as_chunks::<2>().0.iter().map(|raw| u16::from_le_bytes(*raw)));
            bits.reinterpret_cast::<f16>().convert_to_f32_slice(out);
        }
        DType::I32 => panic!("{dtype} is no float: validate refuses it for products"),
    }
}

/// Rounds f32 to little-endian elements. `bits` is scratch.
///
/// # Panics
/// As [`widen`].
pub(super) fn narrow(dtype: DType, values: &[f32], bits: &mut Vec<u16>, out: &mut Vec<u8>) {
    out.clear();
    if dtype == DType::F32 {
        out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        return;
    }
    bits.clear();
    bits.resize(values.len(), 0);
    match dtype {
        DType::Bf16 => bits.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(values),
        DType::F16 => bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values),
        DType::F32 | DType::I32 => panic!("{dtype} is not a 16-bit float: validate refuses it for products"),
    }
    out.extend(bits.iter().flat_map(|b| b.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(dtype: DType, values: &[f32]) -> Vec<f32> {
        let (mut bits, mut bytes, mut back) = (Vec::new(), Vec::new(), vec![0.0; values.len()]);
        narrow(dtype, values, &mut bits, &mut bytes);
        widen(dtype, &bytes, &mut bits, &mut back);
        back
    }

    #[test]
    fn rounding_is_to_nearest_and_ties_go_to_even() {
        // 257 and 259 lie halfway between neighbours of bf16; 2049 and 2051 of f16.
        assert_eq!(there_and_back(DType::Bf16, &[257.0, 259.0, 257.1]), [256.0, 260.0, 258.0]);
        assert_eq!(there_and_back(DType::F16, &[2049.0, 2051.0, 2049.1]), [2048.0, 2052.0, 2050.0]);
        assert_eq!(there_and_back(DType::F32, &[16_777_217.0]), [16_777_216.0]);
    }

    #[test]
    fn not_a_number_and_infinity_pass_through() {
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let back = there_and_back(dtype, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0]);
            assert!(back[0].is_nan());
            assert_eq!(back[1..3], [f32::INFINITY, f32::NEG_INFINITY]);
            assert!(back[3] == 0.0 && back[3].is_sign_negative());
        }
    }
}
