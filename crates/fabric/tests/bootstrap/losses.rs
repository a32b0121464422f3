//! Ranks and coordinators that are lost, late or gone.

use std::net::TcpListener;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fulmen_fabric::bootstrap::{
    Event, Heartbeat, JoinConfig, JoinError, LossCause, Options, Refusal, Round, Secret, Session, SessionError,
};

use crate::common::{self, Child, LONG, Raw, World, any_port, child_role, is_child};

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
fn a_rank_that_panics_is_lost() {
    let world = World::start(3);
    world.run(|session| {
        if session.rank() == 1 {
            let unwound = std::panic::catch_unwind(AssertUnwindSafe(move || {
                let _session = session;
                // A panic that prints nothing.
                std::panic::resume_unwind(Box::new(()));
            }));
            return assert!(unwound.is_err());
        }
        let error = session.barrier(LONG).unwrap_err();
        assert!(matches!(error, SessionError::PeerLost { rank: 1, cause: LossCause::Closed, .. }), "{error}");
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
    let heartbeat = Heartbeat { every: Duration::from_millis(50), silence: Duration::from_secs(20) };
    let world = World::start_with(2, Options { heartbeat, ..Options::default() });
    let silent = Raw::join(&world, 1, 2);
    let error = world.join(0).unwrap().barrier(LONG).unwrap_err();
    let SessionError::PeerLost { rank: 1, cause: LossCause::Silent(ms), .. } = error else { panic!("{error}") };
    assert!(ms >= 20_000);
    drop(silent);
}

#[test]
fn a_coordinator_that_stops_answering_is_found() {
    let listener = TcpListener::bind(any_port()).unwrap();
    let coordinator = listener.local_addr().unwrap();
    let secret = Secret::generate().unwrap();
    let config = JoinConfig { coordinator, rank: 0, size: 1, secret: secret.clone(), deadline: LONG };
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut raw = common::greet_as_coordinator(stream, &secret);
        // Welcome, generation 5, silence 100 ms; then not a word.
        raw.send(&[0, 5, 100], &[]);
        raw.read_to_end();
    });
    let error = Session::join(&config).unwrap_err();
    assert!(matches!(&error, JoinError::CoordinatorLost { cause, .. } if cause.contains("no sign of life")), "{error}");
    server.join().unwrap();
}
