//! Ranks that fail are started again while the others run on.

use rustix::process::Signal;

use crate::support::{Ended, ranks};

/// A rank that fails `$FAILS` times in its own way and then succeeds. The others run until it has.
fn script(folder: &tempfile::TempDir, fails: u32, fail: &str) -> String {
    format!(
        "cd '{}'
        [ $FULMEN_RANK != 1 ] && {{ until [ -e done ]; do sleep 0.01; done; exit 0; }}
        echo x >> starts; n=$(($(wc -l < starts)))
        echo start $n of $FULMEN_RANK/$FULMEN_SIZE
        [ $n -le {fails} ] && {fail}
        : > done",
        folder.path().display()
    )
}

#[track_caller]
fn told(ended: &Ended, expected: &[&str]) {
    let messages = ended.messages();
    assert_eq!(messages.len(), expected.len(), "{messages:?}");
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.starts_with(&format!("fulmen: {expected}")), "{messages:?}");
    }
}

#[test]
fn a_rank_that_fails_is_started_again_and_the_run_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let ended = ranks(&["-n", "3", "--restart", "3"], &script(&folder, 2, "exit 4")).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    told(
        &ended,
        &["rank 1 exited with code 4; started again (1 of 3)", "rank 1 exited with code 4; started again (2 of 3)"],
    );
    assert_eq!(ended.sorted(), ["[1] start 1 of 1/3", "[1] start 2 of 1/3", "[1] start 3 of 1/3"]);
}

#[test]
fn a_killed_rank_is_started_again_without_what_it_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    // Of the one that is killed, a child and half a line are left.
    let fail = "{ sleep 1000 & printf half; kill -KILL $$; }";
    let ended = ranks(&["-n", "2", "--restart", "1"], &script(&folder, 1, fail)).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    told(&ended, &["rank 1 was killed by signal 9; started again (1 of 1)"]);
    assert_eq!(ended.sorted(), ["[1] half", "[1] start 1 of 1/2", "[1] start 2 of 1/2"]);
}

#[test]
fn a_rank_that_fails_too_often_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let ended = ranks(&["-n", "3", "--restart", "2"], &script(&folder, 9, "exit 7")).end();
    assert_eq!(ended.code, Some(7));
    told(
        &ended,
        &[
            "rank 1 exited with code 7; started again (1 of 2)",
            "rank 1 exited with code 7; started again (2 of 2)",
            "rank 1 failed first: exited with code 7 after ",
        ],
    );
    assert!(ended.err.contains("ending the other 2"), "{}", ended.err);
    assert_eq!(ended.out.matches("start ").count(), 3, "{}", ended.out);
}

#[test]
fn a_rank_with_no_others_left_is_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd '{}'
        [ $FULMEN_RANK = 1 ] && {{ echo $$ > new; mv new number; exit 0; }}
        while [ ! -e number ]; do sleep 0.01; done
        while kill -0 $(cat number) 2>/dev/null; do sleep 0.01; done
        exit 4",
        folder.path().display()
    );
    let ended = ranks(&["-n", "2", "--restart", "5"], &script).end();
    assert_eq!(ended.code, Some(4));
    told(&ended, &["rank 0 failed first: exited with code 4 after "]);
}

#[test]
fn a_rank_alone_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("cd '{}'; [ -e mark ] && exit 0; : > mark; exit 5", folder.path().display());
    let ended = ranks(&["-n", "1", "--restart", "1"], &script).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    told(&ended, &["rank 0 exited with code 5; started again (1 of 1)"]);
}

#[test]
fn a_signal_that_asks_to_end_starts_nothing_again() {
    let run = ranks(&["-n", "2", "--restart", "5"], "echo ready; exec sleep 1000");
    run.wait_for("ready\n", 2);
    run.send(Signal::TERM);
    let ended = run.end();
    assert_eq!(ended.code, Some(143));
    assert!(!ended.err.contains("started again") && ended.out.matches("ready").count() == 2, "{}", ended.err);
}

#[test]
fn the_time_limit_holds_over_all_starts() {
    let ended = ranks(&["-n", "2", "--restart", "1000000", "--timeout", "1"], "sleep 0.05; exit 3").end();
    assert_eq!(ended.code, Some(124), "{}", ended.err);
    assert!(ended.err.contains("timed out after 1.0 s"), "{}", ended.err);
}
