//! Completion channels: a thread parks until there is something.

use std::sync::Arc;
use std::time::Duration;

use super::PATIENCE;
use super::bed::{BOTH, Bed, Case, Outcome, ensure};
use super::rig::{Rig, Setup, Side, connect};
use super::watch::{check_done, check_status};
use crate::{CompletionChannel, CompletionOpcode, CompletionStatus, SendRequest, Transition, VerbsError};

pub(super) const CASES: &[Case] = &[
    Case::new("notify: a completion wakes who asked", BOTH, &[], wakes),
    Case::new("notify: waiting ends on time-out", BOTH, &[], times_out),
    Case::new("notify: one request, one event", BOTH, &[], once),
    Case::new("notify: solicited completions only", BOTH, &[], solicited),
    Case::new("notify: a failure counts as solicited", BOTH, &[], failure),
    Case::new("notify: asking for solicited ones weakens no pending request", BOTH, &[], no_downgrade),
    Case::new("notify: asking for any one widens a pending request", BOTH, &[], widens),
    Case::new("notify: a thread that is parked is woken", BOTH, &[], parked),
    Case::new("notify: a queue without a channel refuses", BOTH, &[], no_channel),
];

/// Long enough for a wrong event to show, most of the time; a right device never fails by it.
const SHORT: Duration = Duration::from_millis(20);

/// A pair whose B tells a channel about received messages.
fn with_channel(bed: &Bed) -> Outcome<(Rig, Arc<dyn CompletionChannel>)> {
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    let channel = right.create_channel()?;
    let a = Side::new(left, bed, &setup)?;
    let b = Side::with_queues(right, bed, &setup, right.create_cq(256, None)?, right.create_cq(256, Some(&channel))?)?;
    connect(&a, &b, &setup)?;
    Ok((Rig::of(a, b, bed.kind), channel))
}

/// Sends one message, and polls until both sides have it.
fn deliver(rig: &mut Rig, wr_id: u64, solicited: bool) -> Outcome {
    rig.b.recv_range(wr_id, 0..64)?;
    rig.a.send(SendRequest { solicited, ..SendRequest::send(wr_id, [rig.a.memory.piece(0..64)]) })?;
    check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)
}

fn is_told(channel: &Arc<dyn CompletionChannel>, what: &str) -> Outcome {
    ensure!(channel.wait(PATIENCE)?, "{what} brought no event in {} s", PATIENCE.as_secs());
    Ok(())
}

fn is_silent(channel: &Arc<dyn CompletionChannel>, what: &str) -> Outcome {
    ensure!(!channel.wait(SHORT)?, "{what} brought an event");
    Ok(())
}

fn wakes(bed: &Bed) -> Outcome {
    let (mut rig, channel) = with_channel(bed)?;
    for wr_id in 0..20 {
        rig.b.recv_range(wr_id, 0..64)?;
        rig.b.recv_cq.request_notify(false)?;
        rig.a.send_range(wr_id, 0..64)?;
        // Nobody polls: the device moves the message, and wakes this thread.
        is_told(&channel, "a message")?;
        check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    }
    Ok(())
}

fn times_out(bed: &Bed) -> Outcome {
    let (mut rig, channel) = with_channel(bed)?;
    is_silent(&channel, "nothing")?;
    ensure!(!channel.wait(Duration::ZERO)?, "nothing brought an event at once");
    rig.b.recv_cq.request_notify(false)?;
    is_silent(&channel, "asking alone")?;
    // What came before it was asked for does not count.
    deliver(&mut rig, 1, true)?;
    is_told(&channel, "a message")?;
    deliver(&mut rig, 2, true)?;
    rig.b.recv_cq.request_notify(false)?;
    is_silent(&channel, "a message from before the request")
}

fn once(bed: &Bed) -> Outcome {
    let (mut rig, channel) = with_channel(bed)?;
    rig.b.recv_cq.request_notify(false)?;
    rig.b.recv_cq.request_notify(false)?;
    for wr_id in 0..5 {
        deliver(&mut rig, wr_id, false)?;
    }
    is_told(&channel, "five messages")?;
    is_silent(&channel, "the second of five messages for one request")?;
    deliver(&mut rig, 6, true)?;
    is_silent(&channel, "a message that nobody asked for")
}

fn solicited(bed: &Bed) -> Outcome {
    let (mut rig, channel) = with_channel(bed)?;
    rig.b.recv_cq.request_notify(true)?;
    deliver(&mut rig, 1, false)?;
    deliver(&mut rig, 2, false)?;
    is_silent(&channel, "a message that is not solicited")?;
    deliver(&mut rig, 3, true)?;
    is_told(&channel, "a solicited message")
}

fn failure(bed: &Bed) -> Outcome {
    let (mut rig, channel) = with_channel(bed)?;
    rig.b.recv_range(1, 0..64)?;
    rig.b.recv_cq.request_notify(true)?;
    rig.b.qp.modify(&Transition::Error)?;
    is_told(&channel, "a RECV that was flushed")?;
    check_status(&rig.b_received()?, 1, CompletionStatus::Flushed)
}

fn no_downgrade(bed: &Bed) -> Outcome {
    let (mut rig, channel) = with_channel(bed)?;
    rig.b.recv_cq.request_notify(false)?;
    rig.b.recv_cq.request_notify(true)?;
    deliver(&mut rig, 1, false)?;
    is_told(&channel, "a message that is not solicited, and was asked for")
}

fn widens(bed: &Bed) -> Outcome {
    let (mut rig, channel) = with_channel(bed)?;
    rig.b.recv_cq.request_notify(true)?;
    rig.b.recv_cq.request_notify(false)?;
    deliver(&mut rig, 1, false)?;
    is_told(&channel, "a message that is not solicited, and was asked for")
}

fn parked(bed: &Bed) -> Outcome {
    let (mut rig, channel) = with_channel(bed)?;
    for wr_id in 0..20 {
        rig.b.recv_range(wr_id, 0..64)?;
        rig.b.recv_cq.request_notify(false)?;
        let waiter = {
            let channel = channel.clone();
            std::thread::spawn(move || channel.wait(PATIENCE))
        };
        rig.a.send_range(wr_id, 0..64)?;
        let woken = waiter.join().map_err(|_| "the waiting thread panicked".to_string())??;
        ensure!(woken, "a parked thread was not woken in {} s", PATIENCE.as_secs());
        check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    }
    Ok(())
}

fn no_channel(bed: &Bed) -> Outcome {
    let cq = bed.devices[0].create_cq(16, None)?;
    for only in [false, true] {
        let refused = cq.request_notify(only);
        let right = matches!(refused, Err(VerbsError::Invalid { .. }));
        ensure!(right, "a queue without a channel has nobody to tell, and said {refused:?}");
    }
    Ok(())
}
