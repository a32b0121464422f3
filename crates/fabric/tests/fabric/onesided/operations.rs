//! What one-sided operations do.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_fabric::{Fabric, FabricError, Remote, Rights};
use fulmen_soft::Profile;
use fulmen_verbs::Capabilities;

use super::{Dice, SAY, Side, all, all_done, bytes, hear, on_rank_zero, pooled, private, rounds, say};
use crate::world::{self, LONG, options};

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
