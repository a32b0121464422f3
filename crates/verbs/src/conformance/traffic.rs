//! Much of everything at once: order and content.

use std::collections::VecDeque;
use std::thread;

use super::bed::{BOTH, Bed, Case, Outcome, ensure, ensure_eq};
use super::pattern::{self, Numbers};
use super::rig::{Rig, Setup, Side};
use super::watch::{Watch, check_done};
use crate::{CompletionOpcode, SendOp, SendRequest};

pub(super) const CASES: &[Case] = &[
    Case::new("traffic: 10,000 mixed messages in order", BOTH, &[], mixed),
    Case::new("traffic: a thread for each side", BOTH, &[], threads),
];

/// Requests in flight at most.
const WINDOW: usize = 8;
/// Room for each request in flight.
const SLOT: usize = 8192;

/// What was posted, and how it is told from the others.
struct Posted {
    wr_id: u64,
    op: SendOp,
    slot: usize,
    len: usize,
    signaled: bool,
}

fn mixed(bed: &Bed) -> Outcome {
    const MESSAGES: u64 = 10_000;
    let can = bed.info().capabilities;
    let frames = bed.info().limits.frame.map_or(1, |frame| SLOT.div_ceil(frame as usize));
    let setup = Setup {
        depth: (4 * WINDOW * frames) as u32,
        // Slots for outgoing bytes, for receives, and for one-sided operations.
        bytes: 3 * WINDOW * SLOT,
        ..Setup::default()
    };
    let mut rig = Rig::connected(bed, &setup)?;
    let rc = rig.reliable();
    let mut numbers = Numbers::new(2026);
    let mut flying: VecDeque<Posted> = VecDeque::new();
    for wr_id in 0..MESSAGES {
        if flying.len() == WINDOW {
            finish(&mut rig, &mut flying)?;
        }
        let slot = wr_id as usize % WINDOW;
        let remote = rig.b.memory.remote((2 * WINDOW + slot) * SLOT);
        let imm = (can.immediate && numbers.below(2) == 0).then_some(wr_id as u32);
        let op = match numbers.below(6) {
            0 if can.write => SendOp::Write { remote, imm },
            1 if can.read && rc => SendOp::Read { remote },
            2 if can.atomics && rc => SendOp::FetchAdd { remote, add: wr_id },
            _ => SendOp::Send { imm },
        };
        let len = match (op, numbers.below(10)) {
            (SendOp::FetchAdd { .. }, _) => 8,
            (_, 0) => 0,
            (_, 1) => numbers.below(SLOT as u64 + 1) as usize,
            _ => numbers.below(256) as usize,
        };
        // The last of a window is always seen, so that the window ends.
        let signaled = slot == WINDOW - 1 || wr_id == MESSAGES - 1 || numbers.below(4) != 0;
        let at = slot * SLOT;
        match op {
            SendOp::Send { .. } | SendOp::SendTo { .. } | SendOp::Write { .. } => rig.a.write(at..at + len, wr_id),
            SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => {
                let target = (2 * WINDOW + slot) * SLOT;
                rig.b.write(target..target + len.max(8), wr_id);
            }
        }
        if takes_recv(&op) {
            let target = (WINDOW + slot) * SLOT;
            rig.b.recv_range(wr_id, target..target + len)?;
        }
        let request = SendRequest::new(wr_id, op, [rig.a.memory.piece(at..at + len)]);
        rig.a.send(SendRequest { signaled, ..request })?;
        flying.push_back(Posted { wr_id, op, slot, len, signaled });
    }
    while !flying.is_empty() {
        finish(&mut rig, &mut flying)?;
    }
    rig.a_sends_quiet("every message has completed")?;
    rig.b_recvs_quiet("every message has completed")
}

fn takes_recv(op: &SendOp) -> bool {
    matches!(op, SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. })
}

/// Waits for the oldest visible request in flight, and checks it and the silent ones before it.
fn finish(rig: &mut Rig, flying: &mut VecDeque<Posted>) -> Outcome {
    let visible = flying.iter().position(|posted| posted.signaled).expect("the last of each window is visible");
    for posted in flying.drain(..=visible) {
        if posted.signaled {
            let opcode = match posted.op {
                SendOp::Send { .. } | SendOp::SendTo { .. } => CompletionOpcode::Send,
                SendOp::Write { .. } => CompletionOpcode::Write,
                SendOp::Read { .. } => CompletionOpcode::Read,
                SendOp::FetchAdd { .. } => CompletionOpcode::FetchAdd,
                SendOp::CompareSwap { .. } => CompletionOpcode::CompareSwap,
            };
            check_done(&rig.a_sent()?, posted.wr_id, opcode)?;
        }
        arrived(rig, &posted)?;
    }
    Ok(())
}

/// Checks what a request brought about.
fn arrived(rig: &mut Rig, posted: &Posted) -> Outcome {
    let Posted { wr_id, op, slot, len, .. } = *posted;
    let what = format!("message {wr_id} of {len} bytes");
    let recv_slot = (WINDOW + slot) * SLOT;
    let remote_slot = (2 * WINDOW + slot) * SLOT;
    if takes_recv(&op) {
        let received = rig.b_received()?;
        let (opcode, imm) = match op {
            SendOp::Send { imm } => (CompletionOpcode::Recv, imm),
            SendOp::Write { imm, .. } => (CompletionOpcode::RecvWriteWithImm, imm),
            _ => unreachable!("takes no RECV"),
        };
        check_done(&received, wr_id, opcode)?;
        ensure_eq!(received.imm, imm, "the immediate data of {what}");
        ensure_eq!(received.byte_len as usize, len, "the length of {what}");
    }
    match op {
        SendOp::Send { .. } | SendOp::SendTo { .. } => rig.b.check(recv_slot..recv_slot + len, wr_id, &what),
        SendOp::Write { .. } => {
            let target = rig.b.memory.bytes.slice(remote_slot..remote_slot + len);
            if rig.reliable() {
                return pattern::check(&target, wr_id, &what);
            }
            // Without acknowledgements the bytes may come after the completion.
            rig.watch.until(&what, |_| Ok(pattern::check(&target, wr_id, &what).ok()))
        }
        SendOp::Read { .. } => rig.a.check(slot * SLOT..slot * SLOT + len, wr_id, &what),
        SendOp::FetchAdd { add, .. } => {
            rig.a.check(slot * SLOT..slot * SLOT + 8, wr_id, &what)?;
            let old = u64::from_ne_bytes(pattern::bytes(wr_id, 8).try_into().expect("8 bytes"));
            let new = old.wrapping_add(add).to_ne_bytes();
            pattern::check_bytes(&rig.b.memory.bytes.slice(remote_slot..remote_slot + 8), &new, &what)
        }
        SendOp::CompareSwap { .. } => unreachable!("not among the mixed messages"),
    }
}

fn threads(bed: &Bed) -> Outcome {
    const ROUNDS: u64 = 1000;
    let rig = Rig::connected(bed, &Setup::default())?;
    let Rig { a, b, watch, .. } = rig;
    drop(watch);
    // The first RECV of each is there before anybody sends.
    a.recv_range(0, 4096..4096 + 1024)?;
    b.recv_range(0, 4096..4096 + 1024)?;
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| ping_pong(&b, ROUNDS, 1_000_000, 0, false));
        let first = ping_pong(&a, ROUNDS, 0, 1_000_000, true);
        (first, second.join())
    });
    first?;
    second.map_err(|_| "the thread of the second side panicked".to_string())?
}

/// One side of the game: waits for a message, answers, and never looks at the other side's queues.
fn ping_pong(side: &Side, rounds: u64, own_seed: u64, peer_seed: u64, serves: bool) -> Outcome {
    let mut watch = Watch::new([side.send_cq.clone(), side.recv_cq.clone()]);
    for round in 0..rounds {
        let len = 1 + (round as usize * 37) % 1024;
        if serves {
            side.write(0..len, own_seed + round);
            side.send_range(round, 0..len)?;
        }
        let received = watch.next(1)?;
        check_done(&received, round, CompletionOpcode::Recv)?;
        ensure!(received.byte_len as usize == len, "round {round} brought {} bytes of {len}", received.byte_len);
        side.check(4096..4096 + len, peer_seed + round, "the message of the other thread")?;
        // Before the answer that lets the peer send the next one.
        side.recv_range(round + 1, 4096..4096 + 1024)?;
        if !serves {
            side.write(0..len, own_seed + round);
            side.send_range(round, 0..len)?;
        }
        check_done(&watch.next(0)?, round, CompletionOpcode::Send)?;
    }
    Ok(())
}
