//! Input files that lie.

use std::fs;
use std::path::Path;

use crate::support::{Matrix, assert_refused, directory, mkernel, names, write};

/// A file with this header, however wrong, and `data` bytes after it.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(std::iter::repeat_n(0, data));
    bytes
}

/// A header with two tensors, each given as dtype, shape and offsets.
fn header(a: (&str, &str, &str), b: (&str, &str, &str)) -> String {
    let tensor = |(dtype, shape, at): (&str, &str, &str)| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{at}}}"#)
    };
    format!(r#"{{"a":{},"b":{}}}"#, tensor(a), tensor(b))
}

fn refused(directory: &Path, bytes: &[u8], says: &[&str], what: &str) {
    let (input, output) = (directory.join("in.safetensors"), directory.join("out.safetensors"));
    fs::write(&input, bytes).unwrap();
    let paths = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
    let ended = mkernel("run ag-gemm --gpus 2", &paths);
    assert_refused(&ended, says, what);
    assert_eq!(names(directory), ["in.safetensors"], "{what}");
}

#[test]
fn a_header_that_lies_is_refused() {
    let directory = directory("lying");
    let good = ("BF16", "[2,3]", "[0,12]");
    let sound = raw(&header(good, ("BF16", "[3,2]", "[12,24]")), 24);
    let mut beyond = sound.clone();
    beyond[..8].copy_from_slice(&(sound.len() as u64).to_le_bytes());
    let mut huge = sound.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("four bytes", vec![1, 2, 3, 4]),
        ("header length beyond the file", beyond),
        ("header length of 2^64 - 1", huge),
        ("header that is no JSON", raw("{{{{", 0)),
        ("header that is no text", [&4u64.to_le_bytes()[..], &[0xff, 0xfe, 0xfd, 0xfc]].concat()),
        ("truncated data", sound[..sound.len() - 1].to_vec()),
        ("data left over", [&sound[..], &[0]].concat()),
        ("overlapping offsets", raw(&header(good, ("BF16", "[3,2]", "[6,18]")), 18)),
        ("a gap between tensors", raw(&header(good, ("BF16", "[3,2]", "[14,26]")), 26)),
        ("offsets backwards", raw(&header(("BF16", "[2,3]", "[12,0]"), ("BF16", "[3,2]", "[12,24]")), 24)),
        ("shape larger than its bytes", raw(&header(("BF16", "[4,3]", "[0,12]"), ("BF16", "[3,2]", "[12,24]")), 24)),
        (
            "shape that overflows",
            raw(&header(("BF16", "[4294967296,4294967296]", "[0,12]"), ("BF16", "[3,2]", "[12,24]")), 24),
        ),
        ("unknown type", raw(&header(("Q7", "[2,3]", "[0,12]"), ("BF16", "[3,2]", "[12,24]")), 24)),
        ("negative shape", raw(&header(("BF16", "[-2,3]", "[0,12]"), ("BF16", "[3,2]", "[12,24]")), 24)),
    ];
    for (what, bytes) in cases {
        refused(&directory, &bytes, &["--input", "safetensors"], what);
    }
}

/// A JSON reader takes one of the two, and another reader the other.
#[test]
fn a_tensor_named_twice_is_refused() {
    let directory = directory("twice");
    let tensor = |name: &str, at| format!(r#""{name}":{{"dtype":"BF16","shape":[2,2],"data_offsets":{at}}}"#);
    for names in [["a", "a", "b"], ["a", "b", "b"], ["b", "a", "b"]] {
        for places in [["[0,8]", "[0,8]", "[8,16]"], ["[0,8]", "[8,16]", "[8,16]"], ["[8,16]", "[0,8]", "[0,8]"]] {
            let entries: Vec<String> = names.iter().zip(places).map(|(name, at)| tensor(name, at)).collect();
            let bytes = raw(&format!("{{{}}}", entries.join(",")), 16);
            let what = format!("{names:?} at {places:?}");
            refused(&directory, &bytes, &["--input", "not a sound safetensors file"], &what);
        }
    }
    let twice = ["a", "b", "a"].map(|name| tensor(name, if name == "a" { "[0,8]" } else { "[8,16]" }));
    refused(&directory, &raw(&format!("{{{}}}", twice.join(",")), 16), &["--input", "tensor `a` twice"], "a twice");
}

#[test]
fn every_truncation_of_a_sound_file_is_refused() {
    let directory = directory("truncated");
    let path = directory.join("in.safetensors");
    write(&path, "bf16", &Matrix::integers(2, 3, 1), &Matrix::integers(3, 2, 2));
    let sound = fs::read(&path).unwrap();
    for length in (0..sound.len()).step_by(7) {
        refused(&directory, &sound[..length], &["--input"], &format!("{length} of {} bytes", sound.len()));
    }
}

#[test]
fn tensors_that_do_not_fit_the_operator_are_named() {
    let directory = directory("misfit");
    let good = ("BF16", "[2,3]", "[0,12]");
    let cases: Vec<(&str, String, usize, &[&str])> = vec![
        ("integers", header(("I32", "[2,3]", "[0,24]"), ("I32", "[3,2]", "[24,48]")), 48, &["`a`", "i32", "bf16"]),
        ("doubles", header(("F64", "[2,3]", "[0,48]"), ("F64", "[3,2]", "[48,96]")), 96, &["`a`", "F64", "BF16"]),
        ("two types", header(good, ("F16", "[3,2]", "[12,24]")), 24, &["`a`", "`b`", "bf16", "f16"]),
        (
            "rank 3",
            header(("BF16", "[2,3,1]", "[0,12]"), ("BF16", "[3,2]", "[12,24]")),
            24,
            &["`a`", "[2, 3, 1]", "[M, K]"],
        ),
        ("rank 1", header(good, ("BF16", "[6]", "[12,24]")), 24, &["`b`", "[6]", "[K, N]"]),
        ("no rows", header(("BF16", "[0,3]", "[0,0]"), ("BF16", "[3,2]", "[0,12]")), 12, &["`a`", "[0, 3]"]),
        ("inner axes differ", header(good, ("BF16", "[2,3]", "[12,24]")), 24, &["`b`", "K is 2", "`a` says 3"]),
        (
            "b is missing",
            r#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#.to_owned(),
            12,
            &["`b`", "missing"],
        ),
    ];
    for (what, header, data, says) in cases {
        refused(&directory, &raw(&header, data), &[&["--input"], says].concat(), what);
    }
}

#[test]
fn flags_that_contradict_the_file_are_named() {
    let directory = directory("contradict");
    let path = directory.join("in.safetensors");
    write(&path, "bf16", &Matrix::integers(2, 3, 1), &Matrix::integers(3, 4, 2));
    for (flags, says) in
        [("--m 3", "--m is 3"), ("--n 3", "--n is 3"), ("--k 4", "--k is 4"), ("--dtype f16", "--dtype is f16")]
    {
        let ended = mkernel(&format!("run ag-gemm {flags}"), &["--input", path.to_str().unwrap()]);
        assert_refused(&ended, &[says, "--input"], flags);
    }
    let agreeing = "run ag-gemm --m 2 --n 4 --k 3 --dtype bf16";
    assert_eq!(mkernel(agreeing, &["--input", path.to_str().unwrap()]).status, 0);
}

#[test]
fn a_file_that_is_not_there_or_a_directory_is_refused() {
    let directory = directory("absent");
    for (path, says) in [(directory.join("none"), "No such file"), (directory.clone(), "directory")] {
        let ended = mkernel("run ag-gemm", &["--input", path.to_str().unwrap()]);
        assert_refused(&ended, &["--input", says], says);
    }
}

#[test]
fn an_input_that_may_never_end_is_refused() {
    for path in ["/dev/zero", "/dev/null"] {
        let ended = mkernel("run ag-gemm", &["--input", path]);
        assert_refused(&ended, &["--input", path, "not a regular file"], path);
    }
}
