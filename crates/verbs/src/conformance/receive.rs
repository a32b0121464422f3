//! Messages without a RECV, and with one that does not suit.

use super::bed::{BOTH, Bed, Case, Need, Outcome, RC, UC, ensure, ensure_eq};
use super::pattern;
use super::rig::{Rig, Setup};
use super::watch::{check_done, check_status};
use crate::{AckTimeout, CompletionOpcode, CompletionStatus, QueuePairState, SendOp, SendRequest};

pub(super) const CASES: &[Case] = &[
    Case::new("receive: RNR without retries fails the SEND", RC, &[], rnr_none),
    Case::new("receive: RNR fails the SEND after its retries", RC, &[], rnr_some),
    Case::new("receive: RNR retries for ever find a late RECV", RC, &[], rnr_for_ever),
    Case::new("receive: RNR of a WRITE with immediate data", RC, &[Need::Write, Need::Immediate], rnr_write),
    Case::new("receive: UC without a RECV loses the message", UC, &[Need::Loses], uc_loses),
    Case::new("receive: UC without a RECV holds the message", UC, &[Need::Holds], uc_holds),
    Case::new("receive: a message longer than its RECV", BOTH, &[Need::NoFrames], too_long),
    Case::new("receive: a message of more frames than its RECV", BOTH, &[Need::Frames], more_frames),
    Case::new("receive: a message of fewer frames than its RECV", BOTH, &[Need::Frames], fewer_frames),
    Case::new("receive: a peer that is not ready to receive", RC, &[], not_ready),
];

fn rnr_none(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { rnr_retries: 0, ..Setup::default() })?;
    rig.a.send_range(1, 0..64)?;
    check_status(&rig.a_sent()?, 1, CompletionStatus::RnrRetryExceeded)?;
    ensure_eq!(rig.a.qp.state(), QueuePairState::Error, "the sender's state");
    ensure_eq!(rig.b.qp.state(), QueuePairState::ReadyToSend, "the receiver's state, which did nothing wrong");
    Ok(())
}

fn rnr_some(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { rnr_retries: 3, ..Setup::default() })?;
    rig.a.send_range(1, 0..64)?;
    rig.a.send_range(2, 0..64)?;
    check_status(&rig.a_sent()?, 1, CompletionStatus::RnrRetryExceeded)?;
    check_status(&rig.a_sent()?, 2, CompletionStatus::Flushed)?;
    ensure_eq!(rig.a.qp.state(), QueuePairState::Error, "the sender's state");
    Ok(())
}

fn rnr_for_ever(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { rnr_retries: 7, ..Setup::default() })?;
    waits(&mut rig)
}

fn uc_holds(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    waits(&mut rig)
}

/// Sends without a RECV; the messages wait for theirs, in order.
fn waits(rig: &mut Rig) -> Outcome {
    for wr_id in 0..3 {
        let at = 64 * wr_id as usize;
        rig.a.write(at..at + 64, wr_id);
        rig.a.send_range(wr_id, at..at + 64)?;
    }
    rig.b_recvs_quiet("no RECV is posted")?;
    if rig.reliable() {
        rig.a_sends_quiet("no RECV is posted")?;
    }
    for wr_id in 0..3 {
        let at = 64 * wr_id as usize;
        rig.b.recv_range(wr_id, at..at + 64)?;
        check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
        rig.b.check(at..at + 64, wr_id, "a message that waited")?;
    }
    rig.check_alive()
}

fn rnr_write(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { rnr_retries: 1, ..Setup::default() })?;
    let remote = rig.b.memory.remote(0);
    // Without immediate data it takes no RECV, and so needs none.
    rig.a.post(1, SendOp::Write { remote, imm: None }, 0..64)?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Write)?;
    rig.a.post(2, SendOp::Write { remote, imm: Some(1) }, 0..64)?;
    check_status(&rig.a_sent()?, 2, CompletionStatus::RnrRetryExceeded)
}

fn uc_loses(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.a.write(0..64, 1);
    rig.a.write(64..128, 2);
    rig.a.send_range(1, 0..64)?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Send)?;
    let can_tell = bed.info().capabilities.write;
    if can_tell {
        // A queue pair keeps its order: once this has arrived, so has the message.
        rig.b.memory.bytes.fill(1000..1001, 0);
        rig.a.memory.bytes.fill(1000..1001, 0x77);
        let remote = rig.b.memory.remote(1000);
        rig.a.post(2, SendOp::Write { remote, imm: None }, 1000..1001)?;
        check_done(&rig.a_sent()?, 2, CompletionOpcode::Write)?;
        let flag = rig.b.memory.bytes.slice(1000..1001);
        rig.watch.until("the bytes written", |_| Ok(pattern::check_all(&flag, 0x77, "the flag").ok()))?;
    }
    rig.b.recv_range(3, 0..64)?;
    rig.a.send_range(4, 64..128)?;
    check_done(&rig.a_sent()?, 4, CompletionOpcode::Send)?;
    check_done(&rig.b_received()?, 3, CompletionOpcode::Recv)?;
    let second = rig.b.check(0..64, 2, "the message that had its RECV");
    // Without WRITE nobody knows when the first one arrived, and it may have found the RECV.
    if can_tell || rig.b.check(0..64, 1, "the first message").is_err() { second } else { Ok(()) }
}

/// A message that does not suit its RECV.
fn misfit(bed: &Bed, sent: usize, room: usize) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.b.memory.bytes.fill(0..room + 64, 0x55);
    rig.b.recv_range(1, 0..room)?;
    rig.b.recv_range(2, room..room + 64)?;
    rig.a.send_range(3, 0..sent)?;
    check_status(&rig.b_received()?, 1, CompletionStatus::LocalLength)?;
    check_status(&rig.b_received()?, 2, CompletionStatus::Flushed)?;
    ensure_eq!(rig.b.qp.state(), QueuePairState::Error, "the receiver's state");
    pattern::check_all(&rig.b.memory.bytes.slice(room..room + 64), 0x55, "the bytes after the RECV's room")?;
    let completion = rig.a_sent()?;
    match rig.reliable() {
        true => check_status(&completion, 3, CompletionStatus::RemoteInvalidRequest),
        // A device may notice before the message leaves, and nobody tells the sender afterwards.
        false => {
            super::watch::check_one_of(&completion, 3, &[CompletionStatus::Success, CompletionStatus::LocalLength])
        }
    }
}

fn too_long(bed: &Bed) -> Outcome {
    // By a byte, by a page, by everything; eager and large.
    for (sent, room) in [(65, 64), (1, 0), (4097, 4096), (40_000, 128), (60_000, 59_999)] {
        misfit(bed, sent, room)?;
    }
    Ok(())
}

fn more_frames(bed: &Bed) -> Outcome {
    let frame = frame(bed);
    misfit(bed, frame + 1, frame)?;
    misfit(bed, 3 * frame, frame)?;
    // In the same frame, but longer than the room.
    misfit(bed, frame, frame - 1)
}

fn fewer_frames(bed: &Bed) -> Outcome {
    let frame = frame(bed);
    misfit(bed, frame, frame + 1)?;
    misfit(bed, 64, 3 * frame)?;
    // As many frames, and shorter: that is allowed.
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.b.recv_range(1, 0..2 * frame)?;
    rig.a.send_range(2, 0..frame + 1)?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Send)?;
    let received = rig.b_received()?;
    check_done(&received, 1, CompletionOpcode::Recv)?;
    ensure_eq!(received.byte_len as usize, frame + 1, "the bytes received");
    Ok(())
}

fn frame(bed: &Bed) -> usize {
    bed.info().limits.frame.expect("a case that needs frames") as usize
}

fn not_ready(bed: &Bed) -> Outcome {
    // 4.2 ms, twice: nobody will ever answer.
    let setup = Setup { timeout: AckTimeout(10), retries: 1, ..Setup::default() };
    let mut rig = Rig::reset(bed, &setup)?;
    rig.b.init(&setup)?;
    rig.b.memory.bytes.fill(0..64, 0x55);
    rig.b.recv_range(9, 0..64)?;
    rig.a.init(&setup)?;
    rig.a.ready_to_receive(&rig.b)?;
    rig.a.ready_to_send(&setup)?;
    let piece = rig.a.memory.piece(0..64);
    rig.a.send(SendRequest { signaled: false, ..SendRequest::send(1, [piece]) })?;
    rig.a.send_range(2, 0..64)?;
    check_status(&rig.a_sent()?, 1, CompletionStatus::RetryExceeded)?;
    check_status(&rig.a_sent()?, 2, CompletionStatus::Flushed)?;
    rig.b_recvs_quiet("in INIT nothing arrives")?;
    ensure!(rig.a.qp.state() == QueuePairState::Error, "a queue pair whose SEND failed is in ERR");
    pattern::check_all(&rig.b.memory.bytes.slice(0..64), 0x55, "memory of a queue pair in INIT")
}
