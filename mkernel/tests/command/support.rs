//! Starts the command and makes its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the command with `flags`, split at spaces, and then `more`.
pub(crate) fn mkernel(flags: &str, more: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mkernel"));
    let output = command.args(flags.split_whitespace()).args(more).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { status: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs the command, which must succeed, and reads its JSON.
pub(crate) fn json(flags: &str, more: &[&str]) -> serde_json::Value {
    let ended = mkernel(&format!("{flags} --json"), more);
    assert_eq!(ended.status, 0, "{flags}: {}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// An empty directory of this test's own.
pub(crate) fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Names in a directory.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A matrix of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
}

impl Matrix {
    /// Values from a small generator of this test's own.
    pub(crate) fn new(rows: usize, columns: usize, seed: u64, mut value: impl FnMut(u64) -> f32) -> Matrix {
        let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            value(state >> 11)
        };
        Matrix { rows, columns, values: (0..rows * columns).map(|_| next()).collect() }
    }

    /// Integers from -2 to 2: products of a few thousand terms are exact everywhere.
    pub(crate) fn integers(rows: usize, columns: usize, seed: u64) -> Matrix {
        Matrix::new(rows, columns, seed, |r| (r % 5) as f32 - 2.0)
    }

    /// Numbers in [-1, 1).
    pub(crate) fn reals(rows: usize, columns: usize, seed: u64) -> Matrix {
        Matrix::new(rows, columns, seed, |r| (r % 65536) as f32 / 32768.0 - 1.0)
    }

    /// The product by three loops in f64.
    pub(crate) fn times(&self, other: &Matrix) -> Vec<f64> {
        let mut product = vec![0.0; self.rows * other.columns];
        for row in 0..self.rows {
            for i in 0..self.columns {
                for column in 0..other.columns {
                    product[row * other.columns + column] += f64::from(self.values[row * self.columns + i])
                        * f64::from(other.values[i * other.columns + column]);
                }
            }
        }
        product
    }

    /// Every value rounded to `dtype`.
    pub(crate) fn rounded(mut self, dtype: &str) -> Matrix {
        self.values.iter_mut().for_each(|v| *v = round(*v, dtype));
        self
    }

    fn bytes(&self, dtype: &str) -> Vec<u8> {
        let element = |&v: &f32| match dtype {
            "bf16" => bf16::from_f32(v).to_le_bytes().to_vec(),
            "f16" => f16::from_f32(v).to_le_bytes().to_vec(),
            _ => v.to_le_bytes().to_vec(),
        };
        self.values.iter().flat_map(element).collect()
    }
}

/// One rounding to `dtype`.
pub(crate) fn round(value: f32, dtype: &str) -> f32 {
    match dtype {
        "bf16" => bf16::from_f32(value).to_f32(),
        "f16" => f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Writes a file with `a` and `b`.
pub(crate) fn write(path: &Path, dtype: &str, a: &Matrix, b: &Matrix) {
    let kind = match dtype {
        "bf16" => Dtype::BF16,
        "f16" => Dtype::F16,
        _ => Dtype::F32,
    };
    let bytes = [a.bytes(dtype), b.bytes(dtype)];
    let view = |m: &Matrix, i: usize| TensorView::new(kind, vec![m.rows, m.columns], &bytes[i]).unwrap();
    fs::write(path, safetensors::serialize([("a", view(a, 0)), ("b", view(b, 1))], None).unwrap()).unwrap();
}

/// Reads `c` from a file.
pub(crate) fn read(path: &Path) -> Matrix {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let c = file.tensor("c").unwrap();
    let [rows, columns] = *c.shape() else { panic!("c has shape {:?}", c.shape()) };
    let two = |b: &[u8]| [b[0], b[1]];
    let values = match c.dtype() {
        Dtype::BF16 => c.data().chunks(2).map(|b| bf16::from_le_bytes(two(b)).to_f32()).collect(),
        Dtype::F16 => c.data().chunks(2).map(|b| f16::from_le_bytes(two(b)).to_f32()).collect(),
        Dtype::F32 => c.data().chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        other => panic!("c holds {other}"),
    };
    Matrix { rows, columns, values }
}

/// Asserts wrong use: status 2, nothing on stdout, one line on stderr that says every one of `says`.
pub(crate) fn assert_refused(ended: &Ended, says: &[&str], what: &str) {
    assert_eq!(ended.status, 2, "{what}: {}", ended.stderr);
    assert_eq!(ended.stdout, "", "{what}");
    assert_eq!(ended.stderr.lines().count(), 1, "{what}: {}", ended.stderr);
    for said in says {
        assert!(ended.stderr.contains(said), "{what}: `{said}` is not in: {}", ended.stderr);
    }
}
