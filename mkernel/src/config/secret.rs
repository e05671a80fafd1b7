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
const MAX_FILE_BYTES: u64 = 4096;
/// Bits of a mode that let anybody but the owner in.
const OTHERS: u32 = 0o077;

/// The secret, and the host to meet at: without a secret that is this host, out of reach of others.
pub(super) fn secret(vars: &mut Vars<'_>, place: Place, meeting: &Meeting) -> Result<(Secret, String), ConfigError> {
    let host = meeting.host.clone();
    match (vars.text(TEXT)?, vars.text(FILE)?) {
        (Some(_), Some(path)) => Err(ConfigError::Conflict {
            first: TEXT,
            first_value: "(hidden)".into(),
            second: FILE,
            second_value: path,
            fix: "unset one of them",
        }),
        (Some(text), None) => {
            vars.note("secret", "hidden", TEXT);
            let secret = Secret::new(text.trim().as_bytes()).ok_or(ConfigError::ShortSecret { variable: TEXT })?;
            given(vars, secret, host)
        }
        (None, Some(path)) => {
            let secret = read(path.into())?;
            vars.note("secret", "hidden", FILE);
            given(vars, secret, host)
        }
        (None, None) if place.local_world_size == place.world_size => {
            let host = "127.0.0.1".to_owned();
            vars.note("secret", "the job's name", "one host: keeps jobs apart, not users of this host");
            vars.note("host", &host, "one host without a secret meets where no other host can reach it");
            Ok((Secret::from_job(&meeting.job), host))
        }
        (None, None) => Err(ConfigError::NoSecret),
    }
}

fn given(
    vars: &mut Vars<'_>,
    secret: Secret,
    host: Option<(String, &'static str)>,
) -> Result<(Secret, String), ConfigError> {
    let (host, source) = host.ok_or(ConfigError::Missing {
        variable: "MKERNEL_ADDR",
        fix: "set it, on every rank, to a name or address of rank 0's host",
    })?;
    vars.note("host", &host, source);
    Ok((secret, host))
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
