//! Rules of the code base that no compiler checks.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Files that may contain unsafe code, each with the reason.
const UNSAFE: [(&str, &str); 24] = [
    ("mkernel-sim/src/block.rs", "bytes and counters that threads and processes share"),
    ("mkernel-sim/src/memory.rs", "raw bytes that threads share"),
    ("mkernel-sim/src/sgemm.rs", "calls the matrix product of a crate through pointers"),
    ("mkernel/src/check/matmul.rs", "calls the matrix product of a crate through pointers"),
    ("mkernel/src/gpu.rs", "vouches for the addresses of a heap"),
    ("mkernel-kernels/src/cuda/gpu.rs", "asks whether the driver is there"),
    ("mkernel-kernels/src/cuda/memory.rs", "allocates and copies memory of the driver"),
    ("mkernel-kernels/src/cuda/module.rs", "loads and launches kernels"),
    ("mkernel-kernels/src/cuda/nvrtc.rs", "calls the run-time compiler"),
    ("mkernel-kernels/src/cuda/tensor_map.rs", "asks the driver for tensor maps"),
    ("mkernel-kernels/src/cuda/stream.rs", "writes device memory in stream order"),
    ("mkernel-kernels/src/cuda/running.rs", "vouches for the addresses of a launch"),
    ("mkernel-kernels/src/cuda/agent.rs", "vouches for the addresses of cells"),
    ("mkernel-nvlink/src/copy_engine.rs", "vouches for the addresses of puts"),
    ("mkernel-nvlink/src/copy_engine/calls.rs", "allocates pinned memory, enqueues copies"),
    ("tests/examples/gpu_slice/world.rs", "vouches for the addresses of a heap"),
    ("mkernel-core/src/nic.rs", "declares what memory must promise that a NIC may use"),
    ("mkernel-rdma/src/verbs/result.rs", "calls libibverbs"),
    ("mkernel-rdma/src/verbs/device.rs", "owns devices"),
    ("mkernel-rdma/src/verbs/memory.rs", "owns protection domains and registrations"),
    ("mkernel-rdma/src/verbs/queue.rs", "owns queue pairs and their completions"),
    ("mkernel-rdma/src/verbs/nic.rs", "points requests at registered memory"),
    ("mkernel-rdma/src/verbs/side.rs", "points requests at registered memory"),
    ("mkernel-core/tests/loom_fifo.rs", "a cell whose accesses loom watches"),
];

/// The only file that reads the environment.
const CONFIG: &str = "mkernel/src/config.rs";

/// This file names what it forbids.
const SELF: &str = "tests/tests/tidy.rs";

const MOST_LINES: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files with one of these endings, by path from the root.
fn files(endings: &[&str]) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && name != ".git" {
                folders.push(path);
            } else if path.is_file() && endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path.strip_prefix(root()).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// Whether a file is there for tests or measurements only.
fn is_test(path: &str) -> bool {
    let folders = ["tests/", "fuzz/", "shared/"];
    let is_inside = ["/tests/", "/benches/", "_tests/"].iter().any(|part| path.contains(part));
    let is_named = ["/tests.rs", "_tests.rs"].iter().any(|end| path.ends_with(end));
    folders.iter().any(|f| path.starts_with(f)) || is_inside || is_named
}

/// Lines of code without comments, numbered from 1, each with whether it belongs to tests.
fn code(path: &str) -> Vec<(usize, String, bool)> {
    let text = read(path);
    let mut tests = is_test(path);
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        tests |= line.starts_with("#[cfg(") && line.contains("test");
        lines.push((index + 1, line.split("//").next().unwrap_or("").to_owned(), tests));
    }
    lines
}

/// Fails with every line of `endings` files that `is_bad` finds.
fn forbid(what: &str, is_bad: impl Fn(&str, &str, bool) -> bool) {
    let mut bad = Vec::new();
    for path in files(&[".rs"]).into_iter().filter(|path| path != SELF) {
        for (number, line, tests) in code(&path) {
            if is_bad(&path, &line, tests) {
                bad.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    assert!(bad.is_empty(), "{what}:\n{}", bad.join("\n"));
}

#[test]
fn crates_depend_on_each_other_only_along_the_arrows() {
    let middle = ["mkernel-sim", "mkernel-nvlink", "mkernel-rdma", "mkernel-kernels"];
    let members: Vec<String> = read("Cargo.toml")
        .lines()
        .find_map(|line| line.strip_prefix("members = ["))
        .unwrap()
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    assert_eq!(members.len(), 7, "{members:?}");
    for member in members {
        let allowed: Vec<&str> = match member.as_str() {
            "mkernel-core" => Vec::new(),
            "mkernel" => middle.into_iter().chain(["mkernel-core"]).collect(),
            "tests" => middle.into_iter().chain(["mkernel-core", "mkernel"]).collect(),
            other if middle.contains(&other) => vec!["mkernel-core"],
            other => panic!("{other} has no place in the picture of the crates"),
        };
        for dependency in dependencies(&format!("{member}/Cargo.toml")) {
            let is_ours = dependency.starts_with("mkernel");
            assert!(!is_ours || allowed.contains(&dependency.as_str()), "{member} must not depend on {dependency}");
        }
    }
}

/// Names under any dependency section of a manifest.
fn dependencies(path: &str) -> Vec<String> {
    let (mut is_inside, mut names) = (false, Vec::new());
    for line in read(path).lines() {
        if line.starts_with('[') {
            is_inside = line.ends_with("dependencies]");
        } else if is_inside && line.contains('=') && !line.starts_with('#') {
            names.push(line.split(['.', ' ', '=']).next().unwrap().to_owned());
        }
    }
    names
}

#[test]
fn every_dependency_says_why_in_one_place() {
    let manifest = read("Cargo.toml");
    let (_, section) = manifest.split_once("[workspace.dependencies]\n").unwrap();
    let (section, _) = section.split_once("\n[").unwrap();
    let lines: Vec<&str> = section.lines().filter(|line| !line.is_empty()).collect();
    for (index, line) in lines.iter().enumerate() {
        let is_reasoned = index > 0 && lines[index - 1].starts_with("# ");
        assert!(line.starts_with('#') || line.contains("path = ") || is_reasoned, "no reason above: {line}");
    }
    for path in files(&["Cargo.toml"]).into_iter().filter(|p| p.as_str() != "Cargo.toml" && !p.starts_with("fuzz/")) {
        for line in read(&path).lines().filter(|line| line.contains("version = \"")) {
            assert!(line.starts_with("rust-version"), "{path}: {line}: versions live in the workspace manifest");
        }
    }
}

#[test]
fn unsafe_code_is_only_where_it_is_listed() {
    let is_unsafe =
        |line: &str| ["{", "impl", "fn", "trait", "extern"].iter().any(|w| line.contains(&format!("unsafe {w}")));
    forbid("unsafe code outside the list", |path, line, _| {
        is_unsafe(line) && UNSAFE.iter().all(|(listed, _)| *listed != path)
    });
    for (path, why) in UNSAFE {
        assert!(code(path).iter().any(|(_, line, _)| is_unsafe(line)), "{path} ({why}) has no unsafe code any more");
    }
}

#[test]
fn only_the_configuration_reads_the_environment() {
    forbid("reads the environment", |path, line, _| {
        path != CONFIG && ["env::var", "option_env!", "env::set_var"].iter().any(|call| line.contains(call))
    });
}

#[test]
fn no_test_sleeps() {
    forbid("a test that sleeps", |_, line, tests| tests && line.contains("thread::sleep"));
}

#[test]
fn no_product_code_unwraps() {
    forbid("unwrap outside tests; expect says the invariant", |path, line, tests| {
        !tests && !path.contains("/examples/") && line.contains(".unwrap()")
    });
}

#[test]
fn nothing_is_left_undone() {
    let marks = ["TODO", "FIXME", "todo!(", "unimplemented!(", "dbg!("];
    for path in files(&[".rs", ".md", ".toml", ".cu", ".cuh"]).into_iter().filter(|path| path != SELF) {
        for (index, line) in read(&path).lines().enumerate() {
            assert!(!marks.iter().any(|mark| line.contains(mark)), "{path}:{}: {line}", index + 1);
        }
    }
}

#[test]
fn no_file_is_longer_than_the_cap() {
    for path in files(&[".rs", ".cu", ".cuh"]) {
        let lines = read(&path).lines().count();
        assert!(lines <= MOST_LINES, "{path} has {lines} lines, more than {MOST_LINES}: split it");
    }
}

#[test]
fn no_file_names_a_folder_of_somebodys_machine() {
    for path in files(&[".rs", ".md", ".toml", ".cu", ".cuh", ".py", "run"]).into_iter().filter(|path| path != SELF) {
        for (index, line) in read(&path).lines().enumerate() {
            let found = ["/home/", "/root/", "/work/", "/Users/"].iter().find(|folder| line.contains(*folder));
            assert!(found.is_none(), "{path}:{}: {line}", index + 1);
        }
    }
}

#[test]
fn the_commands_of_the_readme_are_those_that_ci_runs() {
    let (readme, ci) = (read("README.md"), read(".ci/run"));
    let blocks: Vec<&str> = readme.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    let commands: Vec<&str> = blocks.iter().flat_map(|block| block.lines()).collect();
    assert_eq!(commands.len(), 2, "the README prints two commands: {commands:?}");
    for command in commands {
        let is_run = ci.lines().any(|line| line.ends_with(command));
        assert!(is_run, "not in .ci/run as printed: {command}");
    }
}

#[test]
fn links_in_the_documentation_lead_to_files() {
    for path in files(&[".md"]) {
        let folder = root().join(&path).parent().unwrap().to_owned();
        for part in read(&path).split("](").skip(1) {
            let target = part.split([')', '#', ' ']).next().unwrap();
            let is_here = target.is_empty() || target.contains("://") || folder.join(target).exists();
            assert!(is_here, "{path} links to {target}, which does not exist");
        }
    }
}

#[test]
fn every_kind_of_bug_has_its_row_and_every_test_named_there_exists() {
    let list = read("docs/bugs.md");
    let kinds: Vec<u32> = list.lines().filter_map(|line| line.split('|').nth(1)?.trim().parse().ok()).collect();
    assert_eq!(kinds, (1..=24).collect::<Vec<_>>());
    let sources: Vec<String> = files(&[".rs"]).iter().map(|path| read(path)).collect();
    let named = list.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 1);
    for name in named.filter(|name| name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())) {
        // Attributes stand right above the function.
        let is_test = |source: &String| {
            source
                .split_once(&format!("fn {name}("))
                .is_some_and(|(before, _)| before.lines().rev().take(4).any(|line| line.trim() == "#[test]"))
        };
        assert!(sources.iter().any(is_test), "docs/bugs.md names the test {name}, which does not exist");
    }
}
