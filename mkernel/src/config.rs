//! Everything that is read from the environment, read here and nowhere else.
//!
//! [`Config::from_env`] says which rank this process is, where the ranks meet, and how long they wait, and keeps where
//! each value came from: print the [`Config`] to see it. `docs/bootstrap.md` has the table of variables.

mod launcher;
mod secret;

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::bootstrap::{MIN_SECRET_BYTES, Setup};

/// Start deadline if none is given: pods and batch nodes may come up minutes apart.
const START_DEADLINE_MS: u64 = 120_000;
/// Step deadline if none is given.
const STEP_DEADLINE_MS: u64 = 10_000;

/// Where compiled kernels are kept: `mkernel` in the user's folder for caches, if there is one.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |variable| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    caches.map(|caches| caches.join("mkernel"))
}

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Nobody: it is a job of its own.
    Alone,
    /// Whoever set the `MKERNEL_` variables.
    Plain,
    /// torchrun, or anything that sets the same variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Slurm's srun.
    Slurm,
}

/// What the environment says.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who started this process.
    pub launcher: Launcher,
    /// Where and how the ranks of the job meet.
    pub setup: Setup,
    origins: Vec<Origin>,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// What it is.
    pub name: &'static str,
    /// The value in words.
    pub value: String,
    /// The variable, or the rule where no variable is set.
    pub source: String,
}

/// Why the environment makes no sense.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A variable that is needed is not set.
    #[error("{variable} is not set: {fix}")]
    Missing {
        /// The variable.
        variable: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// A value cannot be read.
    #[error("{variable}={value:?} is not {expected}")]
    Unparsable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: OsString,
        /// What it should be.
        expected: &'static str,
    },
    /// Two values contradict each other.
    #[error("{first}={first_value} contradicts {second}={second_value}: {fix}")]
    Conflict {
        /// A variable.
        first: &'static str,
        /// Its value.
        first_value: String,
        /// The other variable.
        second: &'static str,
        /// Its value.
        second_value: String,
        /// What to do.
        fix: &'static str,
    },
    /// The job spans hosts and has no secret.
    #[error(
        "MKERNEL_SECRET is not set, and ranks on several hosts need one: run `export MKERNEL_SECRET=$(openssl rand -hex 32)` \
         where the launcher runs (mpirun: add -x MKERNEL_SECRET), or put it in a file of mode 0600 on every host and name \
         it in MKERNEL_SECRET_FILE"
    )]
    NoSecret,
    /// The secret is too short.
    #[error("{variable} holds fewer than {MIN_SECRET_BYTES} bytes: make one with `openssl rand -hex 32`")]
    ShortSecret {
        /// The variable.
        variable: &'static str,
    },
    /// The file of the secret cannot be read.
    #[error("MKERNEL_SECRET_FILE={path:?} cannot be read")]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Others may read the file of the secret, or it is not a small regular file.
    #[error(
        "MKERNEL_SECRET_FILE={path:?} has mode {mode:04o} and {bytes} bytes: it must be a file of at most 4096 bytes that only its owner can read (chmod 600)"
    )]
    SecretMode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Its size.
        bytes: u64,
    },
}

impl Config {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// A variable is missing, cannot be read or contradicts another; the error names it and says what to do.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|variable| env::var_os(variable))
    }

    /// Reads variables from `lookup`.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let mut vars = Vars { lookup: &lookup, origins: Vec::new() };
        let (launcher, place) = launcher::place(&mut vars)?;
        let meeting = launcher::meeting(&mut vars, launcher, place)?;
        let (secret, host) = secret::secret(&mut vars, place, &meeting)?;
        let start_deadline = vars.deadline("MKERNEL_START_DEADLINE_MS", "start deadline", START_DEADLINE_MS)?;
        let step_deadline = vars.deadline("MKERNEL_STEP_DEADLINE_MS", "step deadline", STEP_DEADLINE_MS)?;
        let setup =
            Setup { place, job: meeting.job, secret, host, ports: meeting.ports, start_deadline, step_deadline };
        Ok(Self { launcher, setup, origins: vars.origins })
    }

    /// Each value and where it came from.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Origin { name, value, source }) in self.origins.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{name:<16} {value} ({source})")?;
        }
        Ok(())
    }
}

/// The variables, and a record of what was taken from them.
struct Vars<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    origins: Vec<Origin>,
}

impl Vars<'_> {
    /// The text of a variable. Set to nothing counts as not set, as launchers and shells do.
    fn text(&self, variable: &'static str) -> Result<Option<String>, ConfigError> {
        match (self.lookup)(variable).filter(|value| !value.is_empty()).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(value)) => Err(ConfigError::Unparsable { variable, value, expected: "UTF-8" }),
        }
    }

    fn number(&self, variable: &'static str) -> Result<Option<u32>, ConfigError> {
        let parse = |text: String| {
            let error = ConfigError::Unparsable { variable, value: text.clone().into(), expected: "a number" };
            text.trim().parse().map_err(|_| error)
        };
        self.text(variable)?.map(parse).transpose()
    }

    fn deadline(
        &mut self,
        variable: &'static str,
        name: &'static str,
        default_ms: u64,
    ) -> Result<Duration, ConfigError> {
        let expected = "a number of milliseconds from 1 to 4294967295";
        let given = match self.text(variable)? {
            None => None,
            Some(text) => match text.trim().parse::<u32>() {
                Ok(ms) if ms > 0 => Some(u64::from(ms)),
                _ => return Err(ConfigError::Unparsable { variable, value: text.into(), expected }),
            },
        };
        let ms = given.unwrap_or(default_ms);
        self.note(name, format!("{ms} ms"), if given.is_some() { variable } else { "default" });
        Ok(Duration::from_millis(ms))
    }

    fn note(&mut self, name: &'static str, value: impl fmt::Display, source: impl fmt::Display) {
        self.origins.push(Origin { name, value: value.to_string(), source: source.to_string() });
    }
}
