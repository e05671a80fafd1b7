//! Files: tensors in safetensors form, and outputs that appear whole or not at all.
//!
//! An output is written to a new file beside its place and renamed over it, both at the end. So a run that fails or is
//! killed leaves whatever was there before. That the place can be written is tried before any work is done.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mkernel_core::DType;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

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
    // A pipe may never end, and a device such as /dev/zero never does.
    let there = fs::metadata(path)?;
    if !there.is_file() && !there.is_dir() {
        return Err(FileError::NotAFile);
    }
    let bytes = fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    check_names(&bytes)?;
    let mut tensors = Tensors::new();
    for (name, view) in file.iter().filter(|(name, _)| wanted.contains(name)) {
        let dtype = match view.dtype() {
            Dtype::BF16 => DType::Bf16,
            Dtype::F16 => DType::F16,
            Dtype::F32 => DType::F32,
            Dtype::I32 | Dtype::I64 => DType::I32,
            other => return Err(FileError::DType { name: name.to_owned(), found: other.to_string() }),
        };
        let shape = view.shape().iter().map(|&axis| axis as u64).collect();
        let data = if view.dtype() == Dtype::I64 { narrow(name, view.data())? } else { view.data().to_vec() };
        tensors.insert(name, Tensor::new(shape, dtype, data)?);
    }
    Ok(tensors)
}

/// Refuses a sound file that names a tensor twice: JSON readers take either.
fn check_names(bytes: &[u8]) -> Result<(), FileError> {
    let (header, _) = SafeTensors::read_metadata(bytes)?;
    let Names(names) =
        serde_json::from_slice(&bytes[8..8 + header]).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    let mut seen = HashSet::new();
    match names.iter().find(|&name| !seen.insert(name)) {
        Some(name) => Err(FileError::Twice { name: name.clone() }),
        None => Ok(()),
    }
}

/// The keys of a JSON object, as often as they stand there.
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Names, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
        let mut names = Vec::new();
        while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
            names.push(name);
        }
        Ok(Names(names))
    }
}

/// 64-bit integers as 32-bit ones of the same value.
fn narrow(name: &str, data: &[u8]) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::with_capacity(data.len() / 2);
    for raw in data.as_chunks::<8>().0 {
        let found = i64::from_le_bytes(*raw);
        let narrow = i32::try_from(found).map_err(|_| FileError::Wide { name: name.to_owned(), found })?;
        bytes.extend_from_slice(&narrow.to_le_bytes());
    }
    Ok(bytes)
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

/// A file that takes its place only when it is complete. Until then there is nothing, so that a killed run leaves nothing.
#[derive(Debug)]
pub struct Pending {
    place: PathBuf,
    beside: PathBuf,
    permissions: Option<fs::Permissions>,
}

impl Pending {
    /// Makes sure that a file can be made at `place`.
    ///
    /// # Errors
    /// [`Error::File`] if `place` is something other than a regular file or its directory cannot be written.
    pub fn create(place: &Path) -> Result<Pending, Error> {
        Self::probe(place).map_err(|problem| Error::File { path: place.to_owned(), problem })
    }

    fn probe(place: &Path) -> Result<Pending, FileError> {
        let place = resolve(place)?;
        let permissions = fs::metadata(&place).ok().map(|there| there.permissions());
        if permissions.as_ref().is_some_and(fs::Permissions::readonly) {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied).into());
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(place.file_name().ok_or(FileError::NotAFile)?);
        hidden.push(format!(".{}.partial", std::process::id()));
        let pending = Pending { beside: place.with_file_name(hidden), place, permissions };
        pending.open()?;
        fs::remove_file(&pending.beside)?;
        Ok(pending)
    }

    /// Where the file will be, links followed.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Writes `bytes` as the whole content and puts the file in its place.
    ///
    /// # Errors
    /// [`Error::File`]; nothing is left behind then.
    pub fn finish(self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.write(bytes).and_then(|()| fs::rename(&self.beside, &self.place));
        written.map_err(|problem| {
            // Nobody can be told here, and a file that is already gone is what is wanted.
            let _ = fs::remove_file(&self.beside);
            Error::File { path: self.place.clone(), problem: problem.into() }
        })
    }

    /// Writes `tensors` as safetensors and puts the file in its place.
    ///
    /// # Errors
    /// As [`Pending::finish`].
    pub fn finish_tensors(self, tensors: &Tensors) -> Result<(), Error> {
        let bytes = serialise(tensors).map_err(|problem| Error::File { path: self.place.clone(), problem })?;
        self.finish(&bytes)
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(&self.beside)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.open()?;
        if let Some(permissions) = &self.permissions {
            file.set_permissions(permissions.clone())?;
        }
        file.write_all(bytes)?;
        file.sync_all()
    }
}

/// Where a file at `place` really is: links stay, what they point to is replaced.
fn resolve(place: &Path) -> Result<PathBuf, FileError> {
    if let Ok(there) = fs::metadata(place) {
        return if there.is_file() { Ok(fs::canonicalize(place)?) } else { Err(FileError::NotAFile) };
    }
    // Nothing is there, but for a link to nowhere; a name with a slash at its end is that of a directory.
    let is_directory = place.as_os_str().as_encoded_bytes().ends_with(b"/");
    let name = place.file_name().filter(|_| !is_directory && !place.is_symlink()).ok_or(FileError::NotAFile)?;
    let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(fs::canonicalize(parent)?.join(name))
}
