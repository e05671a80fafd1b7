//! The job secret: from the environment, from a file that only its owner can read, or none where none is needed.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::launcher::Meeting;
use super::{ConfigError, Vars};
use crate::bootstrap::{Place, Secret};

const TEXT: &str = "MKERNEL_SECRET";
const FILE: &str = "MKERNEL_SECRET_FILE";
const LOOPBACK: &str = "127.0.0.1";
const MAX_FILE_BYTES: u64 = 4096;
/// Bits of a mode that let anybody but the owner in.
const OTHERS: u32 = 0o077;

/// The secret, and the host to meet at: without a secret that is this host, out of reach of others.
pub(super) fn secret(vars: &mut Vars<'_>, place: Place, meeting: &Meeting) -> Result<(Secret, String), ConfigError> {
    match (vars.text(TEXT)?, vars.text(FILE)?) {
        (Some(_), Some(path)) => Err(ConfigError::Conflict {
            first: TEXT,
            first_value: "(hidden)".into(),
            second: FILE,
            second_value: path,
            fix: "unset one of them",
        }),
        (Some(text), None) => {
            let secret = Secret::new(text.trim().as_bytes()).ok_or(ConfigError::ShortSecret { variable: TEXT })?;
            vars.note("secret", "hidden", TEXT);
            Ok((secret, host(vars, place, meeting)?))
        }
        (None, Some(path)) => {
            let secret = read(path.into())?;
            vars.note("secret", "hidden", FILE);
            Ok((secret, host(vars, place, meeting)?))
        }
        (None, None) if is_one_host(place) => {
            vars.note("secret", "the job's name", "one host: keeps jobs apart, not users of this host");
            vars.note("host", LOOPBACK, "one host without a secret meets where no other host can reach it");
            Ok((Secret::from_job(&meeting.job), LOOPBACK.to_owned()))
        }
        (None, None) => Err(ConfigError::NoSecret),
    }
}

/// The host to meet at if no variable names one: this host, if all ranks are on it.
fn host(vars: &mut Vars<'_>, place: Place, meeting: &Meeting) -> Result<String, ConfigError> {
    let (host, source) = match &meeting.host {
        Some((host, variable)) => (host.clone(), *variable),
        None if is_one_host(place) => (LOOPBACK.to_owned(), "all ranks are on one host"),
        None => {
            let fix = "set it, on every rank, to a name or address of rank 0's host";
            return Err(ConfigError::Missing { variable: "MKERNEL_ADDR", fix });
        }
    };
    vars.note("host", &host, source);
    Ok(host)
}

fn is_one_host(place: Place) -> bool {
    place.local_world_size == place.world_size
}

fn read(path: PathBuf) -> Result<Secret, ConfigError> {
    let unreadable = |source| ConfigError::SecretFile { path: path.clone(), source };
    let mut file = File::open(&path).map_err(unreadable)?;
    // Of the open file, so that it cannot change between the check and the read.
    let metadata = file.metadata().map_err(unreadable)?;
    let (mode, bytes) = (metadata.permissions().mode() & 0o7777, metadata.len());
    if !metadata.is_file() || mode & OTHERS != 0 || bytes > MAX_FILE_BYTES {
        return Err(ConfigError::SecretMode { path, mode, bytes });
    }
    let mut text = Vec::new();
    file.by_ref().take(MAX_FILE_BYTES).read_to_end(&mut text).map_err(unreadable)?;
    Secret::new(text.trim_ascii()).ok_or(ConfigError::ShortSecret { variable: FILE })
}
