//! What peers do at bad moments. A test stops a side where it is by holding its queue pair's lock.

use std::time::{Duration, Instant};

use fulmen_verbs::{Completion, CompletionStatus, RecvRequest, SendRequest};

use super::*;
use crate::completion::QueueHandle;
use crate::tests::{Side, side};

/// Reached by no test that succeeds.
const LONG: Duration = Duration::from_secs(30);

#[track_caller]
fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(Instant::now() < end, "waited too long: {what}");
        std::thread::yield_now();
    }
}

fn rich() -> Side {
    side(Profile::Infiniband, QueuePairKind::Rc)
}

/// The queue pair behind a side.
fn pair_of(side: &Side) -> Arc<Pair> {
    let queue = side.cq.as_any().downcast_ref::<QueueHandle>().unwrap();
    queue.0.pairs()[0].clone()
}

fn send(side: &Side, wr_id: u64) {
    side.qp.post_send(&[SendRequest::send(wr_id, [side.piece(4096..4160)])]).unwrap();
}

fn recv(side: &Side, wr_id: u64) {
    side.qp.post_recv(&[RecvRequest::new(wr_id, [side.piece(8192..12288)])]).unwrap();
}

/// Polls until something completes.
#[track_caller]
fn next(side: &Side) -> Completion {
    until("a completion", || side.poll_one())
}

#[test]
fn messages_reach_the_partner_only() {
    let [one, other, third] = [rich(), rich(), rich()];
    // The third one names the queue pair, too, which chooses another one.
    third.connect(&other);
    recv(&third, 1);
    one.connect(&other);
    other.connect(&one);
    (0..3).for_each(|wr_id| recv(&one, wr_id));
    let pair = pair_of(&one);
    let stopped = pair.inner();
    (0..3).for_each(|wr_id| send(&other, wr_id));
    assert_eq!(third.poll(), [], "messages for another queue pair");
    drop(stopped);
    for wr_id in 0..3 {
        let taken = next(&one);
        assert_eq!((taken.wr_id, taken.status), (wr_id, CompletionStatus::Success));
    }
}
