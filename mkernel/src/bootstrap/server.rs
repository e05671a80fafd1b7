//! Rank 0's sockets: one thread, the owner's, looks at all of them in turn.
//!
//! Nothing here waits for a peer: sockets never block, a pass reads a bounded amount from each, and between passes that
//! found nothing to do the thread sleeps up to [`IDLE`]. So a peer can delay another by the cost of its own bytes only.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::Event;
use super::auth::challenge;
use super::control::End;
use super::error::{Error, Refusals};
use super::hub::{Action, Connection, Hub};
use super::link::{Link, READ_BYTES, Received};
use super::listen::listen;
use super::setup::Setup;

/// Longest sleep between two looks at the sockets: std has no way to wait for many of them.
const IDLE: Duration = Duration::from_millis(1);
/// Connections accepted in one pass, so that those in progress get their turn.
const ACCEPTS: usize = 64;
/// Reads from one connection in one pass.
const READS: usize = 4;
/// How long a connection may take to read its last message and close.
const LINGER: Duration = Duration::from_secs(1);
/// Closing connections beyond one per rank.
const SPARE_CLOSING: usize = 64;

#[derive(Debug)]
pub(crate) struct Server {
    hub: Hub,
    listeners: Vec<TcpListener>,
    links: BTreeMap<Connection, Link>,
    closing: Vec<(Link, Duration)>,
    most_closing: usize,
    /// How long ranks that come after a fault are waited for.
    patience: Duration,
    next_connection: Connection,
    start: Instant,
    buffer: Box<[u8]>,
}

impl Server {
    pub(crate) fn listen(setup: &Setup) -> Result<Self, Error> {
        // A job of one rank has nobody to listen for.
        let listeners = if setup.place.world_size == 1 { Vec::new() } else { listen(&setup.host, &setup.ports)? };
        Ok(Self {
            hub: Hub::new(setup.clone()),
            listeners,
            links: BTreeMap::new(),
            closing: Vec::new(),
            most_closing: setup.place.world_size as usize + SPARE_CLOSING,
            patience: setup.step_deadline,
            next_connection: 0,
            start: Instant::now(),
            buffer: vec![0; READ_BYTES].into(),
        })
    }

    /// Tells ranks that arrive after the fault what it was: else all they would see is that rank 0 is gone.
    fn tell_late(&mut self) {
        let start = Instant::now();
        while self.hub.has_untold() && start.elapsed() < self.patience {
            match self.pass() {
                Ok(true) => {}
                Ok(false) => std::thread::sleep(IDLE),
                // Rank 0 ends with the fault that it has.
                Err(error) => return tracing::debug!(%error, "late ranks are not told"),
            }
        }
    }

    /// Looks at every socket once; says whether anything happened.
    fn pass(&mut self) -> Result<bool, Error> {
        let accepted = self.accept()?;
        let received = self.receive();
        self.hub.tick(self.start.elapsed());
        self.act();
        self.flush();
        self.linger();
        if !self.hub.is_gathering() {
            // The port is free for the next job, and strangers have nothing to talk to.
            self.listeners.clear();
        }
        Ok(accepted || received)
    }

    fn accept(&mut self) -> Result<bool, Error> {
        let mut any = false;
        for listener in &self.listeners {
            for _ in 0..ACCEPTS {
                let now = self.start.elapsed();
                if !self.hub.has_room(now) {
                    break;
                }
                match listener.accept() {
                    Ok((stream, address)) => {
                        any = true;
                        // A socket that takes no options is a connection that broke already.
                        let Ok(link) = Link::new(stream) else { continue };
                        self.links.insert(self.next_connection, link);
                        self.hub.opened(self.next_connection, address, challenge().map_err(Error::Random)?, now);
                        self.next_connection += 1;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // Aborted by the peer, or no descriptor left: the next pass tries again.
                    Err(error) => {
                        tracing::debug!(%error, "accept failed");
                        break;
                    }
                }
            }
        }
        self.act();
        Ok(any)
    }

    fn receive(&mut self) -> bool {
        let mut any = false;
        let mut closed = Vec::new();
        for (connection, link) in &mut self.links {
            for _ in 0..READS {
                match link.receive(&mut self.buffer) {
                    Received::Nothing => break,
                    Received::Bytes(count) => {
                        any = true;
                        self.hub.received(*connection, &self.buffer[..count], self.start.elapsed());
                    }
                    Received::Closed => {
                        any = true;
                        closed.push(*connection);
                        break;
                    }
                }
            }
        }
        for connection in closed {
            // What the hub has queued for it goes nowhere; what it said before was read above.
            self.links.remove(&connection);
            self.hub.closed(connection);
        }
        self.act();
        any
    }

    fn act(&mut self) {
        while let Some(action) = self.hub.next_action() {
            match action {
                Action::Send(connection, bytes) => {
                    if let Some(link) = self.links.get_mut(&connection) {
                        link.queue(bytes);
                    }
                }
                Action::Close(connection) => {
                    if let Some(link) = self.links.remove(&connection) {
                        self.closing.push((link, self.start.elapsed()));
                    }
                }
            }
        }
    }

    fn flush(&mut self) {
        let broken = |(connection, link): (&Connection, &mut Link)| (!link.flush()).then_some(*connection);
        let broken: Vec<_> = self.links.iter_mut().filter_map(broken).collect();
        for connection in broken {
            self.links.remove(&connection);
            self.hub.closed(connection);
        }
        self.act();
    }

    /// Lets closing connections read their last message, within bounds of time and number.
    fn linger(&mut self) {
        let excess = self.closing.len().saturating_sub(self.most_closing);
        self.closing.drain(..excess);
        let now = self.start.elapsed();
        let buffer = &mut self.buffer;
        self.closing.retain_mut(|(link, since)| {
            if now.saturating_sub(*since) >= LINGER || !link.flush() {
                return false;
            }
            if link.is_flushed() {
                link.shut();
            }
            !(0..READS).any(|_| link.receive(buffer) == Received::Closed)
        });
    }
}

impl End for Server {
    fn step(&mut self, wait: Duration) -> Result<Option<Event>, Error> {
        let start = Instant::now();
        let mut idle = IDLE / 16;
        loop {
            let is_busy = self.pass()?;
            if let Some(event) = self.hub.next_event() {
                return Ok(Some(event));
            }
            let left = wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if is_busy {
                idle = IDLE / 16;
            } else {
                std::thread::sleep(idle.min(left));
                idle = (idle * 2).min(IDLE);
            }
        }
    }

    fn share(&mut self, blob: Vec<u8>) {
        self.hub.share(blob, self.start.elapsed());
        self.act();
        self.flush();
    }

    fn raise(&mut self, record: Vec<u8>) {
        self.hub.raise(record);
        self.act();
        self.flush();
    }

    fn account(&mut self, _: Vec<u8>) {}

    fn staying(&self) -> usize {
        self.hub.staying()
    }

    fn leave(&mut self) {
        self.tell_late();
        self.hub.leave(self.start.elapsed());
        self.act();
        self.flush();
    }

    fn finish(&mut self) {
        self.listeners.clear();
        self.closing.extend(std::mem::take(&mut self.links).into_values().map(|link| (link, self.start.elapsed())));
        // Ends: each entry stays for LINGER at most and none is added.
        while !self.closing.is_empty() {
            self.linger();
            if !self.closing.is_empty() {
                std::thread::sleep(IDLE);
            }
        }
    }

    fn refusals(&self) -> Refusals {
        self.hub.refusals().clone()
    }
}
