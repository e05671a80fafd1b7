//! Proof that both ends of a connection hold the job secret.
//!
//! Invariant: a proof is worth one connection and one direction. It is a keyed hash over the side that speaks, the whole
//! hello (rank, layout, job and the member's fresh challenge) and rank 0's fresh challenge, so no proof can be replayed,
//! reflected, or used for another rank or job.

use std::fmt;

use blake3::{Hash, Hasher};

use super::frame::Hello;

/// Bytes of a challenge and of a proof.
pub const PROOF_BYTES: usize = 32;

/// Fewest bytes of secret text: 128 bits if they are random.
pub const MIN_SECRET_BYTES: usize = 16;

/// The key of a job, derived from its secret text. It never prints.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Hash);

impl Secret {
    /// Derives the key from the secret text; `None` if the text is shorter than [`MIN_SECRET_BYTES`].
    pub fn new(text: &[u8]) -> Option<Self> {
        (text.len() >= MIN_SECRET_BYTES).then(|| Self(blake3::derive_key("mkernel bootstrap job secret", text).into()))
    }

    /// Derives a key from the name of a job. It keeps jobs apart; it keeps nobody out who can guess the name.
    pub fn from_job(job: &str) -> Self {
        Self(blake3::derive_key("mkernel bootstrap job name", job.as_bytes()).into())
    }

    /// Makes new secret text, 64 hexadecimal digits, for a launcher to hand to its ranks.
    ///
    /// # Errors
    /// The operating system's generator failed.
    pub fn generate() -> Result<String, getrandom::Error> {
        Ok(Hash::from_bytes(challenge()?).to_hex().to_string())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// Who speaks. The side is hashed, so an echo of a proof is never a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Hub = 1,
    Member = 2,
}

/// A fresh challenge.
pub(crate) fn challenge() -> Result<[u8; PROOF_BYTES], getrandom::Error> {
    let mut bytes = [0; PROOF_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn prove(secret: &Secret, side: Side, hello: &Hello, challenge: &[u8; PROOF_BYTES]) -> [u8; PROOF_BYTES] {
    *digest(secret, side, hello, challenge).as_bytes()
}

/// Whether `proof` is right. The comparison takes the same time wherever the bytes differ.
pub(crate) fn is_proved(
    secret: &Secret,
    side: Side,
    hello: &Hello,
    challenge: &[u8; PROOF_BYTES],
    proof: &[u8; PROOF_BYTES],
) -> bool {
    digest(secret, side, hello, challenge) == Hash::from_bytes(*proof)
}

fn digest(secret: &Secret, side: Side, hello: &Hello, challenge: &[u8; PROOF_BYTES]) -> Hash {
    let mut payload = Vec::new();
    hello.put(&mut payload);
    // Unambiguous: one byte, a self-delimiting payload, a fixed length.
    Hasher::new_keyed(secret.0.as_bytes()).update(&[side as u8]).update(&payload).update(challenge).finalize()
}

#[cfg(test)]
mod tests {
    use super::super::setup::Place;
    use super::*;

    fn hello() -> Hello {
        let place = Place { rank: 3, world_size: 8, local_rank: 1, local_world_size: 2 };
        Hello { place, job: "job".into(), challenge: [7; PROOF_BYTES] }
    }

    #[test]
    fn a_proof_holds_for_its_secret_side_hello_and_challenge_only() {
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        let other = Secret::new(b"0123456789abcdeg").unwrap();
        let proof = prove(&secret, Side::Member, &hello(), &[9; PROOF_BYTES]);
        assert!(is_proved(&secret, Side::Member, &hello(), &[9; PROOF_BYTES], &proof));
        assert!(!is_proved(&other, Side::Member, &hello(), &[9; PROOF_BYTES], &proof));
        assert!(!is_proved(&secret, Side::Hub, &hello(), &[9; PROOF_BYTES], &proof));
        assert!(!is_proved(&secret, Side::Member, &hello(), &[8; PROOF_BYTES], &proof));
        let mut changed = hello();
        changed.place.rank = 4;
        assert!(!is_proved(&secret, Side::Member, &changed, &[9; PROOF_BYTES], &proof));
        let changed = Hello { challenge: [6; PROOF_BYTES], ..hello() };
        assert!(!is_proved(&secret, Side::Member, &changed, &[9; PROOF_BYTES], &proof));
    }

    #[test]
    fn a_secret_is_long_enough_and_never_prints() {
        assert!(Secret::new(b"0123456789abcde").is_none());
        let text = Secret::generate().unwrap();
        assert_eq!(text.len(), 64);
        assert_ne!(text, Secret::generate().unwrap());
        assert_eq!(format!("{:?}", Secret::new(text.as_bytes()).unwrap()), "Secret(hidden)");
    }

    #[test]
    fn a_job_name_is_not_its_own_secret() {
        assert_ne!(Secret::new(b"0123456789abcdef").unwrap(), Secret::from_job("0123456789abcdef"));
    }
}
