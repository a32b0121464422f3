//! Single messages: every size, every memory, and those that do not fit.

use std::thread;
use std::time::Duration;

use fulmen_memory::Exposed;

use super::PATIENCE;
use super::case::{Case, Outcome, ensure, ensure_eq, ensure_error};
use super::pattern;
use super::seat::{Seat, await_true, private};
use crate::{FabricError, TAG_LABEL};

pub(super) const CASES: &[Case] = &[
    Case::new("messages: zero bytes", 2, zero_bytes),
    Case::new("messages: in one frame, around its borders", 2, eager),
    Case::new("messages: in fragments", 2, fragments),
    Case::new("messages: by rendezvous", 2, rendezvous),
    Case::new("messages: between blocks and plain memory", 2, mixed),
    Case::new("messages: parts of a block, and nothing beside them", 2, parts),
    Case::new("messages: short frames and few credits", 2, fragments).narrow(),
    Case::new("messages: both directions at once", 2, both_ways),
    Case::new("messages: a long one each way at once", 2, long_both_ways),
    Case::new("messages: to and fro, and more than one before an answer", 2, to_and_fro),
    Case::new("messages: all ranks to all", 4, all_to_all),
    Case::new("messages: all ranks to all with few credits", 3, all_to_all).narrow(),
    Case::new("messages: one that does not fit is an error at both ends and writes nothing", 2, truncated),
    Case::new("messages: one of another label is an error and writes nothing", 2, mislabelled),
    Case::new("messages: a receive that is longer is told the length", 2, longer_receive),
    Case::new("messages: no rank to talk to", 2, no_such_rank),
    Case::new("messages: to oneself", 2, to_oneself),
    Case::new("messages: move on while the program computes", 2, while_computing),
    Case::new("messages: many threads", 2, many_threads),
];

fn zero_bytes(seat: &mut Seat<'_>) -> Outcome {
    let (other, empty) = (seat.other(), private(0)?);
    for round in 0..50 {
        let send = seat.start_send(other, round % 3, &empty)?;
        ensure_eq!(seat.recv_bytes(other, round % 3, &mut [], PATIENCE)?, 0, "the length of nothing");
        send.wait(PATIENCE)?;
        seat.send_bytes(other, 7, &[], PATIENCE)?;
        let mut byte = [9];
        ensure_eq!(seat.recv_bytes(other, 7, &mut byte, PATIENCE)?, 0, "the length of nothing");
        ensure_eq!(byte, [9], "memory that nothing was written to");
    }
    Ok(())
}

/// Rank 0 sends a message of each length to rank 1.
fn lengths(
    seat: &Seat<'_>,
    lengths: &[usize],
    send: impl Fn(&Seat<'_>, u64, usize) -> Outcome,
    receive: impl Fn(&Seat<'_>, u64, usize) -> Outcome,
) -> Outcome {
    for (tag, len) in (0..).zip(lengths) {
        if seat.rank == 0 { send(seat, tag, *len)? } else { receive(seat, tag, *len)? }
    }
    Ok(())
}

fn send_pooled(seat: &Seat<'_>, tag: u64, len: usize) -> Outcome {
    send_from(seat, tag, &seat.pooled(len)?)
}

fn send_from(seat: &Seat<'_>, tag: u64, data: &Exposed) -> Outcome {
    pattern::write(data, tag);
    Ok(seat.send(1, tag, data, PATIENCE)?)
}

fn receive_pooled(seat: &Seat<'_>, tag: u64, len: usize) -> Outcome {
    receive_into(seat, tag, &seat.pooled(len)?)
}

fn receive_into(seat: &Seat<'_>, tag: u64, into: &Exposed) -> Outcome {
    ensure_eq!(seat.recv(0, tag, into, PATIENCE)?, into.len(), "the message's length");
    pattern::check(into, tag, "the message")
}

fn eager(seat: &mut Seat<'_>) -> Outcome {
    let sizes = [1, 7, 8, 9, 40, 41, 63, 64, 65, 239, 240, 241, 255, 256, 257, 1000, 4063, 4080, 4096, 8151, 8168];
    lengths(seat, &sizes, send_pooled, receive_pooled)?;
    let lend = |seat: &Seat<'_>, tag, len| Ok(seat.send_bytes(1, tag, &pattern::bytes(tag, len), PATIENCE)?);
    let borrow = |seat: &Seat<'_>, tag, len: usize| {
        let mut bytes = vec![0; len];
        ensure_eq!(seat.recv_bytes(0, tag, &mut bytes, PATIENCE)?, len, "the message's length");
        pattern::check_bytes(&bytes, &pattern::bytes(tag, len), "the message")
    };
    lengths(seat, &sizes, lend, borrow)
}

fn fragments(seat: &mut Seat<'_>) -> Outcome {
    let sizes = [241, 2999, 4081, 8169, 8185, 16_383, 50_000, 300_001];
    lengths(
        seat,
        &sizes,
        |seat, tag, len| send_from(seat, tag, &private(len)?),
        |seat, tag, len| receive_into(seat, tag, &private(len)?),
    )
}

fn rendezvous(seat: &mut Seat<'_>) -> Outcome {
    let sizes = [16_384, 16_385, 100_000, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, 3_000_000, (8 << 20) + 1];
    lengths(seat, &sizes, send_pooled, receive_pooled)
}

fn mixed(seat: &mut Seat<'_>) -> Outcome {
    let sizes = [100, 10_000, 70_000, 1_000_001];
    lengths(seat, &sizes, |seat, tag, len| send_from(seat, tag, &private(len)?), receive_pooled)?;
    lengths(seat, &sizes, send_pooled, |seat, tag, len| receive_into(seat, tag, &private(len)?))
}

/// The bytes around the part of a block that is received into keep their value.
fn parts(seat: &mut Seat<'_>) -> Outcome {
    for (tag, len) in (0..).zip([1, 33, 5000, 40_000, 700_001]) {
        let memory = seat.pooled(len + 300)?;
        memory.fill(0..memory.len(), 0x5A);
        let part = memory.slice(101 + tag..101 + tag + len);
        if seat.rank == 0 {
            send_from(seat, tag as u64, &part)?;
        } else {
            receive_into(seat, tag as u64, &part)?;
        }
        pattern::check_all(&memory.slice(0..101 + tag), 0x5A, "the bytes before")?;
        pattern::check_all(&memory.slice(101 + tag + len..memory.len()), 0x5A, "the bytes behind")?;
    }
    Ok(())
}

fn both_ways(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    for round in 0..40_u64 {
        let len = [8, 3000, 20_000, 60_000][round as usize % 4];
        let (data, into) = (seat.pooled(len)?, seat.pooled(len)?);
        pattern::write(&data, round << 1 | u64::from(seat.rank));
        let send = seat.start_send(other, round, &data)?;
        ensure_eq!(seat.recv(other, round, &into, PATIENCE)?, len, "the message's length");
        pattern::check(&into, round << 1 | u64::from(other), "the message")?;
        send.wait(PATIENCE)?;
    }
    Ok(())
}

fn long_both_ways(seat: &mut Seat<'_>) -> Outcome {
    let (other, len) = (seat.other(), 2_500_000);
    // Out of blocks, and out of plain memory.
    for (tag, data) in (0..).zip([seat.pooled(len)?, private(len)?]) {
        pattern::write(&data, u64::from(seat.rank));
        let into = seat.pooled(len)?;
        let receive = seat.start_recv(other, tag, &into)?;
        let send = seat.start_send(other, tag, &data)?;
        ensure_eq!(send.wait(PATIENCE)?, len as u64, "the bytes sent");
        ensure_eq!(receive.wait(PATIENCE)?, len as u64, "the bytes received");
        pattern::check(&into, u64::from(other), "the message")?;
    }
    Ok(())
}

/// An answer tells that all before it was taken: what lay where the next message goes may be written over then, and not before.
fn to_and_fro(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    for (round, len) in (0..).zip([1, 175, 176, 177, 300, 1000, 4096, 4120, 4140, 4141, 7168, 7169, 20_000].repeat(4)) {
        // The fewer answers, the more is under way.
        for (number, from) in (0..).zip([0, 1, 0, 0, 1, 0, 0, 0, 1]) {
            let seed = round << 8 | number;
            let bytes = pattern::bytes(seed, len);
            if seat.rank != from {
                let into = seat.pooled(len)?;
                ensure_eq!(seat.recv(other, 1, &into, PATIENCE)?, len, "the message's length");
                pattern::check(&into, seed, "the message")?;
            } else if number % 2 == 0 {
                seat.send_bytes(other, 1, &bytes, PATIENCE)?;
            } else {
                let data = private(len)?;
                data.write(0, &bytes);
                seat.send(other, 1, &data, PATIENCE)?;
            }
        }
    }
    Ok(())
}

fn all_to_all(seat: &mut Seat<'_>) -> Outcome {
    let message = |from: u32, to: u32, round: u64| {
        let seed = (u64::from(from) << 8 | u64::from(to)) << 16 | round;
        let mut numbers = pattern::Numbers::new(seed);
        let longest = [64, 3_000, 20_000][numbers.below(3)];
        (seed, numbers.below(longest))
    };
    for round in 0..8 {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for other in seat.others() {
            let (seed, len) = message(seat.rank, other, round);
            let data = seat.pooled(len)?;
            pattern::write(&data, seed);
            sends.push(seat.start_send(other, round, &data)?);
            let (seed, len) = message(other, seat.rank, round);
            let into = if round % 2 == 0 { seat.pooled(len)? } else { private(len)? };
            receives.push((seed, into.clone(), seat.start_recv(other, round, &into)?));
        }
        for (seed, into, receive) in receives {
            ensure_eq!(receive.wait(PATIENCE)?, into.len() as u64, "the message's length");
            pattern::check(&into, seed, "the message")?;
        }
        for send in sends {
            send.wait(PATIENCE)?;
        }
    }
    Ok(())
}

/// Messages still go both ways.
pub(super) fn goes_on(seat: &Seat<'_>, other: u32) -> Outcome {
    let tag = 0xA11;
    seat.send_bytes(other, tag, b"on", PATIENCE)?;
    let mut bytes = [0; 2];
    ensure_eq!(seat.recv_bytes(other, tag, &mut bytes, PATIENCE)?, 2, "the length of a message after an error");
    ensure_eq!(&bytes, b"on", "a message after an error");
    Ok(())
}

fn truncated(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    for (tag, len) in [(0, 100), (1, 20_000), (2, 50_000), (3, 1_000_000)] {
        let plain = tag == 1;
        if seat.rank == 0 {
            let data = if plain { private(len)? } else { seat.pooled(len)? };
            let sent = seat.send(1, tag, &data, PATIENCE);
            match len {
                // It was in its frame before the receiver knew of it.
                100 => sent?,
                // The last fragment may have gone out before the receiver said anything.
                _ if plain && sent.is_ok() => {}
                _ => {
                    let text =
                        ensure_error!(sent, FabricError::Refused { rank: 1, op: "send", .. }, "a send of {len} bytes");
                    ensure!(
                        text.contains("rank 1") && text.contains(&len.to_string()),
                        "the error does not say enough: {text}"
                    );
                }
            }
        } else {
            let into = seat.pooled(400)?;
            into.fill(0..400, 7);
            let received = seat.recv(0, tag, &into.slice(100..199), PATIENCE);
            let text = ensure_error!(
                received,
                FabricError::Truncated { op: "recv", rank: 0, len: found, room: 99, .. } if *found == len as u64,
                "a receive of 99 bytes for a message of {len}"
            );
            ensure!(
                ["recv", "rank 0", "99", &len.to_string()].iter().all(|word| text.contains(word)),
                "the error does not say enough: {text}"
            );
            pattern::check_all(&into, 7, "memory that was too short")?;
        }
        goes_on(seat, other)?;
    }
    Ok(())
}

fn mislabelled(seat: &mut Seat<'_>) -> Outcome {
    let label = |label: u64| label << TAG_LABEL.trailing_zeros();
    let other = seat.other();
    for (tag, len) in [(0, 10), (1, 20_000), (2, 50_000)] {
        if seat.rank == 0 {
            let data = if tag == 1 { private(len)? } else { seat.pooled(len)? };
            let sent = seat.send(1, tag | label(1), &data, PATIENCE);
            ensure!(
                matches!(sent, Ok(()) | Err(FabricError::Refused { rank: 1, .. })) && (len < 50_000 || sent.is_err()),
                "a send of another label: {sent:?}"
            );
            pattern::write(&data, tag);
            seat.send(1, tag | label(2), &data, PATIENCE)?;
        } else {
            let into = seat.pooled(len)?;
            into.fill(0..len, 7);
            let received = seat.recv(0, tag | label(2), &into, PATIENCE);
            let text = ensure_error!(
                received,
                FabricError::Mislabelled { op: "recv", rank: 0, label: 1, .. },
                "a receive of another label"
            );
            ensure!(text.contains("rank 0"), "the error does not say enough: {text}");
            pattern::check_all(&into, 7, "memory for another label")?;
            // The next one of the tag is not held up.
            receive_into_labelled(seat, tag, tag | label(2), &into)?;
        }
        goes_on(seat, other)?;
    }
    Ok(())
}

fn receive_into_labelled(seat: &Seat<'_>, seed: u64, tag: u64, into: &Exposed) -> Outcome {
    ensure_eq!(seat.recv(0, tag, into, PATIENCE)?, into.len(), "the message's length");
    pattern::check(into, seed, "the message")
}

fn longer_receive(seat: &mut Seat<'_>) -> Outcome {
    for (tag, len) in (0..).zip([0, 5, 9_000, 40_000]) {
        if seat.rank == 0 {
            send_pooled(seat, tag, len)?;
        } else {
            let into = seat.pooled(len + 1000)?;
            into.fill(0..len + 1000, 3);
            ensure_eq!(seat.recv(0, tag, &into, PATIENCE)?, len, "the message's length");
            pattern::check(&into.slice(0..len), tag, "the message")?;
            pattern::check_all(&into.slice(len..len + 1000), 3, "the bytes behind the message")?;
        }
    }
    Ok(())
}

fn no_such_rank(seat: &mut Seat<'_>) -> Outcome {
    for rank in [2, u32::MAX] {
        let sent = seat.send_bytes(rank, 1, &[1], PATIENCE);
        ensure_error!(sent, FabricError::NoSuchRank { op: "send", size: 2, .. }, "a send to rank {rank}");
        let received = seat.recv_bytes(rank, 1, &mut [1], PATIENCE);
        ensure_error!(received, FabricError::NoSuchRank { op: "recv", size: 2, .. }, "a receive from rank {rank}");
    }
    Ok(())
}

/// What a rank sends to itself is kept until it asks for it, whatever its length; the peer's messages of the same tag are others.
fn to_oneself(seat: &mut Seat<'_>) -> Outcome {
    let (own, other) = (seat.rank, seat.other());
    for len in [0, 5, 300, 9_000, 3_000_000] {
        let (memory, into) = (seat.pooled(len)?, seat.pooled(len + 3)?);
        memory.fill(0..len, 7);
        into.fill(0..len + 3, 1);
        seat.send_bytes(other, 4, &[2], PATIENCE)?;
        seat.send(own, 4, &memory, PATIENCE)?;
        memory.fill(0..len, 8);
        let second = seat.start_send(own, 4, &memory)?;
        ensure_eq!(seat.recv(own, 4, &into, PATIENCE)?, len, "the length of the first");
        pattern::check_all(&into.slice(0..len), 7, "the first, as it was when it was sent")?;
        pattern::check_all(&into.slice(len..len + 3), 1, "the bytes behind it")?;
        let mut bytes = vec![1; len + 3];
        ensure_eq!(seat.recv_bytes(own, 4, &mut bytes, PATIENCE)?, len, "the length of the second");
        ensure!(bytes[..len].iter().all(|byte| *byte == 8) && bytes[len..] == [1; 3], "the second has other bytes");
        ensure_eq!(second.wait(PATIENCE)?, len as u64, "the length of what was sent");
        let mut byte = [0];
        ensure_eq!(seat.recv_bytes(other, 4, &mut byte, PATIENCE)?, 1, "the length of the peer's");
        ensure_eq!(byte, [2], "the peer's");
    }
    // Receives that were started first, in their order; one that fails takes its message away, one that gave up does not.
    let (first, second) = (seat.pooled(8)?, seat.pooled(4)?);
    let label = TAG_LABEL & TAG_LABEL.wrapping_neg();
    let (mut one, two, three) =
        (seat.start_recv(own, 5, &first)?, seat.start_recv(own, 5, &second)?, seat.start_recv(own, 5 | label, &first)?);
    ensure!(one.test().is_none() && !one.has_ended(), "nothing was sent");
    let none = seat.recv_bytes(own, 5, &mut [0], Duration::from_millis(20));
    ensure_error!(none, FabricError::TimedOut { .. }, "a receive of what nobody sends");
    for len in [8, 5, 3, 1] {
        seat.send_bytes(own, 5, &[9; 8][..len], PATIENCE)?;
    }
    ensure!(one.has_ended(), "its message is there");
    ensure_eq!(one.wait(PATIENCE)?, 8, "the first length");
    ensure_error!(two.wait(PATIENCE), FabricError::Truncated { len: 5, room: 4, .. }, "one that does not fit");
    ensure_error!(three.wait(PATIENCE), FabricError::Mislabelled { label: 0, .. }, "one of another label");
    ensure_eq!(seat.recv(own, 5, &first, PATIENCE)?, 1, "the last one");
    // A thread that waits is woken.
    thread::scope(|scope| {
        let waits = scope.spawn(|| seat.recv_bytes(own, 6, &mut [0; 2], PATIENCE));
        seat.send_bytes(own, 6, &[1, 2], PATIENCE)?;
        let received = waits.join().expect("no thread panics")?;
        ensure_eq!(received, 2, "what the thread got");
        Ok(())
    })
}

/// Both programs only look at memory: whatever moves the message, they do not.
fn while_computing(seat: &mut Seat<'_>) -> Outcome {
    let len = 200_000;
    let memory = seat.pooled(len)?;
    memory.fill(0..len, 0);
    if seat.rank == 1 {
        let receive = seat.start_recv(0, 1, &memory)?;
        seat.meet()?;
        let mut last = [0];
        await_true("a message that nobody waits for", || {
            memory.read(len - 1, &mut last);
            last[0] == 8
        })?;
        ensure_eq!(receive.wait(PATIENCE)?, len as u64, "the message's length");
        pattern::check_all(&memory, 8, "the message")?;
        seat.meet()
    } else {
        seat.meet()?;
        memory.fill(0..len, 8);
        let send = seat.start_send(1, 1, &memory)?;
        seat.meet()?;
        ensure_eq!(send.wait(PATIENCE)?, len as u64, "the bytes sent");
        Ok(())
    }
}

fn many_threads(seat: &mut Seat<'_>) -> Outcome {
    let (seat, other) = (&*seat, seat.other());
    let talk = |tag: u64| -> Outcome {
        for round in 0..30_u64 {
            let len = [16, 4_000, 30_000][(round + tag) as usize % 3];
            let seed = |rank: u32| round << 8 | tag << 1 | u64::from(rank);
            let (data, into) = (seat.pooled(len)?, seat.pooled(len)?);
            pattern::write(&data, seed(seat.rank));
            let send = seat.start_send(other, tag, &data)?;
            ensure_eq!(seat.recv(other, tag, &into, PATIENCE)?, len, "the length of thread {tag}'s message");
            pattern::check(&into, seed(other), "the message")?;
            send.wait(PATIENCE)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|tag| scope.spawn(move || talk(tag))).collect();
        // A thread that panics fails the rank.
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}
