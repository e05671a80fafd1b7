//! The decoder of bootstrap frames against any bytes.

#[path = "common/frames.rs"]
mod frames;

use std::fs;
use std::path::Path;
use std::time::Instant;

use fastrand::Rng;
use mkernel::bootstrap::{
    Decoder, FrameError, HEADER_BYTES, Hello, JobFault, MAX_BLOB, MAX_JOB, MAX_RECORD, Message, PROOF_BYTES, Place,
    Reason, Step,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn rank() -> impl Strategy<Value = u32> {
    prop_oneof![0..8u32, any::<u32>()]
}

fn fault() -> impl Strategy<Value = JobFault> {
    let step = prop_oneof![Just(Step::Start), Just(Step::Exchange), Just(Step::Leave)];
    prop_oneof![
        rank().prop_map(|rank| JobFault::Lost { rank }),
        vec(rank(), 0..20).prop_map(|ranks| JobFault::Missing { ranks }),
        (step, vec(rank(), 0..20)).prop_map(|(step, ranks)| JobFault::Late { step, ranks }),
        rank().prop_map(|rank| JobFault::Garbled { rank }),
        rank().prop_map(|rank| JobFault::Layout { rank }),
        (rank(), vec(any::<u8>(), 0..40)).prop_map(|(rank, record)| JobFault::Raised { rank, record }),
    ]
}

fn reason() -> impl Strategy<Value = Reason> {
    proptest::sample::select(vec![
        Reason::Version,
        Reason::Job,
        Reason::Secret,
        Reason::WorldSize,
        Reason::NoSuchRank,
        Reason::Duplicate,
        Reason::Slow,
        Reason::Protocol,
        Reason::Ended,
    ])
}

fn message() -> impl Strategy<Value = Message> {
    let bytes = || proptest::array::uniform32(any::<u8>());
    let place = (rank(), rank(), rank(), rank()).prop_map(|(rank, world_size, local_rank, local_world_size)| Place {
        rank,
        world_size,
        local_rank,
        local_world_size,
    });
    prop_oneof![
        (place, "\\PC{0,32}", bytes()).prop_map(|(place, job, challenge)| Message::Hello(Hello {
            place,
            job,
            challenge
        })),
        (bytes(), bytes()).prop_map(|(challenge, proof)| Message::Challenge { challenge, proof }),
        bytes().prop_map(|proof| Message::Proof { proof }),
        reason().prop_map(Message::Refused),
        vec(rank(), 0..20).prop_map(|gpus| Message::Welcome { gpus }),
        (rank(), vec(any::<u8>(), 0..300)).prop_map(|(round, blob)| Message::Share { round, blob }),
        (rank(), rank(), vec(any::<u8>(), 0..300)).prop_map(|(round, rank, blob)| Message::Shared {
            round,
            rank,
            blob
        }),
        fault().prop_map(Message::Fault),
        Just(Message::Leave),
        Just(Message::Farewell),
        vec(any::<u8>(), 0..300).prop_map(|blob| Message::Account { blob }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_messages_in_any_pieces_come_out_as_they_went_in(messages in vec(message(), 0..8), piece in 1..200usize) {
        let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        let mut decoder = Decoder::default();
        decoder.trust();
        let mut decoded = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(message) = decoder.next_message().unwrap() {
                decoded.push(message);
            }
        }
        prop_assert_eq!(decoded, messages);
        prop_assert_eq!(decoder.held(), 0);
    }

    #[test]
    fn any_bytes_are_decoded_without_a_panic(bytes in vec(any::<u8>(), 0..600)) {
        frames::decode(&bytes);
    }

    #[test]
    fn any_change_of_one_byte_is_an_error_or_another_whole_message(
        message in message(), at in any::<prop::sample::Index>(), change in 1..=255u8,
    ) {
        let mut bytes = message.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let mut decoder = Decoder::default();
        decoder.trust();
        decoder.push(&bytes);
        if let Ok(Some(other)) = decoder.next_message() {
            prop_assert_ne!(other, message);
        }
    }
}

#[test]
fn the_largest_message_of_each_kind_passes_and_one_byte_more_does_not() {
    let hello = |job| {
        let place = Place { rank: 1, world_size: 2, local_rank: 0, local_world_size: 1 };
        Message::Hello(Hello { place, job, challenge: [0; PROOF_BYTES] })
    };
    let largest = [
        hello("j".repeat(MAX_JOB)),
        Message::Welcome { gpus: vec![1; 4096] },
        Message::Share { round: 0, blob: vec![0; MAX_BLOB] },
        Message::Shared { round: 0, rank: 0, blob: vec![0; MAX_BLOB] },
        Message::Fault(JobFault::Missing { ranks: vec![1; 4096] }),
        Message::Fault(JobFault::Raised { rank: 0, record: vec![0; MAX_RECORD] }),
    ];
    for message in largest {
        let mut bytes = message.encode();
        let mut decoder = Decoder::default();
        decoder.trust();
        decoder.push(&bytes);
        assert_eq!(decoder.next_message(), Ok(Some(message)));

        // The payload's own length or count, one up; for a fault it follows the tag and the rank.
        let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        bytes[8..12].copy_from_slice(&(length + 4).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        let mut decoder = Decoder::default();
        decoder.trust();
        decoder.push(&bytes);
        assert!(matches!(decoder.next_message(), Err(FrameError::Length { .. } | FrameError::Payload(_))));
    }
}

#[test]
fn a_length_beyond_its_limit_is_refused_before_its_bytes_come() {
    for kind in 1..=10u16 {
        let header = [b"MKBS".as_slice(), &1u16.to_le_bytes(), &kind.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
        let mut decoder = Decoder::default();
        decoder.trust();
        decoder.push(&header);
        assert!(matches!(decoder.next_message(), Err(FrameError::Length { bytes: u32::MAX, .. })), "kind {kind}");
    }
}

#[test]
fn a_record_beyond_its_own_limit_is_refused_though_its_frame_is_not() {
    let mut bytes = Message::Fault(JobFault::Raised { rank: 0, record: vec![0; MAX_RECORD] }).encode();
    let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    bytes[8..12].copy_from_slice(&(length + 1).to_le_bytes());
    // After the header, the tag and the rank.
    bytes[17..21].copy_from_slice(&(MAX_RECORD as u32 + 1).to_le_bytes());
    bytes.push(0);
    let mut decoder = Decoder::default();
    decoder.trust();
    decoder.push(&bytes);
    assert_eq!(decoder.next_message(), Err(FrameError::Payload(8)));
}

#[test]
fn the_table_of_messages_in_the_documentation_is_that_of_the_decoder() {
    let text = include_str!("../../docs/bootstrap.md");
    let section = text.split("\n## ").find(|section| section.starts_with("Messages")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit());
    let mut kinds = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let kind: u16 = cells[1].split(' ').next().unwrap().parse().unwrap();
        let digits: String = cells[4].chars().filter(char::is_ascii_digit).collect();
        let header = [b"MKBS".as_slice(), &1u16.to_le_bytes(), &kind.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
        let mut decoder = Decoder::default();
        decoder.trust();
        decoder.push(&header);
        let limit = digits.parse().unwrap();
        assert_eq!(decoder.next_message(), Err(FrameError::Length { kind, bytes: u32::MAX, limit }));
        kinds += 1;
    }
    assert_eq!(kinds, 11);
}

#[test]
fn messages_of_members_are_refused_before_the_handshake_is_done() {
    let mut decoder = Decoder::default();
    decoder.push(&Message::Leave.encode());
    assert_eq!(decoder.next_message(), Err(FrameError::Early(9)));
}

fn noise(rng: &mut Rng, below: usize) -> Vec<u8> {
    (0..rng.usize(..below)).map(|_| rng.u8(..)).collect()
}

/// A frame with something wrong: bytes changed, cut off, added, or a header that lies.
fn bad_frame(rng: &mut Rng, good: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![rng.u8(..), rng.u8(..)];
    match rng.u8(0..8) {
        0 => bytes.extend(noise(rng, 64)),
        1 => {
            bytes.extend_from_slice(b"MKBS\x01\x00");
            bytes.extend_from_slice(&rng.u16(0..12).to_le_bytes());
            bytes.extend_from_slice(&(rng.u32(..) >> rng.u32(0..32)).to_le_bytes());
            bytes.extend(noise(rng, 200));
        }
        _ => {
            bytes.extend_from_slice(&good[rng.usize(..good.len())]);
            for _ in 0..rng.u8(1..4) {
                let at = rng.usize(2..bytes.len());
                bytes[at] ^= 1 << rng.u8(0..8);
            }
            if rng.bool() {
                bytes.truncate(rng.usize(2..=bytes.len()));
            }
        }
    }
    bytes
}

#[test]
fn a_million_bad_frames_neither_panic_nor_pile_up() {
    const FRAMES: usize = 1_000_000;
    let seed = 4;
    let mut rng = Rng::with_seed(seed);
    let place = Place { rank: 1, world_size: 8, local_rank: 1, local_world_size: 4 };
    let good: Vec<_> = [
        Message::Hello(Hello { place, job: "a job".into(), challenge: [7; PROOF_BYTES] }),
        Message::Challenge { challenge: [1; PROOF_BYTES], proof: [2; PROOF_BYTES] },
        Message::Proof { proof: [3; PROOF_BYTES] },
        Message::Refused(Reason::Duplicate),
        Message::Welcome { gpus: vec![3, 2] },
        Message::Share { round: 3, blob: vec![4; 100] },
        Message::Shared { round: 3, rank: 1, blob: vec![4; 100] },
        Message::Fault(JobFault::Missing { ranks: vec![1, 2, 3] }),
        Message::Fault(JobFault::Raised { rank: 1, record: b"record".to_vec() }),
        Message::Leave,
    ]
    .iter()
    .map(Message::encode)
    .collect();
    let (mut refused, mut decoded, mut spent) = (0, 0, std::time::Duration::ZERO);
    for _ in 0..FRAMES {
        let bytes = bad_frame(&mut rng, &good);
        let start = Instant::now();
        let (messages, is_error) = frames::decode(&bytes);
        spent += start.elapsed();
        refused += usize::from(is_error);
        decoded += messages;
    }
    println!(
        "seed {seed}: {FRAMES} bad frames, {refused} refused, {decoded} decoded as other messages, the rest cut short; \
         {:.1} million frames/s in pieces",
        FRAMES as f64 / spent.as_secs_f64() / 1e6
    );
    assert!(refused > FRAMES / 2);
    assert!(decoded < FRAMES / 2);
}

#[test]
fn the_corpus_of_the_fuzz_target_decodes_without_a_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/bootstrap_frames");
    let mut files = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        frames::decode(&fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files > 0);
    assert_eq!(HEADER_BYTES, 12, "the corpus is made of frames of this version");
}
