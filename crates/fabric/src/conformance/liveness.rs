//! Ranks that leave, and ranks that die: every wait ends, and says who and what it was.

use std::fmt::Debug;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::PATIENCE;
use super::case::{Case, Outcome, ensure, ensure_eq, ensure_error};
use super::messages::goes_on;
use super::pattern;
use super::seat::{Seat, private};
use crate::{FabricError, Loss, On};

pub(super) const CASES: &[Case] = &[
    Case::new("liveness: what was sent before a goodbye arrives", 2, last_words),
    Case::new("liveness: a goodbye ends every wait on the rank and no other", 3, goodbye),
    Case::new("liveness: whoever sends to a rank that leaves hears that it has left", 2, left_midway),
    Case::new("liveness: so does whoever sends to it for the first time", 2, left_at_first),
    Case::new("liveness: a death ends a receive", 2, dead_sender),
    Case::new("liveness: a death ends a receive in the middle of a message", 2, dead_midway),
    Case::new("liveness: a death ends a send", 2, dead_receiver),
    Case::new("liveness: a death ends a wait on all ranks", 3, dead_wait),
    Case::new("liveness: a death ends every handle and gives the memory back", 2, dead_handles),
    Case::new("liveness: survivors of a death keep their links", 3, survivors),
    Case::new("liveness: nothing waits for a rank that is known to be dead", 2, dead_already),
    Case::new("liveness: a death is no goodbye", 3, causes),
    Case::new("liveness: a deadline names operation, carrier and ranks", 3, deadline),
    Case::new("liveness: many deaths at once", 5, many_deaths),
];

/// Fails unless an operation ended since this rank was lost, and says so in words.
fn ensure_lost<T: Debug>(outcome: Result<T, FabricError>, seat: &Seat<'_>, name: &str, lost: u32) -> Outcome {
    let text = ensure_error!(
        outcome,
        FabricError::PeerLost { rank, op, .. } if *rank == lost && *op == name,
        "{name} with rank {lost}, which is gone"
    );
    let words = [name.to_string(), format!("rank {lost}"), seat.link_to(lost).to_string()];
    for word in &words {
        ensure!(text.contains(word), "the error does not say {word:?}: {text}");
    }
    Ok(())
}

fn last_words(seat: &mut Seat<'_>) -> Outcome {
    if seat.rank == 0 {
        for value in 0..20_u64 {
            seat.send_bytes(1, 1, &value.to_le_bytes(), PATIENCE)?;
        }
        let data = private(50_000)?;
        pattern::write(&data, 3);
        // Nobody waits for it: leaving does.
        drop(seat.start_send(1, 2, &data)?);
        seat.leave();
        return Ok(());
    }
    let into = private(50_000)?;
    ensure_eq!(seat.recv(0, 2, &into, PATIENCE)?, 50_000, "the length of the last message");
    pattern::check(&into, 3, "the last message")?;
    // The rank has left by the time when most of these are asked for.
    for value in 0..20_u64 {
        let mut bytes = [0; 8];
        seat.recv_bytes(0, 1, &mut bytes, PATIENCE)?;
        ensure_eq!(u64::from_le_bytes(bytes), value, "a message of a rank that left");
    }
    ensure_lost(seat.recv_bytes(0, 1, &mut [0; 8], PATIENCE), seat, "recv", 0)
}

fn goodbye(seat: &mut Seat<'_>) -> Outcome {
    if seat.rank == 2 {
        seat.meet()?;
        seat.leave();
        return Ok(());
    }
    let into = seat.pooled(100)?;
    let receive = seat.start_recv(2, 1, &into)?;
    seat.meet()?;
    ensure_lost(receive.wait(PATIENCE), seat, "recv", 2)?;
    ensure_lost(seat.wait("watch", &[2], PATIENCE, || Poll::<()>::Pending), seat, "watch", 2)?;
    ensure_lost(seat.wait("all", On::All, PATIENCE, || Poll::<()>::Pending), seat, "all", 2)?;
    let other = seat.other();
    let wait = seat.wait("other", &[other], Duration::from_millis(50), || Poll::<()>::Pending);
    ensure_error!(wait, FabricError::TimedOut { op: "other", .. }, "a wait on a rank that is there");
    goes_on(seat, other)
}

fn left_midway(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    goes_on(seat, other)?;
    left_at_first(seat)
}

fn left_at_first(seat: &mut Seat<'_>) -> Outcome {
    if seat.rank == 1 {
        seat.leave();
        return Ok(());
    }
    // How long they are taken is luck: until the link says that it is over.
    let end = Instant::now() + PATIENCE;
    let mut sent = seat.send_bytes(1, 1, &[1; 64], PATIENCE);
    while sent.is_ok() && Instant::now() < end {
        sent = seat.send_bytes(1, 1, &[1; 64], PATIENCE);
    }
    ensure_lost(sent, seat, "send", 1)?;
    // It may leave before this rank has taken what it sent.
    let loss = seat.loss(1);
    ensure!(matches!(loss, Some(Loss::Left | Loss::Ended | Loss::GaveUp)), "a goodbye is {loss:?}");
    Ok(())
}

fn dead_sender(seat: &mut Seat<'_>) -> Outcome {
    for _ in 0..2 {
        // The links have carried something before.
        let other = seat.other();
        goes_on(seat, other)?;
    }
    seat.meet()?;
    if seat.rank == 1 {
        seat.drop_dead();
        return Ok(());
    }
    let mut bytes = [7; 16];
    ensure_lost(seat.recv_bytes(1, 1, &mut bytes, PATIENCE), seat, "recv", 1)?;
    ensure_eq!(bytes, [7; 16], "memory for which nothing came");
    let memory = seat.pooled(100_000)?;
    ensure_lost(seat.recv(1, 2, &memory, PATIENCE), seat, "recv", 1)?;
    ensure!(memory.into_block().is_ok(), "a receive from a dead rank keeps its memory");
    Ok(())
}

fn dead_midway(seat: &mut Seat<'_>) -> Outcome {
    if seat.rank == 1 {
        // Longer than what is kept without its receive.
        let send = seat.start_send(0, 1, &private(12 << 20)?)?;
        seat.meet()?;
        drop(send);
        seat.drop_dead();
        return Ok(());
    }
    seat.meet()?;
    // What came of the other tag does not matter to this one.
    ensure_lost(seat.recv_bytes(1, 2, &mut [0; 8], PATIENCE), seat, "recv", 1)?;
    let mut bytes = vec![0; 12 << 20];
    ensure_lost(seat.recv_bytes(1, 1, &mut bytes, PATIENCE), seat, "recv", 1)
}

fn dead_receiver(seat: &mut Seat<'_>) -> Outcome {
    seat.meet()?;
    if seat.rank == 1 {
        seat.drop_dead();
        return Ok(());
    }
    // By rendezvous and in more frames than are kept; whether it began before the death is luck.
    let memory = seat.pooled(100_000)?;
    ensure_lost(seat.send(1, 1, &memory, PATIENCE), seat, "send", 1)?;
    ensure!(memory.into_block().is_ok(), "a send to a dead rank keeps its memory");
    ensure_lost(seat.send_bytes(1, 1, &vec![1; 12 << 20], PATIENCE), seat, "send", 1)
}

fn dead_wait(seat: &mut Seat<'_>) -> Outcome {
    seat.meet()?;
    if seat.rank == 2 {
        seat.drop_dead();
        return Ok(());
    }
    ensure_lost(seat.wait("my_wait", On::All, PATIENCE, || Poll::<()>::Pending), seat, "my_wait", 2)?;
    // What is ready counts, whoever is lost.
    ensure_eq!(seat.wait("ready", On::All, PATIENCE, || Poll::Ready(5))?, 5, "a wait that was over");
    Ok(())
}

fn dead_handles(seat: &mut Seat<'_>) -> Outcome {
    if seat.rank == 1 {
        seat.meet()?;
        seat.drop_dead();
        return Ok(());
    }
    let mut operations = Vec::new();
    for tag in 0..20 {
        let len = 1 + 5000 * tag as usize;
        operations.push(("recv", seat.start_recv(1, tag, &seat.pooled(len)?)?));
        if tag > 3 {
            // Short ones have gone before anybody dies.
            operations.push(("send", seat.start_send(1, tag, &seat.pooled(len)?)?));
        }
    }
    // Dropped ones give their memory back, too.
    drop(seat.start_send(1, 99, &seat.pooled(200_000)?)?);
    drop(seat.start_recv(1, 99, &seat.pooled(200_000)?)?);
    seat.meet()?;
    for (name, operation) in operations {
        match operation.wait(PATIENCE) {
            // In frames, a message is sent when they are out.
            Ok(_) if name == "send" => {}
            outcome => ensure_lost(outcome, seat, name, 1)?,
        }
    }
    Ok(())
}

fn survivors(seat: &mut Seat<'_>) -> Outcome {
    seat.meet()?;
    if seat.rank == 1 {
        seat.drop_dead();
        return Ok(());
    }
    let other = 2 - seat.rank;
    ensure_lost(seat.recv_bytes(1, 1, &mut [0; 8], PATIENCE), seat, "recv", 1)?;
    for tag in 0..10 {
        let len = 1 + 7000 * tag as usize;
        let (data, into) = (seat.pooled(len)?, seat.pooled(len)?);
        pattern::write(&data, tag);
        let send = seat.start_send(other, tag, &data)?;
        ensure_eq!(seat.recv(other, tag, &into, PATIENCE)?, len, "a survivor's message");
        pattern::check(&into, tag, "a survivor's message")?;
        send.wait(PATIENCE)?;
    }
    ensure!(seat.loss(other).is_none(), "a survivor takes the other one for lost");
    Ok(())
}

fn dead_already(seat: &mut Seat<'_>) -> Outcome {
    if seat.rank == 1 {
        seat.drop_dead();
        return seat.meet();
    }
    ensure_lost(seat.wait("watch", &[1], PATIENCE, || Poll::<()>::Pending), seat, "watch", 1)?;
    seat.meet()?;
    let memory = seat.pooled(50_000)?;
    for len in [0, 1, 50_000] {
        ensure_lost(seat.send(1, 1, &memory.slice(0..len), PATIENCE), seat, "send", 1)?;
        ensure_lost(seat.recv(1, 1, &memory.slice(0..len), PATIENCE), seat, "recv", 1)?;
    }
    ensure_lost(seat.start_send(1, 1, &memory).and_then(|send| send.wait(PATIENCE)), seat, "send", 1)?;
    ensure_lost(seat.start_recv(1, 1, &memory).and_then(|receive| receive.wait(PATIENCE)), seat, "recv", 1)
}

fn causes(seat: &mut Seat<'_>) -> Outcome {
    if seat.rank == 1 {
        seat.leave();
    } else {
        ensure_lost(seat.wait("watch", &[1], PATIENCE, || Poll::<()>::Pending), seat, "watch", 1)?;
        // Over shared memory, the end of the connection may be seen before the goodbye is read.
        ensure!(matches!(seat.loss(1), Some(Loss::Left | Loss::Ended)), "the goodbye is {:?}", seat.loss(1));
    }
    seat.meet()?;
    match seat.rank {
        2 => seat.drop_dead(),
        0 => {
            ensure_lost(seat.wait("watch", &[2], PATIENCE, || Poll::<()>::Pending), seat, "watch", 2)?;
            ensure!(seat.loss(2).is_some_and(|loss| loss != Loss::Left), "the death is {:?}", seat.loss(2));
            ensure!(seat.loss(0).is_none(), "this rank is lost to itself");
        }
        _ => {}
    }
    Ok(())
}

fn deadline(seat: &mut Seat<'_>) -> Outcome {
    let soon = Duration::from_millis(50);
    let others: Vec<u32> = seat.others().collect();
    let waited = seat.wait("rest", &others[..], soon, || Poll::<()>::Pending);
    let text = ensure_error!(
        waited,
        FabricError::TimedOut { op: "rest", missing, .. } if *missing == others,
        "a wait for nothing"
    );
    for word in ["rest".to_string(), seat.link_kind().to_string(), others[0].to_string(), others[1].to_string()] {
        ensure!(text.contains(&word), "the error does not say {word:?}: {text}");
    }
    // The deadline is this rank's alone.
    seat.meet()?;
    others.iter().try_for_each(|other| goes_on(seat, *other))
}

fn many_deaths(seat: &mut Seat<'_>) -> Outcome {
    seat.meet()?;
    if seat.rank >= 2 {
        seat.drop_dead();
        return Ok(());
    }
    for lost in [4, 2, 3] {
        // A link may be seen to end before its rank is known to be dead: then the death that is known is named.
        let received = seat.recv_bytes(lost, 1, &mut [0], PATIENCE);
        ensure_error!(received, FabricError::PeerLost { op: "recv", rank: 2..=4, .. }, "a receive from a dead rank");
    }
    let other = seat.other();
    goes_on(seat, other)
}
