//! The command: parses flags, runs or plans, reports, and turns every failure into one line and an exit status.
//!
//! Status 0: the run held. Status 1: a run failed. Status 2: wrong use, nothing was written. Results go to stdout, all
//! else to stderr.

mod args;
mod json;
mod nics;
mod plan;
mod print;
mod problem;
mod run;
mod usage;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Args, Command};
use usage::Stop;

/// Runs the command and says how it ended.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Err(error) => {
            complain(&usage::clap_line(&error));
            return ExitCode::from(2);
        }
    };
    let common = match &args.command {
        Command::Run(run) => Some(&run.problem),
        Command::Plan(plan) => Some(&plan.problem),
        Command::Nics(_) => None,
    };
    log(common.is_some_and(|common| common.verbose));
    let is_json = common.is_some_and(|common| common.json);
    let result = match &args.command {
        Command::Run(args) => run::run(args),
        Command::Plan(args) => plan::plan(args),
        Command::Nics(args) => nics::nics(args),
    };
    match result.and_then(|report| write(&report)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            complain(&stop.line());
            let status = stop.status();
            if is_json && status == 1 && !matches!(stop, Stop::Stdout(_)) {
                // The exit status already says that the run failed: a closed stdout changes nothing.
                let _ = write(&json::error(&stop));
            }
            ExitCode::from(status)
        }
    }
}

/// Writes a report to stdout.
fn write(report: &str) -> Result<(), Stop> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(report.as_bytes()).and_then(|()| stdout.flush()).map_err(Stop::Stdout)
}

/// Writes one line to stderr.
fn complain(line: &str) {
    // Nobody is left to tell if stderr is closed.
    let _ = writeln!(io::stderr(), "mkernel: {line}");
}

/// Logs go to stderr; warnings always, the rest if asked for.
fn log(is_verbose: bool) {
    let level = if is_verbose { tracing::Level::DEBUG } else { tracing::Level::WARN };
    tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(level).with_ansi(false).init();
}
