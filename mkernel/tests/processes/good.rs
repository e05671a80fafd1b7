//! Jobs in which nothing goes wrong.

use std::fs;
use std::process::Command;

use crate::job::{Job, OPERATORS, directory, left_behind};

const WORLDS: [&[u32]; 6] = [&[1], &[2], &[1, 1], &[2, 2], &[3, 2], &[1, 1, 1]];

#[test]
fn every_operator_in_every_world_gives_the_bits_of_one_process() {
    let folder = directory("bits");
    for (number, operator) in OPERATORS.into_iter().enumerate() {
        for nodes in WORLDS {
            let file = |name: &str| folder.join(format!("{number}.{name}.safetensors")).to_str().unwrap().to_owned();
            let (here, there) = (file("here"), file("there"));
            let flags = format!("{operator} --epochs 4 --seed 7 --json");
            let gpus: Vec<String> = nodes.iter().map(u32::to_string).collect();
            let mut command = Command::new(env!("CARGO_BIN_EXE_mkernel"));
            let alone = format!("run {flags} --gpus {} --nodes {} --output {here}", gpus.join(","), nodes.len());
            let alone = command.args(alone.split(' ')).output().unwrap();
            assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));

            let job = Job { more: vec!["--output".into(), there.clone()], ..Job::new(nodes, &flags) };
            let report: serde_json::Value = serde_json::from_str(&job.hold()).unwrap();
            let expected: serde_json::Value = serde_json::from_slice(&alone.stdout).unwrap();
            for field in ["op", "world", "checked", "bytes", "max_abs_err", "validated"] {
                assert_eq!(report[field], expected[field], "{operator} on {nodes:?}: {field}");
            }
            let tasks = |json: &serde_json::Value| {
                let roles = json["roles"].as_object().unwrap().clone();
                roles.into_iter().map(|(role, r)| (role, r["ctas"].clone(), r["tasks"].clone())).collect::<Vec<_>>()
            };
            assert_eq!(tasks(&report), tasks(&expected), "{operator} on {nodes:?}");
            assert!(fs::read(&here).unwrap() == fs::read(&there).unwrap(), "{operator} on {nodes:?}: bits differ");
        }
    }
    assert_eq!(left_behind(), [""; 0]);
}

#[test]
fn two_jobs_at_once_do_not_notice_each_other() {
    let jobs = [Job::new(&[2, 1], OPERATORS[0]), Job::new(&[2, 1], OPERATORS[1])];
    let ranks: Vec<_> = jobs.iter().map(Job::start_all).collect();
    for ended in ranks.into_iter().flatten().map(|rank| rank.end()) {
        assert_eq!(ended.status, Some(0), "{ended:?}");
    }
}

#[test]
fn five_ranks_on_one_core_hold() {
    let job = Job::new(&[3, 2], &format!("{} --epochs 20", OPERATORS[0]));
    Job { under: "taskset -c 0", ..job }.hold();
}

#[test]
fn every_operator_holds_where_64_kib_may_be_locked() {
    for operator in OPERATORS {
        let job = Job::new(&[2, 1], &format!("{operator} --epochs 2"));
        Job { under: "prlimit --memlock=65536:65536", ..job }.hold();
    }
}

#[test]
fn the_proxied_path_inside_a_node_gives_every_operator_the_bits_of_nodes_of_one_rank() {
    let folder = directory("proxied");
    for (number, operator) in OPERATORS.into_iter().enumerate() {
        let run = |name: &str, nodes: &[u32], flags: &str| {
            let file = folder.join(format!("{number}.{name}.safetensors")).to_str().unwrap().to_owned();
            let job = Job::new(nodes, &format!("{operator} --epochs 4 --seed 7 --json {flags}"));
            let report: serde_json::Value =
                serde_json::from_str(&Job { more: vec!["--output".into(), file.clone()], ..job }.hold()).unwrap();
            assert_eq!(report["bytes"]["inter_out"], report["bytes"]["inter_law"], "{operator}: {name}");
            (fs::read(file).unwrap(), report["bytes"].clone())
        };
        let (direct, proxied) = (run("direct", &[3], "--path direct"), run("proxied", &[3], "--path proxied"));
        assert!(proxied == run("nodes", &[1, 1, 1], ""), "{operator}");
        let is_zero = |bytes: &serde_json::Value| bytes.as_array().unwrap().iter().all(|bytes| bytes == 0);
        assert!(is_zero(&direct.1["inter_out"]) && is_zero(&proxied.1["intra_out"]), "{operator}");
    }
}

#[test]
fn a_trace_has_every_rank_of_every_launch() {
    let folder = directory("trace");
    let file = folder.join("trace.json").to_str().unwrap().to_owned();
    let job = Job::new(&[2, 1], &format!("{} --epochs 2 --json", OPERATORS[0]));
    let report: serde_json::Value =
        serde_json::from_str(&Job { more: vec!["--trace".into(), file.clone()], ..job }.hold()).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let done = |rank: u64, epoch: u64| {
        let is_done = |e: &&serde_json::Value| {
            e["cat"] == "work" && e["pid"] == rank && e["args"]["epoch"] == epoch && e["ts"].as_f64() >= Some(0.0)
        };
        let place = |e: &serde_json::Value| (e["args"]["lane"].as_u64(), e["args"]["instruction"].as_u64());
        events.iter().filter(is_done).map(place).collect::<std::collections::BTreeSet<_>>().len() as u64
    };
    let tasks: u64 = report["roles"].as_object().unwrap().values().map(|role| role["tasks"].as_u64().unwrap()).sum();
    let each: Vec<u64> = (0..3).flat_map(|rank| [done(rank, 0), done(rank, 1)]).collect();
    assert!(each.iter().all(|&done| done > 0), "{each:?}");
    assert_eq!(each.iter().sum::<u64>(), tasks, "every instruction of every rank and launch: {each:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}
