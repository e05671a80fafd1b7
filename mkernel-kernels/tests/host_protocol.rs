//! The device's protocol (claim, wait, signal, ticket, fault) on host threads under a thread sanitizer.
//!
//! The files of `src/device` are compiled as they are, over a `sync.cuh` of `std::atomic`. Not every machine has a
//! C++ compiler with a thread sanitizer, so the test is ignored unless asked for, as CI does with `--include-ignored`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mkernel_core::Ticket;
use mkernel_core::ticket::Lap;
use mkernel_kernels::encode::layout;

const PROTOCOL: [&str; 5] = ["claim.cuh", "wait.cuh", "signal.cuh", "ticket.cuh", "fault.cuh"];

/// Puts the files together in a folder of this test's own.
fn gather() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host_protocol");
    fs::create_dir_all(&folder).unwrap();
    for name in PROTOCOL {
        fs::copy(root.join("src/device").join(name), folder.join(name)).unwrap();
    }
    for name in ["sync.cuh", "main.cpp"] {
        fs::copy(root.join("tests/host_protocol").join(name), folder.join(name)).unwrap();
    }
    fs::write(folder.join("layout.h"), layout::text()).unwrap();
    folder
}

fn compile(folder: &Path) -> std::io::Result<Output> {
    let flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Werror", "-fsanitize=thread", "-pthread"];
    Command::new("c++").current_dir(folder).args(flags).args(["main.cpp", "-o", "protocol"]).output()
}

#[test]
#[ignore = "needs a C++ compiler with a thread sanitizer"]
fn the_protocol_is_free_of_races_and_its_tickets_are_those_of_the_core() {
    let folder = gather();
    let compiled = compile(&folder).unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(folder.join("protocol")).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}{err}");
    let mut words = 0;
    for line in out.lines() {
        let fields: Vec<u64> = line.split(' ').map(|field| field.parse().unwrap()).collect();
        let [position, put, argument, shift, word] = fields[..] else { panic!("{line}") };
        let ticket = Ticket::new(put, argument as u32).unwrap();
        assert_eq!(ticket.stamp(Lap::of(position, shift as u32)), word, "{line}");
        words += 1;
    }
    assert_eq!(words, 36);
}
