//! What the device tells of beside completions.

use std::sync::atomic::Ordering;

use fulmen_verbs::AsyncEvent;

use super::*;
use crate::layout::wire;

/// What a side's device tells from now on.
fn events(side: &Side) -> Arc<Mutex<Vec<AsyncEvent>>> {
    let told: Arc<Mutex<Vec<AsyncEvent>>> = Arc::default();
    let events = told.clone();
    side.device.on_event(Arc::new(move |event| lock(&told).push(event))).unwrap();
    events
}

#[test]
fn a_peer_that_breaks_its_ring_is_told_of_where_no_completion_can() {
    let [one, hostile] = [rich(), rich()];
    one.connect(&hostile);
    hostile.connect(&one);
    recv(&one, 1);
    let told = events(&one);
    let own = pair_of(&one);
    let stopped = own.inner();
    send(&hostile, 1);
    // Of the first frame, after the ring's own two lines and the head of the slot: no frame starts so.
    let words = shared_words(&hostile, &Node::open().unwrap(), wire::SIZE);
    words[1].atomic_u64(wire::RING_AT + 2 * 64 + 8).store(u64::MAX, Ordering::SeqCst);
    drop(stopped);
    assert_eq!((next(&one).wr_id, own.inner().state), (1, QueuePairState::Error));
    let fatal = AsyncEvent::QueuePairFatal { qp_num: one.qp.qp_num() };
    until("word of the queue pair's end", || lock(&told).contains(&fatal).then_some(()));
}

#[test]
fn what_a_completion_tells_is_no_event() {
    let [one, other] = [rich(), rich()];
    one.connect(&other);
    other.connect(&one);
    let told = events(&one);
    // Longer than the RECV.
    one.qp.post_recv(&[RecvRequest::new(1, [one.piece(8192..8193)])]).unwrap();
    send(&other, 2);
    assert_eq!(next(&one).status, CompletionStatus::LocalLength);
    assert_eq!(next(&other).status, CompletionStatus::RemoteInvalidRequest);
    assert_eq!(*lock(&told), []);
}
