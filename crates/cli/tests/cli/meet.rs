//! Ranks meet at the run's coordinator. The program of these ranks is this test binary, told to run one test alone.

use std::time::Duration;

use fulmen::parts::fabric::Launch;

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
    if plan == "kill" {
        if session.rank() == 1 {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("it ends here");
        }
        // The others give up in order, as a program does that loses a peer. They must not be taken for the cause.
        session.barrier(DEADLINE).expect_err("rank 1 is dead");
        std::process::exit(9);
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
