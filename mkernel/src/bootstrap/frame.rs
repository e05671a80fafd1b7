//! Frames: how messages look on the wire.
//!
//! A frame is twelve bytes of header (magic, version, kind, length; little endian) and a payload. Each kind has a limit
//! on its length, checked before the payload is waited for, so a [`Decoder`] never holds more than the largest frame
//! that is allowed at that point plus what one read brought. Before a peer has proved itself that is a few hundred bytes.

use thiserror::Error;

use super::auth::PROOF_BYTES;
use super::fault::{JobFault, MAX_RECORD};
use super::setup::{MAX_RANKS, Place};
use super::wire::{Reader, put_bytes, put_list, put_u32};

/// Version of the protocol. Ranks of different versions refuse each other.
pub const VERSION: u16 = 1;
/// Bytes of a frame before its payload.
pub const HEADER_BYTES: usize = 12;
/// Most bytes of one rank's blob in an exchange.
pub const MAX_BLOB: usize = 64 * 1024;
/// Most bytes of a job's name.
pub const MAX_JOB: usize = 128;

const MAGIC: [u8; 4] = *b"MKBS";

/// What a member says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Where the member stands.
    pub place: Place,
    /// Name of its job.
    pub job: String,
    /// Fresh random bytes that rank 0 must prove itself over.
    pub challenge: [u8; PROOF_BYTES],
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum Reason {
    #[error("it speaks another version of the protocol")]
    Version = 1,
    #[error("it belongs to another job")]
    Job = 2,
    #[error("it does not hold this job's secret")]
    Secret = 3,
    #[error("it expects another number of ranks")]
    WorldSize = 4,
    #[error("the job has no such rank to join")]
    NoSuchRank = 5,
    #[error("its rank has joined already")]
    Duplicate = 6,
    #[error("it took too long to prove itself")]
    Slow = 7,
    #[error("it sent something else than the next message of the protocol")]
    Protocol = 8,
    #[error("the job has ended")]
    Ended = 9,
}

impl Reason {
    const ALL: [Self; 9] = [
        Self::Version,
        Self::Job,
        Self::Secret,
        Self::WorldSize,
        Self::NoSuchRank,
        Self::Duplicate,
        Self::Slow,
        Self::Protocol,
        Self::Ended,
    ];
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Member to rank 0: who it is.
    Hello(Hello),
    /// Rank 0 to member: rank 0's proof and its own challenge.
    Challenge {
        /// Fresh random bytes that the member must prove itself over.
        challenge: [u8; PROOF_BYTES],
        /// Rank 0's proof over the member's challenge.
        proof: [u8; PROOF_BYTES],
    },
    /// Member to rank 0: its proof over rank 0's challenge.
    Proof {
        /// The proof.
        proof: [u8; PROOF_BYTES],
    },
    /// Either way: the connection goes no further.
    Refused(Reason),
    /// Rank 0 to member: all ranks have arrived.
    Welcome {
        /// GPUs of each node.
        gpus: Vec<u32>,
    },
    /// Member to rank 0: its blob of an exchange.
    Share {
        /// Which exchange, from 0 on.
        round: u32,
        /// The blob.
        blob: Vec<u8>,
    },
    /// Rank 0 to member: one rank's blob; one such message per rank, in rank order.
    Shared {
        /// Which exchange.
        round: u32,
        /// Whose blob.
        rank: u32,
        /// The blob.
        blob: Vec<u8>,
    },
    /// Either way: what ends the job.
    Fault(JobFault),
    /// Member to rank 0: it needs nobody any more.
    Leave,
    /// Rank 0 to member: everybody has left.
    Farewell,
    /// Member to rank 0, after a fault: what it was doing.
    Account {
        /// In the words of its executor.
        blob: Vec<u8>,
    },
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The first bytes are not those of a frame.
    #[error("not a bootstrap frame")]
    Magic,
    /// The frame is of another version.
    #[error("bootstrap protocol version {0}, this is version {VERSION}")]
    Version(u16),
    /// No message has this kind.
    #[error("unknown kind of message {0}")]
    Kind(u16),
    /// The message is known but not allowed before the peer has proved itself.
    #[error("message of kind {0} before the handshake is done")]
    Early(u16),
    /// The length passes the limit of its kind.
    #[error("{bytes} bytes for a message of kind {kind}, the limit is {limit}")]
    Length {
        /// Kind of the message.
        kind: u16,
        /// Bytes announced.
        bytes: u32,
        /// Most bytes allowed.
        limit: u32,
    },
    /// The payload does not hold what its kind says.
    #[error("malformed message of kind {0}")]
    Payload(u16),
}

impl Hello {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let Place { rank, world_size, local_rank, local_world_size } = self.place;
        [rank, world_size, local_rank, local_world_size].iter().for_each(|word| put_u32(out, *word));
        put_bytes(out, self.job.as_bytes());
        out.extend_from_slice(&self.challenge);
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let place = Place {
            rank: reader.u32()?,
            world_size: reader.u32()?,
            local_rank: reader.u32()?,
            local_world_size: reader.u32()?,
        };
        Some(Self { place, job: reader.text(MAX_JOB)?, challenge: reader.array()? })
    }
}

impl Message {
    /// The frame of this message.
    ///
    /// # Panics
    /// The message passes a limit of its kind: callers check what they let in.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out
    }

    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.kind().to_le_bytes());
        put_u32(out, 0);
        self.put(out);
        let bytes = u32::try_from(out.len() - start - HEADER_BYTES).expect("a payload is far below u32::MAX");
        let limit = limit(self.kind()).expect("every message has a limit");
        assert!(bytes <= limit, "a message of kind {} has {bytes} bytes, the limit is {limit}", self.kind());
        out[start + 8..start + HEADER_BYTES].copy_from_slice(&bytes.to_le_bytes());
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Hello(_) => 1,
            Self::Challenge { .. } => 2,
            Self::Proof { .. } => 3,
            Self::Refused(_) => 4,
            Self::Welcome { .. } => 5,
            Self::Share { .. } => 6,
            Self::Shared { .. } => 7,
            Self::Fault(_) => 8,
            Self::Leave => 9,
            Self::Farewell => 10,
            Self::Account { .. } => 11,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => hello.put(out),
            Self::Challenge { challenge, proof } => {
                out.extend_from_slice(challenge);
                out.extend_from_slice(proof);
            }
            Self::Proof { proof } => out.extend_from_slice(proof),
            Self::Refused(reason) => out.push(*reason as u8),
            Self::Welcome { gpus } => put_list(out, gpus),
            Self::Share { round, blob } => {
                put_u32(out, *round);
                put_bytes(out, blob);
            }
            Self::Shared { round, rank, blob } => {
                put_u32(out, *round);
                put_u32(out, *rank);
                put_bytes(out, blob);
            }
            Self::Fault(fault) => fault.put(out),
            Self::Leave | Self::Farewell => {}
            Self::Account { blob } => put_bytes(out, blob),
        }
    }

    fn get(kind: u16, payload: &[u8]) -> Option<Self> {
        let reader = &mut Reader::new(payload);
        let message = match kind {
            1 => Self::Hello(Hello::get(reader)?),
            2 => Self::Challenge { challenge: reader.array()?, proof: reader.array()? },
            3 => Self::Proof { proof: reader.array()? },
            4 => {
                let code = reader.u8()?;
                Self::Refused(Reason::ALL.into_iter().find(|reason| *reason as u8 == code)?)
            }
            5 => Self::Welcome { gpus: reader.list(MAX_RANKS as usize)? },
            6 => Self::Share { round: reader.u32()?, blob: reader.bytes(MAX_BLOB)?.to_vec() },
            7 => Self::Shared { round: reader.u32()?, rank: reader.u32()?, blob: reader.bytes(MAX_BLOB)?.to_vec() },
            8 => Self::Fault(JobFault::get(reader)?),
            9 => Self::Leave,
            10 => Self::Farewell,
            11 => Self::Account { blob: reader.bytes(MAX_BLOB)?.to_vec() },
            _ => return None,
        };
        reader.end().map(|()| message)
    }
}

/// Most payload bytes of a kind; `None` for an unknown one.
fn limit(kind: u16) -> Option<u32> {
    const PROOF: u32 = PROOF_BYTES as u32;
    Some(match kind {
        1 => 4 * 4 + 4 + MAX_JOB as u32 + PROOF,
        2 => 2 * PROOF,
        3 => PROOF,
        4 => 1,
        5 => 4 + 4 * MAX_RANKS,
        6 => 8 + MAX_BLOB as u32,
        7 => 12 + MAX_BLOB as u32,
        // A tag, then a list of ranks or a rank and a record.
        8 => 1 + 4 + if 4 * MAX_RANKS > 4 + MAX_RECORD as u32 { 4 * MAX_RANKS } else { 4 + MAX_RECORD as u32 },
        9 | 10 => 0,
        11 => 4 + MAX_BLOB as u32,
        _ => return None,
    })
}

/// The last kind that is allowed before a peer has proved itself.
const LAST_HANDSHAKE_KIND: u16 = 4;

/// Turns bytes, in whatever pieces they come, into messages.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    read: usize,
    is_trusted: bool,
}

impl Decoder {
    /// Allows the messages that follow the handshake.
    pub fn trust(&mut self) {
        self.is_trusted = true;
    }

    /// Bytes held for a message that is not complete, or not taken yet.
    pub fn held(&self) -> usize {
        self.bytes.len() - self.read
    }

    /// Takes in the bytes of one read. Take the messages out before the next.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The bytes are not a frame that is allowed here. The stream has no next frame then: drop the connection.
    pub fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        let bytes = &self.bytes[self.read..];
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
            // A stranger shows by its first byte, not only when it has sent twelve.
            let is_magic = bytes.iter().zip(MAGIC).all(|(a, b)| *a == b);
            return if is_magic { Ok(None) } else { Err(FrameError::Magic) };
        };
        let (kind, length) = self.check(header)?;
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let message = Message::get(kind, payload).ok_or(FrameError::Payload(kind))?;
        self.read += HEADER_BYTES + length;
        Ok(Some(message))
    }

    fn check(&self, header: &[u8]) -> Result<(u16, usize), FrameError> {
        let header: [u8; HEADER_BYTES] = header.try_into().expect("the caller split off a whole header");
        let [m0, m1, m2, m3, v0, v1, k0, k1, length @ ..] = header;
        let (version, kind) = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([k0, k1]));
        let bytes = u32::from_le_bytes(length);
        if [m0, m1, m2, m3] != MAGIC {
            return Err(FrameError::Magic);
        }
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let limit = limit(kind).ok_or(FrameError::Kind(kind))?;
        if kind > LAST_HANDSHAKE_KIND && !self.is_trusted {
            return Err(FrameError::Early(kind));
        }
        if bytes > limit {
            return Err(FrameError::Length { kind, bytes, limit });
        }
        Ok((kind, bytes as usize))
    }
}
