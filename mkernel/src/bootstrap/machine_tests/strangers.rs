//! Who is refused, and that nobody else notices.

use super::*;

/// Who is refused, and why, while rank 1 of two is awaited; then the honest rank joins all the same.
fn is_refused(stranger: Setup, reason: Reason) {
    let mut net = Net::new(13, &[2]);
    net.connect(9, stranger);
    net.run();
    assert_eq!(net.members[&9].failure(), Some(Failure::Refused(reason)));
    assert_eq!(net.closing, [9]);
    assert_eq!(net.hub.refusals().first().iter().map(|refusal| refusal.reason).collect::<Vec<_>>(), [reason]);
    net.connect(10, setup(1, &[2]));
    net.run();
    assert_eq!(net.take(10), [joined(&[2])]);
}

#[test]
fn another_job_another_size_and_no_such_rank_are_refused_with_the_reason() {
    is_refused(Setup { job: "other".into(), ..setup(1, &[2]) }, Reason::Job);
    is_refused(setup(1, &[3]), Reason::WorldSize);
    is_refused(setup(0, &[2]), Reason::NoSuchRank);
    let place = Place { rank: u32::MAX, ..setup(1, &[2]).place };
    is_refused(Setup { place, ..setup(1, &[2]) }, Reason::NoSuchRank);
}

#[test]
fn a_member_with_another_secret_finds_out_first_and_rank_0_notes_why() {
    let mut net = Net::new(14, &[2]);
    net.connect(9, Setup { secret: Secret::new(b"another secret text").unwrap(), ..setup(1, &[2]) });
    net.run();
    assert_eq!(net.members[&9].failure(), Some(Failure::Impostor));
    let expected = Refusal { address: address(), claimed_rank: Some(1), reason: Reason::Secret };
    assert_eq!(net.hub.refusals().first(), [expected]);
}

#[test]
fn a_wrong_proof_is_refused() {
    let mut net = Net::new(15, &[2]);
    net.open(9);
    let hello = Hello { place: setup(1, &[2]).place, job: "job".into(), challenge: [1; PROOF_BYTES] };
    net.inject(9, &Message::Hello(hello).encode());
    net.inject(9, &Message::Proof { proof: [2; PROOF_BYTES] }.encode());
    net.run();
    assert_eq!(net.hub.refusals().first()[0].reason, Reason::Secret);
    assert_eq!(net.closing, [9]);
}

#[test]
fn an_echo_of_rank_0s_proof_is_refused() {
    let mut net = Net::new(16, &[2]);
    net.open(9);
    let hello = Hello { place: setup(1, &[2]).place, job: "job".into(), challenge: [9 ^ 0xff; PROOF_BYTES] };
    net.inject(9, &Message::Hello(hello.clone()).encode());
    net.run();
    let proof = prove(&setup(0, &[2]).secret, Side::Hub, &hello, &hello.challenge);
    net.inject(9, &Message::Proof { proof }.encode());
    net.run();
    assert_eq!(net.hub.refusals().first()[0].reason, Reason::Secret);
}

#[test]
fn a_second_holder_of_a_rank_is_refused_and_the_first_keeps_its_seat() {
    let mut net = Net::new(17, &[3]);
    net.connect(1, setup(1, &[3]));
    net.run();
    net.connect(9, setup(1, &[3]));
    net.run();
    assert_eq!(net.members[&9].failure(), Some(Failure::Refused(Reason::Duplicate)));
    net.connect(2, setup(2, &[3]));
    net.run();
    assert_eq!(net.take(1), [joined(&[3])]);
}

#[test]
fn garbage_from_a_member_is_its_fault_and_from_a_stranger_is_nobodys() {
    let mut net = Net::new(19, &[3]);
    net.connect(1, setup(1, &[3]));
    net.open(9);
    net.inject(9, b"GET / HTTP/1.1\r\n\r\n");
    net.run();
    assert_eq!(net.take(0), []);
    net.connect(2, setup(2, &[3]));
    net.run();
    assert_eq!(net.take(0), [joined(&[3])]);
    net.take(1);
    net.take(2);
    net.inject(2, b"garbage");
    net.run();
    for rank in 0..3 {
        assert_eq!(net.take(rank), fault(JobFault::Garbled { rank: 2 }), "rank {rank}");
    }
}

#[test]
fn strangers_fill_their_own_room_only_and_the_oldest_gives_way() {
    let mut net = Net::new(22, &[2]);
    let room = 1 + 64;
    for connection in 100..100 + room {
        net.open(connection);
    }
    assert!(!net.hub.has_room(NOW));
    let later = NOW + Duration::from_millis(200);
    assert!(net.hub.has_room(later), "the oldest had its time");
    net.collect();
    assert_eq!(net.closing, [100]);
    net.hub.tick(NOW + STEP);
    net.collect();
    assert_eq!(net.closing.len() as u64, room, "all of them are slow");
    assert_eq!(net.hub.refusals().count(), room);
    net.connect(1, setup(1, &[2]));
    net.run();
    assert_eq!(net.take(1), [joined(&[2])]);
}

/// Something that a stranger may send: noise, a hello with a bit changed, a wrong proof, a message out of turn.
fn hostile(rng: &mut Rng) -> Vec<u8> {
    let place = Place { rank: rng.u32(0..6), ..setup(1, &[3, 2]).place };
    let hello = Message::Hello(Hello { place, job: "job".into(), challenge: [rng.u8(..); PROOF_BYTES] }).encode();
    match rng.u8(0..5) {
        0 => (0..rng.usize(1..40)).map(|_| rng.u8(..)).collect(),
        1 => {
            let mut changed = hello;
            let at = rng.usize(..changed.len());
            changed[at] ^= 1 << rng.u8(0..8);
            changed
        }
        2 => [hello, Message::Proof { proof: [rng.u8(..); PROOF_BYTES] }.encode()].concat(),
        3 => [hello.clone(), hello].concat(),
        _ => Message::Leave.encode(),
    }
}

#[test]
fn a_hundred_thousand_hostile_connections_neither_join_nor_stop_those_who_do() {
    const STRANGERS: u64 = 100_000;
    let nodes = [3, 2];
    let mut net = Net::new(24, &nodes);
    let mut honest = vec![0];
    let mut most = 0;
    for stranger in 0..STRANGERS {
        // Connections are numbered in the order in which they are opened.
        let connection = 1_000 + 2 * stranger;
        // A stranger whose handshake hangs gives way after its grace: time passes with each of them.
        net.now = NOW + Duration::from_millis(stranger * 20);
        // One honest rank comes after every 20 000 strangers.
        if stranger % 20_000 == 10_000 && honest.len() < 5 {
            net.connect(connection - 1, setup(honest.len() as u32, &nodes));
            honest.push(connection - 1);
        }
        net.open(connection);
        let bytes = hostile(&mut net.rng);
        net.inject(connection, &bytes);
        net.run();
        most = most.max(net.hub.connections());
        net.closing.clear();
        net.to_member.retain(|connection, _| honest.contains(connection));
        net.to_hub.retain(|connection, _| honest.contains(connection));
    }
    println!("at most {most} connections at once, {} refused", net.hub.refusals().count());
    assert!(most <= 4 + 4 + 64 + 1);
    assert_eq!(honest.len(), 5);
    for connection in honest {
        assert_eq!(net.take(connection), [joined(&nodes)], "connection {connection}");
    }
}
