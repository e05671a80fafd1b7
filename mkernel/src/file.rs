//! Files: tensors in safetensors form, and outputs that appear whole or not at all.
//!
//! An output is written to a new file beside its place and renamed over it at the end. So a failed run leaves whatever
//! was there before. That file is made and removed once at the start, so that a place that cannot be written shows before
//! any work is done, and made again when there is something to write: a run that is killed leaves no file, unless that
//! happens in the moment of writing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mkernel_core::DType;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::error::{Error, FileError};
use crate::tensor::{Tensor, Tensors};

/// Reads the tensors named in `wanted` from a safetensors file; others are left alone, absent ones are absent.
///
/// # Errors
/// [`Error::File`] for a file that cannot be read, that is not sound, or that holds a wanted tensor of a type that no
/// operator takes.
pub fn read_tensors(path: &Path, wanted: &[&str]) -> Result<Tensors, Error> {
    read(path, wanted).map_err(|problem| Error::File { path: path.to_owned(), problem })
}

fn read(path: &Path, wanted: &[&str]) -> Result<Tensors, FileError> {
    let bytes = fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let mut tensors = Tensors::new();
    for (name, view) in file.iter().filter(|(name, _)| wanted.contains(name)) {
        let dtype = match view.dtype() {
            Dtype::BF16 => DType::Bf16,
            Dtype::F16 => DType::F16,
            Dtype::F32 => DType::F32,
            Dtype::I32 => DType::I32,
            other => return Err(FileError::DType { name: name.to_owned(), found: other.to_string() }),
        };
        let shape = view.shape().iter().map(|&axis| axis as u64).collect();
        tensors.insert(name, Tensor::new(shape, dtype, view.data().to_vec())?);
    }
    Ok(tensors)
}

/// The bytes of a safetensors file that holds `tensors`.
///
/// # Errors
/// [`FileError::Format`] if the library refuses a tensor.
fn serialise(tensors: &Tensors) -> Result<Vec<u8>, FileError> {
    let mut views = Vec::new();
    for (name, tensor) in tensors.iter() {
        let dtype = match tensor.dtype() {
            DType::Bf16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
            DType::F32 => Dtype::F32,
            DType::I32 => Dtype::I32,
        };
        let shape = tensor.shape().iter().map(|&axis| axis as usize).collect();
        views.push((name, TensorView::new(dtype, shape, tensor.bytes())?));
    }
    Ok(safetensors::serialize(views, None)?)
}

/// A file that takes its place only when it is complete.
#[derive(Debug)]
pub struct Pending {
    place: PathBuf,
    beside: PathBuf,
}

impl Pending {
    /// Tries whether a file can be made beside `place`.
    ///
    /// # Errors
    /// [`Error::File`] if `place` is something other than a regular file or its directory cannot be written.
    pub fn create(place: &Path) -> Result<Pending, Error> {
        let problem = |problem: FileError| Error::File { path: place.to_owned(), problem };
        // A link stays; what it points to is replaced.
        let target = fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
        if let Ok(there) = fs::metadata(&target) {
            if !there.is_file() {
                return Err(problem(FileError::NotAFile));
            }
            if there.permissions().readonly() {
                return Err(problem(io::Error::from(io::ErrorKind::PermissionDenied).into()));
            }
        }
        let name = target.file_name().ok_or_else(|| problem(FileError::NotAFile))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let beside = target.with_file_name(hidden);
        let tried = open(&beside).and_then(|_| fs::remove_file(&beside));
        tried.map_err(|e| problem(e.into()))?;
        Ok(Pending { place: target, beside })
    }

    /// Writes `bytes` as the whole content and puts the file in its place.
    ///
    /// # Errors
    /// [`Error::File`]; nothing is left behind then.
    pub fn finish(self, bytes: &[u8]) -> Result<(), Error> {
        let write = |mut file: File| {
            let written = file.write_all(bytes).and_then(|()| file.sync_all());
            let placed = written.and_then(|()| fs::rename(&self.beside, &self.place));
            placed.inspect_err(|_| {
                // The error says what went wrong; a file that is gone already is what is wanted.
                let _ = fs::remove_file(&self.beside);
            })
        };
        let finished = open(&self.beside).and_then(write);
        finished.map_err(|e| Error::File { path: self.place.clone(), problem: e.into() })
    }

    /// Writes `tensors` as safetensors and puts the file in its place.
    ///
    /// # Errors
    /// As [`Pending::finish`].
    pub fn finish_tensors(self, tensors: &Tensors) -> Result<(), Error> {
        let bytes = serialise(tensors).map_err(|problem| Error::File { path: self.place.clone(), problem })?;
        self.finish(&bytes)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}
