//! Ranks that come, exchange and meet, and coordinators that cannot be had.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fulmen_fabric::bootstrap::{
    BindError, Coordinator, Heartbeat, JoinConfig, JoinError, MAX_BLOB, Options, Secret, Session, SessionError,
};

use crate::common::{self, LONG, World, any_port};

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
    let (reserved, address) = fulmen_testbed::reserve_port(common::any_port()).unwrap();
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
    let (_reserved, address) = fulmen_testbed::reserve_port(common::any_port()).unwrap();
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
    let elsewhere = "192.0.2.1:0".parse().unwrap();
    assert_eq!(bind(elsewhere, 2, Options::default()), Err(BindError::NotOurs(elsewhere)));
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
    assert_eq!(join("127.0.0.1:7000", 2, 2), JoinError::Impossible { rank: 2, size: 2 });
    assert_eq!(join("127.0.0.1:7000", 0, 0), JoinError::Impossible { rank: 0, size: 0 });
}
