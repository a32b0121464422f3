//! Ranks that report broken connections, which only the fabric does.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Joins all ranks of a new world, and has them find the two sides cut off from each other.
fn torn(size: u32, sides: [&[u32]; 2]) -> (Serving, Vec<Session>) {
    let secret = Secret::generate().unwrap();
    let heartbeat = Heartbeat { silence: Duration::from_secs(600), ..Heartbeat::default() };
    let options = Options { heartbeat, ..Options::default() };
    let address = "127.0.0.1:0".parse().unwrap();
    let serving = Coordinator::bind(address, size, secret.clone(), options).unwrap().serve().unwrap();
    let coordinator = serving.local_addr();
    let sessions: Vec<Session> = thread::scope(|scope| {
        let join = |rank| JoinConfig { coordinator, rank, size, secret: secret.clone(), deadline: LONG };
        let ranks: Vec<_> = (0..size).map(|rank| (rank, join(rank))).collect();
        let threads: Vec<_> =
            ranks.into_iter().map(|(_, config)| scope.spawn(move || Session::join(&config).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for &one in sides[0] {
        for &two in sides[1] {
            // Either end may find it first.
            let (by, of) = if (one + two) % 2 == 0 { (one, two) } else { (two, one) };
            sessions[by as usize].cutter()(of);
        }
    }
    (serving, sessions)
}

fn regroup(sessions: &[Session], how: Regroup) -> Vec<Result<Session, RegroupError>> {
    thread::scope(|scope| {
        let threads: Vec<_> = sessions.iter().map(|session| scope.spawn(move || session.regroup(how, LONG))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn the_larger_side_of_a_partition_goes_on_and_the_other_is_told() {
    let (_serving, sessions) = torn(5, [&[0, 1], &[2, 3, 4]]);
    let (told, tell) = mpsc::channel();
    sessions[3].on_cut(move |rank| told.send(rank).unwrap());
    // Rank 0 is told by this one.
    assert_eq!(tell.recv_timeout(LONG), Ok(1));
    let mut new = Vec::new();
    for (rank, outcome) in (0..).zip(regroup(&sessions, Regroup::Survivors)) {
        match outcome {
            Ok(session) => new.push(session),
            Err(error) => {
                assert!(rank < 2, "{error}");
                assert_eq!(error, RegroupError::Partitioned { with: vec![0, 1], without: vec![2, 3, 4] });
            }
        }
    }
    assert!(new.iter().all(|session| session.members() == [2, 3, 4] && session.may_live() == [0, 1]));
    let failed: Vec<_> = new[0].failed().iter().map(|lost| (lost.rank, &lost.cause)).collect();
    assert_eq!(failed, [(0, &LossCause::CutOff), (1, &LossCause::CutOff)]);
    // What is left of the old generation reaches nobody: neither a word of those inside nor of those outside.
    sessions[2].cutter()(4);
    sessions[0].cutter()(3);
    assert_eq!(tell.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected), "the callback was let go of");
    let error = sessions[0].barrier(LONG).unwrap_err();
    assert!(matches!(error, SessionError::Partitioned { .. }), "{error}");
    let again: Vec<Session> = regroup(&new, Regroup::Survivors).into_iter().map(Result::unwrap).collect();
    assert!(again.iter().all(|session| session.members() == [2, 3, 4] && session.failed().is_empty()));
    // Healed: everybody comes, inside and outside.
    let everybody: Vec<Session> = sessions.into_iter().take(2).chain(again).collect();
    let all: Vec<Session> = regroup(&everybody, Regroup::Everybody).into_iter().map(Result::unwrap).collect();
    let ranks: Vec<(u32, u32)> = all.iter().map(|session| (session.rank(), session.size())).collect();
    assert_eq!(ranks, [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5)]);
}

#[test]
fn a_tie_is_won_by_the_side_with_the_lowest_rank() {
    let (_serving, sessions) = torn(4, [&[0, 3], &[1, 2]]);
    for (rank, outcome) in (0..).zip(regroup(&sessions, Regroup::Survivors)) {
        match outcome {
            Ok(session) => assert!(session.members() == [0, 3] && [0, 3].contains(&rank)),
            Err(error) => assert_eq!(error, RegroupError::Partitioned { with: vec![1, 2], without: vec![0, 3] }),
        }
    }
}
