//! Two processes that poll on one processor, and two that sleep until they are called.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use fulmen_soft::Profile;
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::{Completion, CompletionOpcode, CompletionStatus, SendRequest};
use rustix::thread::CpuSet;

use super::endpoint::{Endpoint, Name};
use super::{LONG, rounds};

const BYTES: usize = 4096;
/// So many that they take minutes if a side polls until the system takes the processor from it.
const ROUNDS: u32 = 10_000;

/// Lets the calling thread, and those that it starts, run on the first processor that it may run on.
fn pin() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("the system tells");
    let first = (0..CpuSet::MAX_CPU).find(|number| allowed.is_set(*number)).expect("it runs on some");
    let mut one = CpuSet::new();
    one.set(first);
    rustix::thread::sched_setaffinity(None, &one).expect("fewer are always allowed");
}

/// How a side waits for completions.
enum Waits {
    Polling,
    Called(Receiver<()>),
}

impl Waits {
    fn new(word: &str, side: &Endpoint) -> Waits {
        if word == "polling" {
            return Waits::Polling;
        }
        let (call, called) = channel();
        let call = std::sync::Mutex::new(call);
        let notifier = move || {
            // Nobody listens any more at the end.
            let _ = call.lock().expect("no thread panics with it").send(());
        };
        side.cq.set_notifier(Arc::new(notifier)).expect("the device calls");
        Waits::Called(called)
    }

    fn next(&self, side: &Endpoint, start: Instant) -> Completion {
        let mut polls = 0_u32;
        loop {
            if let Some(completion) = side.poll() {
                return completion;
            }
            match self {
                // Not a word to the system from here.
                Waits::Polling => {
                    polls += 1;
                    assert!(!polls.is_multiple_of(4096) || start.elapsed() < LONG, "the sides starve each other");
                }
                Waits::Called(called) => {
                    side.cq.request_notify(false).expect("armed");
                    if let Some(completion) = side.poll() {
                        return completion;
                    }
                    called.recv_timeout(LONG).expect("a call");
                }
            }
        }
    }
}

/// Messages there and back.
fn play(side: &Endpoint, waits: &Waits, first: bool, count: u32) {
    let start = Instant::now();
    let send = || side.qp.post_send(&[SendRequest::send(1, [side.piece(0, 64)])]).expect("posted");
    for _ in 0..8 {
        side.recv(2, 0, 64);
    }
    if first {
        send();
    }
    let mut received = 0;
    while received < count {
        let completion = waits.next(side, start);
        assert_eq!(completion.status, CompletionStatus::Success);
        if completion.opcode == CompletionOpcode::Recv {
            received += 1;
            side.recv(2, 0, 64);
            if !first || received < count {
                send();
            }
        }
    }
}

fn between_processes(word: &str, pinned: bool, count: u32) {
    let mut child = Child::start(&format!("core {word} {pinned} {count}"));
    let (word, name) = (word.to_owned(), format!("{word}{}", if pinned { " on one processor" } else { "" }));
    let took = std::thread::spawn(move || {
        if pinned {
            pin();
        }
        let side = Endpoint::open(Profile::Infiniband, BYTES);
        let waits = Waits::new(&word, &side);
        let peer = Name::from_line(&child.hear());
        child.tell(&side.name().to_line());
        side.connect(&peer);
        assert_eq!(child.hear(), "ready");
        let start = Instant::now();
        play(&side, &waits, true, count);
        let took = start.elapsed();
        child.tell("end");
        child.finish();
        took
    });
    let took = took.join().expect("the messages go there and back");
    println!("{name}: {:?} there and back", took / count);
}

pub fn child(words: &[&str]) {
    if words[2] == "true" {
        pin();
    }
    let side = Endpoint::open(Profile::Infiniband, BYTES);
    let waits = Waits::new(words[1], &side);
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear()));
    Parent.tell("ready");
    play(&side, &waits, false, words[3].parse().expect("a number"));
    assert_eq!(Parent.hear(), "end");
}

#[test]
fn polling_on_one_processor() {
    between_processes("polling", true, ROUNDS);
}

#[test]
fn called_on_one_processor() {
    between_processes("called", true, rounds(2000, ROUNDS));
}

#[test]
fn called_wherever_they_run() {
    between_processes("called", false, rounds(2000, ROUNDS));
}
