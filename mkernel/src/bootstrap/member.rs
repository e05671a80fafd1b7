//! Any rank but 0 as a state machine: bytes and times in, bytes and events out; no socket, no clock.
//!
//! Invariant: nothing that the peer says counts before it has proved that it holds the secret, except that it refuses.

use std::collections::VecDeque;
use std::time::Duration;

use mkernel_core::World;
use thiserror::Error;

use super::Event;
use super::auth::{PROOF_BYTES, Side, is_proved, prove};
use super::fault::{JobFault, Step};
use super::frame::{Decoder, FrameError, Hello, Message, Reason};
use super::setup::Setup;

/// Why a connection did not become a place in the job.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Failure {
    /// Rank 0 refused this process.
    #[error("rank 0 refused this process: {0}")]
    Refused(Reason),
    /// The other end could not prove itself.
    #[error("what listens there does not hold this job's secret")]
    Impostor,
    /// The other end does not speak the protocol.
    #[error("what listens there is not rank 0 of this version: {0}")]
    Frame(FrameError),
    /// The other end sent the wrong message.
    #[error("what listens there is not rank 0: it does not keep to the protocol")]
    Protocol,
    /// The other end closed.
    #[error("what listens there closed the connection")]
    Closed,
    /// The other end was silent.
    #[error("what listens there said nothing within the step deadline")]
    Silent,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Greeting,
    /// Proved itself, waits for all to arrive.
    Waiting,
    Running,
    Leaving(Duration),
    Ended,
}

/// A rank that is not rank 0.
#[derive(Debug)]
pub(crate) struct Member {
    setup: Setup,
    hello: Hello,
    since: Duration,
    state: State,
    decoder: Decoder,
    /// Exchanges that this rank took part in.
    shared: u32,
    /// Since when this rank waits for an exchange, and what has come of it.
    exchange: Option<(Duration, Vec<Vec<u8>>)>,
    fault: Option<JobFault>,
    failure: Option<Failure>,
    output: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
}

impl Member {
    /// A member whose connection was opened at `now`.
    pub(crate) fn new(setup: Setup, challenge: [u8; PROOF_BYTES], now: Duration) -> Self {
        let hello = Hello { place: setup.place, job: setup.job.clone(), challenge };
        let output = VecDeque::from([Message::Hello(hello.clone()).encode()]);
        Self {
            setup,
            hello,
            since: now,
            state: State::Greeting,
            decoder: Decoder::default(),
            shared: 0,
            exchange: None,
            fault: None,
            failure: None,
            output,
            events: VecDeque::new(),
        }
    }

    /// Bytes to send.
    pub(crate) fn next_output(&mut self) -> Option<Vec<u8>> {
        self.output.pop_front()
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Why this member never joined.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether it is open how joining ends.
    pub(crate) fn is_joining(&self) -> bool {
        matches!(self.state, State::Greeting | State::Waiting) && self.fault.is_none()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    pub(crate) fn received(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
        while self.state != State::Ended {
            match self.decoder.next_message() {
                Ok(Some(message)) => self.handle(message),
                Ok(None) => return,
                Err(error) => self.break_off(Failure::Frame(error)),
            }
        }
    }

    pub(crate) fn closed(&mut self) {
        match self.state {
            State::Greeting => self.abandon(Failure::Closed),
            State::Ended => {}
            State::Waiting | State::Running | State::Leaving(_) => self.fail(JobFault::Lost { rank: 0 }),
        }
    }

    /// Looks at every deadline. Rank 0 has the same ones and more to tell, so it gets one more step to report first.
    pub(crate) fn tick(&mut self, now: Duration) {
        let Setup { start_deadline, step_deadline, .. } = self.setup;
        let is_past = |since: Duration, limit: Duration| now.saturating_sub(since) >= limit;
        match self.state {
            State::Greeting if is_past(self.since, step_deadline) => self.abandon(Failure::Silent),
            State::Waiting if is_past(self.since, start_deadline.saturating_add(step_deadline)) => {
                self.fail(JobFault::Late { step: Step::Start, ranks: vec![0] });
            }
            State::Leaving(since) if is_past(since, start_deadline.saturating_add(step_deadline)) => {
                self.fail(JobFault::Late { step: Step::Leave, ranks: vec![0] });
            }
            State::Running => {
                let since = self.exchange.as_ref().map(|(since, _)| *since);
                if since.is_some_and(|since| is_past(since, step_deadline.saturating_mul(2))) {
                    self.fail(JobFault::Late { step: Step::Exchange, ranks: vec![0] });
                }
            }
            _ => {}
        }
    }

    pub(crate) fn share(&mut self, blob: Vec<u8>, now: Duration) {
        self.send(Message::Share { round: self.shared, blob });
        self.exchange = Some((now, Vec::new()));
        self.shared += 1;
    }

    pub(crate) fn raise(&mut self, record: Vec<u8>) {
        // One fault per job: what follows the first is a consequence.
        if self.fault.is_none() {
            self.send(Message::Fault(JobFault::Raised { rank: self.setup.place.rank, record }));
        }
    }

    /// Says what this rank was doing, once the job has a fault.
    pub(crate) fn account(&mut self, blob: Vec<u8>) {
        if self.state == State::Running && self.fault.is_some() {
            self.send(Message::Account { blob });
        }
    }

    pub(crate) fn leave(&mut self, now: Duration) {
        if self.state != State::Running {
            return;
        }
        self.send(Message::Leave);
        self.state = State::Leaving(now);
        if self.fault.is_some() {
            self.end();
        }
    }

    fn handle(&mut self, message: Message) {
        match (&self.state, message) {
            (State::Greeting, Message::Challenge { challenge, proof }) => self.answer(&challenge, &proof),
            (State::Greeting | State::Waiting, Message::Refused(reason)) => self.abandon(Failure::Refused(reason)),
            (State::Waiting, Message::Welcome { gpus }) => match World::new(&gpus) {
                Ok(world) if world.size() == self.setup.place.world_size => {
                    self.state = State::Running;
                    self.events.push_back(Event::Joined { world });
                }
                _ => self.break_off(Failure::Protocol),
            },
            (State::Waiting | State::Running | State::Leaving(_), Message::Fault(fault)) => self.fail(fault),
            (State::Running | State::Leaving(_), Message::Shared { round, rank, blob }) => {
                self.collect(round, rank, blob);
            }
            (State::Leaving(_), Message::Farewell) => self.end(),
            _ => self.break_off(Failure::Protocol),
        }
    }

    fn answer(&mut self, challenge: &[u8; PROOF_BYTES], proof: &[u8; PROOF_BYTES]) {
        if !is_proved(&self.setup.secret, Side::Hub, &self.hello, &self.hello.challenge, proof) {
            self.send(Message::Refused(Reason::Secret));
            return self.abandon(Failure::Impostor);
        }
        let proof = prove(&self.setup.secret, Side::Member, &self.hello, challenge);
        self.send(Message::Proof { proof });
        self.state = State::Waiting;
        self.decoder.trust();
    }

    fn collect(&mut self, round: u32, rank: u32, blob: Vec<u8>) {
        if self.fault.is_some() {
            return;
        }
        match &mut self.exchange {
            Some((_, blobs)) if round + 1 == self.shared && rank as usize == blobs.len() => blobs.push(blob),
            _ => return self.break_off(Failure::Protocol),
        }
        let is_complete = |(_, blobs): &mut (Duration, Vec<_>)| blobs.len() == self.setup.place.world_size as usize;
        if let Some((_, blobs)) = self.exchange.take_if(is_complete) {
            self.events.push_back(Event::Shared { blobs });
        }
    }

    /// The other end does not keep to the protocol.
    fn break_off(&mut self, failure: Failure) {
        if self.state == State::Greeting {
            self.send(Message::Refused(Reason::Protocol));
            self.abandon(failure);
        } else {
            self.fail(JobFault::Garbled { rank: 0 });
            self.end();
        }
    }

    fn abandon(&mut self, failure: Failure) {
        self.failure = Some(failure);
        self.state = State::Ended;
    }

    fn fail(&mut self, fault: JobFault) {
        if self.fault.is_some() {
            return;
        }
        self.fault = Some(fault.clone());
        self.exchange = None;
        self.events.push_back(Event::Fault(fault));
        if matches!(self.state, State::Leaving(_)) {
            self.end();
        }
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.events.push_back(Event::Closed);
    }

    fn send(&mut self, message: Message) {
        self.output.push_back(message.encode());
    }
}
