//! Ranks meet at the run's coordinator. The program of these ranks is this test binary, told to run one test alone.

use std::time::Duration;

use fulmen::parts::fabric::{Launch, LossCause, Regroup, Session, SessionError};
use rustix::process::{Signal, getpid, kill_process};

use crate::support::{Running, fulmen};

const DEADLINE: Duration = Duration::from_secs(60);

/// Not a test of its own: what a rank does. Without the environment of a rank it does nothing.
#[test]
fn as_a_rank() {
    let Ok(plan) = std::env::var("RANK_PLAN") else { return };
    let launch = Launch::from_env().expect("the environment of a rank");
    let session = launch.join(DEADLINE).expect("the others come too");
    let blobs = session.all_gather(&[session.rank() as u8 + 100], DEADLINE).expect("all take part");
    let expected: Vec<Vec<u8>> = (0..session.size()).map(|rank| vec![rank as u8 + 100]).collect();
    assert_eq!(blobs, expected);
    println!("met {} of {}", session.rank(), session.size());
    if plan == "rejoin" {
        return rejoin(session);
    }
    if plan == "stop" {
        if session.rank() == 1 {
            kill_process(getpid(), Signal::STOP).expect("it stops here");
            // A thread may run on for a moment.
            loop {
                std::thread::park();
            }
        }
        let error = session.barrier(DEADLINE).expect_err("rank 1 is stopped");
        let SessionError::PeerLost { rank: 1, cause: LossCause::Silent(ms), .. } = error else { panic!("{error}") };
        println!("silent for {ms}");
        std::process::exit(9);
    }
    if plan == "kill" {
        if session.rank() == 1 {
            kill_process(getpid(), Signal::KILL).expect("it ends here");
        }
        // The others give up in order, as a program does that loses a peer. They must not be taken for the cause.
        session.barrier(DEADLINE).expect_err("rank 1 is dead");
        std::process::exit(9);
    }
}

/// Rank 1 is killed in the first generation; the others go on with the process that is started in its place.
fn rejoin(session: Session) {
    // The word is not heard by a process that came later.
    let first = session.all_gather(&[u8::from(session.failed().is_empty())], DEADLINE).expect("all take part");
    if session.rank() == 1 && first == [[1], [1], [1]] {
        kill_process(getpid(), Signal::KILL).expect("it ends here");
    }
    if session.failed().is_empty() {
        session.barrier(DEADLINE).expect_err("rank 1 is dead");
        let next = session.regroup(Regroup::Everybody, DEADLINE).expect("rank 1 comes back");
        let blobs = next.all_gather(&[next.rank() as u8 + 100], DEADLINE).expect("all take part");
        assert_eq!(blobs, [[100], [101], [102]]);
        assert_eq!(next.failed().len(), 1);
        rejoin(next);
    }
}

fn ranks_with(plan: &str, args: &[&str]) -> Running {
    let own = std::env::current_exe().expect("this test's file");
    let plan = format!("RANK_PLAN={plan}");
    let program = ["--", "env", &plan, own.to_str().expect("its name"), "--exact", "meet::as_a_rank", "--nocapture"];
    fulmen(&[&["run"], args, &program].concat())
}

#[test]
fn all_ranks_meet() {
    let ended = ranks_with("meet", &["-n", "3"]).end();
    assert_eq!((ended.code, ended.messages().len()), (Some(0), 0), "{}{}", ended.out, ended.err);
    for rank in 0..3 {
        // With one test thread, the harness puts the test's name in front.
        let (label, met) = (format!("[{rank}] "), format!("met {rank} of 3"));
        assert!(ended.out.lines().any(|line| line.starts_with(&label) && line.ends_with(&met)), "{}", ended.out);
    }
}

#[test]
fn the_rank_that_was_killed_is_blamed() {
    let ended = ranks_with("kill", &["-n", "4"]).end();
    assert_eq!(ended.code, Some(137), "{}{}", ended.out, ended.err);
    assert!(ended.err.contains("rank 1 failed first: killed by SIGKILL"), "{}", ended.err);
}

#[test]
fn a_rank_that_was_killed_and_started_again_rejoins() {
    let ended = ranks_with("rejoin", &["-n", "3", "--restart", "1"]).end();
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(ended.err.contains("fulmen: rank 1 was killed by signal 9; started again (1 of 1)"), "{}", ended.err);
    assert_eq!(ended.out.lines().filter(|line| line.ends_with("met 1 of 3")).count(), 2, "{}", ended.out);
}

#[test]
fn a_stopped_rank_is_lost_after_the_silence_that_was_asked_for() {
    let ended = ranks_with("stop", &["-n", "2", "--silence", "3"]).end();
    assert_eq!(ended.code, Some(9), "{}{}", ended.out, ended.err);
    let silent = ended.out.lines().find_map(|line| line.split_once("silent for ")).expect("the word").1;
    // Time counts in steps of at most twice the heartbeat, a fifth of the silence.
    assert!((3000..4300).contains(&silent.trim().parse::<u64>().unwrap()), "{silent}");
}
