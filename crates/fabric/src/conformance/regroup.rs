//! New generations: ranks go on without those that are gone, or with others in their place.

use super::PATIENCE;
use super::case::{Case, Outcome, ensure, ensure_eq, ensure_error};
use super::onesided::share_all;
use super::pattern;
use super::seat::Seat;
use crate::{FabricError, Regroup, Rights};

pub(super) const CASES: &[Case] = &[
    Case::new("regroup: the survivors of a death go on", 3, shrink),
    Case::new("regroup: twice in a row", 5, twice),
    Case::new("regroup: with nobody lost it is a new beginning", 2, refresh),
    Case::new("regroup: a rank that was started again takes its place", 3, rejoin),
    Case::new("regroup: blocks keep their bytes, and keys end", 3, keys_end),
];

/// Everybody sends to everybody, and puts into everybody's memory.
fn works(seat: &Seat<'_>, round: u64) -> Outcome {
    let len = 40_000;
    let (shared, keys) = share_all(seat, 8 + len * seat.size as usize, Rights::all())?;
    let seed = |from: u32, to: u32| round << 16 | u64::from(from << 8 | to);
    for other in seat.others() {
        let data = seat.pooled(len)?;
        pattern::write(&data, seed(seat.rank, other));
        let send = seat.start_send(other, round, &data)?;
        let into = seat.pooled(len)?;
        ensure_eq!(seat.recv(other, round, &into, PATIENCE)?, len, "a message of the new generation");
        pattern::check(&into, seed(other, seat.rank), "a message of the new generation")?;
        send.wait(PATIENCE)?;
        let remote = seat.remote(other, &keys[other as usize])?;
        let at = 8 + len as u64 * u64::from(seat.rank);
        remote.put_counted(at, &data, (&remote, 0, 1), PATIENCE)?;
    }
    shared.wait_counter(0, u64::from(seat.size) - 1, PATIENCE)?;
    for other in seat.others() {
        let at = 8 + len * other as usize;
        pattern::check(&shared.memory().slice(at..at + len), seed(other, seat.rank), "a put of the new generation")?;
    }
    // Nobody closes while another one puts.
    for other in seat.others() {
        super::messages::goes_on(seat, other)?;
    }
    Ok(shared.close(PATIENCE)?)
}

/// The ranks of the launch that were lost.
fn failed(seat: &Seat<'_>) -> Vec<u32> {
    let mut failed: Vec<u32> = seat.failed().iter().map(|lost| lost.rank).collect();
    failed.sort_unstable();
    failed
}

fn shrink(seat: &mut Seat<'_>) -> Outcome {
    works(seat, 1)?;
    let generation = seat.generation();
    seat.meet()?;
    if seat.rank == 1 {
        seat.drop_dead();
        return Ok(());
    }
    let old = (**seat).clone();
    // Some find out by an operation, some do not.
    if seat.rank == 0 {
        let received = seat.recv_bytes(1, 9, &mut [0], PATIENCE);
        ensure_error!(received, FabricError::PeerLost { op: "recv", .. }, "a receive from a dead rank");
    }
    seat.regroup(Regroup::Survivors)?;
    ensure_eq!(seat.members(), [0, 2], "the members of the new generation");
    ensure_eq!(failed(seat), [1], "those who were lost before it");
    ensure_eq!((seat.size, seat.rank < 2), (2, true), "the new size, and a rank in it");
    ensure!(seat.generation() != generation, "the new generation has the old one's number");
    for outcome in
        [old.send_bytes(1 - seat.rank, 1, &[1], PATIENCE), old.recv_bytes(1, 1, &mut [1], PATIENCE).map(drop)]
    {
        ensure!(outcome.is_err(), "an operation of the old generation went on");
    }
    drop(old);
    works(seat, 2)
}

fn twice(seat: &mut Seat<'_>) -> Outcome {
    works(seat, 1)?;
    for (round, (dies, left)) in (2..).zip([(4, 4), (0, 3)]) {
        if seat.is_gone() {
            seat.meet()?;
            continue;
        }
        seat.meet()?;
        if seat.members()[seat.rank as usize] == dies {
            seat.drop_dead();
            continue;
        }
        seat.regroup(Regroup::Survivors)?;
        ensure_eq!(seat.size, left, "the size of the new generation");
        ensure_eq!(failed(seat), [dies], "those who were lost before it");
        works(seat, round)?;
    }
    if !seat.is_gone() {
        ensure_eq!(seat.members(), [1, 2, 3], "who is left");
    }
    Ok(())
}

fn refresh(seat: &mut Seat<'_>) -> Outcome {
    for round in 0..3 {
        works(seat, round)?;
        seat.meet()?;
        let how = if round % 2 == 0 { Regroup::Survivors } else { Regroup::Everybody };
        seat.regroup(how)?;
        ensure_eq!(seat.members(), [0, 1], "the members of the new generation");
        ensure!(failed(seat).is_empty(), "those who were lost: {:?}", failed(seat));
    }
    works(seat, 9)
}

fn rejoin(seat: &mut Seat<'_>) -> Outcome {
    works(seat, 1)?;
    seat.meet()?;
    if seat.rank == 2 {
        seat.drop_dead();
        seat.join()?;
    } else {
        let received = seat.recv_bytes(2, 9, &mut [0], PATIENCE);
        ensure_error!(received, FabricError::PeerLost { op: "recv", rank: 2, .. }, "a receive from a dead rank");
        seat.regroup(Regroup::Everybody)?;
    }
    ensure_eq!(seat.members(), [0, 1, 2], "the members of the new generation");
    ensure_eq!(failed(seat), [2], "those who were lost before it");
    works(seat, 2)
}

fn keys_end(seat: &mut Seat<'_>) -> Outcome {
    let block = seat.pooled(50_000)?;
    pattern::write(&block, 7);
    let shared = seat.share(&block, Rights::all())?;
    let keys = super::onesided::exchange(seat, &shared.key())?;
    let next = (seat.rank + 1) % 3;
    let remote = seat.remote(next, &keys[next as usize])?;
    remote.get(0, &seat.pooled(50_000)?, PATIENCE)?;
    seat.meet()?;
    if seat.rank == 1 {
        drop((remote, shared, block));
        seat.drop_dead();
        return Ok(());
    }
    seat.regroup(Regroup::Survivors)?;
    pattern::check(&block, 7, "a block of the old generation")?;
    let put = remote.put_bytes(0, &[1; 64], PATIENCE);
    ensure!(put.is_err(), "a put of the old generation went on");
    let other = seat.other();
    let old = &keys[if other == 0 { 0 } else { 2 }];
    let put = seat.remote(other, old).and_then(|remote| remote.put_bytes(0, &[1; 64], PATIENCE));
    ensure!(put.is_err(), "a key of the old generation is taken in the new one");
    super::messages::goes_on(seat, other)?;
    pattern::check(&block, 7, "a block of the old generation")?;
    drop((remote, shared, block));
    works(seat, 2)
}
