//! Connections that do not belong to the world, and ranks that break the protocol.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use fulmen_fabric::bootstrap::{
    Event, JoinConfig, JoinError, LossCause, Options, PROTOCOL_VERSION, Refusal, Secret, Session, SessionError,
};

use crate::common::{self, LONG, Raw, World, any_port};

#[test]
fn foreign_protocols_get_an_answer_and_the_world_goes_on() {
    let world = World::start(2);
    for (request, answer) in
        [("GET / HTTP/1.1\r\nHost: here\r\n\r\n", "HTTP/1.1 400"), ("SSH-2.0-x\r\n", "This is a Fulmen")]
    {
        let mut stream = world.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with(answer) && text.contains("Fulmen's bootstrap protocol"), "{text}");
        let refusal = world.next_refusal();
        assert!(matches!(&refusal, Refusal::ForeignProtocol(first) if request.starts_with(&first[..4])), "{refusal:?}");
    }
    world.run(|session| session.barrier(LONG).unwrap());
}

#[test]
fn a_rank_that_reaches_something_else_says_so() {
    for banner in ["SSH-2.0-OpenSSH_9.6\r\n", "FULL of surprises, and long enough to be taken for a whole hello"] {
        let listener = TcpListener::bind(any_port()).unwrap();
        let coordinator = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(banner.as_bytes()).unwrap();
            // Until the rank hangs up.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let config = JoinConfig { coordinator, rank: 0, size: 1, secret: Secret::generate().unwrap(), deadline: LONG };
        let error = Session::join(&config).unwrap_err();
        assert!(matches!(&error, JoinError::ForeignProtocol { first, .. } if banner.starts_with(first)), "{error}");
        server.join().unwrap();
    }
}

#[test]
fn another_version_is_refused_on_both_sides() {
    let world = World::start(1);
    let mut stream = world.connect();
    stream.write_all(&common::hello(PROTOCOL_VERSION + 1, 0, &[7; 32])).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, common::hello(PROTOCOL_VERSION, 1, &[0; 32]));
    assert_eq!(world.next_refusal(), Refusal::Version { rank: PROTOCOL_VERSION + 1, coordinator: PROTOCOL_VERSION });
    world.run(|session| session.barrier(LONG).unwrap());

    let listener = TcpListener::bind(any_port()).unwrap();
    let coordinator = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 40]).unwrap();
        stream.write_all(&common::hello(9, 1, &[0; 32])).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let config = JoinConfig { coordinator, rank: 0, size: 1, secret: Secret::generate().unwrap(), deadline: LONG };
    assert_eq!(Session::join(&config).unwrap_err(), JoinError::Version { ours: PROTOCOL_VERSION, theirs: 9 });
    server.join().unwrap();
}

#[test]
fn a_wrong_secret_is_refused_on_both_sides() {
    let world = World::start(1);
    let config = JoinConfig { secret: Secret::generate().unwrap(), ..world.config(0) };
    assert_eq!(Session::join(&config).unwrap_err(), JoinError::WrongSecret(world.address()));
    assert_eq!(world.next_refusal(), Refusal::WrongSecret);
    world.run(|session| session.barrier(LONG).unwrap());
}

#[test]
fn a_coordinator_that_plays_proofs_back_is_not_believed() {
    let listener = TcpListener::bind(any_port()).unwrap();
    let coordinator = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The rank's own nonce and proof come back to it.
        let mut hello = [0; 40];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&hello).unwrap();
        let mut proof = [0; 32];
        stream.read_exact(&mut proof).unwrap();
        stream.write_all(&[0, 0]).unwrap();
        stream.write_all(&proof).unwrap();
        let mut more = Vec::new();
        let _ = stream.read_to_end(&mut more);
        more
    });
    let config = JoinConfig { coordinator, rank: 0, size: 1, secret: Secret::generate().unwrap(), deadline: LONG };
    assert_eq!(Session::join(&config).unwrap_err(), JoinError::WrongSecret(coordinator));
    assert_eq!(server.join().unwrap(), b"", "nothing is said to a coordinator without the secret");
}

#[test]
fn wrong_ranks_and_sizes_are_refused_and_the_world_goes_on() {
    let world = World::start(2);
    let join = |rank, size| Session::join(&JoinConfig { rank, size, ..world.config(0) }).unwrap_err();
    assert_eq!(join(2, 3), JoinError::RankOutside { rank: 2, size: 2 });
    assert_eq!(world.next_refusal(), Refusal::RankOutside { rank: 2, size: 2 });
    assert_eq!(join(1, 3), JoinError::WrongSize { ours: 3, theirs: 2 });
    assert_eq!(world.next_refusal(), Refusal::WrongSize { rank: 1, theirs: 3, size: 2 });
    assert_eq!(join(0, 1), JoinError::WrongSize { ours: 1, theirs: 2 });
    world.run(|session| session.barrier(LONG).unwrap());
}

#[test]
fn connections_that_do_not_go_on_make_way_and_end() {
    let world = World::start_with(2, Options { greeting: Duration::from_millis(200), ..Options::default() });
    let mut slow = world.connect();
    slow.write_all(b"FUL").unwrap();
    assert_eq!(slow.read(&mut [0]).unwrap(), 0, "the coordinator ends it");
    assert_eq!(world.next_refusal(), Refusal::TooSlow);

    // Here none of them is ended for its age.
    let world = World::start_with(2, Options { greeting: LONG * 10, ..Options::default() });
    let mut slow: Vec<_> = (0..100).map(|_| world.connect()).collect();
    for stream in &mut slow {
        // Some have made way already.
        let _ = stream.write_all(b"FULM\x01");
    }
    world.run(|session| session.barrier(LONG).unwrap());
    assert_eq!(world.next_refusal(), Refusal::TooSlow);
    assert_eq!(slow[0].read(&mut [0]).unwrap_or(0), 0, "the oldest made way");
}

#[test]
fn hostile_bytes_end_only_their_own_connection() {
    let world = World::start(2);
    let mut noise = blake3::Hasher::new().update(b"noise").finalize_xof();
    for round in 0..40 {
        let mut bytes = vec![0; 1 + round * 97];
        noise.fill(&mut bytes);
        if round % 2 == 0 {
            bytes.splice(..0, common::hello(PROTOCOL_VERSION, 0, &[1; 32]));
        }
        // The coordinator may hang up before it took everything.
        let _ = world.connect().write_all(&bytes);
    }
    // With the secret: a frame that promises 4 GiB, a message that is none, another message than the one that is due.
    for bytes in [
        vec![0xff; 8],
        common::frame(&[99, 1, 2], &[]),
        common::frame(&[3], &[]),
        common::frame(&[0, 0, 2, 1, 0], b"body"),
    ] {
        let mut raw = Raw::greet(&world);
        raw.stream.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        raw.stream.read_to_end(&mut answer).unwrap();
        assert!(answer.len() > 8 && answer[8] == 1, "a refusal: {answer:?}");
    }
    world.run(|session| session.barrier(LONG).unwrap());
}

#[test]
fn a_seated_rank_that_breaks_the_protocol_is_lost() {
    let too_long = [&1u32.to_le_bytes()[..], &u32::MAX.to_le_bytes()].concat();
    let second_seat = common::frame(&[0, 1, 2, 1, 0], &[]);
    let other_round = [&[1][..], &[7, 1]];
    let asked_twice = [&[6, 1, 0][..], &[]];
    let unreadable = common::frame(&[77], &[]);
    for bytes in [Ok(too_long), Ok(second_seat), Err(other_round), Err(asked_twice), Ok(unreadable)] {
        let world = World::start(2);
        let mut raw = Raw::join(&world, 1, 2);
        let generation = common::varint(world.serving().generation());
        let bytes = bytes.unwrap_or_else(|[before, after]| match after {
            // The same request a second time.
            [] => [common::frame(before, &[]), common::frame(before, &[])].concat(),
            after => common::frame(&[before, &generation, after].concat(), &[]),
        });
        let session = world.join(0).unwrap();
        raw.stream.write_all(&bytes).unwrap();
        world.wait_for(|event| matches!(event, Event::Lost(lost) if matches!(lost.cause, LossCause::Violation(_))));
        let error = session.barrier(LONG).unwrap_err();
        let ended = matches!(error, SessionError::PeerLost { rank: 1, .. } | SessionError::Regrouping { rank: 1, .. });
        assert!(ended, "{error}");
    }
}
