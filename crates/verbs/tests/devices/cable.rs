//! A faulty device whose cable is pulled, and faults that happen at the n-th time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fulmen_verbs::{
    AsyncEvent, CablePull, Completion, CompletionStatus as Status, Device, FaultPlan, Odds, PortState, QueuePairState,
    Transition,
};

use crate::faulty::{ROOM, Side, connected, exchange};
use crate::model::{self, Likeness};
use fulmen_verbs::QueuePairKind as Kind;

const LONG: Duration = Duration::from_secs(60);

fn poll_until(side: &Side, count: usize) -> Vec<Completion> {
    let (end, mut done) = (Instant::now() + LONG, Vec::new());
    while done.len() < count {
        done.extend(side.poll());
        assert!(Instant::now() < end, "{done:?}");
    }
    done
}

fn pull(at: u64, lasts: Option<Duration>) -> FaultPlan {
    FaultPlan { cable: Some(CablePull { when: Odds::at(at), lasts }), ..FaultPlan::quiet(1) }
}

fn port(device: &dyn Device) -> PortState {
    device.port(1).unwrap().state
}

#[test]
fn the_nth_chance_alone_is_taken() {
    let plan = FaultPlan { drop: Odds::at(3), ..FaultPlan::quiet(7) };
    let (faulty, sent, received) = exchange(plan, Kind::Uc, 10);
    assert_eq!((sent.len(), received.len(), faulty.injected().dropped), (10, 9, 1));
    let firsts: Vec<u8> = received.iter().map(|bytes| bytes[0]).collect();
    assert_eq!(firsts, [0, 1, 3, 4, 5, 6, 7, 8, 9]);
    let plan = FaultPlan { fail_completion: Odds::at(4), fail_status: Status::RemoteAccess, ..FaultPlan::quiet(8) };
    let (_, sent, _) = exchange(plan, Kind::Rc, 10);
    assert_eq!(sent[3].status, Status::RemoteAccess);
    assert!(sent[..3].iter().all(|done| done.status.is_success()));
    assert!(sent[4..].iter().all(|done| done.status == Status::Flushed));
}

#[test]
fn a_reliable_request_goes_out_when_the_cable_is_back() {
    let (faulty, a, b) = connected(pull(3, Some(Duration::from_millis(100))), Kind::Rc, false);
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    faulty.on_event(Arc::new(move |event| heard.lock().unwrap().push(event))).unwrap();
    (0..ROOM).for_each(|slot| b.recv(slot));
    a.send(0).unwrap();
    a.send(1).unwrap();
    assert_eq!(port(&*faulty), PortState::Active);
    let out = Instant::now();
    (2..6).for_each(|slot| a.send(slot).unwrap());
    let done = poll_until(&a, 6);
    assert!(out.elapsed() >= Duration::from_millis(100), "the third waited for the cable");
    assert!(done.iter().all(|done| done.status.is_success()), "{done:?}");
    let received: Vec<u8> = poll_until(&b, 6).iter().map(|done| b.bytes(done)[0]).collect();
    assert_eq!(received, [0, 1, 2, 3, 4, 5]);
    assert_eq!(port(&*faulty), PortState::Active);
    assert_eq!(*events.lock().unwrap(), [AsyncEvent::PortError { port: 1 }, AsyncEvent::PortActive { port: 1 }]);
}

#[test]
fn without_a_cable_a_reliable_request_ends_by_its_time_outs() {
    let (faulty, a, b) = connected(pull(3, None), Kind::Rc, false);
    (0..10).for_each(|slot| b.recv(slot));
    (0..2).for_each(|slot| a.send(slot).unwrap());
    assert!(poll_until(&a, 2).iter().all(|done| done.status.is_success()));
    (2..5).for_each(|slot| a.send(slot).unwrap());
    assert_eq!(port(&*faulty), PortState::Down);
    let statuses: Vec<Status> = poll_until(&a, 3).iter().map(|done| done.status).collect();
    assert_eq!(statuses, [Status::RetryExceeded, Status::Flushed, Status::Flushed]);
    // The peer finds a side that is silent.
    b.send(200).unwrap();
    let failed = poll_until(&b, 1).into_iter().find(|done| !done.status.is_success());
    let failed = failed.or_else(|| poll_until(&b, 1).into_iter().find(|done| !done.status.is_success()));
    assert_eq!(failed.map(|done| done.status), Some(Status::RetryExceeded));
}

#[test]
fn an_unreliable_request_is_lost_while_the_cable_is_out() {
    let (_, a, b) = connected(pull(3, None), Kind::Uc, false);
    (0..10).for_each(|slot| b.recv(slot));
    (0..5).for_each(|slot| a.send(slot).unwrap());
    let done = poll_until(&a, 5);
    assert!(done.iter().all(|done| done.status.is_success()), "{done:?}");
    assert_eq!(b.poll().len(), 2);
}

#[test]
fn what_arrives_while_the_cable_is_out_is_told_when_it_is_back() {
    let (faulty, a, b) = connected(pull(1, Some(Duration::from_millis(100))), Kind::Rc, true);
    let out = Instant::now();
    b.recv(0);
    a.send(0).unwrap();
    assert_eq!(poll_until(&b, 1)[0].status, Status::Success);
    assert!(out.elapsed() >= Duration::from_millis(100));
    assert_eq!(port(&*faulty), PortState::Active);
}

#[test]
fn a_queue_pair_still_changes_its_state_without_a_cable() {
    let (faulty, a, b) = connected(pull(1, None), Kind::Rc, false);
    a.recv(0);
    assert_eq!(port(&*faulty), PortState::Down);
    a.qp.modify(&Transition::Reset).unwrap();
    let [_, right] = model::pair(Likeness::Infiniband, None);
    a.connect(&*faulty, &b, &*right);
    assert_eq!(a.qp.state(), QueuePairState::ReadyToSend);
    a.send(0).unwrap();
    assert_eq!(poll_until(&a, 1)[0].status, Status::RetryExceeded);
    assert_eq!(a.qp.state(), QueuePairState::Error);
}
