//! What each launcher tells its processes.

use super::{ConfigError, Launcher, Vars};
use crate::bootstrap::{MAX_JOB, MAX_RANKS, Place};

/// Ports that rank 0 may choose from where none is given, so that another service on one of them is no trouble.
const CHOICES: u16 = 8;
/// First port of the range of chosen ones: registered, and below those that systems hand out to clients.
const FIRST_CHOICE: u16 = 23_000;
/// Sets of ports in that range.
const SETS: u16 = 1_000;

const RANKS: &str = "a number of ranks from 1 to 4096";
const _: () = assert!(MAX_RANKS == 4096);

/// Where the ranks of a job meet.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    /// Rank 0's host and the variable that names it.
    pub(super) host: Option<(String, &'static str)>,
    pub(super) ports: Vec<u16>,
    pub(super) job: String,
}

/// The variables of one launcher.
struct Family {
    launcher: Launcher,
    rank: &'static str,
    /// The first that is set counts.
    size: &'static [&'static str],
    local_rank: &'static str,
    /// The first that is set counts.
    local_size: &'static [&'static str],
    /// Whether `local_size` is Slurm's list of tasks per node.
    is_list: bool,
}

const FAMILIES: [Family; 4] = [
    Family {
        launcher: Launcher::Plain,
        rank: "MKERNEL_RANK",
        size: &["MKERNEL_WORLD_SIZE"],
        local_rank: "MKERNEL_LOCAL_RANK",
        local_size: &["MKERNEL_LOCAL_WORLD_SIZE"],
        is_list: false,
    },
    Family {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        local_size: &["LOCAL_WORLD_SIZE"],
        is_list: false,
    },
    Family {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        is_list: false,
    },
    Family {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        local_size: &["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"],
        is_list: true,
    },
];

/// Who started this process, and as which rank.
pub(super) fn place(vars: &mut Vars<'_>) -> Result<(Launcher, Place), ConfigError> {
    let chosen = chosen(vars)?;
    let mut found: Option<(&Family, Place)> = None;
    for family in &FAMILIES {
        let is_wanted = match chosen {
            Some(launcher) => family.launcher == launcher,
            // A batch system surrounds the launcher that runs inside its allocation.
            None => is_present(vars, family)? && !(found.is_some() && family.launcher == Launcher::Slurm),
        };
        if !is_wanted {
            continue;
        }
        let place = read(vars, family)?;
        match &found {
            None => found = Some((family, place)),
            Some((first, other)) => agree(first, *other, family, place)?,
        }
    }
    let Some((family, place)) = found else {
        let source = if chosen.is_some() { "MKERNEL_LAUNCHER" } else { "no launcher's variables are set" };
        vars.note("launcher", "none", source);
        vars.note("rank", "0 of 1", "no launcher");
        return Ok((Launcher::Alone, Place::ALONE));
    };
    let source = if chosen.is_some() { "MKERNEL_LAUNCHER" } else { family.rank };
    vars.note("launcher", name(family.launcher), source);
    vars.note("rank", place.rank, family.rank);
    vars.note("world size", place.world_size, first_set(vars, family.size)?);
    vars.note("local rank", place.local_rank, family.local_rank);
    vars.note("local world size", place.local_world_size, first_set(vars, family.local_size)?);
    Ok((family.launcher, place))
}

fn name(launcher: Launcher) -> &'static str {
    match launcher {
        Launcher::Alone => "none",
        Launcher::Plain => "plain",
        Launcher::Torchrun => "torchrun",
        Launcher::OpenMpi => "openmpi",
        Launcher::Slurm => "slurm",
    }
}

fn chosen(vars: &Vars<'_>) -> Result<Option<Launcher>, ConfigError> {
    const VARIABLE: &str = "MKERNEL_LAUNCHER";
    let Some(text) = vars.text(VARIABLE)? else { return Ok(None) };
    let all = [Launcher::Alone, Launcher::Plain, Launcher::Torchrun, Launcher::OpenMpi, Launcher::Slurm];
    let expected = "one of none, plain, torchrun, openmpi, slurm";
    let known = all.into_iter().find(|launcher| name(*launcher) == text);
    known.map(Some).ok_or(ConfigError::Unparsable { variable: VARIABLE, value: text.into(), expected })
}

fn is_present(vars: &Vars<'_>, family: &Family) -> Result<bool, ConfigError> {
    if family.launcher == Launcher::Slurm {
        return Ok(vars.text(family.rank)?.is_some() && is_step(vars)?);
    }
    Ok(vars.text(family.rank)?.is_some() || vars.text(family.size[0])?.is_some())
}

/// Whether srun started this process. A batch script has a rank too, but no step that others are part of.
fn is_step(vars: &Vars<'_>) -> Result<bool, ConfigError> {
    /// Steps from here on are Slurm's own: batch script, interactive shell, external.
    const OWN: u32 = 0xffff_fff0;
    let step = vars.number("SLURM_STEP_ID")?;
    Ok(step.is_some_and(|step| step < OWN) || (step.is_none() && vars.text("SLURM_JOB_ID")?.is_none()))
}

/// The first variable that is set, or the first.
fn first_set(vars: &Vars<'_>, variables: &[&'static str]) -> Result<&'static str, ConfigError> {
    for variable in variables {
        if vars.text(variable)?.is_some() {
            return Ok(variable);
        }
    }
    Ok(variables[0])
}

fn read(vars: &Vars<'_>, family: &Family) -> Result<Place, ConfigError> {
    let needed = |variable| {
        let fix = "the launcher sets it with the rank's other variables; set it, or unset the others";
        vars.number(variable)?.ok_or(ConfigError::Missing { variable, fix })
    };
    let size = first_set(vars, family.size)?;
    let local_size = first_set(vars, family.local_size)?;
    let place = Place {
        rank: needed(family.rank)?,
        world_size: needed(size)?,
        local_rank: needed(family.local_rank)?,
        local_world_size: if family.is_list { slurm_local_size(vars, local_size)? } else { needed(local_size)? },
    };
    if !(1..=MAX_RANKS).contains(&place.world_size) {
        let value = place.world_size.to_string().into();
        return Err(ConfigError::Unparsable { variable: size, value, expected: RANKS });
    }
    let below = |first, value: u32, second, bound: u32, fix| {
        let (first_value, second_value) = (value.to_string(), bound.to_string());
        let conflict = ConfigError::Conflict { first, first_value, second, second_value, fix };
        if value < bound { Ok(()) } else { Err(conflict) }
    };
    let count_from_0 = "ranks count from 0 and stay below their number";
    below(family.rank, place.rank, size, place.world_size, count_from_0)?;
    below(family.local_rank, place.local_rank, local_size, place.local_world_size, count_from_0)?;
    let fix = "a node cannot have more ranks than the job";
    if place.local_world_size > place.world_size {
        below(local_size, place.local_world_size, size, place.world_size, fix)?;
    }
    Ok(place)
}

/// Two launchers may both have set their variables, one inside the other, and only the user knows which counts.
fn agree(first: &Family, place: Place, second: &Family, other: Place) -> Result<(), ConfigError> {
    let fix = "set MKERNEL_LAUNCHER to plain, torchrun, openmpi or slurm to say which counts";
    let pairs = [
        (first.rank, place.rank, second.rank, other.rank),
        (first.size[0], place.world_size, second.size[0], other.world_size),
        (first.local_rank, place.local_rank, second.local_rank, other.local_rank),
        (first.local_size[0], place.local_world_size, second.local_size[0], other.local_world_size),
    ];
    match pairs.into_iter().find(|(_, value, _, other)| value != other) {
        None => Ok(()),
        Some((first, value, second, other)) => {
            let (first_value, second_value) = (value.to_string(), other.to_string());
            Err(ConfigError::Conflict { first, first_value, second, second_value, fix })
        }
    }
}

/// Ranks on this node out of a list such as `2(x3),1`.
fn slurm_local_size(vars: &Vars<'_>, variable: &'static str) -> Result<u32, ConfigError> {
    const NODE: &str = "SLURM_NODEID";
    let fix = "srun sets it; set it, or unset the other SLURM_ variables";
    let list = vars.text(variable)?.ok_or(ConfigError::Missing { variable, fix })?;
    let node = vars.number(NODE)?.ok_or(ConfigError::Missing { variable: NODE, fix })?;
    let expected = "a list of tasks per node such as 2(x3),1 with an entry for SLURM_NODEID";
    let unparsable = || ConfigError::Unparsable { variable, value: list.clone().into(), expected };
    let mut left = node;
    for entry in list.split(',') {
        let (size, times) = match entry.split_once("(x") {
            Some((size, times)) => (size, times.strip_suffix(')').ok_or_else(unparsable)?),
            None => (entry, "1"),
        };
        let size = size.trim().parse().map_err(|_| unparsable())?;
        let times: u32 = times.parse().map_err(|_| unparsable())?;
        match left.checked_sub(times) {
            None => return Ok(size),
            Some(rest) => left = rest,
        }
    }
    Err(unparsable())
}

/// Where the ranks of the job meet, and under which name.
pub(super) fn meeting(vars: &mut Vars<'_>, launcher: Launcher, place: Place) -> Result<Meeting, ConfigError> {
    let host = host(vars, launcher)?;
    let port = port(vars)?;
    let (job, source) = job(vars, launcher, place)?;
    vars.note("job", &job, source);
    let ports = match port {
        Some((port, variable)) => {
            vars.note("port", port, variable);
            vec![port]
        }
        None => {
            let hash = blake3::hash(job.as_bytes());
            let [low, high, ..] = *hash.as_bytes();
            let first = FIRST_CHOICE + u16::from_le_bytes([low, high]) % SETS * CHOICES;
            let last = first + CHOICES - 1;
            vars.note("port", format_args!("{first} to {last}"), "the job's name");
            (first..=last).collect()
        }
    };
    Ok(Meeting { host, ports, job })
}

fn host(vars: &Vars<'_>, launcher: Launcher) -> Result<Option<(String, &'static str)>, ConfigError> {
    for variable in ["MKERNEL_ADDR", "MASTER_ADDR"] {
        if let Some(text) = vars.text(variable)? {
            let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
            return Ok(Some((bare.to_owned(), variable)));
        }
    }
    if launcher != Launcher::Slurm {
        return Ok(None);
    }
    for variable in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
        if let Some(list) = vars.text(variable)? {
            let expected = "a list of hosts such as node[01-03,7]";
            let unparsable = || ConfigError::Unparsable { variable, value: list.clone().into(), expected };
            return Ok(Some((first_host(&list).ok_or_else(unparsable)?, variable)));
        }
    }
    Ok(None)
}

/// The first host of a Slurm list: `node[01-03,7],gpu1` begins with `node01`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        match rest[end..].strip_prefix('[') {
            None => return (!host.is_empty()).then_some(host),
            Some(ranges) => {
                let (ranges, tail) = ranges.split_once(']')?;
                host.push_str(ranges.split([',', '-']).next().filter(|first| !first.is_empty())?);
                rest = tail;
            }
        }
    }
}

/// The port, if one is given that the launcher does not use itself.
fn port(vars: &Vars<'_>) -> Result<Option<(u16, &'static str)>, ConfigError> {
    // The agent of torchrun serves its own store at MASTER_PORT.
    let is_taken = vars.text("TORCHELASTIC_USE_AGENT_STORE")?.is_some_and(|text| text.eq_ignore_ascii_case("true"));
    for variable in ["MKERNEL_PORT", "MASTER_PORT"] {
        let Some(text) = vars.text(variable)? else { continue };
        let port = match text.trim().parse::<u16>() {
            Ok(port) if port > 0 => port,
            _ => {
                let expected = "a port from 1 to 65535";
                return Err(ConfigError::Unparsable { variable, value: text.into(), expected });
            }
        };
        return Ok((variable == "MKERNEL_PORT" || !is_taken).then_some((port, variable)));
    }
    Ok(None)
}

/// A name that all ranks of the job have and no other job has, as far as the launcher gives one.
fn job(vars: &Vars<'_>, launcher: Launcher, place: Place) -> Result<(String, &'static str), ConfigError> {
    let parts = |variables: &[&'static str]| -> Result<String, ConfigError> {
        let texts = variables.iter().map(|variable| vars.text(variable)).collect::<Result<Vec<_>, _>>()?;
        Ok(texts.into_iter().flatten().collect::<Vec<_>>().join("."))
    };
    let at = parts(&["MASTER_ADDR", "MASTER_PORT"])?;
    let (name, source) = match (vars.text("MKERNEL_JOB")?, launcher) {
        (Some(job), _) => (job, "MKERNEL_JOB"),
        // Not the restart count: each agent counts its own.
        (None, Launcher::Torchrun) => {
            let run = parts(&["TORCHELASTIC_RUN_ID"])?;
            (format!("torchrun.{run}.{at}"), "TORCHELASTIC_RUN_ID, MASTER_ADDR, MASTER_PORT")
        }
        (None, Launcher::OpenMpi) => {
            let run = parts(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"])?;
            (format!("openmpi.{run}.{at}"), "PMIX_NAMESPACE, OMPI_MCA_ess_base_jobid")
        }
        (None, Launcher::Slurm) => {
            (format!("slurm.{}", parts(&["SLURM_JOB_ID", "SLURM_STEP_ID"])?), "SLURM_JOB_ID, SLURM_STEP_ID")
        }
        (None, Launcher::Plain) => {
            let at = parts(&["MKERNEL_ADDR", "MKERNEL_PORT", "MASTER_ADDR", "MASTER_PORT"])?;
            (format!("plain.{}.{at}", place.world_size), "world size, address, port")
        }
        (None, Launcher::Alone) => ("alone".to_owned(), "no launcher"),
    };
    // A long name is as good as its hash.
    let name = if name.len() > MAX_JOB { blake3::hash(name.as_bytes()).to_hex().to_string() } else { name };
    Ok((name, source))
}
