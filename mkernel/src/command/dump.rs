//! `mkernel dump`.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::usage::{Stop, Usage};

/// Asks the rank that runs as `process` what it is doing.
pub(crate) fn dump(process: u32) -> Result<String, Stop> {
    let no_rank = || Usage::NoRank { process };
    let status = fs::read_to_string(format!("/proc/{process}/status")).map_err(|_| no_rank())?;
    let id = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(no_rank)?;
    // Anything else would be ended by the signal.
    if !is_asked_by_signal(&status) {
        return Err(no_rank().into());
    }
    kill_process(id, Signal::USR1).map_err(|error| Usage::NotAsked { process, problem: error.into() })?;
    Ok(format!("asked process {process}; it answers on its stderr\n"))
}

/// Whether this is the status (proc(5)) of a process of ours that catches SIGUSR1.
fn is_asked_by_signal(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let caught = field("SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let bit = Signal::USR1.as_raw() - 1;
    field("Name:") == Some(env!("CARGO_BIN_NAME")) && caught >> bit & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_of_ours_that_catches_the_signal_is_asked() {
        let status = |name: &str, mask: &str| format!("Name:\t{name}\nState:\tR\nSigCgt:\t{mask}\n");
        assert!(is_asked_by_signal(&status("mkernel", "0000000100000200")));
        assert!(!is_asked_by_signal(&status("mkernel", "0000000100000440")));
        assert!(!is_asked_by_signal(&status("python3", "0000000100000200")));
        assert!(!is_asked_by_signal("Name:\tmkernel\n"));
    }
}
