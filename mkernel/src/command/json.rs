//! The JSON that scripts read.

use std::collections::BTreeMap;

use mkernel::bootstrap::JobFault;
use mkernel::outline::Outline;
use mkernel::report::RoleReport;
use mkernel::{Error, Fault, World};
use serde::Serialize;

use super::bench::Measured;
use super::print::Subject;
use super::usage::Stop;

/// What `run --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct RunJson<'a> {
    pub(crate) op: &'a str,
    pub(crate) world: WorldJson,
    pub(crate) dtype: &'a str,
    pub(crate) epochs: u64,
    pub(crate) validated: &'a str,
    pub(crate) checked: bool,
    pub(crate) check: &'a str,
    /// Null where nothing was checked.
    pub(crate) max_abs_err: Option<f64>,
    pub(crate) max_rel_err: Option<f64>,
    pub(crate) time_us: f64,
    pub(crate) bytes: BytesJson,
    pub(crate) roles: BTreeMap<&'a str, RoleJson>,
}

/// The nodes, and the GPUs of each: one number, or a list where nodes differ.
#[derive(Debug, Serialize)]
pub(crate) struct WorldJson {
    nodes: u32,
    gpus: GpusJson,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum GpusJson {
    Same(u32),
    Each(Vec<u32>),
}

/// Payload bytes of one epoch, by rank.
#[derive(Debug, Serialize)]
pub(crate) struct BytesJson {
    pub(crate) intra_out: Vec<u64>,
    pub(crate) inter_out: Vec<u64>,
    pub(crate) inter_law: Vec<u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RoleJson {
    pub(crate) ctas: u32,
    pub(crate) tasks: u64,
    pub(crate) busy_us: f64,
    pub(crate) wait_us: f64,
}

/// What `plan --json` prints.
#[derive(Debug, Serialize)]
struct PlanJson<'a> {
    op: &'a str,
    world: WorldJson,
    dtype: &'a str,
    profile: &'a str,
    validated: &'a str,
    plan_us: f64,
    ranks: Vec<RankJson<'a>>,
    bytes: BytesJson,
    roles: BTreeMap<&'a str, PlannedRoleJson>,
}

#[derive(Debug, Serialize)]
struct RankJson<'a> {
    rank: u32,
    instructions: u64,
    cells: u64,
    puts: u64,
    program_bytes: u64,
    memory_bytes: u64,
    regions: BTreeMap<&'a str, u64>,
}

#[derive(Debug, Serialize)]
struct PlannedRoleJson {
    ctas: u32,
    tasks: u64,
    modelled_us: f64,
}

/// What `bench --json` prints.
#[derive(Debug, Serialize)]
struct BenchJson<'a> {
    op: &'a str,
    world: WorldJson,
    dtype: &'a str,
    launches: u64,
    time_us: f64,
    min_us: f64,
    max_us: f64,
    tflops: f64,
    ceiling_tflops: f64,
    intra_bytes: u64,
    inter_bytes: u64,
    roles: BTreeMap<&'a str, RoleJson>,
}

#[derive(Debug, Serialize)]
struct ErrorJson {
    error: FailureJson,
}

/// A failed run. Fields that a failure does not have are null.
#[derive(Debug, Default, Serialize)]
struct FailureJson {
    kind: &'static str,
    message: String,
    rank: Option<u32>,
    role: Option<&'static str>,
    lane: Option<u16>,
    instruction: Option<u32>,
    cell: Option<u32>,
    wanted: Option<u64>,
    seen: Option<u64>,
    peer: Option<u32>,
    status: Option<u32>,
}

impl From<&World> for WorldJson {
    fn from(world: &World) -> WorldJson {
        let each: Vec<u32> = world.nodes().map(|n| world.gpus(n)).collect();
        let is_same = each.iter().all(|&g| g == each[0]);
        let gpus = if is_same { GpusJson::Same(each[0]) } else { GpusJson::Each(each) };
        WorldJson { nodes: world.node_count(), gpus }
    }
}

/// One line of JSON.
pub(crate) fn line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("reports are plain numbers and strings, which JSON holds");
    text + "\n"
}

/// What `plan --json` prints.
pub(crate) fn plan(head: &super::plan::Head<'_>, outline: &Outline) -> String {
    let ranks = outline.ranks.iter().map(|r| RankJson {
        rank: r.rank.0,
        instructions: r.instructions,
        cells: r.cells,
        puts: r.puts,
        program_bytes: r.program_bytes,
        memory_bytes: r.regions.iter().map(|(_, bytes)| bytes).sum(),
        regions: r.regions.iter().copied().collect(),
    });
    let role = |r: &mkernel::outline::RoleOutline| {
        (r.role.name(), PlannedRoleJson { ctas: r.ctas, tasks: r.tasks, modelled_us: r.modelled_us })
    };
    line(&PlanJson {
        op: head.subject.op,
        world: head.world.into(),
        dtype: head.subject.dtype,
        profile: head.profile,
        validated: outline.scope.name(),
        plan_us: head.plan_us,
        ranks: ranks.collect(),
        bytes: BytesJson {
            intra_out: outline.ranks.iter().map(|r| r.intra_out).collect(),
            inter_out: outline.ranks.iter().map(|r| r.inter_out).collect(),
            inter_law: outline.ranks.iter().map(|r| r.inter_law).collect(),
        },
        roles: outline.roles.iter().map(role).collect(),
    })
}

/// What `bench --json` prints.
pub(crate) fn bench(subject: &Subject, measured: &Measured) -> String {
    let role = |r: &RoleReport| {
        (r.role.name(), RoleJson { ctas: r.ctas, tasks: r.tasks, busy_us: r.busy_us, wait_us: r.wait_us })
    };
    line(&BenchJson {
        op: subject.op,
        world: (&measured.world).into(),
        dtype: subject.dtype,
        launches: measured.launches,
        time_us: measured.median_us(),
        min_us: measured.times[0],
        max_us: measured.times[measured.times.len() - 1],
        tflops: measured.rate() / 1e12,
        ceiling_tflops: measured.ceiling / 1e12,
        intra_bytes: measured.intra_bytes,
        inter_bytes: measured.inter_bytes,
        roles: measured.roles.iter().map(role).collect(),
    })
}

/// What a failed run prints.
pub(crate) fn error(stop: &Stop) -> String {
    let failure = match stop {
        Stop::Failed(Error::Fault(fault)) | Stop::Refused(Error::Fault(fault)) => fault_json(fault),
        #[cfg(feature = "sim")]
        Stop::Failed(Error::Stuck { fault, .. }) | Stop::Refused(Error::Stuck { fault, .. }) => fault_json(fault),
        Stop::Failed(Error::Job { fault, waited }) | Stop::Refused(Error::Job { fault, waited }) => {
            job_json(fault, waited.as_deref())
        }
        Stop::Failed(Error::Bootstrap(_)) | Stop::Refused(Error::Bootstrap(_)) => {
            FailureJson { kind: "start", ..FailureJson::default() }
        }
        Stop::Failed(Error::Check(_)) => FailureJson { kind: "check", ..FailureJson::default() },
        Stop::Failed(Error::File { .. }) => FailureJson { kind: "file", ..FailureJson::default() },
        Stop::Failed(Error::Violation(_)) | Stop::Refused(Error::Violation(_)) => {
            FailureJson { kind: "violation", ..FailureJson::default() }
        }
        _ => FailureJson { kind: "failed", ..FailureJson::default() },
    };
    line(&ErrorJson { error: FailureJson { message: stop.line(), ..failure } })
}

fn fault_json(fault: &Fault) -> FailureJson {
    FailureJson {
        kind: fault.kind.name(),
        message: String::new(),
        rank: Some(fault.rank.0),
        role: fault.role.map(|r| r.name()),
        lane: fault.lane.map(|l| l.0),
        instruction: fault.instruction,
        cell: fault.cell.map(|c| c.0),
        wanted: Some(fault.wanted),
        seen: Some(fault.seen),
        peer: fault.peer.map(|p| p.0),
        status: fault.status,
    }
}

/// The first fault of a job, with what this rank waited for. A fault of one rank names it as the peer.
fn job_json(fault: &JobFault, waited: Option<&Fault>) -> FailureJson {
    let (kind, peer) = match fault {
        JobFault::Lost { rank } => ("lost", Some(*rank)),
        JobFault::Garbled { rank } => ("garbled", Some(*rank)),
        JobFault::Layout { rank } => ("layout", Some(*rank)),
        JobFault::Raised { rank, .. } => ("raised", Some(*rank)),
        JobFault::Missing { ranks } => ("missing", ranks.first().copied()),
        JobFault::Late { ranks, .. } => ("late", ranks.first().copied()),
    };
    FailureJson { kind, peer, ..waited.map_or_else(FailureJson::default, fault_json) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel::{FaultKind, Rank, RoleName};
    use mkernel_core::{CellId, LaneId};

    #[test]
    fn a_fault_keeps_every_field() {
        let fault = Fault {
            role: Some(RoleName::Intra),
            lane: Some(LaneId(1)),
            instruction: Some(7),
            cell: Some(CellId(3)),
            wanted: 2,
            seen: 1,
            peer: Some(Rank(4)),
            status: Some(12),
            ..Fault::new(FaultKind::Transport, Rank(5))
        };
        let text = error(&Stop::Failed(Error::Fault(fault)));
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        let wanted = serde_json::json!({"error": {
            "kind": "transport", "message": fault.to_string(), "rank": 5, "role": "intra", "lane": 1, "instruction": 7,
            "cell": 3, "wanted": 2, "seen": 1, "peer": 4, "status": 12,
        }});
        assert_eq!(found, wanted);
    }
}
