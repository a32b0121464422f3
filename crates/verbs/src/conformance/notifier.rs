//! Notifiers: a program is called when a completion queue has something, and may sleep wherever it likes.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::PATIENCE;
use super::bed::{BOTH, Bed, Case, Outcome, ensure, supported};
use super::rig::{Rig, Setup, Side, connect};
use super::watch::{Watch, check_done, check_status};
use crate::{CompletionOpcode, CompletionQueue, CompletionStatus, SendRequest, Transition};

pub(super) const CASES: &[Case] = &[
    Case::new("notifier: a completion calls it while nobody polls", BOTH, &[], calls),
    Case::new("notifier: one request, one call", BOTH, &[], once),
    Case::new("notifier: solicited completions only", BOTH, &[], solicited),
    Case::new("notifier: asking for solicited ones weakens no pending request", BOTH, &[], no_downgrade),
    Case::new("notifier: a failure counts as solicited", BOTH, &[], failure),
    Case::new("notifier: what came after the last poll counts, once", BOTH, &[], waiting),
    Case::new("notifier: it takes the channel's place", BOTH, &[], in_place_of_a_channel),
    Case::new("notifier: one that comes late is called for what was asked before", BOTH, &[], late),
];

/// Long enough for a wrong call to show, most of the time; a right device never fails by it.
const SHORT: Duration = Duration::from_millis(20);

/// Counts calls that were not waited for yet.
#[derive(Default)]
struct Calls {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Calls {
    fn of(queue: &dyn CompletionQueue) -> Outcome<Arc<Calls>> {
        let calls = Arc::new(Calls::default());
        let called = calls.clone();
        supported(queue.set_notifier(Arc::new(move || {
            *called.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            called.changed.notify_all();
        })))?;
        Ok(calls)
    }

    fn wait(&self, time: Duration) -> bool {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(count, time, |count| *count == 0);
        let (mut count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let some = *count > 0;
        *count -= u64::from(some);
        some
    }

    fn is_called(&self, what: &str) -> Outcome {
        ensure!(self.wait(PATIENCE), "{what} brought no call in {} s", PATIENCE.as_secs());
        Ok(())
    }

    fn is_silent(&self, what: &str) -> Outcome {
        ensure!(!self.wait(SHORT), "{what} brought a call");
        Ok(())
    }
}

/// A pair whose B has a notifier for received messages.
fn with_notifier(bed: &Bed) -> Outcome<(Rig, Arc<Calls>)> {
    let rig = Rig::connected(bed, &Setup::default())?;
    let calls = Calls::of(&*rig.b.recv_cq)?;
    Ok((rig, calls))
}

/// Sends one message, and polls until both sides have it.
fn deliver(rig: &mut Rig, wr_id: u64, solicited: bool) -> Outcome {
    rig.b.recv_range(wr_id, 0..64)?;
    rig.a.send(SendRequest { solicited, ..SendRequest::send(wr_id, [rig.a.memory.piece(0..64)]) })?;
    check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)
}

fn calls(bed: &Bed) -> Outcome {
    let (mut rig, calls) = with_notifier(bed)?;
    for wr_id in 0..50 {
        rig.b.recv_range(wr_id, 0..64)?;
        rig.b.recv_cq.request_notify(false)?;
        rig.a.send_range(wr_id, 0..64)?;
        // Nobody polls, and nothing tells the device that this thread sleeps.
        calls.is_called("a message")?;
        check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    }
    Ok(())
}

fn once(bed: &Bed) -> Outcome {
    let (mut rig, calls) = with_notifier(bed)?;
    deliver(&mut rig, 0, true)?;
    calls.is_silent("a message that nobody asked for")?;
    rig.b.recv_cq.request_notify(false)?;
    calls.is_silent("asking alone")?;
    rig.b.recv_cq.request_notify(false)?;
    for wr_id in 1..6 {
        deliver(&mut rig, wr_id, false)?;
    }
    calls.is_called("five messages")?;
    calls.is_silent("the second of five messages for one request")
}

fn solicited(bed: &Bed) -> Outcome {
    let (mut rig, calls) = with_notifier(bed)?;
    rig.b.recv_cq.request_notify(true)?;
    deliver(&mut rig, 1, false)?;
    calls.is_silent("a message that is not solicited")?;
    deliver(&mut rig, 2, true)?;
    calls.is_called("a solicited message")
}

fn no_downgrade(bed: &Bed) -> Outcome {
    let (mut rig, calls) = with_notifier(bed)?;
    rig.b.recv_cq.request_notify(false)?;
    rig.b.recv_cq.request_notify(true)?;
    deliver(&mut rig, 1, false)?;
    calls.is_called("a message that is not solicited, and was asked for")
}

fn failure(bed: &Bed) -> Outcome {
    let (mut rig, calls) = with_notifier(bed)?;
    rig.b.recv_range(1, 0..64)?;
    rig.b.recv_cq.request_notify(true)?;
    rig.b.qp.modify(&Transition::Error)?;
    calls.is_called("a RECV that was flushed")?;
    check_status(&rig.b_received()?, 1, CompletionStatus::Flushed)
}

fn waiting(bed: &Bed) -> Outcome {
    let (mut rig, calls) = with_notifier(bed)?;
    for (round, solicited) in [(0, false), (1, true)] {
        let wr_id = 10 * round;
        deliver(&mut rig, wr_id, false)?;
        // It comes after the last poll of B's queue, and before the request.
        rig.b.recv_range(wr_id + 1, 0..64)?;
        rig.a.send(SendRequest { solicited, ..SendRequest::send(wr_id + 1, [rig.a.memory.piece(0..64)]) })?;
        let mut sent = Watch::new([rig.a.send_cq.clone()]);
        check_done(&sent.next(0)?, wr_id + 1, CompletionOpcode::Send)?;
        rig.b.recv_cq.request_notify(solicited)?;
        calls.is_called("a message that waits")?;
        // Whoever asks first after a call, and polls then, finds it.
        rig.b.recv_cq.request_notify(solicited)?;
        calls.is_silent("asking before the poll")?;
        check_done(&rig.b_received()?, wr_id + 1, CompletionOpcode::Recv)?;
        rig.b.recv_cq.request_notify(solicited)?;
        calls.is_silent("asking with nothing left")?;
        deliver(&mut rig, wr_id + 2, solicited)?;
        calls.is_called("the next message")?;
    }
    Ok(())
}

fn in_place_of_a_channel(bed: &Bed) -> Outcome {
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    let channel = right.create_channel()?;
    let a = Side::new(left, bed, &setup)?;
    let b = Side::with_queues(right, bed, &setup, right.create_cq(256, None)?, right.create_cq(256, Some(&channel))?)?;
    connect(&a, &b, &setup)?;
    let mut rig = Rig::of(a, b, bed.kind);
    let first = Calls::of(&*rig.b.recv_cq)?;
    let second = Calls::of(&*rig.b.recv_cq)?;
    rig.b.recv_cq.request_notify(false)?;
    deliver(&mut rig, 1, false)?;
    second.is_called("a message")?;
    first.is_silent("a message, when there is another notifier,")?;
    ensure!(!channel.wait(SHORT)?, "a message brought an event on the channel, and there is a notifier");
    Ok(())
}

fn late(bed: &Bed) -> Outcome {
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    let channel = right.create_channel()?;
    let a = Side::new(left, bed, &setup)?;
    let b = Side::with_queues(right, bed, &setup, right.create_cq(256, None)?, right.create_cq(256, Some(&channel))?)?;
    connect(&a, &b, &setup)?;
    b.recv_range(1, 0..64)?;
    b.recv_cq.request_notify(false)?;
    let calls = Calls::of(&*b.recv_cq)?;
    a.send_range(1, 0..64)?;
    calls.is_called("a message")
}
