//! Jobs whose ranks are threads of one process.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mkernel::bootstrap::{Control, Error, Place, Secret, Setup, join};

/// Longer than anything here takes; reached only by a hang.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What the ranks of a job share.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) nodes: Vec<u32>,
    pub(crate) host: String,
    pub(crate) ports: Vec<u16>,
    pub(crate) start: Duration,
    pub(crate) step: Duration,
}

impl Job {
    /// A job with these many ranks per node at a port of its own.
    pub(crate) fn new(nodes: &[u32]) -> Self {
        Self { nodes: nodes.to_vec(), host: "127.0.0.1".into(), ports: vec![free_port()], start: LONG, step: LONG }
    }

    pub(crate) fn size(&self) -> u32 {
        self.nodes.iter().sum()
    }

    pub(crate) fn setup(&self, rank: u32) -> Setup {
        let mut places = self.nodes.iter().flat_map(|size| (0..*size).map(|local| (local, *size)));
        let (local_rank, local_world_size) = places.nth(rank as usize).unwrap();
        Setup {
            place: Place { rank, world_size: self.size(), local_rank, local_world_size },
            job: format!("job {}", self.ports.last().unwrap()),
            secret: Secret::new(b"the secret of the tests").unwrap(),
            host: self.host.clone(),
            ports: self.ports.clone(),
            start_deadline: self.start,
            step_deadline: self.step,
        }
    }

    /// Lets a rank join in a thread of its own.
    pub(crate) fn start(&self, rank: u32) -> JoinHandle<Result<Control, Error>> {
        let setup = self.setup(rank);
        thread::spawn(move || join(&setup))
    }
}

/// Runs `body` on every rank of a job, each in its own thread. The results are in rank order.
pub(crate) fn all<T: Send>(job: &Job, body: impl Fn(Control) -> Result<T, Error> + Sync) -> Vec<Result<T, Error>> {
    thread::scope(|scope| {
        let rank = |rank| {
            let (setup, body) = (job.setup(rank), &body);
            // Hundreds of ranks need little stack each.
            let builder = thread::Builder::new().stack_size(256 * 1024);
            builder.spawn_scoped(scope, move || body(join(&setup)?)).unwrap()
        };
        let threads: Vec<_> = (0..job.size()).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) fn address(job: &Job) -> SocketAddr {
    (job.host.as_str(), job.ports[0]).to_socket_addrs().unwrap().next().unwrap()
}

/// Whether this host has the loopback address of IPv6; says so if not.
pub(crate) fn has_ipv6() -> bool {
    let has = TcpListener::bind("[::1]:0").is_ok();
    if !has {
        eprintln!("SKIPPED: this host has no IPv6 loopback address");
    }
    has
}

/// A port below those that the system hands out to clients, another for every caller, from a start that differs between
/// processes.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = (std::process::id().wrapping_mul(61) + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let port = 2_500 + offset as u16;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}
