//! Memory that two processes see.

use std::sync::atomic::Ordering;

use fulmen_memory::{FileAccess, Region};
use fulmen_reach::ring::{Consumer, Layout, Producer};
use fulmen_reach::{Doorbell, Node, ReachError, Refusal, ShareKey};

use crate::child::{CAPACITY, CHILD_BELL, FRAMES, FROM_CHILD, LEN, PARENT_BELL, Running, TO_CHILD, patiently};
use crate::{LONG, eventually};

#[test]
fn both_see_what_the_other_writes() {
    let child = Running::start("answer");
    let node = Node::open().unwrap();
    let peer = node.connect(&child.address, LONG).unwrap();
    assert_eq!((peer.pid(), peer.address()), (child.address.pid(), child.address));
    let region = peer.map(child.key, LONG).unwrap();
    assert_eq!(region.len(), LEN);
    let memory = region.expose().unwrap();
    let bytes: [u8; 256] = std::array::from_fn(|at| at as u8);
    memory.write(8192, &bytes);
    let (theirs, mine) = (Doorbell::at(&memory, CHILD_BELL), Doorbell::at(&memory, PARENT_BELL));
    theirs.ring();
    assert!(mine.wait(0, LONG));
    let mut answer = [0; 256];
    memory.read(8192, &mut answer);
    assert_eq!(answer, bytes.map(|byte| byte.wrapping_add(1)));
    // Mapped memory outlives the connection and the process.
    drop((peer, node));
    child.finish();
    memory.read(8192, &mut answer);
    assert_eq!(answer[0], 1);
}

#[test]
fn frames_go_there_and_back_between_processes() {
    let child = Running::start("echo");
    let node = Node::open().unwrap();
    let peer = node.connect(&child.address, LONG).unwrap();
    let memory = peer.map(child.key, LONG).unwrap().expose().unwrap();
    let layout = Layout::new(CAPACITY);
    let size = layout.size();
    let mut to = Producer::new(memory.slice(TO_CHILD..TO_CHILD + size), layout).unwrap();
    let mut from = Consumer::new(memory.slice(FROM_CHILD..FROM_CHILD + size), layout).unwrap();
    let (theirs, mine) = (Doorbell::at(&memory, CHILD_BELL), Doorbell::at(&memory, PARENT_BELL));
    let (mut sent, mut received) = (0, 0);
    while received < FRAMES {
        patiently(&mine, || {
            let mut moved = false;
            while sent < FRAMES && to.try_push(&[&sent.to_le_bytes(), &payload(sent), &sum(sent)]).unwrap() {
                (sent, moved) = (sent + 1, true);
            }
            while let Some(frame) = from.try_pop(|frame| frame.to_vec()).unwrap() {
                let expected = [&received.to_le_bytes()[..], &payload(received), &sum(received)].concat();
                assert_eq!(frame, expected, "frame {received}");
                (received, moved) = (received + 1, true);
            }
            moved.then_some(())
        });
        theirs.ring();
    }
    assert!(from.peek().unwrap().is_none());
    child.finish();
}

fn payload(number: u64) -> Vec<u8> {
    // Mostly one line, now and then many.
    let len = if number.is_multiple_of(16) { number * 31 % 3000 } else { number % 40 };
    (0..len).map(|at| (number * 7 + at * 13) as u8).collect()
}

fn sum(number: u64) -> [u8; 8] {
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    payload(number).iter().fold(number, fold).to_le_bytes()
}

#[test]
fn one_connection_and_one_mapping_for_all() {
    let child = Running::start("serve");
    let node = Node::open().unwrap();
    let (one, other) = (node.connect(&child.address, LONG).unwrap(), node.connect(&child.address, LONG).unwrap());
    assert!(std::sync::Arc::ptr_eq(&one, &other));
    let (first, second) = (one.map(child.key, LONG).unwrap(), other.map(child.key, LONG).unwrap());
    assert_eq!(first.id(), second.id());
    let id = first.id();
    drop((first, second));
    assert_ne!(one.map(child.key, LONG).unwrap().id(), id, "the cache keeps nothing mapped");
}

#[test]
fn threads_that_ask_at_once_all_get_answers() {
    let child = Running::start("serve");
    let node = Node::open().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..50 {
                    let peer = node.connect(&child.address, LONG).unwrap();
                    let wrong = ShareKey::from_u64(child.key.to_u64() ^ (round + 1));
                    assert!(matches!(peer.map(wrong, LONG), Err(ReachError::Refused { .. })));
                    assert_eq!(peer.map(child.key, LONG).unwrap().len(), LEN);
                }
            });
        }
    });
}

#[test]
fn unknown_and_withdrawn_keys_are_refused() {
    let (owner, node) = (Node::open().unwrap(), Node::open().unwrap());
    let region = Region::alloc(4096).unwrap();
    let (key, second) = (owner.share(&region).unwrap(), owner.share(&region).unwrap());
    assert_ne!(key, second);
    let peer = node.connect(&owner.address(), LONG).unwrap();
    let held = peer.map(key, LONG).unwrap().expose().unwrap();
    assert!(owner.unshare(second));
    assert!(!owner.unshare(second));
    let refused = peer.map(second, LONG).unwrap_err();
    assert!(matches!(refused, ReachError::Refused { reason: Refusal::UnknownKey, .. }), "{refused}");
    assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
    // What was mapped before stays mapped, and the connection goes on.
    assert!(owner.unshare(key));
    region.expose().unwrap().atomic_u64(8).store(77, Ordering::Release);
    assert_eq!(held.atomic_u64(8).load(Ordering::Acquire), 77);
    let third = owner.share(&region).unwrap();
    assert_eq!(peer.map(third, LONG).unwrap().len(), 4096);
}

#[test]
fn only_shareable_regions_are_shared() {
    let node = Node::open().unwrap();
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let region = Region::map_file(&file, FileAccess::ReadOnly).unwrap();
    assert!(matches!(node.share(&region), Err(ReachError::NotShareable)));
}

#[test]
fn cycles_leak_nothing() {
    // Alone in its process: the other tests open descriptors, too.
    if std::env::var_os("FULMEN_REACH_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory::cycles_leak_nothing", "--quiet"])
            .env("FULMEN_REACH_TEST_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let (before, threads) = (descriptors(), threads());
    {
        let (owner, node) = (Node::open().unwrap(), Node::open().unwrap());
        let key = owner.share(&Region::alloc(4096).unwrap()).unwrap();
        node.connect(&owner.address(), LONG).unwrap().map(key, LONG).unwrap();
        let mut most = 0;
        for _ in 0..1000 {
            let peer = node.connect(&owner.address(), LONG).unwrap();
            peer.map(key, LONG).unwrap().expose().unwrap().write(0, b"seen");
            most = most.max(descriptors());
        }
        // The threads close a few descriptors a little later, and never fall behind by hundreds.
        assert!(most < before + 200, "{most} descriptors were open at a time, {before} at first");
    }
    eventually("all descriptors are closed and all threads ended", || {
        descriptors() == before && self::threads() == threads
    });
    assert_eq!(regions(), 0, "regions are still mapped");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn regions() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:fulmen")).count()
}
