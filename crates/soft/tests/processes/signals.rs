//! Signals of the program, whose handlers run on its own threads: those of a device block them.

use std::collections::BTreeSet;

use fulmen_soft::Profile;
use fulmen_testbed::{Child, Parent};

use super::endpoint::{Endpoint, Name};
use super::until;

/// Its own process, since other tests of this binary start threads at the same time.
#[test]
fn threads_of_a_device_take_no_signals() {
    let mut child = Child::start("signals");
    assert_eq!(child.hear(), "none is taken");
    child.finish();
}

fn threads() -> BTreeSet<u32> {
    let entries = std::fs::read_dir("/proc/self/task").expect("Linux lists them");
    entries.map(|entry| entry.expect("a thread").file_name().to_string_lossy().parse().expect("a number")).collect()
}

/// The signals that a thread blocks, one bit each.
fn blocked(thread: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("a thread that lives");
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("Linux tells it");
    u64::from_str_radix(line.trim(), 16).expect("a mask")
}

pub fn child() {
    let before = threads();
    // This thread's alone: the harness's main thread may be in the middle of starting one, when all are blocked.
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mask = blocked(own);
    // Connected to each other, so that whatever starts a thread has started it.
    let sides = [(); 2].map(|()| Endpoint::open(Profile::Infiniband, 4096));
    let names: [Name; 2] = [sides[0].name(), sides[1].name()];
    sides[0].connect(&names[1]);
    sides[1].connect(&names[0]);
    let started: Vec<u32> = threads().difference(&before).copied().collect();
    assert!(started.len() >= 4, "two nodes and two devices have a thread each: {started:?}");
    for thread in started {
        for signal in [libc::SIGALRM, libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1, libc::SIGPROF] {
            assert!(blocked(thread) & 1 << (signal - 1) != 0, "thread {thread} takes signal {signal}");
        }
        // One that has not run yet blocks all.
        until("a fault to be the thread's own", || (blocked(thread) & 1 << (libc::SIGSEGV - 1) == 0).then_some(()));
    }
    assert_eq!(blocked(own), mask, "the program's mask stays");
    Parent.tell("none is taken");
}
