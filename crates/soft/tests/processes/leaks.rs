//! Peers come, are killed or leave, and nothing of them stays.

use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::{CompletionStatus, Device, SendRequest};

use super::endpoint::{Endpoint, Name};
use super::until;

const CYCLES: u32 = 200;
/// Cycles after which everything that stays is there.
const FIRST: u32 = 12;
const BYTES: usize = 64 << 10;

/// Descriptors of this process, and mappings of shareable memory.
fn holdings() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux lists them").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux lists them");
    (descriptors, maps.lines().filter(|line| line.contains("memfd:fulmen")).count())
}

/// Its own process, since other tests of this binary open descriptors at the same time.
#[test]
fn nothing_leaks() {
    let mut child = Child::start("leaks all");
    assert_eq!(child.hear(), "nothing leaked");
    child.finish();
}

pub fn child(words: &[&str]) {
    match words[1] {
        "all" => cycles(),
        _ => peer(),
    }
}

fn cycles() {
    let node = Node::open().expect("a node opens");
    let device = SoftDevice::open(&node, Profile::Infiniband).expect("a device opens");
    let mut least = (usize::MAX, usize::MAX);
    for cycle in 0..CYCLES {
        one(&*device, cycle);
        if (FIRST..2 * FIRST).contains(&cycle) {
            // What the cycle before held may still be on its way out: the least of some is what stays.
            let now = holdings();
            least = (least.0.min(now.0), least.1.min(now.1));
        }
    }
    // Threads that end give their descriptors and stacks back a moment later. Each number by itself: fewer descriptors
    // make up for no mapping.
    until("what the first cycles held is all there is", || {
        let now = holdings();
        (now.0 <= least.0 && now.1 <= least.1).then_some(())
    });
    Parent.tell("nothing leaked");
}

fn one(device: &dyn Device, cycle: u32) {
    let mut child = Child::start("leaks peer");
    let side = Endpoint::on(device, Profile::Infiniband, BYTES);
    let peer = Name::from_line(&child.hear());
    child.tell(&side.name().to_line());
    side.connect(&peer);
    assert_eq!(child.hear(), "ready");
    // By the ring, and out of the sender's region, which maps it over there.
    for len in [100, 20_000] {
        side.qp.post_send(&[SendRequest::send(1, [side.piece(0, len)])]).expect("posted");
        let completion = until("a send", || side.poll());
        assert_eq!(completion.status, CompletionStatus::Success);
    }
    child.tell("send");
    side.recv(2, 0, 20_000);
    let completion = until("a message", || side.poll());
    assert_eq!((completion.status, completion.byte_len), (CompletionStatus::Success, 20_000));
    match cycle % 3 {
        // Killed while connected.
        0 => child.kill(),
        // Left first.
        1 => {
            drop(side);
            child.kill();
        }
        _ => {
            child.tell("end");
            child.finish();
        }
    }
}

fn peer() {
    let side = Endpoint::open(Profile::Infiniband, BYTES);
    for number in 0..2 {
        side.recv(number, 0, 20_000);
    }
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear()));
    Parent.tell("ready");
    assert_eq!(Parent.hear(), "send");
    side.qp.post_send(&[SendRequest::send(9, [side.piece(0, 20_000)])]).expect("posted");
    for _ in 0..3 {
        until("two messages and a send", || side.poll());
    }
    assert_eq!(Parent.hear(), "end");
}
