//! Compiled device code on disk.
//!
//! **Invariant:** what comes out is what was compiled from exactly this key. An entry repeats its whole key (source,
//! options, compiler version) and ends in a checksum, so a torn, foreign or colliding file is a miss, never a wrong
//! kernel. An entry appears by an atomic rename of a file of this process's own, so writers do not disturb each other.
//! The cache is an optimisation: a folder that cannot be read or written costs time, not correctness.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A folder of compiled device code.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

const MAGIC: &[u8; 8] = b"mkcubin1";

impl Cache {
    /// The cache in `folder`, made when first written.
    pub fn new(folder: PathBuf) -> Cache {
        Cache { folder }
    }

    /// The entry of `key`, or what `make` makes, which is then kept.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or<E>(&self, key: &str, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        let path = self.path(key);
        if let Some(found) = fs::read(&path).ok().and_then(|bytes| decode(key, &bytes)) {
            return Ok(found);
        }
        let made = make()?;
        // Not kept is not wrong: the next process compiles again.
        let _ = self.keep(&path, &encode(key, &made));
        Ok(made)
    }

    /// The file of `key`.
    pub fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:016x}{:016x}.cubin", hash(1, key.as_bytes()), hash(2, key.as_bytes())))
    }

    fn keep(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let (temporary, mut file) = self.temporary()?;
        let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// A new file that nobody else has: names are tried in order, and making a file is atomic.
    fn temporary(&self) -> io::Result<(PathBuf, File)> {
        const TRIES: u32 = 1000;
        for number in 0..TRIES {
            let path = self.folder.join(format!("tmp-{}-{number}", std::process::id()));
            match File::create_new(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|file| (path, file)),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    hasher.write(bytes);
    hasher.finish()
}

fn encode(key: &str, cubin: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((key.len() as u64).to_le_bytes());
    bytes.extend((cubin.len() as u64).to_le_bytes());
    bytes.extend(key.as_bytes());
    bytes.extend(cubin);
    let sum = hash(3, &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn decode(key: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    let rest = body.strip_prefix(MAGIC)?;
    let (key_len, rest) = rest.split_first_chunk::<8>()?;
    let (cubin_len, rest) = rest.split_first_chunk::<8>()?;
    let cubin = rest.strip_prefix(key.as_bytes())?;
    let lengths = (u64::from_le_bytes(*key_len), u64::from_le_bytes(*cubin_len));
    let fits = lengths == (key.len() as u64, cubin.len() as u64);
    (fits && hash(3, body) == u64::from_le_bytes(*sum)).then(|| cubin.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("mkernel-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn never() -> Result<Vec<u8>, &'static str> {
        Err("compiled again")
    }

    #[test]
    fn what_was_kept_is_found_and_belongs_to_its_key_alone() {
        let cache = Cache::new(folder("found"));
        assert_eq!(cache.get_or("source 1", || Ok::<_, ()>(vec![1, 2])), Ok(vec![1, 2]));
        assert_eq!(cache.get_or("source 1", never), Ok(vec![1, 2]));
        assert_eq!(cache.get_or("source 2", never), Err("compiled again"));
        fs::copy(cache.path("source 1"), cache.path("source 2")).unwrap();
        assert_eq!(cache.get_or("source 2", never), Err("compiled again"));
        fs::remove_dir_all(cache.folder).unwrap();
    }

    #[test]
    fn any_torn_or_flipped_entry_is_made_again() {
        let cache = Cache::new(folder("torn"));
        let cubin: Vec<u8> = (0..40).collect();
        cache.get_or("key", || Ok::<_, ()>(cubin.clone())).unwrap();
        let whole = fs::read(cache.path("key")).unwrap();
        for cut in 0..whole.len() {
            fs::write(cache.path("key"), &whole[..cut]).unwrap();
            assert_eq!(cache.get_or("key", never), Err("compiled again"), "cut at {cut}");
            let mut flipped = whole.clone();
            flipped[cut] ^= 0x10;
            fs::write(cache.path("key"), &flipped).unwrap();
            assert_eq!(cache.get_or("key", never), Err("compiled again"), "flipped at {cut}");
        }
        assert_eq!(cache.get_or("key", || Ok::<_, ()>(cubin.clone())), Ok(cubin.clone()));
        assert_eq!(cache.get_or("key", never), Ok(cubin));
        fs::remove_dir_all(cache.folder).unwrap();
    }

    #[test]
    fn concurrent_writers_leave_one_whole_entry() {
        let cache = Cache::new(folder("race"));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        assert_eq!(cache.get_or("key", || Ok::<_, ()>(vec![7; 10_000])), Ok(vec![7; 10_000]));
                        let _ = fs::remove_file(cache.path("key"));
                    }
                });
            }
        });
        let left: Vec<_> = fs::read_dir(&cache.folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("tmp-")), "{left:?}");
        fs::remove_dir_all(cache.folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_only_the_compilation() {
        let cache = Cache::new(PathBuf::from("/dev/null/cache"));
        assert_eq!(cache.get_or("key", || Ok::<_, ()>(vec![1])), Ok(vec![1]));
        assert_eq!(cache.get_or("key", never), Err("compiled again"));
    }
}
