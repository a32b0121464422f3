//! Windows: memory of every rank that all map.

use std::sync::atomic::Ordering;
use std::task::Poll;

use fulmen_memory::Exposed;

use super::PATIENCE;
use super::case::{Case, Need, Outcome, ensure, ensure_eq, ensure_error};
use super::pattern;
use super::seat::{Seat, private};
use crate::{FabricError, LinkKind, RegionRef, Window};

const WINDOWS: &[Need] = &[Need::Windows];

pub(super) const CASES: &[Case] = &[
    Case::new("windows: zeroed memory of each rank that all read and write", 3, shared).needs(WINDOWS),
    Case::new("windows: a ring wakes who waits for a word", 3, rings).needs(WINDOWS),
    Case::new("windows: atomic words count every rank", 3, atomics).needs(WINDOWS),
    Case::new("windows: different lengths are refused on all ranks", 3, different).needs(WINDOWS),
    Case::new("windows: one that cannot be made does not spoil the next", 2, failing).needs(WINDOWS),
    Case::new("windows: a reference to a block reaches its bytes and no others", 2, references).needs(WINDOWS),
    Case::new("windows: messages out of and into them", 2, messages).needs(WINDOWS),
    Case::new("windows: none where ranks do not map one another's memory", 2, none),
    Case::new("windows: of those ranks that map one another's memory", 5, among),
];

/// Waits until a rank's word has reached `value`.
fn await_word(seat: &Seat<'_>, window: &Window, rank: u32, at: usize, value: u64) -> Outcome {
    let word = window.peer(rank).slice(at..at + 8);
    Ok(seat.wait("await_word", &[rank], PATIENCE, || {
        if word.atomic_u64(0).load(Ordering::Acquire) >= value { Poll::Ready(()) } else { Poll::Pending }
    })?)
}

fn shared(seat: &mut Seat<'_>) -> Outcome {
    for len in [1, 4096, 100_000] {
        let window = seat.window(len, PATIENCE)?;
        ensure_eq!(window.len(), len, "the window's length");
        pattern::check_all(window.local(), 0, "a new window")?;
        seat.meet()?;
        let next = (seat.rank + 1) % seat.size;
        pattern::write(window.peer(next), u64::from(seat.rank));
        seat.meet()?;
        for rank in 0..seat.size {
            let writer = (rank + seat.size - 1) % seat.size;
            pattern::check(window.peer(rank), writer.into(), "a rank's part of the window")?;
        }
        seat.meet()?;
    }
    Ok(())
}

fn rings(seat: &mut Seat<'_>) -> Outcome {
    let window = seat.window(64, PATIENCE)?;
    let before = (seat.rank + seat.size - 1) % seat.size;
    for round in 1..=100 {
        if seat.rank != 0 || round > 1 {
            await_word(seat, &window, before, 0, if seat.rank == 0 { round - 1 } else { round })?;
        }
        window.local().atomic_u64(0).store(round, Ordering::Release);
        window.ring((seat.rank + 1) % seat.size);
    }
    // Nobody's part goes while somebody waits for a word of it.
    seat.meet()
}

fn atomics(seat: &mut Seat<'_>) -> Outcome {
    const ROUNDS: u64 = 2000;
    let window = seat.window(64, PATIENCE)?;
    for round in 0..ROUNDS {
        let rank = (round % u64::from(seat.size)) as u32;
        window.peer(rank).atomic_u64(0).fetch_add(1, Ordering::Relaxed);
    }
    seat.meet()?;
    let sum: u64 = (0..seat.size).map(|rank| window.peer(rank).atomic_u64(0).load(Ordering::Relaxed)).sum();
    ensure_eq!(sum, ROUNDS * u64::from(seat.size), "the sum of all words");
    seat.meet()
}

fn different(seat: &mut Seat<'_>) -> Outcome {
    let made = seat.window(4096 + (seat.rank as usize / 2), PATIENCE);
    let culprit = if seat.rank == 2 { 0 } else { 2 };
    let text = ensure_error!(
        made,
        FabricError::Mismatch { op: "window", rank, .. } if *rank == culprit,
        "windows of different lengths"
    );
    ensure!(text.contains("4096") && text.contains("4097"), "the error does not say enough: {text}");
    seat.window(4096, PATIENCE)?;
    Ok(())
}

fn failing(seat: &mut Seat<'_>) -> Outcome {
    ensure_error!(seat.window(0, PATIENCE), FabricError::Memory { op: "window", .. }, "a window of no bytes");
    seat.window(4096, PATIENCE)?;
    Ok(())
}

fn references(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    let block = seat.pooled(1000)?;
    block.fill(0..1000, 5 + seat.rank as u8);
    let Some(at) = seat.region_ref(&block.slice(10..1000)) else {
        ensure!(false, "a block of the pool has no reference");
        return Ok(());
    };
    let words: Vec<u8> = [at.key, at.offset, at.len].into_iter().flat_map(u64::to_le_bytes).collect();
    seat.send_bytes(other, 1, &words, PATIENCE)?;
    let mut words = [0; 24];
    seat.recv_bytes(other, 1, &mut words, PATIENCE)?;
    let word = |index: usize| u64::from_le_bytes(words[8 * index..8 * index + 8].try_into().expect("8 bytes"));
    let at = RegionRef { key: word(0), offset: word(1), len: word(2) };
    let mapped = seat.map(other, at)?;
    ensure_eq!(mapped.len(), 990, "the length of what was referred to");
    pattern::check_all(&mapped, 5 + other as u8, "the other rank's block")?;
    for (offset, len) in [(u64::MAX, 2), (0, u64::MAX), (1 << 40, 1)] {
        let wrong = seat.map(other, RegionRef { offset, len, ..at });
        ensure_error!(wrong, FabricError::OutOfBounds { rank, .. } if *rank == other, "a reference beyond its region");
    }
    let wrong = seat.map(other, RegionRef { key: at.key ^ 1, ..at });
    ensure_error!(wrong, FabricError::Reach { rank, .. } if *rank == other, "a reference with another key");
    seat.meet()
}

fn messages(seat: &mut Seat<'_>) -> Outcome {
    let (other, window) = (seat.other(), seat.window(200_000, PATIENCE)?);
    for (tag, len) in (0..).zip([100, 9_000, 90_000]) {
        let (from, into) = (window.local().slice(0..len), window.local().slice(100_000..100_000 + len));
        pattern::write(&from, u64::from(seat.rank) << 8 | tag);
        let send = seat.start_send(other, tag, &from)?;
        ensure_eq!(seat.recv(other, tag, &into, PATIENCE)?, len, "the message's length");
        pattern::check(&into, u64::from(other) << 8 | tag, "the message")?;
        send.wait(PATIENCE)?;
    }
    Ok(())
}

fn none(seat: &mut Seat<'_>) -> Outcome {
    let made = seat.window(64, PATIENCE);
    if seat.has_windows() {
        made?;
    } else {
        ensure_error!(made, FabricError::NoWindows { op: "window" }, "a window where there are none");
        ensure!(seat.region_ref(&seat.pooled(64)?).is_none(), "a reference that nobody can map");
    }
    Ok(())
}

/// Each rank adds to a word of all that map its memory, itself included, and waits for theirs.
fn among(seat: &mut Seat<'_>) -> Outcome {
    let near: Vec<u32> = (0..seat.size).filter(|rank| seat.has_windows_among(&[*rank])).collect();
    let all = near.len() == seat.size as usize;
    ensure_eq!(seat.has_windows(), all && seat.region_ref(&seat.pooled(64)?).is_some(), "whether there are windows");
    if seat.region_ref(&seat.pooled(64)?).is_none() {
        ensure_error!(seat.window_part(64), FabricError::NoWindows { op: "window" }, "a window where there are none");
        return Ok(());
    }
    let afar = seat.others().find(|other| !near.contains(other));
    if let Some(afar) = afar {
        ensure!(seat.link_to(afar) != LinkKind::SharedMemory, "rank {afar} is on another host");
        let at = RegionRef { key: 1, offset: 0, len: 8 };
        ensure_error!(seat.map(afar, at), FabricError::NoWindows { op: "map" }, "memory of another host");
    }
    let part = seat.window_part(64)?;
    let mut keys = Vec::new();
    for rank in near.iter().copied() {
        if rank == seat.rank {
            keys.push((rank, part.key()));
            continue;
        }
        ensure_eq!(seat.link_to(rank), LinkKind::SharedMemory, "the link to a rank of this host");
        let mut key = [0; 8];
        let sent = seat.start_send(rank, 1, &keyed(part.key())?)?;
        seat.recv_bytes(rank, 1, &mut key, PATIENCE)?;
        sent.wait(PATIENCE)?;
        keys.push((rank, u64::from_le_bytes(key)));
    }
    let window = part.join(&keys, PATIENCE)?;
    for number in 0..near.len() as u32 {
        window.peer(number).atomic_u64(0).fetch_add(1, Ordering::SeqCst);
        window.ring(number);
    }
    let others: Vec<u32> = near.iter().copied().filter(|rank| *rank != seat.rank).collect();
    seat.wait("test", &others[..], PATIENCE, || {
        let count = window.local().atomic_u64(0).load(Ordering::SeqCst);
        if count == near.len() as u64 { Poll::Ready(()) } else { Poll::Pending }
    })?;
    seat.meet()
}

fn keyed(key: u64) -> Outcome<Exposed> {
    let memory = private(8)?;
    memory.write(0, &key.to_le_bytes());
    Ok(memory)
}
