//! What is refused, and what a close ends.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::thread;

use fulmen_fabric::{Fabric, FabricError, Remote, RemoteKey, Rights, Shared};

use super::{Side, all, all_done, bytes, give, hear, on_rank_zero, pooled, private, rounds, say, sole, take};
use crate::world::{self, LONG, options};

#[test]
fn what_the_owner_does_not_allow_is_refused_by_name_and_changes_nothing() {
    world::run_over_each(2, |fabric| {
        let other = 1 - fabric.rank();
        let memories = [Rights::READ, Rights::WRITE, Rights::ATOMIC, Rights::all()].map(|rights| {
            let memory = pooled(fabric, 100);
            memory.fill(0..100, 7);
            fabric.share(&memory, rights).unwrap()
        });
        memories.iter().for_each(|shared| give(fabric, other, &shared.key()));
        for own in [false, true] {
            let keys = match own {
                // Of this rank itself, with the same checks.
                true => memories.iter().map(Shared::key).collect::<Vec<_>>(),
                false => (0..4).map(|_| take(fabric, other)).collect(),
            };
            let rank = if own { fabric.rank() } else { other };
            let [reads, writes, counts, all] =
                keys.iter().map(|key| fabric.remote(rank, key).unwrap()).collect::<Vec<_>>().try_into().unwrap();
            refusals(fabric, rank, [&reads, &writes, &counts], &all);
        }
        all_done(fabric);
        if fabric.rank() == 0 {
            say(fabric, 1);
        } else {
            hear(fabric, 0);
        }
        memories.iter().for_each(|shared| assert_eq!(bytes(shared.memory()), [7; 100]));
    });
}

fn refusals(fabric: &Fabric, rank: u32, [reads, writes, counts]: [&Remote; 3], all: &Remote) {
    let data = pooled(fabric, 8);
    let permitted = |outcome: Result<(), FabricError>, name: &str, need: Rights| {
        let error = outcome.unwrap_err();
        let expected = matches!(&error, FabricError::NotPermitted { op, rank: of, need: n } if *op == name && *of == rank && *n == need);
        assert!(expected, "{error:?}");
    };
    for remote in [reads, counts] {
        permitted(remote.put(0, &data, LONG), "put", Rights::WRITE);
        permitted(remote.put_bytes(0, &[1], LONG), "put", Rights::WRITE);
        permitted(remote.put_counted(0, &data, (all, 0, 1), LONG), "put", Rights::WRITE);
    }
    for remote in [writes, counts] {
        permitted(remote.get(0, &data, LONG), "get", Rights::READ);
        permitted(remote.get_bytes(0, &mut [1], LONG), "get", Rights::READ);
    }
    for remote in [reads, writes] {
        permitted(remote.fetch_add(0, 1, LONG).map(drop), "fetch_add", Rights::ATOMIC);
        permitted(remote.compare_swap(0, 0, 1, LONG).map(drop), "compare_swap", Rights::ATOMIC);
        permitted(all.put_counted(0, &data, (remote, 0, 1), LONG), "put", Rights::ATOMIC);
    }
    let outside = |outcome: Result<(), FabricError>, name: &str| {
        let error = outcome.unwrap_err();
        let expected =
            matches!(&error, FabricError::OutOfBounds { op, rank: of, region: 100, .. } if *op == name && *of == rank);
        assert!(expected, "{error:?}");
    };
    for at in [93, 100, 101, u64::MAX - 3, u64::MAX] {
        outside(all.put(at, &data, LONG), "put");
        outside(all.put_bytes(at, &[0; 8], LONG), "put");
        outside(all.get(at, &data, LONG), "get");
        outside(all.get_bytes(at, &mut [0; 8], LONG), "get");
        outside(all.fetch_add(at, 1, LONG).map(drop), "fetch_add");
        outside(all.compare_swap(at, 7, 1, LONG).map(drop), "compare_swap");
        outside(all.put_counted(at, &data, (all, 0, 1), LONG), "put");
        outside(all.put_counted(0, &data, (all, at, 1), LONG), "put");
        outside(all.start_put(at, &data).and_then(|put| put.wait(LONG)).map(drop), "put");
    }
    for at in [1, 4, 91] {
        for error in [
            all.fetch_add(at, 1, LONG).unwrap_err(),
            all.compare_swap(at, 7, 1, LONG).unwrap_err(),
            all.put_counted(0, &data, (all, at, 1), LONG).unwrap_err(),
        ] {
            let expected =
                matches!(error, FabricError::Misaligned { rank: of, offset, .. } if of == rank && offset == at);
            assert!(expected, "{error:?}");
        }
    }
}

#[test]
fn keys_of_other_ranks_of_ended_shares_and_of_nobody_are_refused() {
    world::run_over_each(3, |fabric| {
        let (rank, next) = (fabric.rank(), (fabric.rank() + 1) % 3);
        let before = (rank + 2) % 3;
        let memory = pooled(fabric, 64);
        let shared = fabric.share(&memory, all()).unwrap();
        give(fabric, next, &shared.key());
        let key = take(fabric, before);
        let refused = |owner: u32, key: &RemoteKey| {
            let used = fabric.remote(owner, key).and_then(|remote| remote.put_bytes(0, &[9; 8], LONG));
            let error = used.unwrap_err();
            assert!(matches!(error, FabricError::NoSuchKey { rank, .. } if rank == owner), "{error:?}");
        };
        // Not the owner.
        refused(next, &key);
        refused(rank, &key);
        let error = fabric.remote(3, &key).unwrap_err();
        assert!(matches!(error, FabricError::NoSuchRank { rank: 3, size: 3, .. }), "{error:?}");
        // Each byte of it that is changed makes no key of it.
        let good = key.to_bytes();
        for at in 0..good.len() {
            for change in [1, 0x80] {
                let mut bytes = good.clone();
                bytes[at] ^= change;
                assert!(RemoteKey::from_bytes(&bytes).is_err(), "byte {at} was changed");
            }
        }
        assert!(RemoteKey::from_bytes(b"some bytes that somebody sent").is_err());
        let held = fabric.remote(before, &key).unwrap();
        held.put_bytes(0, &[before as u8; 8], LONG).unwrap();
        // Everybody has done that before anybody closes.
        say(fabric, before);
        hear(fabric, next);
        assert_eq!(bytes(&memory.slice(0..8)), [rank as u8; 8]);
        shared.close(LONG).unwrap();
        say(fabric, next);
        hear(fabric, before);
        refused(before, &key);
        let error = held.put_bytes(0, &[9; 8], LONG).unwrap_err();
        assert!(matches!(error, FabricError::NoSuchKey { op: "put", rank } if rank == before), "{error:?}");
        let error = held.fetch_add(0, 1, LONG).unwrap_err();
        assert!(matches!(error, FabricError::NoSuchKey { op: "fetch_add", rank } if rank == before), "{error:?}");
        let error = held.get_bytes(0, &mut [0; 8], LONG).unwrap_err();
        assert!(matches!(error, FabricError::NoSuchKey { op: "get", rank } if rank == before), "{error:?}");
        // The same memory under a new key is none of the old one's business.
        let again = fabric.share(&memory, all()).unwrap();
        refused(before, &key);
        say(fabric, before);
        hear(fabric, next);
        assert_eq!(bytes(&memory.slice(0..8)), [rank as u8; 8]);
        drop(again);
        drop(sole(memory));
        say(fabric, next);
        hear(fabric, before);
    });
}

#[test]
fn after_a_close_no_byte_changes_although_peers_go_on() {
    world::run_over_each(3, |fabric| {
        for len in [64, 300_000] {
            for _ in 0..rounds(5) {
                match on_rank_zero(fabric, || pooled(fabric, len), all()) {
                    Side::Owner(shared) => {
                        let memory = shared.memory().clone();
                        all_done(fabric);
                        while memory.atomic_u64(0).load(Ordering::Relaxed) == 0 {
                            thread::yield_now();
                        }
                        shared.close(LONG).unwrap();
                        // The block is this rank's alone now, which no peer can see.
                        let mut block = sole(memory);
                        let mine = vec![0xEE; len];
                        block.as_mut_slice::<u8>().copy_from_slice(&mine);
                        (1..3).for_each(|rank| hear(fabric, rank));
                        assert!(block.as_slice::<u8>() == mine, "a byte has changed after the close");
                    }
                    Side::Other(remote) => {
                        all_done(fabric);
                        let data = pooled(fabric, len);
                        data.fill(0..len, 1);
                        let error = loop {
                            if let Err(error) = remote.put(0, &data, LONG) {
                                break error;
                            }
                        };
                        assert!(matches!(error, FabricError::NoSuchKey { op: "put", rank: 0 }), "{error:?}");
                        say(fabric, 0);
                    }
                }
            }
        }
    });
}

#[test]
fn as_many_shares_as_there_is_room_for_and_no_more() {
    let fabric = {
        let providers = fulmen_fabric::Providers {
            node: Some(fulmen_reach::Node::open().unwrap()),
            ..fulmen_fabric::Providers::default()
        };
        Fabric::start(fulmen_fabric::Session::alone(), options(), providers).unwrap()
    };
    let memory = private(64);
    let mut shares: Vec<_> = (0..4096).map(|_| fabric.share(&memory, Rights::READ).unwrap()).collect();
    let keys: HashSet<_> = shares.iter().map(|shared| shared.key().to_bytes()).collect();
    assert_eq!(keys.len(), 4096, "each has a key of its own");
    let error = fabric.share(&memory, Rights::READ).unwrap_err();
    assert!(matches!(error, FabricError::TooManyShares { most: 4096, .. }), "{error:?}");
    shares.pop();
    fabric.share(&memory, Rights::READ).unwrap();
}
