//! Global tensors on the host, row-major.

use std::collections::BTreeMap;

use half::{bf16, f16};
use mkernel_core::DType;
use mkernel_kernels::{TensorKind, TensorSpec};

/// A tensor in host memory, row-major, little-endian.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    shape: Vec<u64>,
    dtype: DType,
    bytes: Vec<u8>,
}

/// Why a tensor is not what an operator takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// An input of the operator is not there.
    #[error("tensor `{name}` is missing; the operator needs it with shape {shape:?}")]
    Missing {
        /// The tensor.
        name: &'static str,
        /// The shape that it must have.
        shape: Vec<u64>,
    },
    /// The shape differs.
    #[error("tensor `{name}` has shape {found:?}, but the operator needs {wanted:?}")]
    Shape {
        /// The tensor.
        name: &'static str,
        /// The shape given.
        found: Vec<u64>,
        /// The shape needed.
        wanted: Vec<u64>,
    },
    /// The element type differs.
    #[error("tensor `{name}` holds {found}, but the operator needs {wanted}")]
    DType {
        /// The tensor.
        name: &'static str,
        /// The type given.
        found: DType,
        /// The type needed.
        wanted: DType,
    },
    /// A value of a table names nothing.
    #[error("tensor `{name}` [{row}, {column}] is {found}; it must be -1 (dropped) or from 0 to {max}", max = limit - 1)]
    Id {
        /// The tensor.
        name: &'static str,
        /// Its row, taken as a matrix.
        row: u64,
        /// Its column.
        column: u64,
        /// The value given.
        found: i32,
        /// One past the largest allowed.
        limit: u64,
    },
    /// The tensor has more bytes than this machine can give it.
    #[error("tensor `{name}` of shape {shape:?} does not fit into memory; use smaller shapes")]
    TooLarge {
        /// The tensor.
        name: &'static str,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// Shape and bytes do not fit each other.
    #[error("a {dtype} tensor of shape {shape:?} does not have {bytes} bytes")]
    Length {
        /// The shape given.
        shape: Vec<u64>,
        /// The element type given.
        dtype: DType,
        /// The number of bytes given.
        bytes: usize,
    },
}

impl Tensor {
    /// Makes a tensor from its bytes.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the bytes do not fit the shape.
    pub fn new(shape: Vec<u64>, dtype: DType, bytes: Vec<u8>) -> Result<Tensor, TensorError> {
        let wanted = shape.iter().try_fold(dtype.bytes(), |product, &axis| product.checked_mul(axis));
        if wanted != Some(bytes.len() as u64) {
            return Err(TensorError::Length { shape, dtype, bytes: bytes.len() });
        }
        Ok(Tensor { shape, dtype, bytes })
    }

    /// Makes a tensor of zeros with the shape and type of `spec`.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`] for a shape that memory cannot hold.
    pub fn zeros(spec: &TensorSpec) -> Result<Tensor, TensorError> {
        Tensor::made(spec, |bytes, length| bytes.resize(length, 0))
    }

    /// Makes a tensor of the shape and type of `spec`, each element of a value that `next` gives, rounded once.
    pub(crate) fn fill(spec: &TensorSpec, mut next: impl FnMut() -> f32) -> Result<Tensor, TensorError> {
        Tensor::made(spec, |bytes, length| {
            while bytes.len() < length {
                encode(spec.dtype, next(), bytes);
            }
        })
    }

    /// Makes a table of the shape of `spec`, each element one that `next` gives.
    pub(crate) fn ids(spec: &TensorSpec, mut next: impl FnMut() -> i32) -> Result<Tensor, TensorError> {
        Tensor::made(spec, |bytes, length| {
            while bytes.len() < length {
                bytes.extend_from_slice(&next().to_le_bytes());
            }
        })
    }

    /// Makes a tensor of `spec` whose bytes, so many, `write` appends.
    fn made(spec: &TensorSpec, write: impl FnOnce(&mut Vec<u8>, usize)) -> Result<Tensor, TensorError> {
        let too_large = || TensorError::TooLarge { name: spec.name, shape: spec.shape.clone() };
        let length = spec.shape.iter().try_fold(spec.dtype.bytes(), |product, &axis| product.checked_mul(axis));
        let length = length.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(too_large)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| too_large())?;
        write(&mut bytes, length);
        Ok(Tensor { shape: spec.shape.clone(), dtype: spec.dtype, bytes })
    }

    /// Makes a tensor from f32 values, each rounded once to `dtype`.
    ///
    /// # Errors
    /// [`TensorError::Length`] if there are more or fewer values than the shape has elements.
    pub fn from_f32(shape: Vec<u64>, dtype: DType, values: &[f32]) -> Result<Tensor, TensorError> {
        let mut bytes = Vec::with_capacity(values.len() * dtype.bytes() as usize);
        for &value in values {
            encode(dtype, value, &mut bytes);
        }
        Tensor::new(shape, dtype, bytes)
    }

    /// The axes.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements as bytes, to be overwritten.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// All elements as f32; exact for every floating type.
    pub fn to_f32(&self) -> Vec<f32> {
        let count = self.bytes.len() as u64 / self.dtype.bytes();
        (0..count).map(|i| self.at(i) as f32).collect()
    }

    /// The element with this row-major index; exact for every type.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn at(&self, index: u64) -> f64 {
        let (at, size) = (index as usize * self.dtype.bytes() as usize, self.dtype.bytes() as usize);
        decode(self.dtype, &self.bytes[at..at + size])
    }

    /// Checks the tensor against what an operator takes.
    pub(crate) fn conforms(&self, spec: &TensorSpec) -> Result<(), TensorError> {
        if self.dtype != spec.dtype {
            return Err(TensorError::DType { name: spec.name, found: self.dtype, wanted: spec.dtype });
        }
        if self.shape != spec.shape {
            let (found, wanted) = (self.shape.clone(), spec.shape.clone());
            return Err(TensorError::Shape { name: spec.name, found, wanted });
        }
        match spec.kind {
            TensorKind::Ids { limit } => self.names_only_below(limit, spec),
            TensorKind::Input | TensorKind::Output => Ok(()),
        }
    }

    /// The elements of a tensor of integers.
    pub(crate) fn to_i32(&self) -> Vec<i32> {
        self.bytes.as_chunks::<4>().0.iter().map(|raw| i32::from_le_bytes(*raw)).collect()
    }

    fn names_only_below(&self, limit: u64, spec: &TensorSpec) -> Result<(), TensorError> {
        let is_good = |id: &i32| *id == -1 || u64::try_from(*id).is_ok_and(|id| id < limit);
        let bad = (0..).zip(self.to_i32()).find(|(_, id)| !is_good(id));
        bad.map_or(Ok(()), |(index, found): (u64, i32)| {
            let columns = spec.matrix().1;
            let (row, column) = (index / columns, index % columns);
            Err(TensorError::Id { name: spec.name, row, column, found, limit })
        })
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

/// Appends `value`, rounded to nearest even, as an element of `dtype`.
fn encode(dtype: DType, value: f32, bytes: &mut Vec<u8>) {
    match dtype {
        DType::Bf16 => bytes.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
        DType::F16 => bytes.extend_from_slice(&f16::from_f32(value).to_le_bytes()),
        DType::F32 => bytes.extend_from_slice(&value.to_le_bytes()),
        DType::I32 => bytes.extend_from_slice(&(value as i32).to_le_bytes()),
    }
}

/// One element of `dtype` as f64.
fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    let two = || [bytes[0], bytes[1]];
    let four = || [bytes[0], bytes[1], bytes[2], bytes[3]];
    match dtype {
        DType::Bf16 => bf16::from_le_bytes(two()).to_f64(),
        DType::F16 => f16::from_le_bytes(two()).to_f64(),
        DType::F32 => f64::from(f32::from_le_bytes(four())),
        DType::I32 => f64::from(i32::from_le_bytes(four())),
    }
}

/// Tensors by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tensors(BTreeMap<String, Tensor>);

impl Tensors {
    /// No tensor.
    pub fn new() -> Tensors {
        Tensors::default()
    }

    /// Adds or replaces a tensor.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.0.insert(name.into(), tensor);
    }

    /// The tensor of this name, if there.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// All tensors, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// A hash of all names, shapes, types and elements.
    pub fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for (name, tensor) in self.iter() {
            hash.update(format!("{name} {tensor:?} ").as_bytes());
            hash.update(tensor.bytes());
        }
        hash.finalize().to_hex().to_string()
    }

    /// The tensor that `spec` describes.
    ///
    /// # Errors
    /// [`TensorError`] if it is missing or not as described.
    pub fn expect(&self, spec: &TensorSpec) -> Result<&Tensor, TensorError> {
        let missing = || TensorError::Missing { name: spec.name, shape: spec.shape.clone() };
        let tensor = self.get(spec.name).ok_or_else(missing)?;
        tensor.conforms(spec)?;
        Ok(tensor)
    }
}

impl<const N: usize> From<[(&str, Tensor); N]> for Tensors {
    fn from(tensors: [(&str, Tensor); N]) -> Tensors {
        Tensors(tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_type_rounds_once_and_reads_back() {
        for (dtype, value) in [(DType::Bf16, 1.0078125), (DType::F16, 1.000_976_6), (DType::F32, 1.000_000_1_f32)] {
            let tensor = Tensor::from_f32(vec![1, 2], dtype, &[value, -2.0]).unwrap();
            assert_eq!(tensor.to_f32(), [value, -2.0], "{dtype}");
        }
        let halfway = Tensor::from_f32(vec![1], DType::Bf16, &[1.0 + 1.0 / 256.0]).unwrap();
        assert_eq!(halfway.at(0), 1.0);
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_refused() {
        assert!(matches!(Tensor::new(vec![2, 3], DType::F32, vec![0; 23]), Err(TensorError::Length { .. })));
        assert!(matches!(Tensor::new(vec![u64::MAX, 2], DType::F32, vec![]), Err(TensorError::Length { .. })));
    }
}
