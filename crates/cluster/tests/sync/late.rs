//! Holders that die, and holders that are late; and that a lock without lease and fence number fails there.

use std::env;
use std::time::Duration;

use fulmen_cluster::sync::{Barrier, Guarded, Lock, SyncError};
use fulmen_fabric::{Remote, RemoteKey, Rights};
use rustix::process::Signal;

use super::carriers::Carrier;
use super::ranks::{LONG, ROLE, processes, say, wait_for_go};

const LEASE: Duration = Duration::from_millis(500);

/// A word of rank 0 that is 0 when nobody holds it, and a value: the lock that everybody writes first.
struct Naive {
    memory: Remote,
    _shared: Option<fulmen_fabric::Shared>,
}

impl Naive {
    fn new(group: &fulmen::Group) -> Naive {
        let shared = (group.rank() == 0).then(|| {
            let memory = group.fabric().alloc(16).unwrap().into_exposed();
            memory.fill(0..16, 0);
            group.fabric().share(&memory, Rights::READ | Rights::WRITE | Rights::ATOMIC).unwrap()
        });
        let mut key = [0; 256];
        if let Some(shared) = &shared {
            let bytes = shared.key().to_bytes();
            key[0] = bytes.len() as u8;
            key[1..=bytes.len()].copy_from_slice(&bytes);
        }
        group.broadcast(&mut key[..], 0).unwrap();
        let key = RemoteKey::from_bytes(&key[1..=usize::from(key[0])]).unwrap();
        Naive { memory: group.fabric().remote(0, &key).unwrap(), _shared: shared }
    }

    fn try_acquire(&self) -> bool {
        self.memory.compare_swap(0, 0, 1, LONG).unwrap() == 0
    }

    fn release(&self) {
        self.memory.compare_swap(0, 1, 0, LONG).unwrap();
    }

    fn write(&self, value: u64) {
        self.memory.put_bytes(8, &value.to_le_bytes(), LONG).unwrap();
    }

    fn read(&self) -> u64 {
        let mut bytes = [0; 8];
        self.memory.get_bytes(8, &mut bytes, LONG).unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// The ranks themselves. Nothing when it runs as a test.
#[test]
fn a_rank() {
    let Ok(role) = env::var(ROLE) else { return };
    let group = fulmen::init().unwrap();
    let rank = group.rank();
    let lock = Lock::new(&group, 0, LEASE).unwrap();
    let value = Guarded::new(&group, 0, 8).unwrap();
    let naive = Naive::new(&group);
    let barrier = Barrier::new(&group, 0).unwrap();
    group.barrier().unwrap();
    match (role.as_str(), rank) {
        // Takes both locks and dies with them.
        ("die", 2) => {
            let _guard = lock.acquire(LONG).unwrap();
            assert!(naive.try_acquire());
            say("held");
            wait_for_go();
            unreachable!("it is killed");
        }
        ("die", _) => {
            say("ready");
            wait_for_go();
            let guard = lock.acquire(LONG).unwrap();
            say(&format!("acquired {}", guard.fence()));
            // On a machine that does not run this thread for so long, the lease may run out; then it says so.
            if let Err(error) = guard.release() {
                assert!(matches!(error, SyncError::Lost { op: "release", .. }), "{error}");
            }
            say(&format!("naive {}", naive.try_acquire()));
            let error = barrier.wait(LONG).unwrap_err();
            say(&format!("barrier {error}"));
            // With rank 0 goes the lock, which the other one may still wait for.
            wait_for_go();
        }
        // Is stopped in its critical section, and goes on when another rank has been there.
        ("late", 1) => {
            let mut guard = lock.acquire(LONG).unwrap();
            assert!(naive.try_acquire());
            say("held");
            wait_for_go();
            let refused = value.write(&mut guard, &1u64.to_le_bytes());
            say(&format!("fenced {}", matches!(refused, Err(SyncError::Lost { .. }))));
            drop(guard);
            naive.write(1);
            say("wrote");
            wait_for_go();
        }
        ("late", 0) => {
            say("ready");
            wait_for_go();
            let mut guard = lock.acquire(LONG).unwrap();
            value.write(&mut guard, &2u64.to_le_bytes()).unwrap();
            // The naive lock with a lease bolted on: taken away, since its holder does not move.
            naive.release();
            assert!(naive.try_acquire());
            naive.write(2);
            say("took over");
            wait_for_go();
            let bytes = value.read(LONG).unwrap();
            say(&format!("guarded {}", u64::from_le_bytes(bytes.try_into().unwrap())));
            say(&format!("naive {}", naive.read()));
            assert!(guard.renew().is_ok() || guard.remaining().is_zero());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_lock_of_a_killed_holder_is_free_and_a_naive_one_is_not() {
    for carrier in Carrier::all() {
        let (_serving, mut ranks) = processes(3, &carrier, "die");
        assert_eq!(ranks[2].line(), "held");
        assert_eq!([ranks[0].line(), ranks[1].line()], ["ready", "ready"]);
        ranks[2].signal(Signal::KILL);
        for rank in &mut ranks[..2] {
            rank.go();
        }
        let mut fences = Vec::new();
        for rank in &mut ranks[..2] {
            let line = rank.line();
            let fence: u64 = line.strip_prefix("acquired ").unwrap().parse().unwrap();
            assert!(fence > 1, "{carrier}: greater than the dead holder's");
            fences.push(fence);
            assert_eq!(rank.line(), "naive false", "{carrier}");
            let barrier = rank.line();
            assert!(barrier.contains("rank 2 was lost"), "{carrier}: {barrier}");
        }
        for rank in &mut ranks[..2] {
            rank.go();
        }
        assert_ne!(fences[0], fences[1]);
    }
}

#[test]
fn a_late_holder_changes_nothing_and_with_a_naive_lock_it_does() {
    for carrier in Carrier::all() {
        let (_serving, mut ranks) = processes(2, &carrier, "late");
        assert_eq!(ranks[1].line(), "held");
        assert_eq!(ranks[0].line(), "ready");
        ranks[1].signal(Signal::STOP);
        ranks[0].go();
        assert_eq!(ranks[0].line(), "took over", "{carrier}");
        ranks[1].signal(Signal::CONT);
        ranks[1].go();
        assert_eq!(ranks[1].line(), "fenced true", "{carrier}");
        assert_eq!(ranks[1].line(), "wrote");
        ranks[0].go();
        assert_eq!(ranks[0].line(), "guarded 2", "{carrier}");
        assert_eq!(ranks[0].line(), "naive 1", "{carrier}: the naive lock would have kept 2");
    }
}
