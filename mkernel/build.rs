//! Says which packages feature `rdma` needs before anything else fails for lack of one.

use std::path::Path;
use std::process::{Command, Stdio};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if !cfg!(feature = "rdma") {
        return;
    }
    let mut missing = Vec::new();
    if Command::new("cmake").arg("--version").stdout(Stdio::null()).status().is_err() {
        missing.push("cmake");
    }
    let folders = library_folders();
    let has = |part: &str, folders: &[String]| folders.iter().any(|folder| holds(Path::new(folder), part));
    if !has("libclang", &folders) {
        missing.push("libclang-dev");
    }
    if !has("libibverbs.so", &folders) {
        missing.push("libibverbs-dev");
    }
    if !missing.is_empty() {
        let packages = missing.join(" ");
        println!("cargo::error=feature `rdma` needs packages that are missing: apt-get install {packages}");
        std::process::exit(1);
    }
}

/// Where systems keep libraries.
fn library_folders() -> Vec<String> {
    let mut folders: Vec<String> = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(str::to_owned).into();
    let triples = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
    folders.extend(triples.iter().map(|triple| format!("/usr/lib/{triple}")));
    if let Ok(entries) = std::fs::read_dir("/usr/lib") {
        let llvm = entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("llvm"));
        folders.extend(llvm.map(|e| e.path().join("lib").to_string_lossy().into_owned()));
    }
    folders
}

/// Whether a folder has a shared library whose name begins with `part`, for the linker to find.
fn holds(folder: &Path, part: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with(part) && name.contains(".so") && !name.starts_with("libclang-cpp")
    })
}
