//! From flags and an input file to a world and an operator.

use std::path::Path;

use mkernel::{AgGemm, DType, Tensors, World, file};

use super::args::ProblemArgs;
use super::usage::Usage;

/// The world that --nodes and --gpus describe.
pub(crate) fn world(args: &ProblemArgs) -> Result<World, Usage> {
    let gpus = args.gpus.as_ref().map_or(&[1][..], |list| &list.0);
    let world = match (args.nodes, gpus) {
        (nodes, [gpus]) => World::uniform(nodes.unwrap_or(1), *gpus),
        (None, list) => World::new(list),
        (Some(nodes), list) if nodes as usize == list.len() => World::new(list),
        (Some(nodes), list) => return Err(Usage::NodeCount { nodes, listed: list.len() }),
    };
    world.map_err(|problem| Usage::World { problem })
}

/// AG+GEMM as the flags describe it.
pub(crate) fn ag_gemm(args: &ProblemArgs) -> Result<AgGemm, Usage> {
    let need = |value: Option<u64>, flag| value.ok_or(Usage::MissingShape { flag });
    Ok(AgGemm {
        m: need(args.m, "--m")?,
        n: need(args.n, "--n")?,
        k: need(args.k, "--k")?,
        dtype: args.dtype.map_or(DType::Bf16, DType::from),
    })
}

/// AG+GEMM as the input file describes it, with its tensors. Flags that are given too must agree.
pub(crate) fn ag_gemm_from(args: &ProblemArgs, path: &Path) -> Result<(AgGemm, Tensors), Usage> {
    let tensors = file::read_tensors(path, &["a", "b"]).map_err(Usage::Input)?;
    let (a, m, k) = matrix(&tensors, "a", "[M, K]")?;
    let (b, rows, n) = matrix(&tensors, "b", "[K, N]")?;
    if rows != k {
        return Err(Usage::Inner { columns: k, rows });
    }
    if a != b {
        return Err(Usage::Types { a, b });
    }
    agree("--m", args.m, m)?;
    agree("--n", args.n, n)?;
    agree("--k", args.k, k)?;
    agree("--dtype", args.dtype.map(DType::from), a)?;
    Ok((AgGemm { m, n, k, dtype: a }, tensors))
}

fn matrix(tensors: &Tensors, tensor: &'static str, wanted: &'static str) -> Result<(DType, u64, u64), Usage> {
    let found = tensors.get(tensor).ok_or(Usage::MissingTensor { tensor })?;
    if found.dtype() == DType::I32 {
        return Err(Usage::Element { tensor, found: found.dtype() });
    }
    match *found.shape() {
        [rows, columns] if rows > 0 && columns > 0 => Ok((found.dtype(), rows, columns)),
        _ => Err(Usage::Matrix { tensor, shape: found.shape().to_vec(), wanted }),
    }
}

fn agree<T: PartialEq + ToString>(flag: &'static str, given: Option<T>, found: T) -> Result<(), Usage> {
    match given {
        Some(given) if given != found => {
            Err(Usage::Contradiction { flag, given: given.to_string(), found: found.to_string() })
        }
        _ => Ok(()),
    }
}
