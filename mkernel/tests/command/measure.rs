//! `bench` and `selftest`, on the host.

use serde_json::Value;

use crate::support::{assert_refused, json, mkernel};

#[test]
fn a_measurement_says_time_rate_bytes_and_the_work_of_each_role() {
    let report = json("bench gemm-rs --nodes 2 --gpus 2 --m 64 --n 48 --k 40 --launches 5 --ceiling-tflops 2", &[]);
    let number = |field: &str| report[field].as_f64().unwrap();
    assert!(number("min_us") > 0.0 && number("min_us") <= number("time_us") && number("time_us") <= number("max_us"));
    let flops = 2.0 * 64.0 * 48.0 * 40.0;
    assert!((number("tflops") * number("time_us") / (flops / 1e6) - 1.0).abs() < 1e-9, "{report}");
    assert_eq!((number("ceiling_tflops"), number("launches")), (2.0, 5.0));
    // Each rank of 4 puts a quarter of C, in bf16, to the other node.
    assert_eq!(report["inter_bytes"], Value::from(4 * 64 / 4 * 48 * 2));
    assert!(report["roles"]["compute"]["tasks"].as_u64().unwrap() > 0, "{report}");
    let text = mkernel("bench ag-gemm --gpus 2 --m 64 --n 48 --k 40 --launches 1 --warm-up 0", &[]);
    assert_eq!(text.status, 0, "{}", text.stderr);
    assert!(
        ["time ", "rate ", "intra ", "NIC ", "compute "].iter().all(|word| text.stdout.contains(word)),
        "{}",
        text.stdout
    );
}

#[test]
fn the_self_test_prints_a_row_for_what_it_tests_and_says_that_all_held() {
    let ended = mkernel("selftest --quick --only gemm-ar --seed 5", &[]);
    assert_eq!(ended.status, 0, "{}{}", ended.stdout, ended.stderr);
    let rows: Vec<&str> = ended.stdout.lines().filter(|line| line.ends_with("  ok")).collect();
    assert!(rows.len() == 1 && rows[0].starts_with("gemm-ar "), "{}", ended.stdout);
    assert!(ended.stdout.ends_with(" 0 failed, seed 5\n"), "{}", ended.stdout);
}

#[test]
fn what_runs_in_one_process_refuses_transports_between_processes() {
    let shape = "--m 8 --n 8 --k 8";
    assert_refused(&mkernel("selftest --transport shm", &[]), &["--transport shm", "launcher"], "selftest");
    let bench = format!("bench ag-gemm {shape} --transport shm");
    assert_refused(&mkernel(&bench, &[]), &["--transport shm", "launcher"], "bench");
    let bench = format!("bench ag-gemm {shape} --launches 0");
    assert_refused(&mkernel(&bench, &[]), &["--launches", "at least 1"], "bench");
}

#[test]
fn a_build_or_a_machine_without_a_gpu_says_so_in_one_line() {
    let traced = "run ag-gemm --m 8 --n 8 --k 8 --transport cuda --trace t.json";
    if cfg!(feature = "cuda") {
        assert_refused(&mkernel(traced, &[]), &["--transport cuda", "--trace"], traced);
        return;
    }
    for command in ["run ag-gemm --m 8 --n 8 --k 8", "bench ag-gemm --m 8 --n 8 --k 8", "selftest"] {
        let ended = mkernel(&format!("{command} --transport cuda"), &[]);
        assert_refused(&ended, &["--transport cuda", "not in this build"], command);
    }
}
