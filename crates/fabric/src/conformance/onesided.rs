//! One-sided operations: what lands, what is counted, what is in order.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::PATIENCE;
use super::case::{Case, Outcome, ensure, ensure_eq, ensure_error};
use super::messages::goes_on;
use super::pattern;
use super::seat::{Seat, await_true, private};
use crate::{FabricError, Remote, RemoteKey, Rights, Shared};

pub(super) const CASES: &[Case] = &[
    Case::new("one-sided: put and get of every size, and nothing beside them", 2, sizes),
    Case::new("one-sided: the same with short frames and few credits", 2, few_sizes).narrow(),
    Case::new("one-sided: plain bytes", 2, plain),
    Case::new("one-sided: no bytes", 2, no_bytes),
    Case::new("one-sided: a rank's own memory", 2, own),
    Case::new("one-sided: out of memory that is shared into memory that is shared", 2, between_shares),
    Case::new("one-sided: while the owner computes", 2, computing_owner),
    Case::new("one-sided: handles tell the outcome, and dropped ones give their memory back", 2, handles),
    Case::new("one-sided: many threads", 2, many_threads),
    Case::new("one-sided: together with messages", 3, with_messages),
    Case::new("atomics: fetch_add and compare_swap return what was there", 2, atomics),
    Case::new("atomics: all ranks add to one word, and none sees what another saw", 4, sum),
    Case::new("atomics: one of all ranks wins each compare_swap", 3, winners),
    Case::new("counters: none is early", 2, counted),
    Case::new("counters: none is early with few credits", 2, counted).narrow(),
    Case::new("counters: one word counts the puts of all ranks", 4, counted_by_all),
    Case::new("counters: a deadline ends the wait", 2, late_counter),
    Case::new("order: what is started after a fence takes effect after what was started before", 2, fence),
    Case::new("order: a flush waits for everything that was started", 2, flush),
    Case::new("batches: each operation has its outcome", 2, batch),
    Case::new("batches: more than goes at once", 2, long_batch).narrow(),
];

/// Shares memory and gives every rank the key; in return come those of all ranks.
pub(super) fn share_all(seat: &Seat<'_>, len: usize, rights: Rights) -> Outcome<(Shared, Vec<RemoteKey>)> {
    let memory = seat.pooled(len)?;
    memory.fill(0..len, 0);
    let shared = seat.share(&memory, rights)?;
    let keys = exchange(seat, &shared.key())?;
    Ok((shared, keys))
}

/// Gives every rank a key; in return come those of all ranks.
pub(super) fn exchange(seat: &Seat<'_>, key: &RemoteKey) -> Outcome<Vec<RemoteKey>> {
    const TAG: u64 = 0x4E7;
    for other in seat.others() {
        seat.send_bytes(other, TAG, &key.to_bytes(), PATIENCE)?;
    }
    let mut keys = Vec::new();
    for rank in 0..seat.size {
        if rank == seat.rank {
            keys.push(key.clone());
            continue;
        }
        let mut bytes = [0; 128];
        let len = seat.recv_bytes(rank, TAG, &mut bytes, PATIENCE)?;
        let Ok(key) = RemoteKey::from_bytes(&bytes[..len]) else {
            ensure!(false, "the bytes of a key are none");
            return Ok(keys);
        };
        keys.push(key);
    }
    Ok(keys)
}

/// Rank 1 shares; rank 0 gets its memory, and rank 1 keeps it until all have met again.
fn of_rank_one(
    seat: &Seat<'_>,
    len: usize,
    user: impl FnOnce(&Seat<'_>, &Remote) -> Outcome,
    owner: impl FnOnce(&Seat<'_>, &Shared) -> Outcome,
) -> Outcome {
    let (shared, keys) = share_all(seat, len, Rights::all())?;
    if seat.rank == 0 {
        user(seat, &seat.remote(1, &keys[1])?)?
    } else {
        owner(seat, &shared)?
    }
    seat.meet()?;
    Ok(shared.close(PATIENCE)?)
}

const SIZES: [usize; 13] = [1, 7, 8, 63, 65, 200, 4096, 8168, 8200, 20_000, 100_001, 524_289, 1_200_003];

fn sizes(seat: &mut Seat<'_>) -> Outcome {
    puts_and_gets(seat, &SIZES)
}

fn few_sizes(seat: &mut Seat<'_>) -> Outcome {
    puts_and_gets(seat, &[1, 200, 240, 3_001, 20_000])
}

fn puts_and_gets(seat: &mut Seat<'_>, sizes: &[usize]) -> Outcome {
    of_rank_one(
        seat,
        1_300_000,
        |seat, remote| {
            for (seed, len) in (0..).zip(sizes.iter().copied()) {
                let at = 100 + 13 * seed as usize;
                for registered in [true, false] {
                    let seed = seed << 1 | u64::from(registered);
                    let memory = |len| if registered { seat.pooled(len) } else { private(len) };
                    let data = memory(len)?;
                    pattern::write(&data, seed);
                    remote.put(at as u64, &data, PATIENCE)?;
                    let around = memory(len + 40)?;
                    around.fill(0..len + 40, 9);
                    let into = around.slice(20..20 + len);
                    remote.get(at as u64, &into, PATIENCE)?;
                    pattern::check(&into, seed, &format!("{len} bytes that were put and got"))?;
                    pattern::check_all(&around.slice(0..20), 9, "the bytes before those that were got")?;
                    pattern::check_all(&around.slice(20 + len..len + 40), 9, "the bytes behind those that were got")?;
                    // The neighbours were not touched.
                    let mut beside = [1; 2];
                    remote.get_bytes(at as u64 - 1, &mut beside[..1], PATIENCE)?;
                    remote.get_bytes((at + len) as u64, &mut beside[1..], PATIENCE)?;
                    ensure_eq!(beside, [0, 0], "the bytes beside those that were put");
                    data.fill(0..len, 0);
                    remote.put(at as u64, &data, PATIENCE)?;
                }
            }
            Ok(())
        },
        |_, _| Ok(()),
    )
}

fn plain(seat: &mut Seat<'_>) -> Outcome {
    of_rank_one(
        seat,
        200_000,
        |_, remote| {
            for (seed, len) in (0..).zip([1, 8, 100, 7_000, 30_000, 150_001]) {
                let bytes = pattern::bytes(seed, len);
                remote.put_bytes(3, &bytes, PATIENCE)?;
                let mut found = vec![0; len];
                remote.get_bytes(3, &mut found, PATIENCE)?;
                pattern::check_bytes(&found, &bytes, "plain bytes that were put and got")?;
            }
            Ok(())
        },
        |_, _| Ok(()),
    )
}

fn no_bytes(seat: &mut Seat<'_>) -> Outcome {
    of_rank_one(
        seat,
        64,
        |seat, remote| {
            for at in [0, 5, 64] {
                remote.put_bytes(at, &[], PATIENCE)?;
                remote.get_bytes(at, &mut [], PATIENCE)?;
            }
            let empty = private(0)?;
            remote.put_counted(64, &empty, (remote, 8, 1), PATIENCE)?;
            ensure_eq!(remote.fetch_add(8, 0, PATIENCE)?, 1, "a counter of puts of nothing");
            goes_on(seat, 1)
        },
        |seat, _| goes_on(seat, 0),
    )
}

fn own(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 50_000, Rights::all())?;
    let remote = seat.remote(seat.rank, &keys[seat.rank as usize])?;
    let data = seat.pooled(40_000)?;
    pattern::write(&data, 5);
    remote.put_counted(100, &data, (&remote, 0, 3), PATIENCE)?;
    ensure_eq!(shared.wait_counter(0, 3, PATIENCE)?, 3, "the counter");
    pattern::check(&shared.memory().slice(100..40_100), 5, "a put into its own memory")?;
    ensure_eq!(remote.compare_swap(0, 3, 10, PATIENCE)?, 3, "a word of its own");
    ensure_eq!(shared.memory().atomic_u64(0).load(Ordering::SeqCst), 10, "a word of its own");
    Ok(shared.close(PATIENCE)?)
}

fn between_shares(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 200_000, Rights::all())?;
    let other = seat.other();
    let remote = seat.remote(other, &keys[other as usize])?;
    let (mine, theirs) = (u64::from(seat.rank), u64::from(other));
    pattern::write(&shared.memory().slice(0..60_000), mine);
    seat.meet()?;
    remote.get(0, &shared.memory().slice(60_000..120_000), PATIENCE)?;
    remote.put(120_000, &shared.memory().slice(0..60_000), PATIENCE)?;
    pattern::check(&shared.memory().slice(60_000..120_000), theirs, "what was got")?;
    seat.meet()?;
    pattern::check(&shared.memory().slice(120_000..180_000), theirs, "what was put")?;
    seat.meet()?;
    Ok(shared.close(PATIENCE)?)
}

/// The owner's program only looks at its memory.
fn computing_owner(seat: &mut Seat<'_>) -> Outcome {
    of_rank_one(
        seat,
        120_000,
        |seat, remote| {
            seat.meet()?;
            let data = seat.pooled(100_000)?;
            for round in 1..=10 {
                pattern::write(&data, round);
                remote.put(100, &data, PATIENCE)?;
                ensure_eq!(remote.fetch_add(0, 1, PATIENCE)?, round - 1, "a word that the owner does not touch");
                data.fill(0..100_000, 0);
                remote.get(100, &data, PATIENCE)?;
                pattern::check(&data, round, "what was put and got while the owner computes")?;
            }
            Ok(())
        },
        |seat, shared| {
            seat.meet()?;
            let word = shared.memory().atomic_u64(0);
            await_true("operations while this rank computes", || word.load(Ordering::SeqCst) == 10)
        },
    )
}

fn handles(seat: &mut Seat<'_>) -> Outcome {
    of_rank_one(
        seat,
        600_000,
        |seat, remote| {
            let lens = [8, 5_000, 200_000];
            for (seed, len) in (0..).zip(lens) {
                let (data, into) = (seat.pooled(len)?, seat.pooled(len)?);
                pattern::write(&data, seed);
                ensure_eq!(remote.start_put(64, &data)?.wait(PATIENCE)?, len as u64, "the bytes that were put");
                let mut get = remote.start_get(64, &into)?;
                let mut outcome = None;
                await_true("a get", || {
                    outcome = get.test();
                    outcome.is_some()
                })?;
                ensure_eq!(outcome.transpose()?, Some(len as u64), "the bytes that were got");
                pattern::check(&into, seed, "what was put and got")?;
                let counted = remote.start_put_counted(64, &data, (remote, 8, 2))?;
                ensure_eq!(counted.wait(PATIENCE)?, len as u64, "the bytes that were put and counted");
            }
            ensure_eq!(remote.start_fetch_add(8, 7)?.wait(PATIENCE)?, 6, "the word before");
            ensure_eq!(remote.start_compare_swap(8, 13, 1)?.wait(PATIENCE)?, 13, "the word before");
            // Many at a time, of which nobody hears.
            for _ in 0..20 {
                let data = seat.pooled(20_000)?;
                drop(remote.start_put(64, &data)?);
                drop(remote.start_get(64, &data)?);
                drop(remote.start_fetch_add(16, 1)?);
            }
            seat.flush(1, PATIENCE)?;
            ensure_eq!(remote.fetch_add(16, 0, PATIENCE)?, 20, "a word after a flush");
            Ok(())
        },
        |_, _| Ok(()),
    )
}

fn many_threads(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 100_000, Rights::all())?;
    let (seat, other) = (&*seat, seat.other());
    let remote = &seat.remote(other, &keys[other as usize])?;
    let work = |thread: u64| -> Outcome {
        let at = 1000 + 20_000 * thread;
        for round in 0..25 {
            let len = [9, 3_000, 18_000][round as usize % 3];
            let (data, into) = (seat.pooled(len)?, private(len)?);
            pattern::write(&data, round << 2 | thread);
            remote.put_counted(at, &data, (remote, 8 * thread, 1), PATIENCE)?;
            remote.get(at, &into, PATIENCE)?;
            pattern::check(&into, round << 2 | thread, "what a thread put and got")?;
            remote.fetch_add(64, 1, PATIENCE)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    for thread in 0..4 {
        shared.wait_counter(8 * thread, 25, PATIENCE)?;
    }
    shared.wait_counter(64, 100, PATIENCE)?;
    seat.meet()?;
    Ok(shared.close(PATIENCE)?)
}

fn with_messages(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 300_000, Rights::all())?;
    let remotes: Vec<Remote> =
        (0..seat.size).map(|rank| seat.remote(rank, &keys[rank as usize])).collect::<Result<_, _>>()?;
    // Each rank has a part of every rank's memory.
    let at = 64 + 100_000 * u64::from(seat.rank) / 2;
    for round in 0..12_u64 {
        let len = [40, 9_000, 45_000][round as usize % 3];
        let seed = |rank: u32| round << 8 | u64::from(rank);
        let mut operations = Vec::new();
        let mut received = Vec::new();
        for other in seat.others() {
            let data = seat.pooled(len)?;
            pattern::write(&data, seed(seat.rank));
            let remote = &remotes[other as usize];
            operations.push(remote.start_put_counted(at, &data, (remote, 0, 1))?);
            operations.push(seat.start_send(other, round, &data)?);
            let into = seat.pooled(len)?;
            received.push((other, into.clone(), seat.start_recv(other, round, &into)?));
        }
        for (other, into, receive) in received {
            receive.wait(PATIENCE)?;
            pattern::check(&into, seed(other), "a message between puts")?;
        }
        operations.into_iter().try_for_each(|operation| operation.wait(PATIENCE).map(drop))?;
        shared.wait_counter(0, 2 * (round + 1), PATIENCE)?;
        for other in seat.others() {
            let at = 64 + 100_000 * other as usize / 2;
            pattern::check(&shared.memory().slice(at..at + len), seed(other), "a put between messages")?;
        }
        seat.meet()?;
    }
    Ok(shared.close(PATIENCE)?)
}

fn atomics(seat: &mut Seat<'_>) -> Outcome {
    of_rank_one(
        seat,
        64,
        |_, remote| {
            ensure_eq!(remote.fetch_add(8, 5, PATIENCE)?, 0, "a new word");
            ensure_eq!(remote.fetch_add(8, u64::MAX, PATIENCE)?, 5, "the word before");
            ensure_eq!(remote.fetch_add(8, u64::MAX, PATIENCE)?, 4, "a word that wrapped");
            ensure_eq!(remote.compare_swap(8, 9, 1, PATIENCE)?, 3, "a word that was not as expected");
            ensure_eq!(remote.compare_swap(8, 3, u64::MAX, PATIENCE)?, 3, "a word that was as expected");
            ensure_eq!(remote.compare_swap(8, u64::MAX, 0, PATIENCE)?, u64::MAX, "a word of all ones");
            let mut words = [1; 24];
            remote.get_bytes(0, &mut words, PATIENCE)?;
            ensure_eq!(words, [0; 24], "the words at the end, and beside");
            ensure_eq!(remote.fetch_add(56, 1, PATIENCE)?, 0, "the last word");
            Ok(())
        },
        |_, _| Ok(()),
    )
}

fn sum(seat: &mut Seat<'_>) -> Outcome {
    const ROUNDS: usize = 150;
    let (shared, keys) = share_all(seat, 64, Rights::all())?;
    let mut seen = vec![0; seat.size as usize * ROUNDS * 8];
    for rank in 0..seat.size {
        let remote = seat.remote(rank, &keys[rank as usize])?;
        seat.meet()?;
        let mut old = Vec::with_capacity(ROUNDS * 8);
        for _ in 0..ROUNDS {
            old.extend(remote.fetch_add(0, 1, PATIENCE)?.to_le_bytes());
        }
        if rank != seat.rank {
            seat.send_bytes(rank, 8, &old, PATIENCE)?;
            continue;
        }
        for (from, part) in (0..).zip(seen.chunks_mut(ROUNDS * 8)) {
            if from == seat.rank {
                part.copy_from_slice(&old);
            } else {
                seat.recv_bytes(from, 8, part, PATIENCE)?;
            }
        }
    }
    let mut values: Vec<u64> =
        seen.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
    values.sort_unstable();
    let all = seat.size as usize * ROUNDS;
    ensure!(values.iter().copied().eq(0..all as u64), "of {all} fetch_adds of 1, some saw the same or too much");
    ensure_eq!(shared.memory().atomic_u64(0).load(Ordering::SeqCst), all as u64, "the sum");
    seat.meet()?;
    Ok(shared.close(PATIENCE)?)
}

fn winners(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 1024, Rights::all())?;
    let remote = seat.remote(0, &keys[0])?;
    for round in 0..60 {
        if remote.compare_swap(8 * round, 0, 1 + u64::from(seat.rank), PATIENCE)? == 0 {
            remote.fetch_add(1000, 1, PATIENCE)?;
        }
    }
    seat.meet()?;
    if seat.rank == 0 {
        ensure_eq!(shared.memory().atomic_u64(1000).load(Ordering::SeqCst), 60, "the winners of 60 words");
    }
    seat.meet()?;
    Ok(shared.close(PATIENCE)?)
}

fn counted(seat: &mut Seat<'_>) -> Outcome {
    let lens = [8, 300, 5_000, 60_000, 300_000];
    of_rank_one(
        seat,
        400_000,
        |seat, remote| {
            for round in 0..20_u64 {
                let data = seat.pooled(lens[round as usize % 5])?;
                pattern::write(&data, round);
                let put = remote.start_put_counted(64, &data, (remote, 8, 1))?;
                // The owner says when it has looked.
                let mut word = [0; 8];
                seat.recv_bytes(1, round, &mut word, PATIENCE)?;
                put.wait(PATIENCE)?;
            }
            Ok(())
        },
        |seat, shared| {
            for round in 0..20_u64 {
                let len = lens[round as usize % 5];
                ensure_eq!(shared.wait_counter(8, round + 1, PATIENCE)?, round + 1, "the counter");
                pattern::check(&shared.memory().slice(64..64 + len), round, "a put that was counted")?;
                seat.send_bytes(0, round, &[1; 8], PATIENCE)?;
            }
            Ok(())
        },
    )
}

fn counted_by_all(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 200_000, Rights::all())?;
    let len = 40_000;
    for other in seat.others() {
        let remote = seat.remote(other, &keys[other as usize])?;
        let data = seat.pooled(len)?;
        pattern::write(&data, u64::from(seat.rank << 4 | other));
        let at = 64 + len as u64 * u64::from(seat.rank);
        remote.put_counted(at, &data, (&remote, 0, 1 << (8 * seat.rank)), PATIENCE)?;
    }
    let all = (0..seat.size).filter(|rank| *rank != seat.rank).map(|rank| 1 << (8 * rank)).sum::<u64>();
    // The sum is only reached when all have counted.
    let word = shared.memory().atomic_u64(0);
    await_true("the puts of all ranks", || word.load(Ordering::SeqCst) == all)?;
    for other in seat.others() {
        let at = 64 + len * other as usize;
        let seed = u64::from(other << 4 | seat.rank);
        pattern::check(&shared.memory().slice(at..at + len), seed, "a put that was counted")?;
    }
    seat.meet()?;
    Ok(shared.close(PATIENCE)?)
}

fn late_counter(seat: &mut Seat<'_>) -> Outcome {
    let (shared, _) = share_all(seat, 64, Rights::all())?;
    let waited = shared.wait_counter(0, 1, Duration::from_millis(30));
    let text = ensure_error!(waited, FabricError::TimedOut { op: "wait_counter", .. }, "a wait that nobody ends");
    ensure!(text.contains("wait_counter"), "the error does not say enough: {text}");
    seat.meet()?;
    Ok(shared.close(PATIENCE)?)
}

fn fence(seat: &mut Seat<'_>) -> Outcome {
    let len = 90_000;
    of_rank_one(
        seat,
        100_000,
        |seat, remote| {
            for round in 1..=15_u64 {
                let data = seat.pooled(if round % 2 == 0 { len } else { 700 })?;
                pattern::write(&data, round);
                let put = remote.start_put(64, &data)?;
                seat.fence(1)?;
                // The owner sees the word only after all bytes.
                let flag = remote.start_fetch_add(0, 1)?;
                seat.recv_bytes(1, round, &mut [0], PATIENCE)?;
                put.wait(PATIENCE)?;
                flag.wait(PATIENCE)?;
            }
            Ok(())
        },
        |seat, shared| {
            let word = shared.memory().atomic_u64(0);
            for round in 1..=15_u64 {
                await_true("the word behind the fence", || word.load(Ordering::SeqCst) == round)?;
                let len = if round % 2 == 0 { len } else { 700 };
                pattern::check(&shared.memory().slice(64..64 + len), round, "a put before the fence")?;
                seat.send_bytes(0, round, &[1], PATIENCE)?;
            }
            Ok(())
        },
    )
}

fn flush(seat: &mut Seat<'_>) -> Outcome {
    of_rank_one(
        seat,
        400_000,
        |seat, remote| {
            for part in 0..6_u64 {
                let data = seat.pooled(60_000)?;
                pattern::write(&data, part);
                drop(remote.start_put(64 + 60_000 * part, &data)?);
                drop(remote.start_fetch_add(0, 1)?);
            }
            seat.flush(1, PATIENCE)?;
            seat.meet()
        },
        |seat, shared| {
            seat.meet()?;
            ensure_eq!(shared.memory().atomic_u64(0).load(Ordering::SeqCst), 6, "a word after a flush");
            for part in 0..6 {
                let at = 64 + 60_000 * part;
                pattern::check(&shared.memory().slice(at..at + 60_000), part as u64, "a put before a flush")?;
            }
            Ok(())
        },
    )
}

fn batch(seat: &mut Seat<'_>) -> Outcome {
    of_rank_one(
        seat,
        8192,
        |seat, remote| {
            remote.put_bytes(0, &7_u64.to_le_bytes(), PATIENCE)?;
            let into = seat.pooled(500)?;
            let mut batch = remote.batch();
            batch.fetch_add(0, 3).put(100, &pattern::bytes(1, 300)).compare_swap(8, 0, 4).compare_swap(16, 1, 4);
            batch.get(1000, &into);
            ensure_eq!(batch.len(), 5, "the operations of a batch");
            ensure_eq!(batch.post(PATIENCE)?, [7, 300, 0, 0, 500], "the outcomes of a batch");
            let mut words = [0; 24];
            remote.get_bytes(0, &mut words, PATIENCE)?;
            let wanted: Vec<u8> = [10_u64, 4, 0].into_iter().flat_map(u64::to_le_bytes).collect();
            pattern::check_bytes(&words, &wanted, "the words of a batch")?;
            let mut bytes = [0; 300];
            remote.get_bytes(100, &mut bytes, PATIENCE)?;
            pattern::check_bytes(&bytes, &pattern::bytes(1, 300), "the bytes of a batch")?;
            // One that is refused.
            let mut batch = remote.batch();
            batch.put(100, &[1; 8]).put(8192, &[1]).fetch_add(24, 1);
            let posted = batch.post(PATIENCE);
            ensure_error!(posted, FabricError::OutOfBounds { rank: 1, .. }, "a batch with a put out of bounds");
            goes_on(seat, 1)
        },
        |seat, _| goes_on(seat, 0),
    )
}

fn long_batch(seat: &mut Seat<'_>) -> Outcome {
    of_rank_one(
        seat,
        8192,
        |_, remote| {
            let mut batch = remote.batch();
            for number in 0..500_u64 {
                batch.put(8 * number, &number.to_le_bytes()).fetch_add(8000, 1);
            }
            ensure_eq!(batch.post(PATIENCE)?.len(), 1000, "the outcomes of a batch");
            let mut bytes = vec![0; 4000];
            remote.get_bytes(0, &mut bytes, PATIENCE)?;
            let wanted: Vec<u8> = (0..500_u64).flat_map(u64::to_le_bytes).collect();
            pattern::check_bytes(&bytes, &wanted, "the words of a batch")?;
            ensure_eq!(remote.fetch_add(8000, 0, PATIENCE)?, 500, "the word that a batch added to");
            Ok(())
        },
        |_, _| Ok(()),
    )
}
