//! Connections that do not belong to the world, and ranks that break the protocol.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
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
    stream.write_all(&common::hello(PROTOCOL_VERSION + 1, 0)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, common::hello(PROTOCOL_VERSION, 1));
    assert_eq!(world.next_refusal(), Refusal::Version { rank: PROTOCOL_VERSION + 1, coordinator: PROTOCOL_VERSION });
    world.run(|session| session.barrier(LONG).unwrap());

    let listener = TcpListener::bind(any_port()).unwrap();
    let coordinator = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 40]).unwrap();
        stream.write_all(&common::hello(9, 1)).unwrap();
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
fn a_greeting_without_a_handshake_is_refused() {
    let world = World::start(1);
    for words in [&b"and no handshake"[..], &[22, 3, 1, 0, 4, 1, 0, 0, 0]] {
        let mut stream = world.connect();
        common::greet_as_rank(&mut stream);
        stream.write_all(words).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty() || answer[..2] == [21, 3], "nothing but an alert: {answer:?}");
        assert!(matches!(world.next_refusal(), Refusal::Violation(_)));
    }
    world.run(|session| session.barrier(LONG).unwrap());
}

#[test]
fn what_a_rank_said_is_of_no_use_a_second_time() {
    let world = World::start(1);
    // Somebody writes down all that a rank says to the coordinator.
    let listener = TcpListener::bind(any_port()).unwrap();
    let between = listener.local_addr().unwrap();
    let said = thread::scope(|scope| {
        let recorder = scope.spawn(|| {
            let (rank, coordinator) = (listener.accept().unwrap().0, world.connect());
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _ = std::io::copy(&mut &coordinator, &mut &rank);
                    let _ = rank.shutdown(Shutdown::Write);
                });
                let mut said = Vec::new();
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = (&rank).read(&mut piece) {
                    said.extend_from_slice(&piece[..count]);
                    let _ = (&coordinator).write_all(&piece[..count]);
                }
                let _ = coordinator.shutdown(Shutdown::Write);
                said
            })
        });
        drop(Session::join(&JoinConfig { coordinator: between, ..world.config(0) }).unwrap());
        recorder.join().unwrap()
    });
    assert!(said.len() > 600, "a hello, a handshake, a seat and a goodbye");
    let mut again = world.connect();
    again.write_all(&said).unwrap();
    let mut answer = Vec::new();
    // It may end with a reset, for what nobody reads.
    let _ = again.read_to_end(&mut answer);
    assert_eq!(answer[..40], common::hello(PROTOCOL_VERSION, 0));
    assert!(matches!(world.next_refusal(), Refusal::Violation(_)));
}

#[test]
fn a_coordinator_that_plays_back_what_it_hears_is_not_believed() {
    let listener = TcpListener::bind(any_port()).unwrap();
    let coordinator = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The rank's own words come back to it.
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            if stream.write_all(&piece[..count]).is_err() {
                break;
            }
        }
    });
    let config = JoinConfig { coordinator, rank: 0, size: 1, secret: Secret::generate().unwrap(), deadline: LONG };
    let error = Session::join(&config).unwrap_err();
    assert!(matches!(error, JoinError::Unsealed { coordinator: at, .. } if at == coordinator), "{error}");
    server.join().unwrap();
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
    let hello = common::hello(PROTOCOL_VERSION, 0);
    // In the middle of the hello, and at the beginning of the handshake.
    for words in [b"FUL".to_vec(), hello.clone(), [&hello[..], &[22, 3, 1, 0]].concat()] {
        let mut slow = world.connect();
        slow.write_all(&words).unwrap();
        let mut answer = Vec::new();
        let _ = slow.read_to_end(&mut answer);
        assert!(hello.starts_with(&answer), "the coordinator ends it: {answer:?}");
        assert_eq!(world.next_refusal(), Refusal::TooSlow);
    }

    // Here none of them is ended for its age.
    let world = World::start_with(2, Options { greeting: LONG * 10, ..Options::default() });
    let mut slow: Vec<_> = (0..100).map(|_| world.connect()).collect();
    for (at, stream) in slow.iter_mut().enumerate() {
        // Some have made way already.
        let _ = stream.write_all(if at % 2 == 0 { &b"FUL"[..] } else { &hello });
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
            bytes.splice(..0, common::hello(PROTOCOL_VERSION, 0));
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
        let raw = Raw::greet(&world);
        raw.write(&bytes);
        let answer = raw.read_to_end();
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
        let raw = Raw::join(&world, 1, 2);
        let generation = common::varint(world.serving().generation());
        let bytes = bytes.unwrap_or_else(|[before, after]| match after {
            // The same request a second time.
            [] => [common::frame(before, &[]), common::frame(before, &[])].concat(),
            after => common::frame(&[before, &generation, after].concat(), &[]),
        });
        let session = world.join(0).unwrap();
        raw.write(&bytes);
        world.wait_for(|event| matches!(event, Event::Lost(lost) if matches!(lost.cause, LossCause::Violation(_))));
        let error = session.barrier(LONG).unwrap_err();
        let ended = matches!(error, SessionError::PeerLost { rank: 1, .. } | SessionError::Regrouping { rank: 1, .. });
        assert!(ended, "{error}");
    }
}
