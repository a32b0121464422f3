//! SIGKILL at the launcher or at a part of a run leaves nothing behind.

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{ranks, wait_until};

/// A rank with everything that could stay behind: a child, an orphan, an orphan in a session of its own that ignores
/// SIGTERM; it ignores SIGTERM itself.
const STICKY: &str = "trap '' TERM HUP INT
    sleep 1000 &
    (sleep 1000 &)
    (setsid /bin/sh -c 'echo ready; while :; do sleep 1000; done' &)
    echo ready
    while :; do sleep 1000; done";

/// Rounds of the tests that kill at arbitrary moments.
fn rounds() -> u32 {
    fulmen_testbed::by_tier(8, 50, 200)
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let mut run = ranks(&["-n", "3"], STICKY);
    run.wait_for("ready\n", 6);
    assert!(run.processes().len() >= 3 * 5, "{:?}", run.processes());
    run.send(Signal::KILL);
    run.wait_exit();
    run.wait_gone();
}

#[test]
fn a_launcher_killed_while_it_starts_leaves_nothing() {
    for round in 0..rounds() {
        let mut run = ranks(&["-n", "4"], STICKY);
        // From right after the start to some time after the last rank began.
        wait_until("the moment", || run.processes().len() > round as usize % 12);
        run.send(Signal::KILL);
        run.wait_exit();
        run.wait_gone();
    }
}

#[test]
fn a_killed_supervisor_takes_its_rank_along() {
    // The victim's orphans must not survive it either.
    let run = ranks(&["-n", "3"], &format!("echo supervisor-$FULMEN_RANK $PPID; {STICKY}"));
    let out = run.wait_for("ready\n", 6);
    let line = out.lines().find_map(|line| line.split_once("supervisor-1 ")).expect("its number").1;
    kill_process(Pid::from_raw(line.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    let ended = run.end();
    assert_eq!(ended.code, Some(137));
    assert!(ended.err.contains("rank 1 failed first: its supervising process was killed by SIGKILL"), "{}", ended.err);
}

#[test]
fn supervisors_and_launcher_killed_at_once_take_the_programs_along() {
    let mut run = ranks(&["-n", "3"], "echo supervisor $PPID; trap '' TERM HUP INT; while :; do :; done");
    let out = run.wait_for("\n", 3);
    let supervisors: Vec<Pid> =
        out.lines().map(|line| Pid::from_raw(line.rsplit(' ').next().unwrap().parse().unwrap()).unwrap()).collect();
    run.send(Signal::STOP);
    for supervisor in supervisors {
        kill_process(supervisor, Signal::KILL).unwrap();
    }
    run.send(Signal::KILL);
    run.wait_exit();
    run.wait_gone();
}

#[test]
fn killed_ranks_at_random_moments_never_hang_a_run() {
    for round in 0..rounds() {
        let victim = round % 4;
        let spin = round * 37 % 300;
        let script = format!(
            "if [ $FULMEN_RANK = {victim} ]; then i=0; while [ $i -lt {spin} ]; do i=$((i+1)); done; kill -KILL $$; fi
            while :; do echo noise; done"
        );
        let ended = ranks(&["-n", "4"], &script).end();
        assert_eq!(ended.code, Some(137), "{}", ended.err);
        assert!(ended.err.contains(&format!("rank {victim} failed first: killed by SIGKILL")), "{}", ended.err);
    }
}
