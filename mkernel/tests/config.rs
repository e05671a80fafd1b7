//! What the environment of each launcher means. No test reads or changes the environment of this process.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use mkernel::bootstrap::{Place, Secret};
use mkernel::config::{Config, ConfigError, Launcher};

const SECRET: (&str, &str) = ("MKERNEL_SECRET", "0123456789abcdef0123456789abcdef");

fn read(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
    Config::from_lookup(find)
}

fn place(rank: u32, world_size: u32, local_rank: u32, local_world_size: u32) -> Place {
    Place { rank, world_size, local_rank, local_world_size }
}

/// The variables, then others that are added or, where named again, take their place.
fn with<'a>(variables: &[(&'a str, &'a str)], others: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [others, variables].concat()
}

fn without<'a>(variables: &[(&'a str, &'a str)], name: &str) -> Vec<(&'a str, &'a str)> {
    variables.iter().copied().filter(|(known, _)| *known != name).collect()
}

/// What torchrun sets for the fourth of five ranks on nodes of three and two.
const TORCHRUN: [(&str, &str); 9] = [
    ("RANK", "3"),
    ("WORLD_SIZE", "5"),
    ("LOCAL_RANK", "0"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node0"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "run"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
    SECRET,
];

const OPENMPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "prterun-host-77@1"),
];

/// What srun sets for the last of seven ranks on nodes of two, two, two and one.
const SLURM: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "12"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "6"),
    ("SLURM_STEP_NUM_TASKS", "7"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "3"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
    ("SLURM_STEP_NODELIST", "gpu[007-009,011]"),
    SECRET,
];

const PLAIN: [(&str, &str); 6] = [
    ("MKERNEL_RANK", "1"),
    ("MKERNEL_WORLD_SIZE", "3"),
    ("MKERNEL_LOCAL_RANK", "1"),
    ("MKERNEL_LOCAL_WORLD_SIZE", "3"),
    ("MKERNEL_ADDR", "[::1]"),
    ("MKERNEL_PORT", "4000"),
];

#[test]
fn no_launcher_means_a_job_of_one() {
    let config = read(&[]).unwrap();
    assert_eq!((config.launcher, config.setup.place), (Launcher::Alone, Place::ALONE));
    assert_eq!(read(&[SECRET]).unwrap().setup.place, Place::ALONE);
}

#[test]
fn torchrun_says_rank_sizes_and_address() {
    let config = read(&TORCHRUN).unwrap();
    assert_eq!((config.launcher, config.setup.place), (Launcher::Torchrun, place(3, 5, 0, 2)));
    assert_eq!((config.setup.host.as_str(), config.setup.ports.as_slice()), ("node0", [29500].as_slice()));
    assert_eq!(config.setup.secret, Secret::new(SECRET.1.as_bytes()).unwrap());
}

#[test]
fn the_port_of_torchruns_own_store_is_left_alone() {
    let config = read(&with(&TORCHRUN, &[("TORCHELASTIC_USE_AGENT_STORE", "True")])).unwrap();
    assert_eq!(config.setup.ports.len(), 8);
    assert!(config.setup.ports.iter().all(|port| (23_000..31_000).contains(port)), "{:?}", config.setup.ports);
    let given = read(&with(&TORCHRUN, &[("TORCHELASTIC_USE_AGENT_STORE", "True"), ("MKERNEL_PORT", "5000")])).unwrap();
    assert_eq!(given.setup.ports, [5000]);
}

#[test]
fn agents_of_torchrun_that_restarted_their_ranks_another_number_of_times_name_the_same_job() {
    let again = read(&with(&TORCHRUN, &[("TORCHELASTIC_RESTART_COUNT", "1")])).unwrap();
    assert_eq!(again.setup.job, read(&TORCHRUN).unwrap().setup.job);
    let other = read(&with(&TORCHRUN, &[("TORCHELASTIC_RUN_ID", "other")])).unwrap();
    assert_ne!(other.setup.job, again.setup.job);
}

#[test]
fn open_mpi_on_one_host_needs_nothing_else() {
    let config = read(&OPENMPI).unwrap();
    assert_eq!((config.launcher, config.setup.place), (Launcher::OpenMpi, place(1, 2, 1, 2)));
    assert_eq!(config.setup.host, "127.0.0.1");
    let other = read(&with(&OPENMPI, &[("PMIX_NAMESPACE", "prterun-host-78@1")])).unwrap();
    assert_ne!(config.setup.job, other.setup.job, "two jobs at once on a node");
    assert_ne!(config.setup.secret, other.setup.secret);
}

#[test]
fn slurm_says_uneven_nodes_and_the_first_host() {
    let config = read(&SLURM).unwrap();
    assert_eq!((config.launcher, config.setup.place), (Launcher::Slurm, place(6, 7, 0, 1)));
    assert_eq!((config.setup.host.as_str(), config.setup.job.as_str()), ("gpu007", "slurm.12.0"));
    for (list, first) in [("a", "a"), ("a,b[1-2]", "a"), ("a[3]-x[5-9,10],b", "a3-x5"), ("n-1,n-2", "n-1")] {
        assert_eq!(read(&with(&SLURM, &[("SLURM_STEP_NODELIST", list)])).unwrap().setup.host, first);
    }
    for list in ["a[", "[]", ""] {
        let error = read(&with(&SLURM, &[("SLURM_STEP_NODELIST", list)])).unwrap_err();
        let variable = if list.is_empty() { "MKERNEL_ADDR" } else { "SLURM_STEP_NODELIST" };
        assert!(error.to_string().starts_with(variable), "{error}");
    }
}

#[test]
fn a_slurm_batch_script_is_no_launcher() {
    assert_eq!(read(&without(&SLURM, "SLURM_STEP_ID")).unwrap().launcher, Launcher::Alone);
    assert_eq!(read(&with(&SLURM, &[("SLURM_STEP_ID", "4294967290")])).unwrap().launcher, Launcher::Alone);
}

#[test]
fn slurm_around_another_launcher_stands_back() {
    assert_eq!(read(&with(&SLURM, &TORCHRUN)).unwrap().launcher, Launcher::Torchrun);
    assert_eq!(read(&with(&SLURM, &OPENMPI)).unwrap().launcher, Launcher::OpenMpi);
}

#[test]
fn plain_variables_say_it_all_with_ipv6_in_brackets_or_not() {
    let config = read(&PLAIN).unwrap();
    assert_eq!((config.launcher, config.setup.place), (Launcher::Plain, place(1, 3, 1, 3)));
    let config = read(&with(&PLAIN, &[SECRET])).unwrap();
    assert_eq!((config.setup.host.as_str(), config.setup.ports.as_slice()), ("::1", [4000].as_slice()));
}

#[test]
fn two_launchers_that_differ_need_a_word_from_the_user() {
    let both = with(&TORCHRUN, &OPENMPI);
    let error = read(&both).unwrap_err().to_string();
    assert_eq!(
        error,
        "RANK=3 contradicts OMPI_COMM_WORLD_RANK=1: set MKERNEL_LAUNCHER to plain, torchrun, openmpi or slurm to say \
         which counts"
    );
    for (name, launcher) in
        [("torchrun", Launcher::Torchrun), ("openmpi", Launcher::OpenMpi), ("none", Launcher::Alone)]
    {
        assert_eq!(read(&with(&both, &[("MKERNEL_LAUNCHER", name)])).unwrap().launcher, launcher);
    }
    let error = read(&with(&both, &[("MKERNEL_LAUNCHER", "mpi")])).unwrap_err().to_string();
    assert_eq!(error, r#"MKERNEL_LAUNCHER="mpi" is not one of none, plain, torchrun, openmpi, slurm"#);
}

#[test]
fn two_launchers_that_agree_are_one() {
    let same = [
        ("MKERNEL_RANK", "1"),
        ("MKERNEL_WORLD_SIZE", "2"),
        ("MKERNEL_LOCAL_RANK", "1"),
        ("MKERNEL_LOCAL_WORLD_SIZE", "2"),
    ];
    assert_eq!(read(&with(&OPENMPI, &same)).unwrap().launcher, Launcher::Plain);
}

#[test]
fn a_missing_variable_is_named() {
    let sets: [(&[(&str, &str)], usize); 4] = [(&TORCHRUN, 4), (&OPENMPI, 4), (&PLAIN, 4), (&SLURM, 7)];
    for (set, needed) in sets {
        // Without its rank or its step a Slurm process is no rank at all.
        for (name, _) in
            set[..needed].iter().filter(|(name, _)| !["SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID"].contains(name))
        {
            let error = read(&without(set, name)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name} is not set: ")), "{error}");
        }
    }
}

#[test]
fn a_value_that_is_no_number_is_named_with_what_it_should_be() {
    for (name, value) in [("RANK", "x"), ("RANK", "-1"), ("WORLD_SIZE", "99999999999"), ("LOCAL_RANK", "1.5")] {
        let error = read(&with(&TORCHRUN, &[(name, value)])).unwrap_err().to_string();
        assert_eq!(error, format!("{name}={value:?} is not a number"));
    }
    for value in ["0", "65536", "x"] {
        let error = read(&with(&TORCHRUN, &[("MASTER_PORT", value)])).unwrap_err().to_string();
        assert_eq!(error, format!("MASTER_PORT={value:?} is not a port from 1 to 65535"));
    }
    for value in ["2(x", "2(xa)", "a", "2(x3)", "2,2,,1"] {
        let error = read(&with(&SLURM, &[("SLURM_STEP_TASKS_PER_NODE", value)])).unwrap_err().to_string();
        assert!(error.starts_with("SLURM_STEP_TASKS_PER_NODE="), "{value}: {error}");
    }
    let not_text = |name: &str| (name == "RANK").then(|| OsString::from_vec(vec![0xff]));
    assert_eq!(Config::from_lookup(not_text).unwrap_err().to_string(), r#"RANK="\xFF" is not UTF-8"#);
}

#[test]
fn ranks_and_sizes_that_contradict_each_other_are_named() {
    for (name, value, expected) in [
        ("RANK", "5", "RANK=5 contradicts WORLD_SIZE=5"),
        ("LOCAL_RANK", "2", "LOCAL_RANK=2 contradicts LOCAL_WORLD_SIZE=2"),
        ("LOCAL_WORLD_SIZE", "6", "LOCAL_WORLD_SIZE=6 contradicts WORLD_SIZE=5"),
        ("WORLD_SIZE", "0", r#"WORLD_SIZE="0" is not a number of ranks from 1 to 4096"#),
        ("WORLD_SIZE", "4097", r#"WORLD_SIZE="4097" is not a number of ranks from 1 to 4096"#),
    ] {
        let error = read(&with(&TORCHRUN, &[(name, value)])).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn several_hosts_need_a_secret_and_the_error_says_how_to_make_one() {
    let error = read(&without(&TORCHRUN, SECRET.0)).unwrap_err();
    assert!(matches!(error, ConfigError::NoSecret));
    assert!(error.to_string().contains("openssl rand -hex 32"), "{error}");
}

#[test]
fn one_host_without_a_secret_stays_out_of_reach_of_others() {
    let one_host = with(&without(&TORCHRUN, SECRET.0), &[("LOCAL_WORLD_SIZE", "5")]);
    assert_eq!(read(&one_host).unwrap().setup.host, "127.0.0.1");
    assert_eq!(read(&with(&one_host, &[SECRET])).unwrap().setup.host, "node0");
}

#[test]
fn several_hosts_without_an_address_say_which_variable_to_set() {
    let error = read(&with(&OPENMPI, &[("OMPI_COMM_WORLD_SIZE", "4"), SECRET])).unwrap_err().to_string();
    assert_eq!(error, "MKERNEL_ADDR is not set: set it, on every rank, to a name or address of rank 0's host");
}

/// A file of this test's own that goes with it.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &[u8], mode: u32) -> Self {
        let path = std::env::temp_dir().join(format!("mkernel-config-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn a_secret_file_counts_only_if_nobody_else_can_read_it() {
    let read_file = |file: &TempFile| read(&with(&PLAIN, &[("MKERNEL_SECRET_FILE", file.0.to_str().unwrap())]));
    let good = TempFile::new("good", b"0123456789abcdef0123456789abcdef\n", 0o600);
    assert_eq!(read_file(&good).unwrap().setup.secret, Secret::new(SECRET.1.as_bytes()).unwrap());
    for mode in [0o640, 0o604, 0o660, 0o601] {
        let open = TempFile::new(&format!("{mode:o}"), SECRET.1.as_bytes(), mode);
        let error = read_file(&open).unwrap_err().to_string();
        assert!(error.contains(&format!("has mode {mode:04o}")) && error.contains("chmod 600"), "{error}");
    }
    let short = TempFile::new("short", b"0123456789abcde\n", 0o600);
    assert!(matches!(read_file(&short), Err(ConfigError::ShortSecret { variable: "MKERNEL_SECRET_FILE" })));
    let long = TempFile::new("long", &[b'x'; 4097], 0o600);
    assert!(matches!(read_file(&long), Err(ConfigError::SecretMode { bytes: 4097, .. })));
    let missing = read(&with(&PLAIN, &[("MKERNEL_SECRET_FILE", "/no/such/file")])).unwrap_err();
    assert_eq!(missing.to_string(), r#"MKERNEL_SECRET_FILE="/no/such/file" cannot be read"#);
    let both = with(&PLAIN, &[SECRET, ("MKERNEL_SECRET_FILE", "f")]);
    assert!(matches!(read(&both), Err(ConfigError::Conflict { .. })));
}

#[test]
fn a_printed_config_says_where_each_value_came_from_and_hides_the_secret() {
    let text = read(&with(&TORCHRUN, &[("MKERNEL_STEP_DEADLINE_MS", "1500")])).unwrap().to_string();
    for line in [
        "launcher         torchrun (RANK)",
        "rank             3 (RANK)",
        "world size       5 (WORLD_SIZE)",
        "local rank       0 (LOCAL_RANK)",
        "local world size 2 (LOCAL_WORLD_SIZE)",
        "port             29500 (MASTER_PORT)",
        "secret           hidden (MKERNEL_SECRET)",
        "host             node0 (MASTER_ADDR)",
        "start deadline   120000 ms (default)",
        "step deadline    1500 ms (MKERNEL_STEP_DEADLINE_MS)",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
    }
    assert!(!text.contains(SECRET.1) && !format!("{:?}", read(&TORCHRUN)).contains(SECRET.1));
}

#[test]
fn deadlines_are_milliseconds_above_zero() {
    let config = read(&[("MKERNEL_START_DEADLINE_MS", "7")]).unwrap();
    assert_eq!(config.setup.start_deadline, Duration::from_millis(7));
    for value in ["0", "x", "4294967296"] {
        let error = read(&[("MKERNEL_START_DEADLINE_MS", value)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("MKERNEL_START_DEADLINE_MS={value:?} is not ")), "{error}");
    }
}

#[test]
fn all_ranks_of_a_job_read_the_same_meeting_place() {
    let sets: [&[(&str, &str)]; 2] = [
        &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")],
        &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")],
    ];
    let [a, b] = sets.map(|set| read(&with(&OPENMPI, set)).unwrap().setup);
    assert_eq!((&a.host, &a.ports, &a.job), (&b.host, &b.ports, &b.job));
    assert_eq!(a.secret, b.secret);
}

#[test]
fn every_variable_that_is_read_is_in_the_documentation() {
    let text = include_str!("../../docs/bootstrap.md");
    let sources = [
        include_str!("../src/config.rs"),
        include_str!("../src/config/launcher.rs"),
        include_str!("../src/config/secret.rs"),
    ];
    let is_variable = |text: &&str| text.len() > 3 && text.bytes().all(|b| b.is_ascii_uppercase() || b"_".contains(&b));
    let mut names: Vec<&str> = sources.iter().flat_map(|source| source.split('"')).filter(is_variable).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(text.contains(&format!("`{name}`")) || text.contains(&format!("{name}`")), "{name}");
    }
}
