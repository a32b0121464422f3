//! How runs end: exit codes, who failed first, time limits.

use crate::support::{ranks, shell};

#[test]
fn success_of_all_is_success() {
    let ended = ranks(&["-n", "3"], "exit 0").end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
}

#[test]
fn the_first_failure_gives_the_exit_code() {
    // The others fail too, with another code or suddenly, when they are asked to end.
    for others in ["exit 9", "kill -SEGV $$"] {
        let script =
            format!("trap '{others}' TERM; echo ready; [ $FULMEN_RANK = 2 ] && exit 7; while :; do sleep 0.05; done");
        let ended = ranks(&["-n", "4"], &script).end();
        assert_eq!(ended.code, Some(7), "{others}: {}", ended.err);
        let messages = ended.messages();
        assert_eq!(messages.len(), 1, "{others}: {messages:?}");
        assert!(messages[0].starts_with("fulmen: rank 2 failed first: exited with code 7 after "), "{messages:?}");
        assert!(messages[0].ends_with(" s; ending the other 3"), "{messages:?}");
    }
}

#[test]
fn a_signal_gives_128_and_its_number() {
    let ended = ranks(&["-n", "2"], "[ $FULMEN_RANK = 1 ] && kill -KILL $$; exec sleep 1000").end();
    assert_eq!(ended.code, Some(137));
    assert!(ended.err.contains("rank 1 failed first: killed by SIGKILL after "), "{}", ended.err);
    assert!(ended.err.contains("ending the other 1"), "{}", ended.err);
}

#[test]
fn ranks_that_succeeded_before_are_not_ended() {
    // Rank 0 fails when rank 1 is not only dead but was waited for, and so reported.
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd '{}'
        [ $FULMEN_RANK = 1 ] && {{ echo $$ > new; mv new number; exit 0; }}
        while [ ! -e number ]; do sleep 0.01; done
        while kill -0 $(cat number) 2>/dev/null; do sleep 0.01; done
        exit 4",
        folder.path().display()
    );
    let ended = ranks(&["-n", "2"], &script).end();
    assert_eq!(ended.code, Some(4));
    assert!(ended.err.contains("rank 0 failed first: exited with code 4 after "), "{}", ended.err);
    assert!(!ended.err.contains("ending"), "{}", ended.err);
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd '{}'
        [ $FULMEN_RANK = 0 ] && {{ until [ -e 1 ] && [ -e 2 ]; do sleep 0.01; done; exit 5; }}
        trap '' TERM; : > $FULMEN_RANK
        while :; do sleep 1000; done",
        folder.path().display()
    );
    let ended = ranks(&["-n", "3", "--grace", "0.2"], &script).end();
    assert_eq!(ended.code, Some(5));
}

#[test]
fn a_rank_may_tidy_up_within_the_grace_time() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd '{}'
        [ $FULMEN_RANK = 0 ] && {{ until [ -e ready ]; do sleep 0.01; done; exit 1; }}
        trap 'echo tidy; exit 0' TERM; : > ready
        while :; do sleep 0.05; done",
        folder.path().display()
    );
    let ended = ranks(&["-n", "2", "--grace", "60"], &script).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), "[1] tidy\n"));
}

#[test]
fn a_run_that_takes_too_long_ends_with_124() {
    let ended = ranks(&["-n", "3", "--timeout", "0.3"], "exec sleep 1000").end();
    assert_eq!(ended.code, Some(124));
    assert!(ended.err.contains("timed out after 0.30 s: ranks 0, 1 and 2 still running"), "{}", ended.err);
    assert_eq!(ended.messages().len(), 1, "{}", ended.err);
}

#[test]
fn a_run_that_is_in_time_does_not_notice_the_limit() {
    let ended = ranks(&["-n", "2", "--timeout", "1000"], "exit 0").end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
}

#[test]
fn a_failure_counts_more_than_the_time_limit_after_it() {
    let script = "[ $FULMEN_RANK = 0 ] && exit 6; trap '' TERM; while :; do sleep 1000; done";
    let ended = ranks(&["-n", "2", "--timeout", "1000", "--grace", "0.1"], script).end();
    assert_eq!(ended.code, Some(6));
}

#[test]
fn processes_left_by_a_rank_are_ended() {
    // They hold the rank's output open: the run must neither wait for them nor lose what was written.
    let ended = ranks(&["-n", "2", "--grace", "60"], "sleep 1000 & setsid sleep 1000 & echo done").end();
    assert_eq!((ended.code, ended.sorted()), (Some(0), vec!["[0] done", "[1] done"]));
}

#[test]
fn stubborn_orphans_in_sessions_of_their_own_are_killed() {
    let script = "(setsid /bin/sh -c \"trap '' TERM HUP; echo ready; while :; do sleep 1000; done\" &)
        echo done";
    let ended = ranks(&["-n", "2", "--grace", "0.2"], script).end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.out.matches("done").count(), 2);
}

#[test]
fn a_child_from_before_is_not_the_runs_to_end() {
    // The supervisor is killed, so the launcher looks for orphans among its children; the sleeper was there before.
    let script = "sleep 1000 & echo sleeper $!; exec \"$FULMEN\" run -n 1 -- /bin/sh -c 'kill -KILL $PPID; sleep 1000'";
    let mut run = shell(script);
    let out = run.wait_for("\n", 1);
    let sleeper: i32 = out.trim().strip_prefix("sleeper ").expect("its number").parse().unwrap();
    let sleeper = rustix::process::Pid::from_raw(sleeper).unwrap();
    let status = run.wait_exit();
    let left = run.processes();
    let _ = rustix::process::kill_process(sleeper, rustix::process::Signal::KILL);
    assert_eq!(status.code(), Some(137));
    assert_eq!(left.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [sleeper], "{left:?}");
}
