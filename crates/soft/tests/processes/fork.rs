//! Children that are forked and execute no other program: as `system`, daemons and servers make them.

use fulmen_soft::Profile;
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::{CompletionStatus, QueuePairState, SendRequest, Transition};
use rustix::process::{Pid, Signal, WaitOptions};

use super::endpoint::{Endpoint, Name};
use super::{LONG, until};

const BYTES: usize = 64 << 10;

/// Forks a child that runs this and ends; whether it found all in order.
pub fn forked(run: impl FnOnce()) -> Pid {
    // SAFETY: the child only runs what was given, which takes no lock that another thread can hold, and ends without
    // running anything of its parent's.
    match unsafe { libc::fork() } {
        0 => {
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(ran.is_err())) }
        }
        pid => {
            // It is the child that drops what it holds.
            std::mem::forget(run);
            Pid::from_raw(pid).expect("fork succeeds")
        }
    }
}

fn connected(role: &str) -> (Child, Endpoint) {
    let mut child = Child::start(role);
    let side = Endpoint::open(Profile::Infiniband, BYTES);
    let peer = Name::from_line(&child.hear());
    child.tell(&side.name().to_line());
    side.connect(&peer);
    (child, side)
}

fn exchange(side: &Endpoint) {
    side.recv(2, BYTES / 2, 20_000);
    side.qp.post_send(&[SendRequest::send(1, [side.piece(0, 20_000)])]).expect("posted");
    for _ in 0..2 {
        let completion = until("a message there and back", || side.poll());
        assert_eq!(completion.status, CompletionStatus::Success, "{completion:?}");
    }
}

/// The parent is killed, and its child lives on with all that it inherited.
#[test]
fn a_death_is_told_though_a_forked_child_lives_on() {
    let (mut child, side) = connected("fork lives");
    let heir: i32 = child.hear().parse().expect("a process");
    let heir = Pid::from_raw(heir).expect("a process");
    exchange(&side);
    child.kill();
    side.qp.post_send(&[SendRequest::send(3, [side.piece(0, 100)])]).expect("posted");
    let completion = until("the error that a dead peer causes", || side.poll());
    assert_eq!(completion.status, CompletionStatus::RetryExceeded);
    rustix::process::kill_process(heir, Signal::KILL).expect("the heir lives");
}

/// The child drops all that it inherited, and the parent's connection does not notice.
#[test]
fn a_forked_child_that_drops_everything_does_no_harm() {
    let (mut child, side) = connected("fork drops");
    for _ in 0..2 {
        assert_eq!(child.hear(), "dropped");
        exchange(&side);
        child.tell("again");
    }
    child.finish();
}

pub fn child(words: &[&str]) {
    let side = Endpoint::open(Profile::Infiniband, BYTES);
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear()));
    if words[1] == "lives" {
        let heir = forked(|| std::thread::sleep(LONG));
        Parent.tell(&heir.as_raw_nonzero().to_string());
        answer(&side);
        std::thread::sleep(LONG);
        return;
    }
    for round in 0..2 {
        // SAFETY: the bits of a handle, which only the child drops: its memory is its own.
        let inherited = unsafe { std::ptr::read(&side) };
        let dropping = forked(move || {
            // All of it, and not the fields that are named alone.
            let inherited = inherited;
            assert!(inherited.qp.modify(&Transition::Error).is_err(), "it is the parent's");
            let Endpoint { qp, mr, cq, .. } = inherited;
            if round == 0 {
                drop((qp, mr, cq));
            } else {
                drop((cq, mr, qp));
            }
        });
        let ended = rustix::process::waitpid(Some(dropping), WaitOptions::empty()).expect("a child").expect("its end");
        assert_eq!(ended.1.exit_status(), Some(0), "the child's end");
        // Asked here: in the child, the lock that this takes may be held for ever, by a thread that it does not have.
        assert_eq!(side.qp.state(), QueuePairState::ReadyToSend);
        Parent.tell("dropped");
        answer(&side);
        assert_eq!(Parent.hear(), "again");
    }
}

fn answer(side: &Endpoint) {
    side.recv(1, 0, 20_000);
    until("a message", || side.poll());
    side.qp.post_send(&[SendRequest::send(2, [side.piece(0, 20_000)])]).expect("posted");
    until("its end", || side.poll());
}
