//! Asynchronous events: what no completion tells.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::bed::{BOTH, Bed, Case, Outcome, RC, ensure, ensure_eq, supported};
use super::rig::{Rig, Setup, Side, connect};
use super::watch::{Watch, check_done, check_status};
use crate::{AsyncEvent, CompletionOpcode, CompletionStatus, Device, Transition, VerbsError};

pub(super) const CASES: &[Case] = &[
    Case::new("events: the first message before RTS is told of once", BOTH, &[], established),
    Case::new("events: nobody is told of messages after RTS", BOTH, &[], ready),
    Case::new("events: a completion queue that overflows is told of once", BOTH, &[], overflow),
    Case::new("events: a failure that completions tell of is none", RC, &[], failure),
    Case::new("events: a later callback takes the place of the first", BOTH, &[], replaced),
];

/// What a device has told, in order.
pub(super) struct Events(Arc<Mutex<Vec<AsyncEvent>>>);

impl Events {
    pub(super) fn of(device: &dyn Device) -> Outcome<Events> {
        let told = Arc::new(Mutex::default());
        let events = Events(told.clone());
        supported(device.on_event(Arc::new(move |event| lock(&told).push(event))))?;
        Ok(events)
    }

    /// How often this was told.
    pub(super) fn count(&self, event: AsyncEvent) -> usize {
        lock(&self.0).iter().filter(|told| **told == event).count()
    }

    /// Waits until this was told, and fails if it was told more than once.
    pub(super) fn expect(&self, watch: &mut Watch, event: AsyncEvent) -> Outcome {
        watch.until("an asynchronous event", |_| Ok((self.count(event) > 0).then_some(())))?;
        self.is_still(event, 1)
    }

    /// Fails unless this was told so often, some time later.
    pub(super) fn is_still(&self, event: AsyncEvent, count: usize) -> Outcome {
        for _ in 0..100 {
            thread::yield_now();
        }
        ensure_eq!(self.count(event), count, "how often {event:?} was told");
        Ok(())
    }
}

fn lock(told: &Mutex<Vec<AsyncEvent>>) -> std::sync::MutexGuard<'_, Vec<AsyncEvent>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pair of which B is ready to receive and not to send.
fn half_ready(bed: &Bed) -> Outcome<(Rig, Events)> {
    let setup = Setup::default();
    let rig = Rig::reset(bed, &setup)?;
    let events = Events::of(&*rig.b.device)?;
    rig.a.init(&setup)?;
    rig.b.init(&setup)?;
    rig.b.ready_to_receive(&rig.a)?;
    rig.a.ready_to_receive(&rig.b)?;
    rig.a.ready_to_send(&setup)?;
    Ok((rig, events))
}

fn deliver(rig: &mut Rig, wr_id: u64) -> Outcome {
    rig.b.recv_range(wr_id, 0..64)?;
    rig.a.send_range(wr_id, 0..64)?;
    check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
    check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)
}

fn established(bed: &Bed) -> Outcome {
    let (mut rig, events) = half_ready(bed)?;
    let told = AsyncEvent::Established { qp_num: rig.b.qp.qp_num() };
    events.is_still(told, 0)?;
    deliver(&mut rig, 1)?;
    events.expect(&mut rig.watch, told)?;
    deliver(&mut rig, 2)?;
    events.is_still(told, 1)
}

fn ready(bed: &Bed) -> Outcome {
    let (mut rig, events) = half_ready(bed)?;
    rig.b.ready_to_send(&Setup::default())?;
    deliver(&mut rig, 1)?;
    events.is_still(AsyncEvent::Established { qp_num: rig.b.qp.qp_num() }, 0)
}

fn overflow(bed: &Bed) -> Outcome {
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    let a = Side::new(left, bed, &setup)?;
    let few = right.create_cq(1, None)?;
    let entries = u64::from(few.entries()).min(u64::from(setup.depth) - 2);
    let b = Side::with_queues(right, bed, &setup, right.create_cq(256, None)?, few)?;
    connect(&a, &b, &setup)?;
    let events = Events::of(&**right)?;
    let other = AsyncEvent::CompletionQueueFatal { number: b.send_cq.number() };
    let told = AsyncEvent::CompletionQueueFatal { number: b.recv_cq.number() };
    ensure!(told != other, "two completion queues of one device have the number {}", b.recv_cq.number());
    // Not the queue that is to fill.
    let mut watch = Watch::new([a.send_cq.clone(), b.send_cq.clone()]);
    for wr_id in 0..entries + 2 {
        b.recv_range(wr_id, 0..64)?;
        a.send_range(wr_id, 0..64)?;
        check_done(&watch.next(0)?, wr_id, CompletionOpcode::Send)?;
    }
    watch.until("an asynchronous event", |_| {
        // Nothing is taken out, and a device that moves completions while it is polled has its chance.
        let _ = b.recv_cq.poll(&mut []);
        Ok((events.count(told) > 0).then_some(()))
    })?;
    events.is_still(told, 1)?;
    let polled = b.recv_cq.poll(&mut [super::watch::nothing()]);
    ensure!(matches!(polled, Err(VerbsError::Overflow { .. })), "the queue overflowed, and a poll said {polled:?}");
    events.is_still(other, 0)
}

fn failure(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { rnr_retries: 0, ..Setup::default() })?;
    let events = Events::of(&*rig.a.device)?;
    rig.a.send_range(1, 0..64)?;
    check_status(&rig.a_sent()?, 1, CompletionStatus::RnrRetryExceeded)?;
    rig.b.qp.modify(&Transition::Error)?;
    for side in [&rig.a, &rig.b] {
        events.is_still(AsyncEvent::QueuePairFatal { qp_num: side.qp.qp_num() }, 0)?;
    }
    Ok(())
}

fn replaced(bed: &Bed) -> Outcome {
    let (mut rig, first) = half_ready(bed)?;
    let second = Events::of(&*rig.b.device)?;
    let told = AsyncEvent::Established { qp_num: rig.b.qp.qp_num() };
    deliver(&mut rig, 1)?;
    second.expect(&mut rig.watch, told)?;
    first.is_still(told, 0)
}
