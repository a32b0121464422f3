//! Ranks that meet at a coordinator: as threads, as a real process that is killed, and as hostile strangers.
//!
//! No verdict depends on time: deadlines that must not pass are a minute long, and one that must pass always does.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{Child, LONG, Raw, World, child_role, is_child};
use fulmen_fabric::bootstrap::{
    BindError, Coordinator, Event, Heartbeat, JoinConfig, JoinError, LossCause, MAX_BLOB, Options, PROTOCOL_VERSION,
    Refusal, Round, Secret, Session, SessionError,
};

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn worlds_of_all_sizes_gather_and_meet() {
    for size in [1, 2, 8, 64] {
        let world = World::start(size);
        let generations = world.run(|session| {
            for round in 0..3u8 {
                let blob = vec![round; session.rank() as usize * 7];
                let all = session.all_gather(&blob, LONG).unwrap();
                assert_eq!(all.len(), size as usize);
                for (rank, blob) in all.iter().enumerate() {
                    assert_eq!(blob, &vec![round; rank * 7], "rank {rank} of {size}");
                }
                session.barrier(LONG).unwrap();
            }
            assert_eq!(session.lost(), None);
            session.generation()
        });
        assert!(generations.iter().all(|generation| *generation == world.serving().generation()));
    }
}

#[test]
fn a_world_of_one_needs_no_coordinator() {
    let session = Session::alone();
    assert_eq!((session.rank(), session.size(), session.lost()), (0, 1, None));
    assert_eq!(session.all_gather(b"me", Duration::ZERO).unwrap(), [b"me"]);
    session.barrier(Duration::ZERO).unwrap();
    assert_ne!(session.generation(), Session::alone().generation());
}

#[test]
fn a_barrier_holds_until_the_last_rank_comes() {
    let world = World::start(2);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let world = &world;
        let first = scope.spawn(move || {
            let session = world.join(0).unwrap();
            session.barrier(LONG).unwrap();
            told.try_recv().expect("the barrier opened before the last rank came");
        });
        let session = world.join(1).unwrap();
        tell.send(()).unwrap();
        session.barrier(LONG).unwrap();
        first.join().unwrap();
    });
}

#[test]
fn the_longest_blob_passes_and_a_longer_one_is_refused() {
    let world = World::start(2);
    world.run(|session| {
        let blob = vec![session.rank() as u8 + 1; MAX_BLOB];
        let all = session.all_gather(&blob, LONG).unwrap();
        assert!(all.iter().zip(1..).all(|(blob, byte)| blob.len() == MAX_BLOB && blob.iter().all(|b| *b == byte)));
        let error = session.all_gather(&vec![0; MAX_BLOB + 1], LONG).unwrap_err();
        assert_eq!(error, SessionError::TooLong { len: MAX_BLOB + 1 });
        // The refusal did not count as a round.
        session.barrier(LONG).unwrap();
    });
}

#[test]
fn ranks_wait_for_a_coordinator_that_comes_later() {
    let (reserved, address) = common::reserve_port();
    let secret = Secret::generate().unwrap();
    let config = JoinConfig { coordinator: address, rank: 0, size: 1, secret: secret.clone(), deadline: LONG };
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let rank = thread::spawn(move || Session::join(&config).map(|session| session.generation()));
    let serving = Coordinator::bind(address, 1, secret, Options::default()).unwrap().serve().unwrap();
    assert_eq!(rank.join().unwrap().unwrap(), serving.generation());
    drop(reserved);
}

#[test]
fn without_a_coordinator_the_deadline_ends_the_wait() {
    let (_reserved, address) = common::reserve_port();
    let secret = Secret::generate().unwrap();
    let config = JoinConfig { coordinator: address, rank: 0, size: 2, secret, deadline: Duration::from_millis(50) };
    let error = Session::join(&config).unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { coordinator, .. } if coordinator == address), "{error}");
}

#[test]
fn impossible_addresses_sizes_and_heartbeats_are_refused() {
    let bind = |address: SocketAddr, size, options| {
        Coordinator::bind(address, size, Secret::generate().unwrap(), options)
            .map(|coordinator| coordinator.local_addr())
    };
    let taken = bind(any_port(), 1, Options::default()).unwrap();
    let holder = TcpListener::bind(any_port()).unwrap();
    let address = holder.local_addr().unwrap();
    assert_ne!(taken.port(), 0);
    let error = bind(address, 2, Options::default()).unwrap_err();
    assert_eq!(error, BindError::PortInUse(address));
    assert!(error.to_string().contains(&address.port().to_string()) && error.to_string().contains("choose another"));
    assert_eq!(bind(any_port(), 0, Options::default()), Err(BindError::Size(0)));
    assert_eq!(bind(any_port(), 4097, Options::default()), Err(BindError::Size(4097)));
    let outside = "0.0.0.0:0".parse().unwrap();
    assert_eq!(bind(outside, 2, Options::default()), Err(BindError::NotLoopback(outside)));
    let heartbeat = Heartbeat { every: LONG, silence: LONG };
    assert!(matches!(
        bind(any_port(), 2, Options { heartbeat, ..Options::default() }),
        Err(BindError::Heartbeat { .. })
    ));

    let join = |coordinator: &str, rank, size| {
        let coordinator = coordinator.parse().unwrap();
        Session::join(&JoinConfig { coordinator, rank, size, secret: Secret::generate().unwrap(), deadline: LONG })
            .unwrap_err()
    };
    assert!(matches!(join("192.0.2.1:7000", 0, 2), JoinError::NotLoopback(_)));
    assert_eq!(join("127.0.0.1:7000", 2, 2), JoinError::Impossible { rank: 2, size: 2 });
    assert_eq!(join("127.0.0.1:7000", 0, 0), JoinError::Impossible { rank: 0, size: 0 });
}

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
fn missing_ranks_are_named_to_all_that_came() {
    let world = World::start(4);
    thread::scope(|scope| {
        let patient = scope.spawn(|| world.join(2).unwrap_err());
        world.wait_for(|event| matches!(event, Event::Joined { rank: 2, .. }));
        // Long enough to take the seat on the slowest machine; it always passes.
        let error = Session::join(&JoinConfig { deadline: Duration::from_secs(5), ..world.config(0) }).unwrap_err();
        let expected = JoinError::Missing { by: 0, missing: vec![1, 3] };
        assert_eq!(error, expected);
        assert!(error.to_string().contains("missing: 1, 3"));
        assert_eq!(patient.join().unwrap(), expected);
        assert_eq!(world.join(3).unwrap_err(), expected, "who comes later is told as well");
    });
}

#[test]
fn a_deadline_in_a_round_names_the_missing_to_all() {
    let world = World::start(3);
    let errors = world.run(|session| match session.rank() {
        0 => session.barrier(Duration::ZERO).unwrap_err(),
        _ => {
            // They come after the deadline of rank 0, which is the only one that can pass.
            world.wait_for(|event| matches!(event, Event::Failed(_)));
            session.barrier(LONG).unwrap_err()
        }
    });
    for error in errors {
        assert_eq!(error, SessionError::TimedOut { op: Round::Barrier, by: 0, missing: vec![1, 2] });
    }
}

#[test]
fn ranks_that_call_different_operations_are_told() {
    let world = World::start(2);
    let errors = world.run(|session| match session.rank() {
        0 => session.barrier(LONG).unwrap_err(),
        _ => session.all_gather(b"blob", LONG).unwrap_err(),
    });
    assert!(matches!(errors[0], SessionError::Mismatch { called, others, .. } if called != others), "{}", errors[0]);
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn a_goodbye_is_no_loss_but_ends_waits_for_the_rank() {
    let world = World::start(3);
    world.run(|session| {
        if session.rank() == 2 {
            return session.leave();
        }
        session.on_lost(|lost| panic!("{lost}"));
        assert_eq!(session.barrier(LONG).unwrap_err(), SessionError::PeerLeft { op: Round::Barrier, rank: 2 });
        assert_eq!(session.lost(), None);
    });
    assert_eq!(world.join(2).unwrap_err(), JoinError::RankLeft { rank: 2 });
}

#[test]
fn a_rank_that_leaves_before_all_came_ends_the_others_join() {
    let world = World::start(3);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| world.join(0).unwrap_err());
        world.wait_for(|event| matches!(event, Event::Joined { rank: 0, .. }));
        let mut raw = Raw::join(&world, 1, 3);
        raw.send(&[4], &[]); // goodbye
        assert_eq!(waiting.join().unwrap(), JoinError::PeerLeft { rank: 1 });
    });
}

#[test]
fn a_lost_coordinator_ends_waits() {
    let mut world = World::start(2);
    let serving = world.take_serving();
    thread::scope(|scope| {
        let world = &world;
        let other = scope.spawn(move || world.join(1).unwrap());
        let session = world.join(0).unwrap();
        let other = other.join().unwrap();
        let waiting = scope.spawn(move || session.barrier(LONG).unwrap_err());
        drop(serving);
        let error = waiting.join().unwrap();
        assert!(matches!(error, SessionError::CoordinatorLost { op: Round::Barrier, .. }), "{error}");
        let error = other.all_gather(b"late", LONG).unwrap_err();
        assert!(matches!(error, SessionError::CoordinatorLost { op: Round::AllGather, .. }), "{error}");
        assert_eq!(other.lost(), None, "no rank was lost");
    });
}

#[test]
fn a_killed_process_is_told_to_all_at_once() {
    let world = World::start(4);
    let mut child = Child::start(&world, 3);
    let pid = child.pid();
    let (told, tell) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let (world, told, tell) = (&world, told.0.clone(), tell.0.clone());
                scope.spawn(move || {
                    let session = world.join(rank).unwrap();
                    session.on_lost(move |lost| told.send((rank, lost.clone())).unwrap());
                    assert_eq!(session.all_gather(&[rank as u8], LONG).unwrap(), [[0], [1], [2], [3]]);
                    tell.send(()).unwrap();
                    let error = session.barrier(LONG).unwrap_err();
                    // No wait begins any more, and who asks later is told as well.
                    assert_eq!(session.barrier(LONG).unwrap_err(), error);
                    let (late, heard) = mpsc::channel();
                    session.on_lost(move |lost| late.send(lost.rank).unwrap());
                    assert_eq!(heard.recv_timeout(LONG).unwrap(), 3);
                    (error, session.lost().unwrap())
                })
            })
            .collect();
        for _ in 0..3 {
            tell.1.recv_timeout(LONG).unwrap();
        }
        // A second process with the rank is refused, and both are named.
        let (rank, holder) = (3, pid);
        assert_eq!(world.join(3).unwrap_err(), JoinError::DuplicateRank { rank, holder, pid: std::process::id() });
        assert_eq!(world.next_refusal(), Refusal::DuplicateRank { rank, holder, pid: std::process::id() });
        child.kill();
        for rank in ranks {
            let (error, lost) = rank.join().unwrap();
            let SessionError::PeerLost { op: Round::Barrier, rank: 3, pid: named, cause } = error else {
                panic!("{error}")
            };
            assert_eq!((named, lost.rank, lost.pid, &lost.cause), (pid, 3, pid, &cause));
            assert!(matches!(cause, LossCause::Closed | LossCause::Broken(_)), "{cause}");
        }
    });
    let mut callbacks: Vec<_> =
        (0..3).map(|_| told.1.recv_timeout(LONG).unwrap()).map(|(rank, lost)| (rank, lost.pid)).collect();
    callbacks.sort_unstable();
    assert_eq!(callbacks, [(0, pid), (1, pid), (2, pid)]);
    assert!(told.1.try_recv().is_err(), "each callback is called once");
    let error = world.join(3).unwrap_err();
    assert!(matches!(error, JoinError::PeerLost { rank: 3, .. }), "{error}");
}

#[test]
fn a_process_killed_before_all_came_ends_the_others_join() {
    let world = World::start(3);
    let mut child = Child::start(&world, 1);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| world.join(0).unwrap_err());
        world.wait_for(|event| matches!(event, Event::Joined { rank: 0, .. }));
        world.wait_for(|event| matches!(event, Event::Joined { rank: 1, .. }));
        child.kill();
        let error = waiting.join().unwrap();
        assert!(matches!(error, JoinError::PeerLost { rank: 1, pid, .. } if pid == child.pid()), "{error}");
    });
}

/// What [`Child`] runs: a rank that joins through its environment, gathers once and waits to be killed.
#[test]
fn child_rank() {
    if is_child() {
        child_role();
    }
}

#[test]
fn a_rank_that_stops_answering_is_found_by_the_heartbeat() {
    // The silence is long enough for the honest rank to answer on the slowest machine.
    let heartbeat = Heartbeat { every: Duration::from_millis(50), silence: Duration::from_secs(5) };
    let world = World::start_with(2, Options { heartbeat, ..Options::default() });
    let silent = Raw::join(&world, 1, 2);
    let error = world.join(0).unwrap().barrier(LONG).unwrap_err();
    let SessionError::PeerLost { rank: 1, cause: LossCause::Silent(ms), .. } = error else { panic!("{error}") };
    assert!(ms >= 5000);
    drop(silent);
}

#[test]
fn a_coordinator_that_stops_answering_is_found() {
    let listener = TcpListener::bind(any_port()).unwrap();
    let coordinator = listener.local_addr().unwrap();
    let secret = Secret::generate().unwrap();
    let config = JoinConfig { coordinator, rank: 0, size: 1, secret: secret.clone(), deadline: LONG };
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        common::greet_as_coordinator(&mut stream, &secret);
        // Welcome, generation 5, silence 100 ms; then not a word.
        stream.write_all(&common::frame(&[0, 5, 100], &[])).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = Session::join(&config).unwrap_err();
    assert!(matches!(&error, JoinError::CoordinatorLost { cause, .. } if cause.contains("no sign of life")), "{error}");
    server.join().unwrap();
}

#[test]
fn connections_that_do_not_go_on_make_way_and_end() {
    let world = World::start_with(2, Options { greeting: Duration::from_millis(200), ..Options::default() });
    let mut slow = world.connect();
    slow.write_all(b"FUL").unwrap();
    assert_eq!(slow.read(&mut [0]).unwrap(), 0, "the coordinator ends it");
    assert_eq!(world.next_refusal(), Refusal::TooSlow);

    let world = World::start(2);
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
        common::frame(&[0, 0, 2, 1], b"body"),
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
    let second_seat = common::frame(&[0, 1, 2, 1], &[]);
    let other_round = common::frame(&[1, 7, 1], &[]);
    let unreadable = common::frame(&[77], &[]);
    for bytes in [too_long, second_seat, other_round, unreadable] {
        let world = World::start(2);
        let mut raw = Raw::join(&world, 1, 2);
        let session = world.join(0).unwrap();
        raw.stream.write_all(&bytes).unwrap();
        let error = session.barrier(LONG).unwrap_err();
        assert!(matches!(error, SessionError::PeerLost { rank: 1, cause: LossCause::Violation(_), .. }), "{error}");
    }
}
