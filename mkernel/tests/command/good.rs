//! Runs that must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::support::{Matrix, directory, json, mkernel, names, read, round, write};

const WORLDS: [&str; 6] =
    ["--gpus 1", "--nodes 1 --gpus 3", "--nodes 3 --gpus 1", "--nodes 2 --gpus 2", "--gpus 3,2", "--gpus 1,4,2"];

#[test]
fn integers_give_the_exact_product_on_every_world_even_where_ranks_have_no_rows() {
    let directory = directory("exact");
    let (input, output) = (directory.join("in.safetensors"), directory.join("out.safetensors"));
    for (index, world) in WORLDS.iter().enumerate() {
        for (m, n, k) in [(1, 1, 1), (2, 3, 7), (131, 257, 33)] {
            let dtype = ["bf16", "f16", "f32"][(index + m) % 3];
            let (a, b) = (Matrix::integers(m, k, 7 + m as u64), Matrix::integers(k, n, 11));
            write(&input, dtype, &a, &b);
            let paths = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
            for op in ["ag-gemm", "gemm-rs", "gemm-ar", "gemm-ar --all-reduce one-shot --partial f32"] {
                let report = json(&format!("run {op} {world} --epochs 2"), &paths);
                let what = format!("{op} {world} {m}x{n}x{k} {dtype}");
                let found = (&report["checked"], &report["max_abs_err"]);
                assert_eq!(found, (&Value::Bool(true), &Value::from(0.0)), "{what}");
                assert_eq!(report["bytes"]["inter_out"], report["bytes"]["inter_law"], "{what}");
                let c = read(&output);
                assert_eq!((c.rows, c.columns), (m, n), "{what}");
                let exact: Vec<f32> = a.times(&b).into_iter().map(|v| round(v as f32, dtype)).collect();
                assert_eq!(c.values, exact, "{what}");
            }
        }
    }
}

#[test]
fn real_inputs_stay_within_an_error_bound_of_an_f64_product() {
    let directory = directory("real");
    let (input, output) = (directory.join("in.safetensors"), directory.join("out.safetensors"));
    for (dtype, unit) in [("bf16", 1.0 / 256.0), ("f16", 1.0 / 2048.0), ("f32", 2f64.powi(-24))] {
        let (m, n, k) = (70, 65, 129);
        let (a, b) = (Matrix::reals(m, k, 3).rounded(dtype), Matrix::reals(k, n, 5).rounded(dtype));
        write(&input, dtype, &a, &b);
        let paths = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
        assert_eq!(json("run ag-gemm --gpus 2,3", &paths)["dtype"], dtype);
        for (found, exact) in read(&output).values.iter().zip(a.times(&b)) {
            // Every product is below 1, so k bounds the sum of magnitudes.
            let bound = unit * exact.abs() + 1.1 * (k * k) as f64 * 2f64.powi(-24);
            assert!((f64::from(*found) - exact).abs() <= bound, "{dtype}: {found} is not {exact}");
        }
    }
}

#[test]
fn schedule_seed_and_role_split_do_not_change_a_bit() {
    let directory = directory("bits");
    let (input, output) = (directory.join("in.safetensors"), directory.join("out.safetensors"));
    write(&input, "bf16", &Matrix::reals(140, 50, 1), &Matrix::reals(50, 130, 2));
    let paths = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
    let mut results = BTreeSet::new();
    for way in [
        "--schedule threads",
        "--schedule seeded --seed 1",
        "--schedule seeded --seed 2",
        "--roles compute=1,intra=1,send=1",
        "--roles compute=1,intra=2",
    ] {
        json(&format!("run ag-gemm --nodes 2 --gpus 2 {way}"), &paths);
        results.insert(fs::read(&output).unwrap());
    }
    assert_eq!(results.len(), 1);
}

#[test]
fn the_report_for_scripts_keeps_its_contract() {
    let report = json("run ag-gemm --gpus 3,2 --m 130 --n 70 --k 65 --dtype f32 --epochs 2 --roles compute=2", &[]);
    assert_eq!((&report["op"], &report["dtype"]), (&"ag-gemm".into(), &"f32".into()));
    assert_eq!(report["world"], serde_json::json!({"nodes": 2, "gpus": [3, 2]}));
    assert_eq!((&report["epochs"], &report["checked"]), (&2.into(), &true.into()));
    assert_eq!((&report["check"], &report["validated"]), (&"all".into(), &"world".into()));
    assert!(report["max_abs_err"].as_f64().unwrap() > 0.0 && report["max_rel_err"].as_f64().unwrap() > 0.0);
    assert!(report["time_us"].as_f64().unwrap() > 0.0);
    let bytes = &report["bytes"];
    // 130 rows over 5 ranks are 26 each, of 65 f32, once to the other node.
    assert_eq!(bytes["inter_law"], serde_json::json!([6760, 6760, 6760, 6760, 6760]));
    assert_eq!(bytes["inter_out"], bytes["inter_law"]);
    assert_eq!(bytes["intra_out"].as_array().unwrap().len(), 5);
    let roles = report["roles"].as_object().unwrap();
    assert_eq!(roles.keys().collect::<Vec<_>>(), ["compute", "intra", "send"]);
    for role in roles.values() {
        assert!(role["tasks"].as_u64().unwrap() > 0 && role["ctas"].as_u64().unwrap() > 0);
        assert!(role["busy_us"].as_f64().unwrap() >= 0.0 && role["wait_us"].as_f64().unwrap() >= 0.0);
    }
    assert_eq!(roles["compute"]["ctas"], 2);
    assert_eq!(
        json("run ag-gemm --gpus 2 --m 4 --n 4 --k 4", &[])["world"],
        serde_json::json!({"nodes": 1, "gpus": 2})
    );
}

#[test]
fn a_run_without_a_check_says_so() {
    let report = json("run ag-gemm --gpus 2 --m 9 --n 9 --k 9 --no-check", &[]);
    assert_eq!((&report["checked"], &report["check"]), (&false.into(), &"none".into()));
    assert_eq!((&report["max_abs_err"], &report["max_rel_err"]), (&Value::Null, &Value::Null));
}

#[test]
fn the_report_for_people_names_roles_bytes_and_errors() {
    let ended = mkernel("run ag-gemm --nodes 2 --gpus 2 --m 64 --n 64 --k 64", &[]);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    for said in
        ["ag-gemm bf16 a[64x64] b[64x64] c[64x64] on 2x2", "compute", "intra", "send", "law", "max abs", "ranks 0-3"]
    {
        assert!(ended.stdout.contains(said), "`{said}` is not in:\n{}", ended.stdout);
    }
}

#[test]
fn every_epoch_has_new_inputs_and_a_seed_repeats_them() {
    let directory = directory("epochs");
    let output = directory.join("out.safetensors");
    let result = |flags: &str| {
        json(&format!("run ag-gemm --gpus 2 --m 20 --n 20 --k 20 {flags}"), &["--output", output.to_str().unwrap()]);
        fs::read(&output).unwrap()
    };
    let first = result("--seed 5");
    assert_eq!(result("--seed 5"), first);
    assert_ne!(result("--seed 5 --epochs 2"), first);
    assert_ne!(result("--seed 6"), first);
}

#[test]
fn nan_in_a_row_is_nan_in_that_row_and_nowhere_else() {
    let directory = directory("nan");
    let (input, output) = (directory.join("in.safetensors"), directory.join("out.safetensors"));
    let mut a = Matrix::reals(9, 8, 1);
    a.values[3 * 8 + 2] = f32::NAN;
    write(&input, "bf16", &a, &Matrix::reals(8, 6, 2));
    let paths = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
    assert_eq!(json("run ag-gemm --gpus 2,1", &paths)["checked"], true);
    for (index, value) in read(&output).values.iter().enumerate() {
        assert_eq!(value.is_nan(), index / 6 == 3, "element {index} is {value}");
    }
}

#[test]
fn a_trace_has_a_row_per_cta_with_wait_and_work_apart() {
    let directory = directory("trace");
    let path = directory.join("t.json");
    let flags = "run ag-gemm --nodes 2 --gpus 2 --m 300 --n 300 --k 30 --epochs 2 --roles compute=2,intra=1,send=1";
    let report = json(flags, &["--trace", path.to_str().unwrap()]);
    let trace: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut rows: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let (mut named, mut work, mut wait) = (0, 0, 0);
    for event in trace["traceEvents"].as_array().unwrap() {
        if event["ph"] == "M" {
            named += u64::from(event["name"] == "thread_name");
            continue;
        }
        let is_wait = event["cat"] == "wait";
        assert_eq!(event["name"] == "wait", is_wait);
        *(if is_wait { &mut wait } else { &mut work }) += 1;
        let number = |key: &str| event[key].as_f64().unwrap();
        let row = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        rows.entry(row).or_default().push((number("ts"), number("ts") + number("dur")));
    }
    assert_eq!(named, 4 * 4, "two compute, one intra and one send CTA on each of four ranks");
    assert!(rows.len() <= 16 && rows.keys().all(|&(rank, cta)| rank < 4 && cta < 4), "{:?}", rows.keys());
    assert!(wait > 0);
    let tasks: u64 = report["roles"].as_object().unwrap().values().map(|r| r["tasks"].as_u64().unwrap()).sum();
    assert!(work >= tasks, "{work} stretches of work for {tasks} tasks");
    for (row, mut stretches) in rows {
        stretches.sort_by(|a, b| a.0.total_cmp(&b.0));
        for pair in stretches.windows(2) {
            assert!(pair[1].0 >= pair[0].1 - 0.01, "{row:?}: {pair:?} overlap");
        }
    }
    assert_eq!(names(&directory), ["t.json"]);
}
