use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulmen_cluster::sync::{Barrier, Guarded, Lock, SyncError};

use super::carriers::Carrier;
use super::ranks::{LONG, threads};

/// A lease that no test outlives, also on a busy machine.
const FOR_EVER: Duration = Duration::from_secs(3600);

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn one_rank_at_a_time_holds_a_lock_and_no_change_is_lost() {
    const RANKS: u32 = 3;
    const TURNS: u64 = 40;
    for carrier in Carrier::all() {
        let inside = AtomicU32::new(0);
        threads(RANKS, &carrier, |group| {
            let lock = Lock::new(&group, 1, FOR_EVER).unwrap();
            let value = Guarded::new(&group, 2, 100).unwrap();
            let mut last = 0;
            for _ in 0..TURNS {
                let mut guard = lock.acquire(LONG).unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{carrier}");
                assert!(guard.fence() > last, "{carrier}");
                let mut bytes = value.read(LONG).unwrap();
                let next = number(&bytes) + 1;
                bytes[..8].copy_from_slice(&next.to_le_bytes());
                bytes[92..].copy_from_slice(&next.to_le_bytes());
                value.write(&mut guard, &bytes).unwrap();
                last = guard.fence();
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                guard.release().unwrap();
            }
            group.barrier().unwrap();
            let bytes = value.read(LONG).unwrap();
            assert_eq!((number(&bytes), number(&bytes[92..])), (TURNS * u64::from(RANKS), TURNS * u64::from(RANKS)));
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_value_is_read_as_a_whole_while_it_changes() {
    for carrier in Carrier::all() {
        threads(2, &carrier, |group| {
            let lock = Lock::new(&group, 0, FOR_EVER).unwrap();
            let value = Guarded::new(&group, 0, 4000).unwrap();
            if group.rank() == 0 {
                let mut guard = lock.acquire(LONG).unwrap();
                for round in 1..=100u8 {
                    value.write(&mut guard, &[round; 4000]).unwrap();
                }
            } else {
                let mut last = 0;
                while last < 100 {
                    let bytes = value.read(LONG).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{carrier}");
                    assert!(bytes[0] >= last, "{carrier}");
                    last = bytes[0];
                }
            }
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_held_lock_is_named_and_a_renewed_one_stays() {
    threads(2, &Carrier::Shared, |group| {
        let lease = Duration::from_millis(400);
        let lock = Lock::new(&group, 0, lease).unwrap();
        if group.rank() == 0 {
            let mut guard = lock.acquire(LONG).unwrap();
            group.barrier().unwrap();
            let until = Instant::now() + lease * 3;
            let mut lost = None;
            while Instant::now() < until && lost.is_none() {
                std::thread::sleep(lease / 20);
                // On a machine that does not run this thread for so long, the lease may run out; then it says so.
                lost = guard.renew().err();
            }
            match lost {
                None => guard.release().unwrap(),
                Some(error) => assert!(matches!(error, SyncError::Lost { op: "renew", .. }), "{error}"),
            }
        } else {
            group.barrier().unwrap();
            assert!(lock.try_acquire().unwrap().is_none());
            match lock.acquire(lease * 2) {
                Err(SyncError::Held { holder: 0, .. }) => {}
                Err(other) => panic!("{other}"),
                Ok(guard) => assert!(guard.fence() > 1),
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    const RANKS: u32 = 3;
    for carrier in Carrier::all() {
        let came = AtomicU64::new(0);
        threads(RANKS, &carrier, |group| {
            let barrier = Barrier::new(&group, 2).unwrap();
            for round in 1..=50 {
                came.fetch_add(1, Ordering::SeqCst);
                barrier.wait(LONG).unwrap();
                assert!(came.load(Ordering::SeqCst) >= round * u64::from(RANKS), "{carrier}");
            }
            group.barrier().unwrap();
        });
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    threads(2, &Carrier::Shared, |group| {
        assert!(matches!(Lock::new(&group, 2, FOR_EVER), Err(SyncError::Invalid { .. })));
        assert!(matches!(Lock::new(&group, 0, Duration::ZERO), Err(SyncError::Invalid { .. })));
        assert!(matches!(Barrier::new(&group, 7), Err(SyncError::Invalid { .. })));
        let (lock, value) = (Lock::new(&group, 0, FOR_EVER).unwrap(), Guarded::new(&group, 0, 8).unwrap());
        if group.rank() == 0 {
            let mut guard = lock.acquire(LONG).unwrap();
            assert!(matches!(value.write(&mut guard, &[1; 9]), Err(SyncError::Length { len: 9, size: 8 })));
        }
        group.barrier().unwrap();
    });
}

/// In a group of some ranks, whose numbers there are others.
#[test]
fn groups_that_were_split_off_have_locks_and_barriers() {
    for carrier in Carrier::all() {
        threads(3, &carrier, |world| {
            let Some(group) = world.from_ranks(&[2, 0]).unwrap() else { return };
            let lock = Lock::new(&group, 0, LONG).unwrap();
            let total = Guarded::new(&group, 1, 8).unwrap();
            let barrier = Barrier::new(&group, 1).unwrap();
            for _ in 0..20 {
                let mut guard = lock.acquire(LONG).unwrap();
                let before = u64::from_le_bytes(total.read(LONG).unwrap().try_into().unwrap());
                total.write(&mut guard, &(before + 1).to_le_bytes()).unwrap();
                guard.release().unwrap();
            }
            barrier.wait(LONG).unwrap();
            assert_eq!(total.read(LONG).unwrap(), 40_u64.to_le_bytes());
            // Who leaves serves no memory any more.
            group.barrier().unwrap();
        });
    }
}
