//! Several operations at a time: order, bounds, handles, deadlines.

use std::time::Duration;

use super::PATIENCE;
use super::case::{Case, Outcome, ensure, ensure_eq, ensure_error};
use super::messages::goes_on;
use super::pattern;
use super::seat::{Seat, private};
use crate::FabricError;

pub(super) const CASES: &[Case] = &[
    Case::new("order: tags are kept apart, and each in its order", 2, tags),
    Case::new("order: messages of one tag that go different ways", 2, ways),
    Case::new("order: the same with few credits", 2, ways).narrow(),
    Case::new("order: receives of one tag are filled in the order in which they were posted", 2, receives),
    Case::new("order: one early message of each tag finds its receive", 2, early),
    Case::new("bounds: a sender whom nobody receives from is held, and goes on", 2, unexpected).narrow(),
    Case::new("bounds: messages that are asked for pass those that nobody asks for", 2, passing).narrow(),
    Case::new("handles: many at a time, waited for in any order", 2, handles),
    Case::new("handles: test tells the outcome", 2, test),
    Case::new("handles: dropped ones go on and give their memory back", 2, dropped),
    Case::new("deadlines: a receive that ends gives its memory back and never writes", 2, late_receive),
    Case::new("deadlines: a send that nobody receives ends, and names what it waited for", 2, late_send),
    Case::new("deadlines: none at all is a look", 2, no_time),
];

/// For waits that are meant to end in vain. Whatever comes of a wait is the same however long the machine takes.
const SOON: Duration = Duration::from_millis(30);

fn tags(seat: &mut Seat<'_>) -> Outcome {
    const COUNT: u64 = 150;
    if seat.rank == 0 {
        for value in 0..COUNT {
            seat.send_bytes(1, value % 3, &value.to_le_bytes(), PATIENCE)?;
        }
        return Ok(());
    }
    for tag in [2, 0, 1] {
        for value in (0..COUNT).filter(|value| value % 3 == tag) {
            let mut bytes = [0; 8];
            seat.recv_bytes(0, tag, &mut bytes, PATIENCE)?;
            ensure_eq!(u64::from_le_bytes(bytes), value, "the next message of tag {tag}");
        }
    }
    Ok(())
}

/// In one frame, in fragments, by rendezvous.
const LENGTHS: [usize; 5] = [16, 40_000, 6_000, 16, 90_000];

fn ways(seat: &mut Seat<'_>) -> Outcome {
    let (other, count) = (seat.other(), 40);
    let mut sends = Vec::new();
    for number in 0..count {
        let len = LENGTHS[number as usize % 5] + number as usize;
        let data = if number % 2 == 0 { seat.pooled(len)? } else { private(len)? };
        pattern::write(&data, number);
        sends.push(seat.start_send(other, 1, &data)?);
    }
    for number in 0..count {
        let len = LENGTHS[number as usize % 5] + number as usize;
        let into = if number % 3 == 0 { private(200_000)? } else { seat.pooled(200_000)? };
        ensure_eq!(seat.recv(other, 1, &into, PATIENCE)?, len, "the length of message {number}");
        pattern::check(&into.slice(0..len), number, &format!("message {number}"))?;
    }
    sends.into_iter().try_for_each(|send| send.wait(PATIENCE).map(drop))?;
    Ok(())
}

fn receives(seat: &mut Seat<'_>) -> Outcome {
    let count = 30_u64;
    if seat.rank == 1 {
        let mut posted = Vec::new();
        for _ in 0..count {
            let into = seat.pooled(30_000)?;
            posted.push((into.clone(), seat.start_recv(0, 1, &into)?));
        }
        seat.meet()?;
        for (number, (into, receive)) in (0..).zip(posted) {
            let len = receive.wait(PATIENCE)? as usize;
            ensure_eq!(len, 10 + 900 * number as usize, "the length that receive {number} got");
            pattern::check(&into.slice(0..len), number, &format!("receive {number}"))?;
        }
        return Ok(());
    }
    seat.meet()?;
    for number in 0..count {
        let data = seat.pooled(10 + 900 * number as usize)?;
        pattern::write(&data, number);
        seat.send(1, 1, &data, PATIENCE)?;
    }
    Ok(())
}

fn early(seat: &mut Seat<'_>) -> Outcome {
    let tags = [0, 1, 1 << 20, 1 << 40, (1 << 48) - 1];
    if seat.rank == 0 {
        let mut sends = Vec::new();
        for tag in tags {
            let data = seat.pooled(20_000)?;
            pattern::write(&data, tag);
            sends.push(seat.start_send(1, tag, &data)?);
        }
        seat.meet()?;
        sends.into_iter().try_for_each(|send| send.wait(PATIENCE).map(drop))?;
        return Ok(());
    }
    seat.meet()?;
    let into = seat.pooled(20_000)?;
    for tag in tags.into_iter().rev() {
        seat.recv(0, tag, &into, PATIENCE)?;
        pattern::check(&into, tag, "the message of this tag")?;
    }
    Ok(())
}

fn unexpected(seat: &mut Seat<'_>) -> Outcome {
    let count = 400_u64;
    if seat.rank == 0 {
        let mut sends = Vec::new();
        for number in 0..count {
            let data = private(200)?;
            pattern::write(&data, number);
            sends.push(Some(seat.start_send(1, 5, &data)?));
        }
        seat.meet()?;
        // However long it takes: no more of them go than the receiver keeps and there are credits, and twice that is
        // generous.
        for _ in 0..20 {
            for slot in &mut sends {
                if let Some(send) = slot
                    && let Some(outcome) = send.test()
                {
                    outcome?;
                    *slot = None;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let gone = sends.iter().filter(|send| send.is_none()).count();
        ensure!(gone <= 2 * (1000 / 200 + 16), "{gone} messages of 200 bytes went where 1000 bytes are kept");
        seat.meet()?;
        sends.into_iter().flatten().try_for_each(|send| send.wait(PATIENCE).map(drop))?;
        return Ok(());
    }
    seat.meet()?;
    seat.meet()?;
    for number in 0..count {
        let into = private(200)?;
        ensure_eq!(seat.recv(0, 5, &into, PATIENCE)?, 200, "the length of message {number}");
        pattern::check(&into, number, &format!("message {number}"))?;
    }
    Ok(())
}

fn passing(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    let mut sends = Vec::new();
    // As many as are kept.
    for number in 0..4 {
        let data = private(200)?;
        pattern::write(&data, number);
        sends.push(seat.start_send(other, 5, &data)?);
    }
    let long = private(60_000)?;
    pattern::write(&long, 77);
    let into = private(60_000)?;
    let receive = seat.start_recv(other, 6, &into)?;
    seat.meet()?;
    let send = seat.start_send(other, 6, &long)?;
    ensure_eq!(receive.wait(PATIENCE)?, 60_000, "the length of the message that was asked for");
    pattern::check(&into, 77, "the message that was asked for")?;
    send.wait(PATIENCE)?;
    for number in 0..4 {
        let into = private(200)?;
        seat.recv(other, 5, &into, PATIENCE)?;
        pattern::check(&into, number, "a message that waited")?;
    }
    sends.into_iter().try_for_each(|send| send.wait(PATIENCE).map(drop))?;
    Ok(())
}

fn handles(seat: &mut Seat<'_>) -> Outcome {
    let (other, count) = (seat.other(), 60_u64);
    let mut numbers = pattern::Numbers::new(u64::from(seat.rank));
    let len = |number: u64| 1 + (number as usize * 577) % 25_000;
    let mut operations = Vec::new();
    for number in 0..count {
        let (data, into) = (seat.pooled(len(number))?, seat.pooled(len(number))?);
        pattern::write(&data, number);
        operations.push((seat.start_recv(other, number, &into)?, number, Some(into)));
        operations.push((seat.start_send(other, number, &data)?, number, None));
    }
    while !operations.is_empty() {
        let (operation, number, into) = operations.swap_remove(numbers.below(operations.len()));
        ensure_eq!(operation.wait(PATIENCE)?, len(number) as u64, "the bytes of operation {number}");
        if let Some(into) = into {
            pattern::check(&into, number, "the message")?;
        }
    }
    Ok(())
}

fn test(seat: &mut Seat<'_>) -> Outcome {
    for len in [8, 50_000] {
        let memory = seat.pooled(len)?;
        if seat.rank == 0 {
            seat.meet()?;
            pattern::write(&memory, 4);
            seat.send(1, 4, &memory, PATIENCE)?;
            continue;
        }
        let mut receive = seat.start_recv(0, 4, &memory)?;
        ensure!(receive.test().is_none(), "a receive has an outcome before anything was sent");
        seat.meet()?;
        let mut outcome = None;
        super::seat::await_true("the receive", || {
            outcome = receive.test();
            outcome.is_some()
        })?;
        ensure_eq!(outcome.transpose()?, Some(len as u64), "the message's length");
        pattern::check(&memory, 4, "the message")?;
    }
    Ok(())
}

fn dropped(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    for (tag, len) in (0..).zip([10, 3_000, 100_000]) {
        let (data, into) = (seat.pooled(len)?, seat.pooled(len)?);
        pattern::write(&data, tag);
        drop(seat.start_send(other, tag, &data)?);
        drop(data);
        seat.recv(other, tag, &into, PATIENCE)?;
        pattern::check(&into, tag, "a message whose handle was dropped")?;
        // A receive that nobody waits for takes its message nevertheless, and the next one is the next receive's.
        drop(seat.start_recv(other, 10 + tag, &into)?);
        seat.meet()?;
        for value in [1, 2] {
            let data = seat.pooled(len)?;
            pattern::write(&data, value);
            drop(seat.start_send(other, 10 + tag, &data)?);
        }
        let next = seat.pooled(len)?;
        seat.recv(other, 10 + tag, &next, PATIENCE)?;
        pattern::check(&next, 2, "the message of the second receive")?;
    }
    Ok(())
}

fn late_receive(seat: &mut Seat<'_>) -> Outcome {
    for len in [64, 3_000, 100_000] {
        if seat.rank == 0 {
            seat.meet()?;
            let data = seat.pooled(len)?;
            pattern::write(&data, 6);
            seat.send(1, 3, &data, PATIENCE)?;
            seat.meet()?;
            continue;
        }
        let memory = seat.pooled(len)?;
        memory.fill(0..len, 5);
        let received = seat.recv(0, 3, &memory, SOON);
        let text = ensure_error!(
            received,
            FabricError::TimedOut { op: "recv", missing, .. } if *missing == [0],
            "a receive that nobody sends to"
        );
        ensure!(text.contains("recv") && text.contains("rank 0"), "the error does not say enough: {text}");
        let Ok(block) = memory.into_block() else {
            ensure!(false, "the memory of a receive of {len} bytes that timed out is still in use");
            return Ok(());
        };
        seat.meet()?;
        let into = seat.pooled(len)?;
        ensure_eq!(seat.recv(0, 3, &into, PATIENCE)?, len, "the message's length");
        pattern::check(&into, 6, "the message that came later")?;
        ensure!(block.as_slice::<u8>().iter().all(|byte| *byte == 5), "a receive that timed out wrote");
        seat.meet()?;
    }
    let other = seat.other();
    goes_on(seat, other)
}

fn late_send(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    if seat.rank == 0 {
        // Plain memory that does not fit into what is kept, and memory that is offered. All is done before it is said.
        let data = seat.pooled(300_000)?;
        let sent = seat.send(1, 1, &data, SOON);
        let text = ensure_error!(
            sent,
            FabricError::TimedOut { op: "send", missing, .. } if *missing == [1],
            "a send that nobody receives"
        );
        ensure!(text.contains("send") && text.contains("rank 1"), "the error does not say enough: {text}");
    }
    seat.meet()?;
    goes_on(seat, other)
}

fn no_time(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    let received = seat.recv_bytes(other, 1, &mut [0], Duration::ZERO);
    ensure_error!(received, FabricError::TimedOut { .. }, "a receive without a message and without time");
    seat.meet()?;
    seat.send_bytes(other, 1, &[8], PATIENCE)?;
    let mut byte = [0];
    super::seat::await_true("the message", || seat.recv_bytes(other, 1, &mut byte, Duration::ZERO).is_ok())?;
    ensure_eq!(byte, [8], "the message");
    Ok(())
}
