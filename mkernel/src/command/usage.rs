//! How a command stops early: one line, one exit status.

use std::error::Error as _;
use std::io;

use clap::error::ErrorKind;
use mkernel::{Error, World};
use mkernel_core::world::WorldError;

use super::args::TransportName;

/// Why a command stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    #[error(transparent)]
    Usage(#[from] Usage),
    /// A step before the run: what was asked for cannot work.
    #[error(transparent)]
    Refused(Error),
    /// The run itself.
    #[error(transparent)]
    Failed(Error),
    /// Checks of the self-test; the table says which.
    #[error("{failed} checks of the self-test failed")]
    Selftest { table: String, failed: usize },
    #[error("cannot write to stdout")]
    Stdout(#[source] io::Error),
}

/// Wrong use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Usage {
    #[error("{}: {problem}", world_flag(.problem))]
    World {
        #[source]
        problem: WorldError,
    },
    #[error("--nodes is {nodes}, but --gpus lists {listed} nodes; make them agree or leave --nodes out")]
    NodeCount { nodes: u32, listed: usize },
    #[error("{flag} is missing; the operator needs {needs}, or --input with a file")]
    MissingShape { flag: &'static str, needs: String },
    #[error("{flag} is for {operators} only; leave it out")]
    ForeignOption { flag: &'static str, operators: &'static str },
    #[error("{flag} is {given}, but --input says {found}; leave {flag} out or change the file")]
    Contradiction { flag: &'static str, given: String, found: String },
    #[error("--input: tensor `{tensor}` is missing; the file must hold {needs}")]
    MissingTensor { tensor: &'static str, needs: String },
    #[error("--input: tensor `{tensor}` has shape {shape:?}; it must be {wanted} with no empty axis")]
    Shape { tensor: &'static str, shape: Vec<u64>, wanted: String },
    #[error("--input: tensor `{tensor}` holds {found}; it must hold {wanted}")]
    Element { tensor: &'static str, found: mkernel::DType, wanted: &'static str },
    #[error("--input: tensor `{tensor}` says that {axis} is {size}, but `{owner}` says {before}; they must be equal")]
    Axis { axis: String, tensor: &'static str, size: u64, owner: &'static str, before: u64 },
    #[error("--input: tensor `{tensor}` holds {found}, but `{owner}` holds {one}; both must have one type")]
    Types { tensor: &'static str, found: mkernel::DType, owner: &'static str, one: mkernel::DType },
    #[error("--input: {problem}; give a sound safetensors file with {needs}")]
    Input {
        #[source]
        problem: Error,
        needs: String,
    },
    #[error("{flag}: {problem}; give a file in a directory that can be written")]
    Unwritable {
        flag: &'static str,
        #[source]
        problem: Error,
    },
    #[error("--output and --trace both name {}; give each a file of its own", place.display())]
    SamePlace { place: std::path::PathBuf },
    #[error("{flag} means nothing to {op}, which takes {needs}; leave it out")]
    ForeignSize { flag: &'static str, op: String, needs: String },
    #[error("--transport {} is not in this build; use loopback, which runs all ranks in this process", name(.0))]
    Transport(TransportName),
    #[error(
        "{what} is not in this build; build mkernel with feature `rdma`, which takes the packages cmake, libclang-dev and \
         libibverbs-dev; --transport loopback takes none"
    )]
    NoRdma { what: &'static str },
    #[error("{flag} is for --transport verbs only; leave it out")]
    NotVerbs { flag: &'static str },
    #[error("--transport {} does not go with {flag}; leave it out, or use --transport loopback", name(.transport))]
    HostOnly { transport: TransportName, flag: &'static str },
    #[error("--transport {} needs a launcher; use loopback, or cuda for all ranks on one GPU", name(.transport))]
    Alone { transport: TransportName },
    #[error("PID {process} is no rank that runs; give the process of a `mkernel run --transport shm`")]
    NoRank { process: u32 },
    #[error("PID {process} cannot be asked; ask as its user")]
    NotAsked {
        process: u32,
        #[source]
        problem: io::Error,
    },
    #[error("--nodes and --gpus say {asked}, but the launcher started {found}; make them agree or leave the flags out")]
    Launched { asked: World, found: World },
}

fn world_flag(error: &WorldError) -> &'static str {
    match error {
        WorldError::NoNodes => "--nodes is 0",
        WorldError::EmptyNode(_) => "--gpus",
        WorldError::TooManyRanks { .. } => "--nodes and --gpus",
    }
}

fn name(transport: &TransportName) -> &'static str {
    match transport {
        TransportName::Loopback => "loopback",
        TransportName::Shm => "shm",
        TransportName::Verbs => "verbs",
        TransportName::Cuda => "cuda",
    }
}

impl Stop {
    /// 2 for wrong use, 1 for a failed run.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Stop::Usage(_) => 2,
            Stop::Refused(error) => match error {
                #[cfg(feature = "sim")]
                Error::Host(_) => 2,
                #[cfg(feature = "cuda")]
                Error::Gpu(_) => 2,
                Error::TooManyRanks { .. } => 2,
                Error::Plan(_)
                | Error::Split(_)
                | Error::Tensor(_)
                | Error::Memory { .. }
                | Error::NoExecutor
                | Error::File { .. } => 2,
                Error::Config(_) | Error::Routes(_) => 2,
                #[cfg(feature = "rdma")]
                Error::Rdma(_) => 1,
                Error::Fault(_) | Error::Violation(_) | Error::Check(_) => 1,
                Error::Bootstrap(_) | Error::Job { .. } | Error::Thread(_) | Error::Signals(_) => 1,
                #[cfg(feature = "sim")]
                Error::Stuck { .. } => 1,
            },
            Stop::Failed(_) | Stop::Selftest { .. } | Stop::Stdout(_) => 1,
        }
    }

    /// What ranks were doing when everything stood still.
    #[cfg(feature = "sim")]
    pub(crate) fn accounts(&self) -> &[impl std::fmt::Display + use<>] {
        match self {
            Stop::Failed(Error::Stuck { accounts, .. }) | Stop::Refused(Error::Stuck { accounts, .. }) => accounts,
            _ => &[],
        }
    }

    /// What ranks were doing when everything stood still.
    #[cfg(not(feature = "sim"))]
    pub(crate) fn accounts(&self) -> &[&str] {
        &[]
    }

    /// The failure and its causes as one line.
    pub(crate) fn line(&self) -> String {
        let mut line = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !line.contains(&cause_text) {
                line = format!("{line}: {cause_text}");
            }
            source = cause.source();
        }
        one_line(&line)
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What clap says over several lines, as one.
pub(crate) fn clap_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command given; use `mkernel run OP` or `mkernel plan OP`, see `mkernel --help`".to_owned();
    }
    let text = error.to_string();
    let is_said = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
    let said = text.lines().take_while(is_said).filter(|line| !line.trim().starts_with("tip: to pass"));
    let line = one_line(&said.collect::<Vec<_>>().join(" "));
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    format!("{}; see `mkernel --help`", line.trim_end_matches('.'))
}
