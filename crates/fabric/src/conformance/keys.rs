//! Keys: what their owner refuses, and that it stays refused.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::PATIENCE;
use super::case::{Case, Outcome, ensure, ensure_eq, ensure_error};
use super::messages::goes_on;
use super::onesided::{exchange, share_all};
use super::pattern;
use super::seat::{Seat, private};
use crate::{FabricError, RemoteKey, Rights};

pub(super) const CASES: &[Case] = &[
    Case::new("keys: rights are the owner's to give", 2, rights),
    Case::new("keys: no byte out of bounds", 2, bounds),
    Case::new("keys: words are aligned", 2, alignment),
    Case::new("keys: none is guessed, and none is another rank's", 3, foreign),
    Case::new("keys: one that was taken back is refused, for ever", 2, revoked),
    Case::new("keys: close waits for those who are at it, and then nothing is written", 3, hammered),
    Case::new("keys: the owner's death ends operations, and names it", 2, dead_owner),
    Case::new("keys: a user's death does not keep the memory", 3, dead_user),
];

fn rights(seat: &mut Seat<'_>) -> Outcome {
    for rights in [Rights::READ, Rights::WRITE, Rights::ATOMIC, Rights::READ | Rights::WRITE] {
        let (shared, keys) = share_all(seat, 100_000, rights)?;
        if seat.rank == 0 {
            let remote = seat.remote(1, &keys[1])?;
            for len in [8, 6_000, 80_000] {
                let data = seat.pooled(len)?;
                let may = |need: Rights, outcome: Result<(), FabricError>| -> Outcome {
                    if rights.contains(need) {
                        return Ok(outcome?);
                    }
                    let text = ensure_error!(
                        outcome,
                        FabricError::NotPermitted { rank: 1, need: found, .. } if *found == need,
                        "{need:?} of memory with {rights:?}"
                    );
                    ensure!(text.contains("rank 1"), "the error does not say enough: {text}");
                    Ok(())
                };
                may(Rights::READ, remote.get(0, &data, PATIENCE))?;
                data.fill(0..len, 0);
                may(Rights::WRITE, remote.put(0, &data, PATIENCE))?;
                may(Rights::ATOMIC, remote.fetch_add(0, 0, PATIENCE).map(drop))?;
                may(Rights::ATOMIC, remote.compare_swap(0, 1, 1, PATIENCE).map(drop))?;
            }
        }
        seat.meet()?;
        pattern::check_all(shared.memory(), 0, "memory after what was refused")?;
        shared.close(PATIENCE)?;
    }
    let other = seat.other();
    goes_on(seat, other)
}

fn bounds(seat: &mut Seat<'_>) -> Outcome {
    // Part of a block: its neighbours are the owner's, too, and not shared.
    let block = seat.pooled(3000)?;
    block.fill(0..3000, 6);
    let shared = seat.share(&block.slice(1000..2000), Rights::all())?;
    let keys = exchange(seat, &shared.key())?;
    if seat.rank == 0 {
        let remote = seat.remote(1, &keys[1])?;
        let data = seat.pooled(1001)?;
        data.fill(0..1001, 1);
        for (offset, len) in [(0, 1001), (1000, 1), (999, 2), (1 << 40, 8), (u64::MAX, 1), (u64::MAX - 7, 8)] {
            let part = data.slice(0..len);
            let put = remote.put(offset, &part, PATIENCE);
            let out = ensure_error!(put, FabricError::OutOfBounds { rank: 1, .. }, "a put of {len} bytes at {offset}");
            ensure!(out.contains("rank 1"), "the error does not say enough: {out}");
            let get = remote.get(offset, &part, PATIENCE);
            ensure_error!(get, FabricError::OutOfBounds { rank: 1, .. }, "a get of {len} bytes at {offset}");
        }
        for offset in [1000, 1 << 40, u64::MAX - 7] {
            let add = remote.fetch_add(offset, 1, PATIENCE);
            ensure_error!(add, FabricError::OutOfBounds { rank: 1, .. }, "a fetch_add at {offset}");
            let counted = remote.put_counted(0, &data.slice(0..8), (&remote, offset, 1), PATIENCE);
            ensure_error!(counted, FabricError::OutOfBounds { rank: 1, .. }, "a counter at {offset}");
        }
        pattern::check_all(&data, 1, "memory for which nothing came")?;
        remote.put(0, &data.slice(0..1000), PATIENCE)?;
    }
    seat.meet()?;
    if seat.rank == 1 {
        pattern::check_all(&block.slice(0..1000), 6, "the bytes before those that are shared")?;
        pattern::check_all(&block.slice(2000..3000), 6, "the bytes behind those that are shared")?;
    }
    Ok(shared.close(PATIENCE)?)
}

fn alignment(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 64, Rights::all())?;
    if seat.rank == 0 {
        let remote = seat.remote(1, &keys[1])?;
        for offset in [1, 4, 7, 33, 55] {
            let add = remote.fetch_add(offset, 1, PATIENCE);
            ensure_error!(add, FabricError::Misaligned { rank: 1, .. }, "a fetch_add at {offset}");
            let swap = remote.compare_swap(offset, 0, 1, PATIENCE);
            ensure_error!(swap, FabricError::Misaligned { rank: 1, .. }, "a compare_swap at {offset}");
            let counted = remote.put_counted(0, &private(8)?, (&remote, offset, 1), PATIENCE);
            ensure_error!(counted, FabricError::Misaligned { rank: 1, .. }, "a counter at {offset}");
        }
    }
    seat.meet()?;
    pattern::check_all(shared.memory(), 0, "memory after what was refused")?;
    Ok(shared.close(PATIENCE)?)
}

/// Another rank's key, or one of which bytes were changed: its owner refuses it, or there is none.
fn foreign(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 4096, Rights::all())?;
    if seat.rank == 0 {
        let opened = seat.remote(2, &keys[1]).and_then(|remote| remote.put_bytes(0, &[1], PATIENCE));
        ensure_error!(opened, FabricError::NoSuchKey { .. }, "a key of rank 1 at rank 2");
        ensure_error!(seat.remote(3, &keys[1]), FabricError::NoSuchRank { size: 3, .. }, "a key at no rank");
        let good = keys[1].to_bytes();
        for wrong in [1, 0x80, 1 << 20, 1 << 40, 1 << 63, u64::MAX] {
            let guess = keys[1].guessed(wrong);
            let put = seat.remote(1, &guess).and_then(|remote| remote.put_bytes(0, &[1; 8], PATIENCE));
            ensure_error!(put, FabricError::NoSuchKey { .. }, "a key that is wrong in {wrong:#x}");
        }
        for cut in 0..good.len() {
            ensure!(RemoteKey::from_bytes(&good[..cut]).is_err(), "{cut} bytes of a key are one");
            let mut changed = good.clone();
            changed[cut] ^= 0x10;
            ensure!(RemoteKey::from_bytes(&changed).is_err(), "a key whose byte {cut} was changed is one");
        }
        let old = seat.remote(1, &keys[1].of_generation(seat.generation() ^ 1));
        ensure_error!(old, FabricError::NoSuchKey { rank: 1, .. }, "a key of another generation");
    }
    seat.meet()?;
    pattern::check_all(shared.memory(), 0, "memory after what was refused")?;
    for other in seat.others() {
        goes_on(seat, other)?;
    }
    Ok(shared.close(PATIENCE)?)
}

fn revoked(seat: &mut Seat<'_>) -> Outcome {
    let memory = seat.pooled(50_000)?;
    memory.fill(0..50_000, 0);
    let mut known: Vec<RemoteKey> = Vec::new();
    for round in 0..6 {
        let shared = seat.share(&memory, Rights::all())?;
        let keys = exchange(seat, &shared.key())?;
        let other = seat.other() as usize;
        ensure!(!known.contains(&keys[other]), "a key was given out twice");
        let remote = seat.remote(seat.other(), &keys[other])?;
        remote.fetch_add(0, 1, PATIENCE)?;
        seat.meet()?;
        // By word and by going.
        if round % 2 == 0 {
            shared.close(PATIENCE)?
        } else {
            drop(shared)
        }
        seat.meet()?;
        let data = seat.pooled(50_000)?;
        data.fill(0..50_000, 0xEE);
        for len in [8, 5_000, 50_000] {
            let put = remote.put(0, &data.slice(0..len), PATIENCE);
            ensure_error!(put, FabricError::NoSuchKey { .. }, "a put of {len} bytes after the end of the share");
            let get = remote.get(0, &data.slice(0..len), PATIENCE);
            ensure_error!(get, FabricError::NoSuchKey { .. }, "a get of {len} bytes after the end of the share");
        }
        ensure_error!(remote.fetch_add(0, 1, PATIENCE), FabricError::NoSuchKey { .. }, "a fetch_add after the end");
        known.push(keys[other].clone());
        for key in &known {
            let put = seat.remote(seat.other(), key).and_then(|remote| remote.put_bytes(0, &[1], PATIENCE));
            ensure_error!(put, FabricError::NoSuchKey { .. }, "an old key");
        }
        seat.meet()?;
    }
    ensure_eq!(memory.atomic_u64(0).load(Ordering::SeqCst), 6, "what was counted while it was shared");
    ensure!(memory.into_block().is_ok(), "a share that has ended keeps its memory");
    Ok(())
}

fn hammered(seat: &mut Seat<'_>) -> Outcome {
    for round in 0..4 {
        let (shared, keys) = share_all(seat, 60_000, Rights::all())?;
        if seat.rank == 0 {
            let memory = shared.memory().clone();
            super::seat::await_true("the others to be at it", || {
                (0..2).all(|word| memory.atomic_u64(8 * word).load(Ordering::SeqCst) > 3)
            })?;
            shared.close(PATIENCE)?;
            // From here on the memory is this rank's alone.
            memory.fill(0..60_000, 0x11 + round);
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(1));
                pattern::check_all(&memory, 0x11 + round, "memory whose share was closed")?;
            }
            seat.meet()?;
            pattern::check_all(&memory, 0x11 + round, "memory whose share was closed")?;
            continue;
        }
        let remote = seat.remote(0, &keys[0])?;
        let (data, word) = (seat.pooled(50_000)?, 8 * u64::from(seat.rank - 1));
        let hammer = || -> Result<(), FabricError> {
            loop {
                remote.put(64, &data.slice(0..100), PATIENCE)?;
                remote.put(64, &data, PATIENCE)?;
                remote.get(64, &data.slice(0..10_000), PATIENCE)?;
                remote.fetch_add(word, 1, PATIENCE)?;
            }
        };
        let end = hammer();
        ensure_error!(end, FabricError::NoSuchKey { rank: 0, .. }, "work on memory whose share is closed");
        seat.meet()?;
        shared.close(PATIENCE)?;
    }
    for other in seat.others() {
        goes_on(seat, other)?;
    }
    Ok(())
}

fn dead_owner(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 200_000, Rights::all())?;
    if seat.rank == 1 {
        seat.meet()?;
        drop(shared);
        seat.drop_dead();
        return Ok(());
    }
    let remote = seat.remote(1, &keys[1])?;
    seat.meet()?;
    let data = seat.pooled(150_000)?;
    let work = || -> Result<(), FabricError> {
        loop {
            remote.put(0, &data, PATIENCE)?;
            remote.fetch_add(0, 1, PATIENCE)?;
            remote.get(0, &data, PATIENCE)?;
        }
    };
    let end = work();
    let text = ensure_error!(
        end,
        FabricError::PeerLost { rank: 1, .. } | FabricError::NoSuchKey { rank: 1, .. },
        "work on a dead rank's memory"
    );
    ensure!(text.contains("rank 1"), "the error does not say enough: {text}");
    seat.wait("watch", &[1], PATIENCE, || std::task::Poll::<()>::Pending).unwrap_err();
    for outcome in [remote.put(0, &data, PATIENCE), remote.fetch_add(0, 1, PATIENCE).map(drop)] {
        ensure_error!(
            outcome,
            FabricError::PeerLost { rank: 1, .. } | FabricError::NoSuchKey { rank: 1, .. },
            "work on memory of a rank that is known to be dead"
        );
    }
    ensure!(data.into_block().is_ok(), "an operation on a dead rank's memory keeps its own");
    Ok(shared.close(PATIENCE)?)
}

fn dead_user(seat: &mut Seat<'_>) -> Outcome {
    let (shared, keys) = share_all(seat, 100_000, Rights::all())?;
    // What a process has not sent when it dies is lost: its key has come before.
    seat.meet()?;
    if seat.rank == 2 {
        let remote = seat.remote(0, &keys[0])?;
        for _ in 0..20 {
            drop(remote.start_put(64, &seat.pooled(90_000)?)?);
        }
        remote.fetch_add(0, 1, PATIENCE)?;
        drop((remote, shared));
        seat.drop_dead();
        return seat.meet();
    }
    seat.meet()?;
    shared.close(PATIENCE)?;
    let other = seat.other();
    goes_on(seat, other)
}
