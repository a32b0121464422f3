//! Peers that end, stop, or were never there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fulmen_reach::{Node, NodeAddress, ReachError, ShareKey};
use rustix::process::{Pid, Signal, kill_process};

use crate::child::Running;
use crate::{LONG, eventually};

#[test]
fn a_killed_peer_is_noticed() {
    let mut child = Running::start("serve");
    let node = Node::open().unwrap();
    let (tell, told) = mpsc::channel();
    node.on_death(Box::new(|_| panic!("a callback may panic")));
    node.on_death(Box::new(move |address| tell.send(*address).unwrap()));
    let peer = node.connect(&child.address, LONG).unwrap();
    let region = peer.map(child.key, LONG).unwrap();
    assert!(peer.is_alive());
    child.kill();
    assert_eq!(told.recv_timeout(LONG).unwrap(), child.address);
    assert!(!peer.is_alive(), "it is dead by the time of the callback");
    let pid = child.address.pid();
    let other_key = ShareKey::from_u64(1);
    assert!(matches!(peer.map(other_key, LONG), Err(ReachError::Gone { pid: gone }) if gone == pid));
    assert!(matches!(node.connect(&child.address, LONG), Err(ReachError::Gone { pid: gone }) if gone == pid));
    // What it left is still readable.
    region.expose().unwrap().write(0, b"still mapped");
}

#[test]
fn a_thread_that_waits_learns_of_the_death() {
    let mut child = Running::start("serve");
    let node = Node::open().unwrap();
    let peer = node.connect(&child.address, LONG).unwrap();
    child.stop();
    let asking = std::thread::spawn({
        let (peer, key) = (peer.clone(), child.key);
        move || peer.map(key, 10 * LONG).map(|region| region.len())
    });
    child.kill();
    assert!(matches!(asking.join().unwrap(), Err(ReachError::Gone { .. })));
    assert!(!peer.is_alive());
}

#[test]
fn a_stopped_peer_is_late_and_not_dead() {
    let child = Running::start("serve");
    let node = Node::open().unwrap();
    let peer = node.connect(&child.address, LONG).unwrap();
    child.stop();
    let short = Duration::from_millis(50);
    let error = peer.map(child.key, short).unwrap_err();
    assert!(matches!(error, ReachError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains(&child.address.pid().to_string()), "{error}");
    let second = Node::open().unwrap();
    let error = second.connect(&child.address, short).unwrap_err();
    assert!(matches!(error, ReachError::TimedOut { .. }), "{error}");
    // Far more requests than its socket has room for.
    let callers = |rounds: usize| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let late = peer.map(child.key, Duration::ZERO).unwrap_err();
                        assert!(matches!(late, ReachError::TimedOut { .. }), "{late}");
                    }
                });
            }
        });
    };
    callers(500);
    assert!(peer.is_alive());
    child.go_on();
    // It answers all that was asked meanwhile; the late answers are for nobody.
    assert_eq!(peer.map(child.key, LONG).unwrap().len(), crate::child::LEN);
    assert!(second.connect(&child.address, LONG).unwrap().is_alive());
    assert!(peer.is_alive());
}

#[test]
fn a_death_is_noticed_though_the_peers_child_lives_on() {
    let mut child = Running::start("heir");
    let heir = Heir(Pid::from_raw(child.hear().parse().unwrap()).unwrap());
    let node = Node::open().unwrap();
    let peer = node.connect(&child.address, LONG).unwrap();
    child.kill();
    eventually("the death is noticed", || !peer.is_alive());
    rustix::process::test_kill_process(heir.0).expect("the heir lives");
}

#[test]
fn a_death_is_noticed_though_a_forked_child_lives_on() {
    let mut child = Running::start("forks");
    let heir = Heir(Pid::from_raw(child.hear().parse().unwrap()).unwrap());
    let node = Node::open().unwrap();
    let peer = node.connect(&child.address, LONG).unwrap();
    let address = child.address;
    child.kill();
    eventually("the death is noticed", || !peer.is_alive());
    rustix::process::test_kill_process(heir.0).expect("the heir lives");
    // It listens still, as far as the system knows, and nobody waits for it.
    let error = node.connect(&address, LONG).unwrap_err();
    assert!(matches!(error, ReachError::Gone { .. }), "{error}");
}

#[test]
fn a_forked_child_that_drops_the_node_does_it_no_harm() {
    let mut child = Running::start("forks and drops");
    let node = Node::open().unwrap();
    let peer = node.connect(&child.address, LONG).unwrap();
    for _ in 0..2 {
        let pid: i32 = child.hear().parse().unwrap();
        eventually("the forked child ends", || has_ended(pid));
    }
    assert_eq!(peer.map(child.key, LONG).unwrap().len(), crate::child::LEN);
    assert!(peer.is_alive() && node.connect(&child.address, LONG).is_ok());
}

/// Whether a process has ended well, which nobody waits for.
fn has_ended(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("nobody has waited for it");
    let fields: Vec<&str> = status.rsplit_once(") ").expect("a name in brackets").1.split(' ').collect();
    let ended = fields[0] == "Z";
    // The last field is how it ended.
    assert!(!ended || fields.last().map(|code| code.trim()) == Some("0"), "{status}");
    ended
}

struct Heir(Pid);

impl Drop for Heir {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn leaving_is_no_death_and_closing_is() {
    let deaths = Arc::new(AtomicU32::new(0));
    let (node, other) = (Node::open().unwrap(), Node::open().unwrap());
    let counter = deaths.clone();
    node.on_death(Box::new(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    for _ in 0..10 {
        drop(node.connect(&other.address(), LONG).unwrap());
    }
    let peer = node.connect(&other.address(), LONG).unwrap();
    assert!(peer.is_alive());
    drop(other);
    eventually("the end of the node is noticed", || !peer.is_alive());
    eventually("and told", || deaths.load(Ordering::SeqCst) > 0);
    // The thread has dealt with the earlier links by then: it was told of them before.
    assert_eq!(deaths.load(Ordering::SeqCst), 1);
}

#[test]
fn a_node_may_end_in_its_own_callback() {
    let (node, other) = (Node::open().unwrap(), Node::open().unwrap());
    let (tell, told) = mpsc::channel();
    let peer = node.connect(&other.address(), LONG).unwrap();
    let last = std::sync::Mutex::new(None);
    let last = Arc::new(last);
    let taken = last.clone();
    node.on_death(Box::new(move |_| {
        drop(taken.lock().unwrap().take());
        tell.send(()).unwrap();
    }));
    *last.lock().unwrap() = Some((node, peer));
    drop(other);
    told.recv_timeout(LONG).unwrap();
}

#[test]
fn nobody_and_other_hosts_are_told_apart() {
    let node = Node::open().unwrap();
    let gone = Node::open().unwrap().address();
    assert!(matches!(node.connect(&gone, LONG), Err(ReachError::Gone { .. })));
    let mut bytes = gone.to_bytes();
    bytes[3] ^= 1;
    let elsewhere = NodeAddress::from_bytes(&bytes).unwrap();
    let error = node.connect(&elsewhere, LONG).unwrap_err();
    assert!(matches!(error, ReachError::OtherHost { .. }), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
}

#[test]
fn a_process_reaches_itself() {
    let node = Node::open().unwrap();
    let key = node.share(&fulmen_memory::Region::alloc(64).unwrap()).unwrap();
    assert_eq!(node.connect(&node.address(), LONG).unwrap().map(key, LONG).unwrap().len(), 64);
}
