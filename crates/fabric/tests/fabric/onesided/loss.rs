//! Peers that leave, stop or die.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_fabric::{FabricError, FabricOptions, Rights};
use fulmen_soft::Profile;
use rustix::process::Signal;

use super::{all, bytes, give, hear, pooled, private, remote, say, sole};
use crate::liveness::{Victim, park, play as play_victim, say as say_aloud};
use crate::world::{self, CARRIERS, Carrier, LONG, eventually, options, released};

#[test]
fn operations_on_a_rank_that_left_end_at_once() {
    let (shared, gone) = (Barrier::new(2), AtomicBool::new(false));
    world::start_over_each(
        2,
        |_| FabricOptions { farewell: Duration::from_secs(1), ..options() },
        |rank, fabric| {
            let fabric = fabric.unwrap();
            if rank == 0 {
                gone.store(false, Ordering::SeqCst);
                let share = fabric.share(&pooled(&fabric, 64), all()).unwrap();
                give(&fabric, 1, &share.key());
                hear(&fabric, 1);
                shared.wait();
                return;
            }
            let remote = remote(&fabric, 0);
            let own = fabric.share(&pooled(&fabric, 64), all()).unwrap();
            remote.put_bytes(0, &[1], LONG).unwrap();
            say(&fabric, 0);
            shared.wait();
            let error = own.wait_counter(0, 1, LONG).unwrap_err();
            assert!(matches!(error, FabricError::PeerLost { rank: 0, op: "wait_counter", .. }), "{error:?}");
            for error in [
                remote.put_bytes(0, &[1], LONG).unwrap_err(),
                remote.get_bytes(0, &mut [1], LONG).unwrap_err(),
                remote.fetch_add(0, 1, LONG).unwrap_err(),
                remote.start_put(0, &pooled(&fabric, 8)).unwrap_err(),
                fabric.flush(0, LONG).unwrap_err(),
                fabric.fence(0).unwrap_err(),
            ] {
                assert!(matches!(error, FabricError::PeerLost { rank: 0, .. }), "{error:?}");
            }
        },
    );
}

/// Bytes of a put that takes a while.
const LARGE: usize = 8 << 20;

/// Rank 1 in a process of its own. As a test of its own it does nothing.
#[test]
fn victim() {
    let Some((role, fabric)) = play_victim() else { return };
    match role.as_str() {
        // It puts without end into what rank 0 shares.
        "puts" => {
            say_aloud("ready");
            loop {
                let remote = remote(&fabric, 0);
                let data = private(remote.len() as usize);
                data.fill(0..data.len(), 1);
                while remote.put(0, &data, LONG).is_ok() {}
                say(&fabric, 0);
            }
        }
        // It shares memory.
        "shares" => {
            say_aloud("ready");
            let shared = fabric.share(&pooled(&fabric, LARGE), all()).unwrap();
            give(&fabric, 0, &shared.key());
            park();
        }
        role => panic!("there is no role {role}"),
    }
}

#[test]
fn memory_that_a_stopped_peer_may_still_write_is_kept_until_it_cannot() {
    for carrier in [Carrier::Reach, Carrier::Device(Profile::Thunderbolt)] {
        println!("over {carrier:?}");
        let (fabric, victim) = Victim::start_as("onesided::loss::victim", "puts", carrier);
        let end = Instant::now() + LONG;
        let mut block = loop {
            assert!(Instant::now() < end, "rank 1 is never seen in the middle of a put");
            let shared = fabric.share(&pooled(&fabric, LARGE), all()).unwrap();
            give(&fabric, 1, &shared.key());
            let memory = shared.memory().clone();
            eventually("the first put", || memory.atomic_u64(0).load(Ordering::Relaxed) != 0);
            victim.stop();
            match shared.close(Duration::from_millis(200)) {
                Err(error) => {
                    let expected =
                        matches!(&error, FabricError::TimedOut { op: "close", missing, .. } if *missing == [1]);
                    assert!(expected, "{error:?}");
                    break memory.into_block().expect_err("it is kept: rank 1 is in the middle of a put");
                }
                // It was stopped between two puts.
                Ok(()) => {
                    victim.signal(Signal::CONT);
                    hear(&fabric, 1);
                }
            }
        };
        // As long as it is stopped.
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(5));
            drop(fabric.share(&private(64), Rights::READ).unwrap());
            block = block.into_block().expect_err("rank 1 may still write it");
        }
        victim.signal(Signal::KILL);
        released("the end of the quarantine", block);
    }
}

#[test]
fn memory_comes_back_when_a_stopped_peer_goes_on() {
    let (fabric, victim) = Victim::start_as("onesided::loss::victim", "puts", Carrier::Reach);
    for _ in 0..3 {
        let shared = fabric.share(&pooled(&fabric, LARGE), all()).unwrap();
        give(&fabric, 1, &shared.key());
        let memory = shared.memory().clone();
        eventually("the first put", || memory.atomic_u64(0).load(Ordering::Relaxed) != 0);
        victim.stop();
        // Whether it is in the middle of a put or not.
        drop(shared);
        victim.signal(Signal::CONT);
        hear(&fabric, 1);
        released("the end of the quarantine", memory);
    }
}

#[test]
fn the_end_of_the_owner_ends_operations_with_its_name() {
    for carrier in CARRIERS {
        println!("over {carrier:?}");
        let (fabric, victim) = Victim::start_as("onesided::loss::victim", "shares", carrier);
        let remote = remote(&fabric, 1);
        let data = pooled(&fabric, LARGE);
        remote.put(0, &data, LONG).unwrap();
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                // While puts follow one another, wherever that is.
                thread::sleep(Duration::from_millis(50));
                victim.signal(Signal::KILL);
            });
            loop {
                if let Err(error) = remote.put(0, &data, LONG) {
                    break error;
                }
            }
        });
        let text = error.to_string();
        assert!(matches!(error, FabricError::PeerLost { rank: 1, op: "put", .. }), "{text}");
        assert!(text.contains("rank 1") && text.contains(&fabric.link_kind().to_string()), "{text}");
        for error in [
            remote.put_bytes(0, &[1], LONG).unwrap_err(),
            remote.fetch_add(0, 1, LONG).unwrap_err(),
            remote.get(0, &data, LONG).unwrap_err(),
            fabric.flush(1, LONG).unwrap_err(),
        ] {
            assert!(matches!(error, FabricError::PeerLost { rank: 1, .. }), "{error:?}");
        }
        drop(sole(data));
    }
}

#[test]
fn a_deadline_bounds_an_operation_on_a_stopped_rank() {
    let (fabric, victim) = Victim::start_as("onesided::loss::victim", "shares", Carrier::Device(Profile::Thunderbolt));
    let remote = remote(&fabric, 1);
    let data = pooled(&fabric, 100_000);
    remote.put(0, &data, LONG).unwrap();
    victim.stop();
    let short = Duration::from_millis(200);
    for (name, error) in [
        ("put", remote.put(0, &data, short).unwrap_err()),
        ("put", remote.put_bytes(0, &[1; 1000], short).unwrap_err()),
        ("get", remote.get(0, &data, short).unwrap_err()),
        ("fetch_add", remote.fetch_add(0, 1, short).unwrap_err()),
        ("flush", fabric.flush(1, short).unwrap_err()),
    ] {
        let expected = matches!(&error, FabricError::TimedOut { op, missing, .. } if *op == name && *missing == [1]);
        assert!(expected, "{error:?}");
    }
    victim.signal(Signal::CONT);
    fabric.flush(1, LONG).unwrap();
    remote.put(0, &data, LONG).unwrap();
    drop(remote);
    eventually("the end of the last operation", || fabric.flush(1, LONG).is_ok());
}

#[test]
fn an_owner_that_is_stopped_is_not_needed_where_others_can_do_without_it() {
    for carrier in [Carrier::Reach, Carrier::Device(Profile::Infiniband)] {
        println!("over {carrier:?}");
        let (fabric, victim) = Victim::start_as("onesided::loss::victim", "shares", carrier);
        let remote = remote(&fabric, 1);
        let (data, into) = (pooled(&fabric, 100_000), pooled(&fabric, 100_000));
        // A device maps memory when it is first used.
        remote.put_bytes(0, &[0; 8], LONG).unwrap();
        victim.stop();
        data.fill(0..100_000, 5);
        remote.put(8, &data, LONG).unwrap();
        remote.get(8, &into, LONG).unwrap();
        assert_eq!(bytes(&into), [5; 100_000]);
        assert_eq!(remote.fetch_add(0, 3, LONG).unwrap(), 0);
        assert_eq!(remote.compare_swap(0, 3, 4, LONG).unwrap(), 3);
        remote.put_counted(8, &data, (&remote, 0, 1), LONG).unwrap();
        remote.put_bytes(9, &[7], LONG).unwrap();
        let mut plain = [0; 9];
        remote.get_bytes(1, &mut plain, LONG).unwrap();
        assert_eq!(plain, [0, 0, 0, 0, 0, 0, 0, 5, 7]);
        assert_eq!(remote.batch().fetch_add(0, 1).put(16, &[9]).fetch_add(0, 1).post(LONG).unwrap(), [5, 1, 6]);
        fabric.flush(1, LONG).unwrap();
        fabric.fence(1).unwrap();
    }
}
