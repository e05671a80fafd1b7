//! The socket of any rank but 0.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::Event;
use super::auth::challenge;
use super::control::End;
use super::error::{Attempt, Error, Refusals};
use super::frame::Reason;
use super::link::{Link, READ_BYTES, Received};
use super::member::{Failure, Member};
use super::setup::Setup;

/// Longest wait for bytes between two looks at the deadlines.
const LOOK: Duration = Duration::from_millis(50);
/// How long the first round of tries waits for each connection; each round waits twice as long. Where hundreds of ranks
/// arrive at once a system drops some, and asking again soon beats its own second try, a second later.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// First and longest pause between two rounds of tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

#[derive(Debug)]
pub(crate) struct Client {
    member: Member,
    /// `None` once it closed.
    link: Option<Link>,
    start: Instant,
    buffer: Box<[u8]>,
}

impl Client {
    /// Tries every address and port of rank 0 in turn until one proves to be rank 0 of this job.
    pub(crate) fn connect(setup: &Setup) -> Result<Self, Error> {
        let start = Instant::now();
        let (mut pause, mut patience) = (PAUSES.0, FIRST_PATIENCE);
        loop {
            let mut source = Attempt::Resolve(ErrorKind::NotFound.into());
            for port in &setup.ports {
                // Asked again in each round: a name may get its address late.
                let addresses = match (setup.host.as_str(), *port).to_socket_addrs() {
                    Ok(addresses) => addresses,
                    Err(error) => {
                        source = Attempt::Resolve(error);
                        continue;
                    }
                };
                for address in addresses {
                    match Self::try_address(setup, address, start, patience.min(setup.step_deadline))? {
                        Ok(client) => return Ok(client),
                        // Who answered says more than where nobody did.
                        Err(Attempt::Connect { .. }) if matches!(source, Attempt::Join { .. }) => {}
                        Err(attempt) => source = attempt,
                    }
                }
            }
            if start.elapsed() >= setup.start_deadline {
                let (host, ports) = (setup.host.clone(), setup.ports.clone());
                return Err(Error::Unreachable { host, ports, waited: start.elapsed(), source });
            }
            std::thread::sleep(pause.min(setup.start_deadline.saturating_sub(start.elapsed())));
            pause = (pause * 2).min(PAUSES.1);
            patience = patience.saturating_mul(2);
        }
    }

    fn try_address(
        setup: &Setup,
        address: SocketAddr,
        start: Instant,
        patience: Duration,
    ) -> Result<Result<Self, Attempt>, Error> {
        let left = setup.start_deadline.saturating_sub(start.elapsed());
        let wait = patience.min(left).max(Duration::from_millis(1));
        let connected = TcpStream::connect_timeout(&address, wait).and_then(|stream| {
            // A dial to a free port of this host can meet itself.
            if stream.local_addr()? == stream.peer_addr()? {
                return Err(ErrorKind::ConnectionRefused.into());
            }
            Link::new(stream)
        });
        let link = match connected {
            Ok(link) => link,
            Err(source) => return Ok(Err(Attempt::Connect { address, source })),
        };
        let member = Member::new(setup.clone(), challenge().map_err(Error::Random)?, start.elapsed());
        let mut client = Self { member, link: Some(link), start, buffer: vec![0; READ_BYTES].into() };
        while client.member.is_joining() {
            client.pass(LOOK)?;
        }
        match client.member.failure() {
            None => Ok(Ok(client)),
            Some(source) if is_final(source, setup) => Err(Error::Join { address, source }),
            Some(source) => Ok(Err(Attempt::Join { address, source })),
        }
    }

    /// Moves bytes, waiting for some up to `wait`.
    fn pass(&mut self, wait: Duration) -> Result<(), Error> {
        self.flush();
        if let Some(link) = &mut self.link {
            let wait = if link.is_flushed() { wait.min(LOOK) } else { wait.min(Duration::from_millis(1)) };
            match link.receive_within(&mut self.buffer, wait).map_err(Error::Socket)? {
                Received::Bytes(count) => self.member.received(&self.buffer[..count]),
                Received::Nothing => {}
                Received::Closed => {
                    self.link = None;
                    self.member.closed();
                }
            }
        }
        self.member.tick(self.start.elapsed());
        self.flush();
        Ok(())
    }

    fn flush(&mut self) {
        while let Some(bytes) = self.member.next_output() {
            if let Some(link) = &mut self.link {
                link.queue(bytes.into());
            }
        }
        // A send that breaks shows as a closed connection on the next read, after what rank 0 said last.
        if let Some(link) = &mut self.link {
            link.flush();
        }
    }
}

impl End for Client {
    fn step(&mut self, wait: Duration) -> Result<Option<Event>, Error> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.member.next_event() {
                return Ok(Some(event));
            }
            let left = wait.saturating_sub(start.elapsed());
            self.pass(left)?;
            if let Some(event) = self.member.next_event() {
                return Ok(Some(event));
            }
            if left.is_zero() || self.link.is_none() || self.member.is_ended() {
                return Ok(None);
            }
        }
    }

    fn share(&mut self, blob: Vec<u8>) {
        self.member.share(blob, self.start.elapsed());
        self.flush();
    }

    fn raise(&mut self, record: Vec<u8>) {
        self.member.raise(record);
        self.flush();
    }

    fn account(&mut self, blob: Vec<u8>) {
        self.member.account(blob);
        self.flush();
    }

    fn staying(&self) -> usize {
        0
    }

    fn leave(&mut self) {
        self.member.leave(self.start.elapsed());
        self.flush();
    }

    fn finish(&mut self) {
        self.flush();
        if let Some(link) = &mut self.link {
            link.shut();
        }
        self.link = None;
    }

    fn refusals(&self) -> Refusals {
        Refusals::default()
    }
}

/// Whether another try cannot end otherwise.
fn is_final(failure: Failure, setup: &Setup) -> bool {
    match failure {
        Failure::Closed | Failure::Silent | Failure::Refused(Reason::Slow) => false,
        Failure::Refused(Reason::WorldSize | Reason::NoSuchRank | Reason::Duplicate) => true,
        // Something else listens at this port: with several ports, rank 0 may be at the next one.
        Failure::Refused(Reason::Version | Reason::Job | Reason::Secret | Reason::Protocol | Reason::Ended)
        | Failure::Impostor
        | Failure::Frame(_)
        | Failure::Protocol => setup.ports.len() == 1,
    }
}
