//! The `mkernel` command.

use std::process::ExitCode;

mod command;

fn main() -> ExitCode {
    command::main(std::env::args_os())
}
