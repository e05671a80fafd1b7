//! The command: parses flags, runs or plans, reports, and turns every failure into one line and an exit status.
//!
//! Status 0: the run held. Status 1: a run failed. Status 2: wrong use, nothing was written. Results go to stdout, all
//! else to stderr.

mod args;
mod bench;
mod dump;
mod json;
mod nics;
mod plan;
mod print;
mod problem;
mod run;
mod selftest;
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
    let (is_verbose, is_json) = match &args.command {
        Command::Run(run) => (run.problem.verbose, run.problem.json),
        Command::Plan(plan) => (plan.problem.verbose, plan.problem.json),
        Command::Bench(bench) => (bench.problem.verbose, bench.problem.json),
        Command::Selftest(selftest) => (selftest.verbose, false),
        Command::Nics(_) => (false, false),
        Command::Dump(_) => (false, false),
    };
    log(is_verbose);
    let mut signals = None;
    let result = match &args.command {
        Command::Run(args) => run::run(args, &mut signals),
        Command::Plan(args) => plan::plan(args),
        Command::Bench(args) => bench::bench(args),
        Command::Selftest(args) => selftest::selftest(args),
        Command::Nics(args) => nics::nics(args),
        Command::Dump(args) => dump::dump(args.process),
    };
    match result.and_then(|report| write(&report)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            if let Stop::Selftest { table, .. } = &stop {
                // The table says what failed; the exit status says it anyway.
                let _ = write(table);
            }
            stop.accounts().iter().for_each(|account| tell(&account.to_string()));
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

/// Writes what a rank is doing to stderr.
fn tell(account: &str) {
    let mut text = account.to_owned();
    text.push('\n');
    // In one piece: ranks share the terminal. Nobody is left to tell if stderr is closed.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes one line to stderr.
fn complain(line: &str) {
    tell(&format!("mkernel: {line}"));
}

/// Logs go to stderr; warnings always, the rest if asked for.
fn log(is_verbose: bool) {
    let level = if is_verbose { tracing::Level::DEBUG } else { tracing::Level::WARN };
    // A log that cannot be written is no reason to fail: a launcher that dies takes stderr with it.
    let logs = tracing_subscriber::fmt().log_internal_errors(false).with_writer(io::stderr);
    logs.with_max_level(level).with_ansi(false).init();
}
