//! Flags that cannot work, and runs that fail.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::{assert_refused, directory, mkernel, names};

#[test]
fn wrong_flags_are_refused_in_one_line_that_names_them() {
    let shape = "--m 8 --n 8 --k 8";
    let cases: &[(&str, &[&str])] = &[
        ("", &["mkernel run OP"]),
        ("run", &["<OP>"]),
        ("run matmul", &["matmul", "ag-gemm"]),
        ("walk ag-gemm", &["walk"]),
        ("run ag-gemm", &["--m", "missing", "--input"]),
        ("run ag-gemm --m 8 --n 8", &["--k", "missing"]),
        ("run ag-gemm --m 0 --n 8 --k 8", &["--m is 0", "between 1 and"]),
        ("run ag-gemm --m 8 --n 8 --k 1073741825", &["--k is 1073741825", "between 1 and"]),
        ("run ag-gemm --m -8 --n 8 --k 8", &["--m", "whole number"]),
        ("run ag-gemm --m 8.5 --n 8 --k 8", &["--m", "whole number"]),
        ("run ag-gemm --m 99999999999999999999 --n 8 --k 8", &["--m", "whole number"]),
        ("run ag-gemm @ --nodes 0", &["--nodes is 0"]),
        ("run ag-gemm @ --gpus 0", &["--gpus", "node 0 has no GPU"]),
        ("run ag-gemm @ --nodes 4294967295 --gpus 0", &["node 0 has no GPU"]),
        ("run ag-gemm @ --heads 3", &["--heads", "ag-gemm", "--m, --k, --n"]),
        ("plan ag-gemm @ --causal", &["--causal", "ring-attention only"]),
        ("run ring-attention --batch 1 --heads 1 --seq 4 --dim 16 --m 4", &["--m", "ring-attention", "--seq"]),
        ("run ag-gemm @ --gpus 3,0", &["--gpus", "node 1 has no GPU"]),
        ("run ag-gemm @ --gpus 3,,2", &["--gpus", "3,2"]),
        ("run ag-gemm @ --nodes 3 --gpus 3,2", &["--nodes is 3", "--gpus lists 2"]),
        ("run ag-gemm @ --nodes 4294967295 --gpus 4294967295", &["--nodes and --gpus", "at most"]),
        ("run ag-gemm @ --nodes 13 --gpus 5", &["65 ranks", "at most 64", "plan"]),
        ("run ag-gemm @ --dtype f64", &["--dtype", "bf16, f16, f32"]),
        ("run ag-gemm @ --gpus 2 --roles intra=0", &["--roles", "intra", "at least 1"]),
        ("run ag-gemm @ --gpus 2 --roles compute=0", &["--roles", "compute", "at least 1"]),
        ("run ag-gemm @ --roles walk=1", &["--roles", "unknown role", "compute, intra, send and reduce"]),
        ("run ag-gemm @ --roles reduce=1", &["--roles", "reduce", "ag-gemm", "compute, intra, send"]),
        ("plan ag-gemm @ --nodes 100 --roles reduce=0", &["--roles", "reduce", "compute, intra, send"]),
        ("plan gemm-rs @ --nodes 2 --roles intra=2", &["--roles", "intra", "gemm-rs", "compute, send, reduce"]),
        ("run ag-gemm @ --roles compute", &["--roles", "ROLE=CTAS"]),
        ("run ag-gemm @ --roles compute=1,compute=2", &["--roles", "twice"]),
        ("run ag-gemm @ --roles compute=4000000000", &["--roles", "4000000000", "SMs"]),
        ("run ag-gemm @ --epochs 0", &["--epochs", "at least 1"]),
        ("run ag-gemm @ --deadline-ms 0", &["--deadline-ms", "at least 1"]),
        ("run ag-gemm @ --seed x", &["--seed", "whole number"]),
        ("run ag-gemm @ --transport verbs", &["--transport verbs", "not in this build", "loopback"]),
        ("run ag-gemm @ --transport pigeon", &["--transport", "loopback"]),
        ("run ag-gemm @ --schedule later", &["--schedule", "threads, seeded"]),
        ("run ag-gemm @ --partial f32", &["--partial", "gemm-rs and gemm-ar"]),
        ("run gemm-rs @ --all-reduce auto", &["--all-reduce", "gemm-ar"]),
        ("run gemm-ar @ --all-reduce ring", &["--all-reduce", "two-step, one-shot"]),
        ("run gemm-rs --m 8 --n 8", &["--k", "missing"]),
        ("run ag-gemm @ --bogus", &["--bogus"]),
        ("run ag-gemm @ --m 9", &["--m", "multiple times"]),
        ("run ag-gemm @ --json --nodes 0", &["--nodes is 0"]),
        ("run ag-gemm --m 1000 --n 1000 --k 1000000000", &["memory", "smaller"]),
        ("plan ag-gemm --n 8 --k 8", &["--m", "missing"]),
        ("plan ag-gemm @ --gpus 0", &["--gpus"]),
        ("plan ag-gemm --m 1000000000 --n 1000000000 --k 1", &["instructions", "smaller shape or more ranks"]),
        ("plan ag-gemm @ --profile tpu", &["--profile", "h200"]),
    ];
    for (flags, says) in cases {
        let flags = flags.replace('@', shape);
        assert_refused(&mkernel(&flags, &[]), says, &flags);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_run() {
    let directory = directory("unwritable");
    fs::create_dir(directory.join("taken")).unwrap();
    fs::write(directory.join("file"), "kept").unwrap();
    for flag in ["--output", "--trace"] {
        for (place, says) in
            [("absent/out", "No such file"), ("taken", "not a regular"), ("file/out", "Not a directory")]
        {
            let place = directory.join(place);
            let ended = mkernel("run ag-gemm --m 8 --n 8 --k 8", &[flag, place.to_str().unwrap()]);
            assert_refused(&ended, &[flag, says, "can be written"], place.to_str().unwrap());
        }
    }
    assert_eq!(names(&directory), ["file", "taken"]);
}

#[test]
fn a_missed_deadline_is_a_typed_error_with_status_1_and_leaves_files_alone() {
    let directory = directory("deadline");
    let output = directory.join("out.safetensors");
    fs::write(&output, "from before").unwrap();
    // One row of 16 MB cannot cross within a millisecond on any machine that counts.
    let flags = "run ag-gemm --nodes 2 --m 2 --n 2 --k 8000000 --deadline-ms 1 --json --no-check";
    let ended = mkernel(flags, &["--output", output.to_str().unwrap()]);
    assert_eq!(ended.status, 1, "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    let error: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let error = &error["error"];
    assert_eq!(error["kind"], "deadline");
    // The rank, or the work that took too long, says nothing of what to do.
    assert!(ended.stderr.contains("--deadline-ms"), "{}", ended.stderr);
    assert!(error["rank"].as_u64().is_some_and(|rank| rank < 2), "{error}");
    // Who waited for what depends on where the threads were; the keys are always there.
    for key in ["message", "role", "lane", "instruction", "cell", "wanted", "seen", "peer"] {
        assert!(error.get(key).is_some(), "{key} is not in {error}");
    }
    assert_eq!(names(&directory), ["out.safetensors"]);
    assert_eq!(fs::read_to_string(&output).unwrap(), "from before");
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_that_cannot_be_written_is_a_failed_run() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mkernel"));
    let output = command.args("run ag-gemm --m 8 --n 8 --k 8".split(' ')).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to stdout"));
}

#[test]
fn help_and_version_are_no_errors() {
    for flags in ["--help", "--version", "run --help", "plan --help"] {
        let ended = mkernel(flags, &[]);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{flags}");
        assert!(ended.stdout.contains("mkernel"), "{flags}");
    }
}

#[cfg(unix)]
#[test]
fn a_device_or_socket_is_never_replaced_by_an_output_and_a_link_stays_a_link() {
    let directory = directory("special");
    let _socket = std::os::unix::net::UnixListener::bind(directory.join("socket")).unwrap();
    let run =
        |name: &str| mkernel("run ag-gemm --m 8 --n 8 --k 8", &["--output", directory.join(name).to_str().unwrap()]);
    assert_refused(&run("socket"), &["--output", "not a regular file"], "socket");
    fs::write(directory.join("file"), "old").unwrap();
    std::os::unix::fs::symlink("file", directory.join("link")).unwrap();
    assert_eq!(run("link").status, 0);
    assert!(fs::symlink_metadata(directory.join("link")).unwrap().is_symlink());
    assert_eq!(crate::support::read(&directory.join("file")).rows, 8);
    assert_eq!(names(&directory), ["file", "link", "socket"]);
}

#[test]
fn a_killed_run_leaves_no_file_behind() {
    let directory = directory("killed");
    let mut run = Command::new(env!("CARGO_BIN_EXE_mkernel"))
        .args("run ag-gemm --m 64 --n 64 --k 64 --epochs 100000 --verbose --output c --trace t".split(' '))
        .current_dir(&directory)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Both places have been tried by now.
    let log = BufReader::new(run.stderr.take().unwrap());
    assert!(log.lines().any(|line| line.unwrap().contains("instance made")));
    run.kill().unwrap();
    assert!(!run.wait().unwrap().success());
    assert_eq!(names(&directory), Vec::<String>::new());
}

#[test]
fn an_output_that_is_no_place_for_a_file_is_refused_before_the_run() {
    let directory = directory("no_place");
    std::os::unix::fs::symlink("missing/file", directory.join("link")).unwrap();
    for (place, says) in [("new/", "regular file"), ("link", "regular file")] {
        let place = format!("{}/{place}", directory.display());
        for flag in ["--output", "--trace"] {
            assert_refused(&mkernel("run ag-gemm --m 8 --n 8 --k 8", &[flag, &place]), &[flag, says], &place);
        }
    }
    for other in ["one", "./one"] {
        let more = [
            "--output",
            &format!("{}/one", directory.display()),
            "--trace",
            &format!("{}/{other}", directory.display()),
        ];
        assert_refused(&mkernel("run ag-gemm --m 8 --n 8 --k 8", &more), &["--output and --trace", "one"], other);
    }
    assert_eq!(names(&directory), ["link"]);
}

#[test]
fn an_output_that_replaces_a_private_file_stays_private() {
    use std::os::unix::fs::PermissionsExt;
    let directory = directory("private");
    let place = directory.join("c");
    fs::write(&place, "old").unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
    let ended = mkernel("run ag-gemm --m 8 --n 8 --k 8", &["--output", place.to_str().unwrap()]);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_ne!(fs::read(&place).unwrap(), b"old");
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
}
