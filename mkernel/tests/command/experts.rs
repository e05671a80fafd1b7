//! The mixture of experts from files.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::support::{assert_refused, directory, json, mkernel, names};

/// Five tokens of two elements, three experts of two by three, two slots.
const X: [f32; 10] = [1.0, 2.0, -1.0, 0.0, 3.0, 1.0, 0.0, 0.0, 2.0, -2.0];
const IDS: [i64; 10] = [0, 2, 1, 1, -1, 2, 0, 1, -1, -1];

fn weights() -> Vec<f32> {
    (0..18).map(|i| (i % 5) as f32 - 2.0).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Writes the file of the dispatch with these ids, as 64-bit or 32-bit integers.
fn write(path: &Path, ids: &[i64], kind: Dtype) {
    let (x, w1) = (bytes(&X), bytes(&weights()));
    let ids: Vec<u8> = match kind {
        Dtype::I64 => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        _ => ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect(),
    };
    let tensors = [
        ("x", TensorView::new(Dtype::F32, vec![5, 2], &x).unwrap()),
        ("topk_ids", TensorView::new(kind, vec![5, 2], &ids).unwrap()),
        ("w1", TensorView::new(Dtype::F32, vec![3, 2, 3], &w1).unwrap()),
    ];
    fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
}

#[test]
fn each_slot_gets_its_expert_and_a_dropped_one_zeros_on_every_world_from_either_integer() {
    let directory = directory("experts");
    let (input, output) = (directory.join("in.safetensors"), directory.join("out.safetensors"));
    let paths = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
    let w1 = weights();
    let wanted: Vec<f32> = (0..10)
        .flat_map(|slot| (0..3).map(move |column| (slot, column)))
        .map(|(slot, column)| match usize::try_from(IDS[slot]) {
            Ok(e) => (0..2).map(|i| X[slot / 2 * 2 + i] * w1[(e * 2 + i) * 3 + column]).sum(),
            Err(_) => 0.0,
        })
        .collect();
    for world in ["--gpus 1", "--gpus 2", "--nodes 3", "--gpus 3,2", "--nodes 2 --gpus 2"] {
        for kind in [Dtype::I32, Dtype::I64] {
            write(&input, &IDS, kind);
            let report = json(&format!("run moe-dispatch-gemm {world} --epochs 2"), &paths);
            assert_eq!((report["checked"].as_bool(), report["max_abs_err"].as_f64()), (Some(true), Some(0.0)));
            assert_eq!(report["bytes"]["inter_out"], report["bytes"]["inter_law"], "{world}");
            let file = fs::read(&output).unwrap();
            let file = SafeTensors::deserialize(&file).unwrap();
            let y = file.tensor("y").unwrap();
            assert_eq!((y.dtype(), y.shape()), (Dtype::F32, &[5, 2, 3][..]));
            let found = y.data().as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw));
            assert_eq!(found.collect::<Vec<_>>(), wanted, "{world}");
        }
    }
}

#[test]
fn a_number_of_no_expert_is_refused_by_its_place_and_nothing_is_written() {
    let directory = directory("no-expert");
    let (input, output) = (directory.join("in.safetensors"), directory.join("out.safetensors"));
    let paths = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
    for (bad, kind, says) in [
        (3, Dtype::I32, "`topk_ids` [1, 1] is 3; it must be -1 (dropped) or from 0 to 2"),
        (-2, Dtype::I64, "`topk_ids` [1, 1] is -2"),
        (1 << 32, Dtype::I64, "`topk_ids` holds 4294967296; integers must fit 32 bits"),
    ] {
        let mut ids = IDS;
        ids[3] = bad;
        write(&input, &ids, kind);
        assert_refused(&mkernel("run moe-dispatch-gemm --gpus 2", &paths), &[says], says);
        assert_eq!(names(&directory), ["in.safetensors"]);
    }
}

#[test]
fn shapes_from_flags_run_and_impossible_ones_name_their_flag() {
    let shape = "--tokens 37 --hidden 24 --inner 20 --experts 5 --topk 3";
    for op in ["moe-dispatch-gemm", "moe-ffn"] {
        for dtype in ["bf16", "f16", "f32"] {
            let report = json(&format!("run {op} --gpus 2,1 --epochs 2 --dtype {dtype} {shape}"), &[]);
            assert_eq!(report["checked"].as_bool(), Some(true), "{report}");
            assert_eq!(report["bytes"]["inter_out"], report["bytes"]["inter_law"]);
        }
        assert_refused(&mkernel(&format!("run {op} {shape} --topk 6"), &[]), &["--topk"], "twice");
        let more = "--tokens 37 --hidden 24 --inner 20 --experts 5 --topk 6";
        assert_refused(&mkernel(&format!("run {op} {more}"), &[]), &["--topk is 6", "between 1 and 5"], "too many");
        assert_refused(&mkernel(&format!("run {op} --tokens 5"), &[]), &["--hidden is missing"], "missing");
    }
}

#[test]
fn a_plan_says_the_most_that_routing_can_need() {
    let shape = "--tokens 64 --hidden 32 --inner 16 --experts 8 --topk 2";
    let of = |op: &str| json(&format!("plan {op} --nodes 2 --gpus 2 --profile host {shape}"), &[]);
    for (op, ways) in [("moe-dispatch-gemm", 1), ("moe-ffn", 2)] {
        // Sixteen own rows of 64 bytes to the other node, and with a combine as many back for its rail.
        assert_eq!(of(op)["bytes"]["inter_out"], serde_json::json!(vec![16 * 64 * ways; 4]), "{op}");
    }
}
