//! The pool: what operations held comes back, whole.

use std::time::Duration;

use super::PATIENCE;
use super::case::{Case, Outcome, ensure, ensure_error};
use super::pattern;
use super::seat::{Seat, await_true};
use crate::FabricError;

pub(super) const CASES: &[Case] = &[
    Case::new("memory: a pool that traffic has cut up is whole again", 2, whole_again),
    Case::new("memory: a pool that is used up says so, and works on", 2, used_up),
    Case::new("memory: messages that were given up leave nothing", 2, given_up),
];

fn whole_again(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    let before = seat.pool().stats();
    for round in 0..6_u64 {
        let mut operations = Vec::new();
        for number in 0..12_u64 {
            let len = 1 + (number as usize * 7919 + round as usize * 104_729) % 120_000;
            let (data, into) = (seat.pooled(len)?, seat.pooled(len)?);
            pattern::write(&data, number);
            operations.push(seat.start_recv(other, number, &into)?);
            operations.push(seat.start_send(other, number, &data)?);
        }
        operations.into_iter().try_for_each(|operation| operation.wait(PATIENCE).map(drop))?;
    }
    await_true("the pool to be whole", || seat.pool().stats() == before)
}

fn used_up(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    let mut blocks = Vec::new();
    let error = loop {
        match seat.alloc(1 << 20) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        ensure!(blocks.len() < 1 << 12, "a pool without an end");
    };
    let text = error.to_string();
    ensure!(matches!(error, FabricError::Pool { op: "alloc", .. }), "a pool that is used up: {text}");
    ensure!(text.contains("FULMEN_POOL"), "the error does not name the way out: {text}");
    // Messages need no room of the pool.
    super::messages::goes_on(seat, other)?;
    blocks.clear();
    seat.alloc(16 << 20)?;
    Ok(())
}

fn given_up(seat: &mut Seat<'_>) -> Outcome {
    let other = seat.other();
    let soon = Duration::from_millis(10);
    for tag in 0..10 {
        let (data, into) = (seat.pooled(60_000)?, seat.pooled(60_000)?);
        ensure_error!(seat.send(other, tag, &data, soon), FabricError::TimedOut { .. }, "a send that nobody receives");
        // Another tag, so that nothing comes.
        let received = seat.recv(other, 100 + tag, &into, soon);
        ensure_error!(received, FabricError::TimedOut { .. }, "a receive that nobody sends to");
    }
    await_true("the blocks of what was given up", || seat.pool().stats().blocks == 0)?;
    // What waits for messages of other ranks is nothing that keeps anybody.
    super::messages::goes_on(seat, other)
}
