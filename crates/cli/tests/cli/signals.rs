//! Signals that reach the launcher reach every rank, once.

use rustix::process::Signal;

use crate::support::{ranks, shell, state, wait_until};

#[test]
fn each_signal_reaches_each_rank_once() {
    let script = "for s in HUP INT QUIT USR1 USR2; do trap \"echo got-$s\" $s; done
        trap 'echo got-TERM; exit 0' TERM
        echo ready
        while :; do sleep 0.05; done";
    let run = ranks(&["-n", "3", "--grace", "60"], script);
    run.wait_for("ready\n", 3);
    let sent = [
        (Signal::HUP, "got-HUP\n"),
        (Signal::INT, "got-INT\n"),
        (Signal::QUIT, "got-QUIT\n"),
        (Signal::USR1, "got-USR1\n"),
        (Signal::USR2, "got-USR2\n"),
        (Signal::TERM, "got-TERM\n"),
    ];
    for (signal, echo) in sent {
        run.send(signal);
        run.wait_for(echo, 3);
    }
    let ended = run.end();
    assert_eq!((ended.code, ended.messages().len()), (Some(0), 0), "{}", ended.err);
    for (_, echo) in sent {
        assert_eq!(ended.out.matches(echo).count(), 3, "{echo} in {}", ended.out);
    }
}

#[test]
fn a_rank_that_ends_while_others_tidy_up_does_not_disturb_them() {
    // Rank 0 dies of the signal at once; rank 1 takes its time, and must not be asked a second time.
    let script = "[ $FULMEN_RANK = 0 ] && { echo ready; exec sleep 1000; }
        trap 'echo got-TERM' TERM; trap 'exit 0' USR1
        echo ready
        while :; do sleep 0.05; done";
    let run = ranks(&["-n", "2", "--grace", "60"], script);
    run.wait_for("ready\n", 2);
    run.send(Signal::TERM);
    run.wait_for_message("rank 0 failed first: killed by SIGTERM, which was passed on, after");
    run.wait_for("got-TERM\n", 1);
    run.send(Signal::USR1);
    let ended = run.end();
    assert_eq!(ended.code, Some(143));
    assert_eq!(ended.out.matches("got-TERM").count(), 1, "{}", ended.out);
}

#[test]
fn an_interrupted_run_says_so() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::USR1, 138)] {
        let run = ranks(&["-n", "2"], "echo ready; exec sleep 1000");
        run.wait_for("ready\n", 2);
        run.send(signal);
        let ended = run.end();
        assert_eq!((ended.code, ended.signal), (Some(code), None), "{}", ended.err);
        assert!(ended.err.contains("failed first: killed by SIG"), "{}", ended.err);
    }
}

#[test]
fn a_run_can_be_stopped_and_continued() {
    let run = ranks(&["-n", "2", "--timeout", "1000"], "echo ready; exec sleep 1000");
    run.wait_for("ready\n", 2);
    let ranks_now =
        || run.processes().into_iter().filter(|(_, line)| line.starts_with("sleep 1000")).map(|(pid, _)| pid);
    wait_until("both ranks to sleep", || ranks_now().count() == 2);
    let sleepers: Vec<_> = ranks_now().collect();
    run.send(Signal::TSTP);
    wait_until("the ranks to stop", || sleepers.iter().all(|&pid| state(pid) == Some('T')));
    wait_until("the launcher to stop", || state(run.pid()) == Some('T'));
    run.send(Signal::CONT);
    wait_until("the ranks to go on", || sleepers.iter().all(|&pid| state(pid) == Some('S')));
    run.send(Signal::TERM);
    assert_eq!(run.end().code, Some(143));
}

#[test]
fn stopped_ranks_are_ended_too() {
    let script = "[ $FULMEN_RANK = 0 ] && kill -STOP $$; exec sleep 1000";
    let ended = ranks(&["-n", "2", "--timeout", "0.3", "--grace", "60"], script).end();
    assert_eq!(ended.code, Some(124));
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let script = "trap '' HUP; exec \"$FULMEN\" run -n 1 -- /bin/sh -c '
        trap \"echo got-HUP\" HUP; trap \"echo got-USR1\" USR1; trap \"exit 0\" TERM
        echo ready
        while :; do sleep 0.05; done'";
    let run = shell(script);
    run.wait_for("ready\n", 1);
    run.send(Signal::HUP);
    run.send(Signal::USR1);
    run.wait_for("got-USR1\n", 1);
    run.send(Signal::TERM);
    let ended = run.end();
    assert_eq!((ended.code, ended.out.matches("got-HUP").count()), (Some(0), 0), "{}", ended.out);
}

#[test]
fn ranks_do_not_inherit_ignored_signals() {
    let script = "trap '' HUP INT QUIT USR1; exec \"$FULMEN\" run -n 1 -- grep SigIgn: /proc/self/status";
    let ended = shell(script).end();
    assert_eq!(ended.code, Some(0));
    let mask = u64::from_str_radix(ended.out.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    let wanted = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::PIPE];
    assert!(wanted.iter().all(|signal| mask & (1 << (signal.as_raw() - 1)) == 0), "{mask:x}");
}
