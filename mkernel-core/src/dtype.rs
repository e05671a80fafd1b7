//! Element types of tensors.

use std::fmt;

/// The type of one tensor element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// bfloat16: 8 exponent bits, 7 stored mantissa bits.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary32.
    F32,
    /// Two's complement 32-bit integer (routing indices).
    I32,
}

impl DType {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            DType::Bf16 | DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
        }
    }

    /// Unit roundoff of one rounding to this type: half a unit in the last place, relative. Zero for integers.
    pub const fn unit_roundoff(self) -> f64 {
        match self {
            DType::Bf16 => 1.0 / 256.0,
            DType::F16 => 1.0 / 2048.0,
            DType::F32 => 1.0 / 16_777_216.0,
            DType::I32 => 0.0,
        }
    }

    /// The name used on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::I32 => "i32",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
