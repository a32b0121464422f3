//! New generations: after a rank was killed, stopped or cut off, and with other processes in the place of the lost.

use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_fabric::bootstrap::{
    Event, Heartbeat, JoinConfig, JoinError, LossCause, Options, Regroup, RegroupError, Round, Session, SessionError,
};
use rustix::process::Signal;

use crate::common::{Child, LONG, Role, World};

/// Joins these ranks as threads of this process.
fn join(world: &World, ranks: &[u32]) -> Vec<Session> {
    each(ranks.to_vec(), |rank| world.join(rank).unwrap())
}

/// Does the same for each of these, all at once.
fn each<A: Send, T: Send>(all: Vec<A>, body: impl Fn(A) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || body(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn regroup(sessions: &[Session], how: Regroup) -> Vec<Session> {
    each(sessions.iter().collect(), |session| session.regroup(how, LONG).unwrap())
}

/// All ranks of a generation gather their ranks of the launch.
fn gather(sessions: &[Session]) {
    let all: Vec<Vec<u8>> = sessions[0].members().iter().map(|rank| vec![*rank as u8]).collect();
    each(sessions.iter().collect(), |session| {
        let mine = [session.members()[session.rank() as usize] as u8];
        assert_eq!(session.all_gather(&mine, LONG).unwrap(), all);
    });
}

/// A world whose rank 2 is a process.
fn with_child(role: Role) -> (World, Child, Vec<Session>) {
    let world = World::start(3);
    let child = Child::start_as(&world, 2, role);
    let sessions = join(&world, &[0, 1]);
    (world, child, sessions)
}

#[test]
fn survivors_of_a_killed_process_go_on_and_another_takes_its_place() {
    let (world, mut child, sessions) = with_child(Role::Gather);
    gather(&sessions);
    let (told, tell) = mpsc::channel();
    for session in &sessions {
        let told = told.clone();
        session.on_lost(move |lost| told.send(lost.pid).unwrap());
    }
    drop(told);
    let pid = child.pid();
    child.kill();
    let errors = each(sessions.iter().collect(), |session| session.barrier(LONG).unwrap_err());
    assert!(errors.iter().all(|error| matches!(error, SessionError::PeerLost { rank: 2, .. })), "{errors:?}");

    let two = regroup(&sessions, Regroup::Survivors);
    let seen = |session: &Session| (session.rank(), session.size(), session.members().to_vec());
    assert_eq!(two.iter().map(seen).collect::<Vec<_>>(), [(0, 2, vec![0, 1]), (1, 2, vec![0, 1])]);
    assert!(two.iter().all(|session| session.generation() == two[0].generation() && session.lost().is_none()));
    assert_ne!(two[0].generation(), sessions[0].generation());
    for session in &two {
        assert!(matches!(session.failed(), [lost] if (lost.rank, lost.pid) == (2, pid)), "{:?}", session.failed());
        assert_eq!(session.may_live(), [0u32; 0], "it is known to have ended");
    }
    // The old sessions are over, and have let go of what they were told to call.
    let error = sessions[0].barrier(LONG).unwrap_err();
    assert_eq!(error, SessionError::Superseded { op: Round::Barrier });
    assert_eq!(sessions[0].regroup(Regroup::Survivors, LONG).unwrap_err(), RegroupError::Superseded);
    assert_eq!([tell.recv_timeout(LONG), tell.recv_timeout(LONG)], [Ok(pid), Ok(pid)], "each was called");
    assert_eq!(tell.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected), "once, and dropped");
    drop(sessions);
    gather(&two);

    let mut second = Child::start(&world, 2);
    world.wait_for(|event| matches!(event, Event::Waits { rank: 2, pid } if *pid == second.pid()));
    let error = world.join(2).unwrap_err();
    assert!(matches!(error, JoinError::DuplicateRank { rank: 2, holder, .. } if holder == second.pid()), "{error}");
    gather(&two);
    let three = regroup(&two, Regroup::Everybody);
    assert!(three.iter().all(|session| session.size() == 3 && session.failed().is_empty()));
    gather(&three);
    // Again, without a generation of the survivors in between.
    second.kill();
    let third = Child::start(&world, 2);
    let again = regroup(&three, Regroup::Everybody);
    assert!(matches!(again[1].failed(), [lost] if (lost.rank, lost.pid) == (2, second.pid())));
    gather(&again);
    drop(third);
}

#[test]
fn a_process_that_has_ended_does_not_count() {
    let world = World::start(2);
    let mut child = Child::start(&world, 0);
    let sessions = join(&world, &[1]);
    child.kill();
    // It would win the tie if it could live.
    let alone = regroup(&sessions, Regroup::Survivors);
    assert_eq!((alone[0].rank(), alone[0].members()), (0, &[1][..]));
    gather(&alone);
}

#[test]
fn a_process_that_hung_up_and_lives_counts() {
    let world = World::start(2);
    let mut child = Child::start_as(&world, 0, Role::HangUp);
    let sessions = join(&world, &[1]);
    world.wait_for(|event| matches!(event, Event::Lost(_)));
    let error = sessions[0].regroup(Regroup::Survivors, LONG).unwrap_err();
    assert_eq!(error, RegroupError::Partitioned { with: vec![1], without: vec![0] });
    let error = sessions[0].barrier(LONG).unwrap_err();
    assert!(matches!(error, SessionError::Partitioned { op: Round::Barrier, .. }), "{error}");
    child.kill();
    // The coordinator sees the end of the process in a moment.
    let alone = loop {
        match sessions[0].regroup(Regroup::Survivors, LONG) {
            Ok(session) => break session,
            Err(RegroupError::Partitioned { .. }) => thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(alone.members(), [1]);

    let (_world, _child, sessions) = with_child(Role::HangUp);
    let two = regroup(&sessions, Regroup::Survivors);
    assert_eq!((two[0].members(), two[1].may_live()), (&[0, 1][..], &[2][..]));
    gather(&two);
}

#[test]
fn a_stopped_process_is_left_behind_and_comes_back() {
    // Long enough for the honest ranks to answer on a busy machine.
    let heartbeat = Heartbeat { every: Duration::from_millis(100), silence: Duration::from_secs(5) };
    let world = World::start_with(3, Options { heartbeat, ..Options::default() });
    let child = Child::start_as(&world, 2, Role::ComeBack);
    let sessions = join(&world, &[0, 1]);
    gather(&sessions);
    child.signal(Signal::STOP);
    // The child may have come to the barrier before it was stopped.
    world.wait_for(|event| matches!(event, Event::Lost(lost) if lost.rank == 2));
    let errors = each(sessions.iter().collect(), |session| session.barrier(LONG).unwrap_err());
    let silent =
        |error: &SessionError| matches!(error, SessionError::PeerLost { rank: 2, cause: LossCause::Silent(_), .. });
    assert!(errors.iter().all(silent), "{errors:?}");
    let two = regroup(&sessions, Regroup::Survivors);
    assert_eq!((two[0].members(), two[1].may_live()), (&[0, 1][..], &[2][..]));
    child.signal(Signal::CONT);
    gather(&two);
    let three = regroup(&two, Regroup::Everybody);
    assert_eq!(three[0].size(), 3);
    gather(&three);
}

#[test]
fn deadlines_name_the_missing_and_a_later_attempt_succeeds() {
    let world = World::start(3);
    let mut sessions = join(&world, &[0, 1, 2]);
    let error = sessions[1].regroup(Regroup::Survivors, Duration::ZERO).unwrap_err();
    assert_eq!(error, RegroupError::TimedOut { by: 1, missing: vec![0, 2] });
    // Nobody waits for a rank that is gone to regroup.
    let (told, tell) = mpsc::channel();
    sessions[0].on_regroup(move |rank| told.send(rank).unwrap());
    assert_eq!(tell.recv_timeout(LONG), Ok(1));
    let error = sessions[0].barrier(LONG).unwrap_err();
    assert_eq!(error, SessionError::Regrouping { op: Round::Barrier, rank: 1 });
    sessions.pop().unwrap().leave();
    let two = regroup(&sessions, Regroup::Survivors);
    assert_eq!((two[0].members(), two[0].failed().len()), (&[0, 1][..], 0), "a goodbye is no loss");

    let missing = |deadline| RegroupError::TimedOut { by: deadline, missing: vec![1, 2] };
    assert_eq!(two[0].regroup(Regroup::Everybody, Duration::ZERO).unwrap_err(), missing(0));
    let late = Session::join(&JoinConfig { deadline: Duration::from_millis(50), ..world.config(2) }).unwrap_err();
    let JoinError::NotAwaited { rank: 2, missing } = &late else {
        // The deadline may pass before the seat is asked for.
        return assert!(matches!(late, JoinError::Unreachable { .. }), "{late}");
    };
    assert_eq!(*missing, [0, 1]);
    assert!(late.to_string().contains("rejoin"), "{late}");
}

#[test]
fn ranks_that_ask_for_different_things_are_told() {
    let world = World::start(2);
    let sessions = join(&world, &[0, 1]);
    let errors = each(sessions.iter().zip([Regroup::Survivors, Regroup::Everybody]).collect(), |(session, how)| {
        session.regroup(how, LONG).unwrap_err()
    });
    assert!(matches!(errors[0], RegroupError::Mismatch { called, others, .. } if called != others), "{}", errors[0]);
    assert_eq!(errors[0], errors[1]);
    gather(&regroup(&sessions, Regroup::Everybody));
}

#[test]
fn a_thread_that_panics_may_live_and_its_rank_is_left_behind() {
    let world = World::start(3);
    let mut sessions = join(&world, &[0, 1, 2]);
    let lost = sessions.remove(0);
    let unwound = std::panic::catch_unwind(AssertUnwindSafe(move || {
        let _session = lost;
        // A panic that prints nothing.
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(unwound.is_err());
    let two = regroup(&sessions, Regroup::Survivors);
    assert_eq!((two[0].rank(), two[0].members(), two[0].may_live()), (0, &[1, 2][..], &[0][..]));
    gather(&two);
}

#[test]
fn a_lost_coordinator_ends_the_wait_for_a_generation() {
    let mut world = World::start(2);
    let serving = world.take_serving();
    let sessions = join(&world, &[0, 1]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| sessions[0].regroup(Regroup::Survivors, LONG).unwrap_err());
        drop(serving);
        let error = waiting.join().unwrap();
        assert!(matches!(error, RegroupError::CoordinatorLost { .. }), "{error}");
    });
}

#[test]
fn a_world_of_one_regroups_with_itself() {
    let first = Session::alone();
    let second = first.regroup(Regroup::Everybody, Duration::ZERO).unwrap();
    assert_eq!((second.members(), second.failed().len()), (&[0][..], 0));
    assert_ne!(first.generation(), second.generation());
    assert_eq!(first.barrier(LONG).unwrap_err(), SessionError::Superseded { op: Round::Barrier });
    second.barrier(Duration::ZERO).unwrap();
}

const COUNTING: &str = "FULMEN_TEST_COUNTING";

#[test]
fn generations_leave_nothing_behind() {
    let rounds: usize = fulmen_testbed::by_tier(100, 300, 1000);
    // In a process of its own, where nobody else opens descriptors and starts threads.
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "regroup::counts_its_descriptors", "--nocapture", "--test-threads=1"])
        .env(COUNTING, rounds.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

/// What [`generations_leave_nothing_behind`] runs: a rank leaves and another takes its place, so often; each time there is a
/// generation of the survivors and one of everybody.
#[test]
fn counts_its_descriptors() {
    let Ok(rounds) = std::env::var(COUNTING) else { return };
    let rounds: usize = rounds.parse().unwrap();
    let world = World::start(3);
    let held = Arc::new(());
    let open = || {
        let count = |folder| std::fs::read_dir(folder).map_or(0, Iterator::count);
        (count("/proc/self/fd"), count("/proc/self/task"))
    };
    let pause = Duration::from_millis(10);
    // A thread that was joined may still be listed for a moment: the least of some looks is what stays.
    let least = || {
        (0..20).fold((usize::MAX, usize::MAX), |least: (usize, usize), _| {
            thread::sleep(pause);
            let now = open();
            (least.0.min(now.0), least.1.min(now.1))
        })
    };
    // Each number by itself: fewer descriptors make up for no thread.
    let is_within = |now: (usize, usize), early: (usize, usize)| now.0 <= early.0 && now.1 <= early.1;
    let at_last = |early: (usize, usize)| {
        let end = Instant::now() + LONG;
        loop {
            let now = open();
            if is_within(now, early) || Instant::now() >= end {
                return now;
            }
            thread::sleep(pause);
        }
    };
    let after_round = |rank: u32, round: usize, session: &Session, early: Option<(usize, usize)>| {
        session.barrier(LONG).unwrap();
        let seen = match early {
            None if rank == 0 && round == 10 => Some(least()),
            Some(early) if round == rounds - 1 => Some(at_last(early)),
            _ => None,
        };
        // The others wait here for the one that looks.
        session.barrier(2 * LONG).unwrap();
        seen
    };
    let seen = world.run(|mut session| {
        let rank = session.rank();
        let mut seen: Vec<(usize, usize)> = Vec::new();
        for round in 0..rounds {
            let mine = held.clone();
            session.on_lost(move |_| drop(mine.clone()));
            if rank == 2 {
                session.leave();
                session = world.join(2).unwrap();
            } else {
                session = session.regroup(Regroup::Survivors, LONG).unwrap();
                assert!(session.size() >= 2 && session.members()[..2] == [0, 1]);
                session = session.regroup(Regroup::Everybody, LONG).unwrap();
            }
            let now = after_round(rank, round, &session, seen.first().copied());
            seen.extend(now);
        }
        seen
    });
    let [early, late] = seen[0][..] else { panic!("{seen:?}") };
    assert!(is_within(late, early), "descriptors and threads: first {early:?}, at last {late:?}");
    drop(world);
    assert_eq!(Arc::strong_count(&held), 1, "callbacks were let go of");
}
