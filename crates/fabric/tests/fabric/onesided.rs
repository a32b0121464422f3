//! One-sided operations: what they do, what they refuse, and what ends them.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::liveness::{Victim, park, play as play_victim, say as say_aloud};
use crate::world::{self, CARRIERS, Carrier, LONG, eventually, options, released};
use fulmen_fabric::{Fabric, FabricError, FabricOptions, Remote, RemoteKey, Rights, Shared};
use fulmen_memory::{Block, Exposed, Region};
use fulmen_soft::Profile;
use fulmen_verbs::Capabilities;
use rustix::process::Signal;

/// Tags of the messages that bring keys, and of others.
const KEY: u64 = 1;
const SAY: u64 = 2;

fn rounds(few: usize) -> usize {
    few * fulmen_testbed::by_tier(1, 2, 5)
}

/// Numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
        bytes
    }
}

fn all() -> Rights {
    Rights::all()
}

fn pooled(fabric: &Fabric, len: usize) -> Exposed {
    let memory = fabric.alloc(len).unwrap().into_exposed();
    memory.fill(0..len, 0);
    memory
}

fn private(len: usize) -> Exposed {
    Region::alloc(len.max(1)).unwrap().expose().unwrap().slice(0..len)
}

fn bytes(memory: &Exposed) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

fn give(fabric: &Fabric, to: u32, key: &RemoteKey) {
    fabric.send_bytes(to, KEY, &key.to_bytes(), LONG).unwrap();
}

fn take(fabric: &Fabric, from: u32) -> RemoteKey {
    let mut bytes = [0; 512];
    let len = fabric.recv_bytes(from, KEY, &mut bytes, LONG).unwrap();
    RemoteKey::from_bytes(&bytes[..len]).unwrap()
}

fn remote(fabric: &Fabric, from: u32) -> Remote {
    fabric.remote(from, &take(fabric, from)).unwrap()
}

fn say(fabric: &Fabric, to: u32) {
    fabric.send_bytes(to, SAY, &[], LONG).unwrap();
}

fn hear(fabric: &Fabric, from: u32) {
    fabric.recv_bytes(from, SAY, &mut [], LONG).unwrap();
}

/// What a rank has of rank 0's memory.
enum Side {
    Owner(Shared),
    Other(Remote),
}

/// Rank 0 shares, and the others get a remote of it.
fn on_rank_zero(fabric: &Fabric, memory: impl Fn() -> Exposed, rights: Rights) -> Side {
    if fabric.rank() != 0 {
        return Side::Other(remote(fabric, 0));
    }
    let shared = fabric.share(&memory(), rights).unwrap();
    (1..fabric.size()).for_each(|rank| give(fabric, rank, &shared.key()));
    Side::Owner(shared)
}

/// All other ranks have told rank 0 that they are so far.
fn all_done(fabric: &Fabric) {
    match fabric.rank() {
        0 => (1..fabric.size()).for_each(|rank| hear(fabric, rank)),
        _ => say(fabric, 0),
    }
}

const SHARE: usize = (2 << 20) + 13;

#[test]
fn puts_and_gets_of_every_size_do_what_a_model_says() {
    let sizes = [0, 1, 7, 8, 9, 63, 4096, 4099, 8192, 16 << 10, 64 << 10, (64 << 10) + 1, 1 << 20, (1 << 20) + 5];
    world::run_over_each(2, |fabric| {
        for own_region in [false, true] {
            let memory = || match own_region {
                // It starts somewhere in its region.
                true => private(SHARE + 3).slice(3..SHARE + 3),
                false => pooled(fabric, SHARE),
            };
            match on_rank_zero(fabric, memory, all()) {
                Side::Owner(shared) => {
                    let mut expected = vec![0; SHARE];
                    assert_eq!(fabric.recv_bytes(1, SAY, &mut expected, LONG).unwrap(), SHARE);
                    assert!(bytes(shared.memory()) == expected, "the owner sees something else");
                    shared.close(LONG).unwrap();
                }
                Side::Other(remote) => {
                    let mut model = vec![0; SHARE];
                    play(fabric, &remote, &mut model, &sizes);
                    fabric.flush(0, LONG).unwrap();
                    fabric.send_bytes(0, SAY, &model, LONG).unwrap();
                }
            }
        }
    });
}

fn play(fabric: &Fabric, remote: &Remote, model: &mut [u8], sizes: &[usize]) {
    let mut dice = Dice(7);
    assert_eq!((remote.rank(), remote.len(), remote.is_empty()), (0, model.len() as u64, false));
    for round in 0..rounds(6) {
        for len in sizes {
            let at = dice.below(model.len() - len + 1);
            let data = dice.bytes(*len);
            let source = if round % 2 == 0 { pooled(fabric, *len) } else { private(*len) };
            source.write(0, &data);
            match dice.below(4) {
                0 => remote.put(at as u64, &source, LONG).unwrap(),
                1 => remote.put_bytes(at as u64, &data, LONG).unwrap(),
                2 => assert_eq!(remote.start_put(at as u64, &source).unwrap().wait(LONG).unwrap(), *len as u64),
                _ => {
                    // Two halves at the same time.
                    let half = len / 2;
                    let one = remote.start_put(at as u64, &source.slice(0..half)).unwrap();
                    let two = remote.start_put((at + half) as u64, &source.slice(half..*len)).unwrap();
                    two.wait(LONG).unwrap();
                    one.wait(LONG).unwrap();
                }
            }
            model[at..at + len].copy_from_slice(&data);

            let from = dice.below(model.len() - len + 1);
            let target = if round % 2 == 0 { pooled(fabric, *len) } else { private(*len) };
            let mut plain = vec![0; *len];
            match dice.below(3) {
                0 => remote.get(from as u64, &target, LONG).unwrap(),
                1 => assert_eq!(remote.start_get(from as u64, &target).unwrap().wait(LONG).unwrap(), *len as u64),
                _ => {
                    remote.get_bytes(from as u64, &mut plain, LONG).unwrap();
                    target.write(0, &plain);
                }
            }
            assert!(bytes(&target) == model[from..from + len], "{len} bytes from {from} came wrong");
        }
    }
}

#[test]
fn atomics_of_all_ranks_and_of_the_owner_add_up() {
    let each = rounds(400) as u64;
    world::run_over_each(3, |fabric| {
        // Words that do not lie at the start of their cache lines, too.
        let shared = on_rank_zero(fabric, || pooled(fabric, 4096), Rights::ATOMIC);
        let mut seen = HashSet::new();
        match &shared {
            Side::Owner(shared) => {
                for _ in 0..each {
                    assert!(seen.insert(shared.memory().atomic_u64(0).fetch_add(1, Ordering::SeqCst)));
                    shared.memory().atomic_u64(4088).fetch_add(1 << 32, Ordering::SeqCst);
                }
            }
            Side::Other(remote) => {
                for _ in 0..each {
                    assert!(seen.insert(remote.fetch_add(0, 1, LONG).unwrap()));
                    let mut found = 0;
                    loop {
                        let before = remote.compare_swap(4088, found, found + 1, LONG).unwrap();
                        if before == found {
                            break;
                        }
                        found = before;
                    }
                }
            }
        }
        let mut all: Vec<u64> = seen.into_iter().collect();
        if fabric.rank() != 0 {
            let bytes: Vec<u8> = all.iter().flat_map(|value| value.to_le_bytes()).collect();
            fabric.send_bytes(0, SAY, &bytes, LONG).unwrap();
            return;
        }
        for rank in 1..3 {
            let mut bytes = vec![0; each as usize * 8];
            fabric.recv_bytes(rank, SAY, &mut bytes, LONG).unwrap();
            all.extend(bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())));
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..3 * each), "each addition brings a value of its own");
        let Side::Owner(shared) = shared else { unreachable!("rank 0 is the owner") };
        assert_eq!(shared.memory().atomic_u64(0).load(Ordering::SeqCst), 3 * each);
        assert_eq!(shared.memory().atomic_u64(4088).load(Ordering::SeqCst), (each << 32) | (2 * each));
    });
}

#[test]
fn a_counter_counts_when_all_bytes_have_landed_and_not_before() {
    for len in [8, 5000, 200_000] {
        world::run_over_each(3, |fabric| counted(fabric, len, rounds(60) as u64));
    }
}

/// Two ranks put into halves of rank 0's memory, which counts them in a share of its own.
fn counted(fabric: &Fabric, len: usize, rounds: u64) {
    let data = on_rank_zero(fabric, || pooled(fabric, 2 * len), Rights::WRITE);
    let counter = on_rank_zero(fabric, || pooled(fabric, 16), Rights::ATOMIC);
    match (data, counter) {
        (Side::Owner(data), Side::Owner(counter)) => {
            let error = counter.wait_counter(8, u64::MAX, Duration::from_millis(20)).unwrap_err();
            assert!(matches!(error, FabricError::TimedOut { op: "wait_counter", .. }), "{error}");
            for (at, name) in [(4, "Misaligned"), (16, "OutOfBounds"), (u64::MAX - 3, "OutOfBounds")] {
                let error = counter.wait_counter(at, 0, LONG).unwrap_err();
                assert!(format!("{error:?}").starts_with(name), "{error:?}");
            }
            for round in 1..=rounds {
                assert_eq!(counter.wait_counter(8, 2 * 3 * round, LONG).unwrap(), 2 * 3 * round);
                assert!(bytes(data.memory()).iter().all(|byte| *byte == round as u8), "counted before it was there");
                (1..3).for_each(|rank| say(fabric, rank));
            }
            all_done(fabric);
        }
        (Side::Other(data), Side::Other(counter)) => {
            let own = pooled(fabric, len);
            let at = (fabric.rank() as usize - 1) * len;
            for round in 1..=rounds {
                own.fill(0..len, round as u8);
                if round % 2 == 0 {
                    data.put_counted(at as u64, &own, (&counter, 8, 3), LONG).unwrap();
                } else {
                    let started = data.start_put_counted(at as u64, &own, (&counter, 8, 3)).unwrap();
                    assert_eq!(started.wait(LONG).unwrap(), len as u64);
                }
                hear(fabric, 0);
            }
            all_done(fabric);
        }
        _ => unreachable!("both are shared by rank 0"),
    }
}

#[test]
fn batches_do_all_of_their_operations() {
    world::run_over_each(2, |fabric| match on_rank_zero(fabric, || pooled(fabric, 8192), all()) {
        Side::Owner(shared) => {
            hear(fabric, 1);
            assert_eq!(bytes(&shared.memory().slice(0..512)), (0..512).map(|at| at as u8).collect::<Vec<_>>());
            assert_eq!(shared.memory().atomic_u64(4096).load(Ordering::SeqCst), 100 + 5);
        }
        Side::Other(remote) => {
            assert_eq!(remote.batch().post(LONG).unwrap(), Vec::<u64>::new());
            let mut batch = remote.batch();
            for at in 0..512 {
                batch.put(at, &[at as u8]);
            }
            for _ in 0..100 {
                batch.fetch_add(4096, 1);
            }
            assert_eq!((batch.len(), batch.is_empty()), (612, false));
            let values = batch.post(LONG).unwrap();
            assert!(values[..512].iter().all(|len| *len == 1));
            let found: HashSet<u64> = values[512..].iter().copied().collect();
            assert_eq!(found, (0..100).collect(), "each addition finds another value");
            assert!(batch.is_empty());
            let (one, two) = (pooled(fabric, 300), private(8));
            batch.get(0, &one).get(256, &two).compare_swap(4096, 100, 105).compare_swap(4104, 7, 8);
            assert_eq!(batch.post(LONG).unwrap(), [300, 8, 100, 0]);
            assert_eq!(bytes(&one), (0..300).map(|at| at as u8).collect::<Vec<_>>());
            assert_eq!(bytes(&two), (0..8).collect::<Vec<_>>());
            // One that is refused is told, whatever came before it.
            let error = batch.put(0, &[0]).fetch_add(4097, 1).post(LONG).unwrap_err();
            assert!(matches!(error, FabricError::Misaligned { op: "fetch_add", rank: 0, offset: 4097 }), "{error}");
            say(fabric, 0);
        }
    });
}

#[test]
fn a_fence_keeps_what_comes_after_it_behind() {
    world::run_over_each(2, |fabric| {
        const LEN: usize = 100_000;
        match on_rank_zero(fabric, || pooled(fabric, LEN + 8), all()) {
            Side::Owner(shared) => {
                for round in 1..=rounds(20) as u64 {
                    shared.wait_counter(LEN as u64, round, LONG).unwrap();
                    let seen = bytes(&shared.memory().slice(0..LEN));
                    assert!(seen.iter().all(|byte| *byte == round as u8), "the word overtook the bytes");
                    say(fabric, 1);
                }
            }
            Side::Other(remote) => {
                let data = pooled(fabric, LEN);
                for round in 1..=rounds(20) as u64 {
                    data.fill(0..LEN, round as u8);
                    let put = remote.start_put(0, &data).unwrap();
                    fabric.fence(0).unwrap();
                    let count = remote.start_fetch_add(LEN as u64, 1).unwrap();
                    hear(fabric, 0);
                    assert_eq!(count.wait(LONG).unwrap(), round - 1);
                    assert_eq!(put.wait(LONG).unwrap(), LEN as u64);
                }
            }
        }
    });
}

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

/// The block behind memory that nobody works on any more. A thread of this rank that looked for such memory may hold a handle
/// to it for another moment.
fn sole(mut memory: Exposed) -> Block {
    let end = Instant::now() + LONG;
    loop {
        match memory.into_block() {
            Ok(block) => return block,
            Err(still) => memory = still,
        }
        assert!(Instant::now() < end, "somebody has the memory still");
        thread::yield_now();
    }
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
fn the_owner_is_not_needed_while_it_computes() {
    let done = AtomicU64::new(0);
    world::run_over_each(3, |fabric| {
        // Nobody is done before rank 0 has given its key away.
        let before = done.load(Ordering::SeqCst);
        match on_rank_zero(fabric, || pooled(fabric, 1 << 20), all()) {
            Side::Owner(shared) => {
                // It calls nothing of Fulmen.
                let end = Instant::now() + LONG;
                while done.load(Ordering::SeqCst) < before + 2 {
                    assert!(Instant::now() < end, "nobody serves the others");
                    std::hint::spin_loop();
                }
                assert_eq!(shared.memory().atomic_u64(0).load(Ordering::SeqCst), 2 * 50);
                all_done(fabric);
            }
            Side::Other(remote) => {
                let half = (1 << 19) - 8;
                let data = pooled(fabric, half);
                let at = 8 + (u64::from(fabric.rank()) - 1) * half as u64;
                for round in 0..50 {
                    remote.fetch_add(0, 1, LONG).unwrap();
                    if round % 10 == 0 {
                        data.fill(0..half, round);
                        remote.put(at, &data, LONG).unwrap();
                        data.fill(0..half, 0xFF);
                        remote.get(at, &data, LONG).unwrap();
                        assert!(bytes(&data).iter().all(|byte| *byte == round));
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
                all_done(fabric);
            }
        }
    });
}

#[test]
fn a_rank_works_on_its_own_memory_too() {
    world::run_over_each(2, own_memory);
    let providers = || fulmen_fabric::Providers::default();
    let alone = Fabric::start(fulmen_fabric::Session::alone(), options(), providers()).unwrap();
    own_memory(&alone);
}

fn own_memory(fabric: &Fabric) {
    let shared = fabric.share(&pooled(fabric, 4096), all()).unwrap();
    let own = fabric.remote(fabric.rank(), &shared.key()).unwrap();
    own.put_bytes(8, &[1, 2, 3], LONG).unwrap();
    assert_eq!(own.fetch_add(0, 5, LONG).unwrap(), 0);
    assert_eq!(own.compare_swap(0, 5, 6, LONG).unwrap(), 5);
    let data = pooled(fabric, 100);
    own.put_counted(100, &data, (&own, 0, 1), LONG).unwrap();
    assert_eq!(shared.wait_counter(0, 7, LONG).unwrap(), 7);
    let mut three = [0; 3];
    own.get_bytes(8, &mut three, LONG).unwrap();
    assert_eq!(three, [1, 2, 3]);
    fabric.fence(fabric.rank()).unwrap();
    fabric.flush(fabric.rank(), LONG).unwrap();
    shared.close(LONG).unwrap();
    let error = own.put_bytes(8, &[1, 2, 3], LONG).unwrap_err();
    assert!(matches!(error, FabricError::NoSuchKey { op: "put", .. }), "{error:?}");
}

#[test]
fn many_threads_work_on_one_share() {
    // More, where memory is mapped, than have a hazard of their own.
    let threads = |fabric: &Fabric| if fabric.has_windows() { 100 } else { 8 };
    world::run_over_each(2, |fabric| match on_rank_zero(fabric, || pooled(fabric, 8 + 100 * 8), all()) {
        Side::Owner(shared) => {
            hear(fabric, 1);
            assert_eq!(shared.memory().atomic_u64(0).load(Ordering::SeqCst), threads(fabric) * 20);
            let mine = |thread: u64| shared.memory().atomic_u64(8 + 8 * thread as usize).load(Ordering::SeqCst);
            (0..threads(fabric)).for_each(|thread| assert_eq!(mine(thread), thread << 32 | 19));
        }
        Side::Other(remote) => {
            let together = Barrier::new(threads(fabric) as usize);
            thread::scope(|scope| {
                for thread in 0..threads(fabric) {
                    let (remote, together) = (&remote, &together);
                    scope.spawn(move || {
                        together.wait();
                        for round in 0..20 {
                            remote.fetch_add(0, 1, LONG).unwrap();
                            let word = (thread << 32 | round).to_le_bytes();
                            remote.put_bytes(8 + 8 * thread, &word, LONG).unwrap();
                        }
                    });
                }
            });
            say(fabric, 0);
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
        let (fabric, victim) = Victim::start_as("onesided::victim", "puts", carrier);
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
    let (fabric, victim) = Victim::start_as("onesided::victim", "puts", Carrier::Reach);
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
        let (fabric, victim) = Victim::start_as("onesided::victim", "shares", carrier);
        let remote = remote(&fabric, 1);
        let data = pooled(&fabric, LARGE);
        remote.put(0, &data, LONG).unwrap();
        let error = thread::scope(|scope| {
            scope.spawn(|| {
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
    let (fabric, victim) = Victim::start_as("onesided::victim", "shares", Carrier::Device(Profile::Thunderbolt));
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

/// What a device lacks, the link does: each alone, on either side, and all.
#[test]
fn devices_that_have_some_of_the_operations_do_those() {
    type Change = fn(&mut Capabilities);
    let changes: [Change; 5] = [
        |can| can.write = false,
        |can| can.read = false,
        |can| can.atomics = false,
        |can| can.atomics_with_cpu = false,
        |can| (can.write, can.read, can.atomics) = (false, false, false),
    ];
    for change in changes {
        for limited in [[true, false], [false, true], [true, true]] {
            let device = |rank: u32| {
                if limited[rank as usize] {
                    world::modest(Profile::Infiniband, change)
                } else {
                    world::device(Profile::Infiniband)
                }
            };
            world::start_devices(2, device, |_, fabric| {
                let fabric = fabric.unwrap();
                match on_rank_zero(&fabric, || pooled(&fabric, 100_008), all()) {
                    Side::Owner(shared) => {
                        assert_eq!(shared.wait_counter(0, 2 * 5, LONG).unwrap(), 10);
                        assert!(bytes(&shared.memory().slice(8..100_008)).iter().all(|byte| *byte == 10));
                        all_done(&fabric);
                    }
                    Side::Other(remote) => {
                        let (data, into) = (pooled(&fabric, 100_000), private(100_000));
                        for round in 1..=5 {
                            data.fill(0..100_000, 2 * round);
                            remote.put(8, &data, LONG).unwrap();
                            remote.get(8, &into, LONG).unwrap();
                            assert!(bytes(&into).iter().all(|byte| *byte == 2 * round));
                            assert_eq!(remote.fetch_add(0, 1, LONG).unwrap(), 2 * u64::from(round) - 2);
                            remote.put_counted(8, &data, (&remote, 0, 1), LONG).unwrap();
                            assert_eq!(remote.compare_swap(0, 1, 1, LONG).unwrap(), 2 * u64::from(round));
                        }
                        all_done(&fabric);
                    }
                }
            });
        }
    }
}

#[test]
fn an_owner_that_is_stopped_is_not_needed_where_others_can_do_without_it() {
    for carrier in [Carrier::Reach, Carrier::Device(Profile::Infiniband)] {
        println!("over {carrier:?}");
        let (fabric, victim) = Victim::start_as("onesided::victim", "shares", carrier);
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
