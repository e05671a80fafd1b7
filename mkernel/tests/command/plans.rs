//! Plans without data.

use crate::support::{json, mkernel};

#[test]
fn a_small_world_is_proved_whole() {
    let plan = json("plan ag-gemm --gpus 3,2 --m 1000 --n 500 --k 64", &[]);
    assert_eq!((&plan["validated"], &plan["profile"]), (&"world".into(), &"h200".into()));
    assert_eq!(plan["ranks"].as_array().unwrap().len(), 5);
    // 200 rows of 64 bf16, once to the other node.
    assert_eq!(plan["bytes"]["inter_law"], serde_json::json!([25600, 25600, 25600, 25600, 25600]));
    assert_eq!(plan["bytes"]["inter_out"], plan["bytes"]["inter_law"]);
    let ctas: u64 = plan["roles"].as_object().unwrap().values().map(|r| r["ctas"].as_u64().unwrap()).sum();
    assert!(ctas <= 132, "{ctas} CTAs on 132 SMs");
}

#[test]
fn a_world_beyond_64_ranks_is_proved_for_one_rank_and_its_writers() {
    let plan = json("plan ag-gemm --nodes 12 --gpus 8 --m 131072 --n 131072 --k 131072", &[]);
    assert_eq!(plan["validated"], "rank");
    assert_eq!(plan["ranks"].as_array().unwrap().len(), 1);
    // 131072 rows over 96 ranks: rank 0 has 1366 rows of 131072 bf16, once to each of 11 nodes.
    let law = 11u64 * 1366 * 131_072 * 2;
    assert_eq!(plan["bytes"]["inter_out"], serde_json::json!([law]));
    assert_eq!(plan["bytes"]["inter_law"], serde_json::json!([law]));
    assert_eq!(plan["ranks"][0]["regions"]["a"], 131_072u64 * 131_072 * 2);
}

#[test]
fn sums_over_the_world_keep_their_laws_whole_and_beyond_64_ranks() {
    let shape = "--m 8192 --n 4096 --k 8192";
    let c_per_gpu = 8192u64 * 4096 * 2 / 8;
    for (nodes, scope) in [(2, "world"), (16, "rank")] {
        let laws = [
            ("gemm-rs", (nodes - 1) * c_per_gpu / nodes),
            ("gemm-rs --partial f32", 2 * (nodes - 1) * c_per_gpu / nodes),
            ("gemm-ar --all-reduce two-step", 2 * (nodes - 1) * c_per_gpu / nodes),
            ("gemm-ar --all-reduce one-shot", (nodes - 1) * c_per_gpu),
        ];
        for (op, law) in laws {
            let plan = json(&format!("plan {op} --nodes {nodes} --gpus 8 {shape}"), &[]);
            assert_eq!(plan["validated"], scope, "{op} on {nodes} nodes");
            for bytes in ["inter_out", "inter_law"] {
                let ranks = plan["bytes"][bytes].as_array().unwrap();
                assert!(ranks.iter().all(|b| *b == law), "{op} on {nodes} nodes: {ranks:?}, not {law}");
            }
        }
    }
}

#[test]
fn a_plan_for_people_names_regions_and_the_split() {
    let ended = mkernel("plan ag-gemm --nodes 2 --gpus 4 --m 4096 --n 4096 --k 4096", &[]);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    for said in ["validated: world", "region a", "cells", "puts", "modelled", "law", "ranks 0-7"] {
        assert!(ended.stdout.contains(said), "`{said}` is not in:\n{}", ended.stdout);
    }
}
