//! What peers do at bad moments. A test stops a side where it is by holding its queue pair's lock.

use std::time::{Duration, Instant};

use fulmen_memory::{FileAccess, Region};
use fulmen_reach::{Doorbell, Node};
use fulmen_verbs::{Completion, CompletionStatus, RecvRequest, RemoteAddr, SendOp, SendRequest};

use super::*;
use crate::completion::QueueHandle;
use crate::device::WORK_PATIENCE;
use crate::layout::directory;
use crate::sides::{Side, shared_words, side, side_on};

mod events;
mod far;
mod parts;
mod patience;
mod plain;

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

/// The doorbell of a side's device, and whether it was rung since.
struct Bell(Doorbell, u32);

impl Bell {
    fn of(side: &Side) -> Bell {
        let words = shared_words(side, &Node::open().unwrap(), crate::layout::wire::SIZE);
        let bell = Doorbell::at(&words[0], directory::DOORBELL);
        let rung = bell.sequence();
        Bell(bell, rung)
    }

    fn was_rung(&self) -> bool {
        self.0.sequence() != self.1
    }
}

fn falls_asleep(side: &Side) {
    let pair = pair_of(side);
    until("a device's thread that sleeps", || pair.domain.device.directory.is_asleep().then_some(()));
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

#[test]
fn parts_of_a_message_wake_an_idle_peer() {
    const LONG_MESSAGE: usize = 1 << 20;
    let [one, idle] = [rich(), rich()];
    one.connect(&idle);
    idle.connect(&one);
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let region = Region::map_file(&file, FileAccess::ReadOnly).unwrap();
    let mr = one.pd.register(&region, 0..LONG_MESSAGE, Access::empty()).unwrap();
    let piece = fulmen_verbs::Piece { memory: region.expose().unwrap().slice(0..LONG_MESSAGE), lkey: mr.lkey() };
    falls_asleep(&idle);
    let pair = pair_of(&idle);
    let stopped = pair.inner();
    let bell = Bell::of(&idle);
    // It is longer than the ring.
    one.qp.post_send(&[SendRequest::send(1, [piece])]).unwrap();
    assert!(bell.was_rung(), "there are parts to be taken");
    drop(stopped);
}

#[test]
fn what_is_done_on_a_peers_memory_does_not_wake_it() {
    let [one, idle] = [rich(), rich()];
    one.connect(&idle);
    idle.connect(&one);
    let remote = RemoteAddr { addr: idle.memory.addr() as u64 + 4096, rkey: idle.mr.rkey() };
    // The first one has the memory mapped.
    for round in 0..20 {
        falls_asleep(&idle);
        let bell = Bell::of(&idle);
        let write = SendOp::Write { remote, imm: None };
        one.qp.post_send(&[SendRequest::new(1, write, [one.piece(4096..4160)])]).unwrap();
        assert_eq!(next(&one).status, CompletionStatus::Success);
        assert!(round == 0 || !bell.was_rung(), "nothing came for it");
    }
    falls_asleep(&idle);
    let bell = Bell::of(&idle);
    send(&one, 2);
    until("a peer that is woken by a message", || bell.was_rung().then_some(()));
}

#[test]
fn requests_to_a_silent_peer_wake_the_own_thread() {
    let [one, silent] = [rich(), rich()];
    one.connect(&silent);
    silent.connect(&one);
    silent.qp.modify(&Transition::Error).unwrap();
    let bell = Bell::of(&one);
    send(&one, 1);
    assert!(bell.was_rung(), "the clock of a silent peer runs");
    assert_eq!(next(&one).status, CompletionStatus::RetryExceeded);
}

#[test]
fn what_arrived_early_wakes_the_own_thread() {
    const MESSAGES: u64 = 100;
    let [one, early] = [rich(), rich()];
    early.connect(&one);
    let pair = pair_of(&early);
    let stopped = pair.inner();
    let bell = Bell::of(&one);
    one.connect(&early);
    assert!(bell.was_rung(), "the peer may have sent before");
    drop(stopped);
    // The messages are there before the RECVs are, and more than one turn takes.
    let own = pair_of(&one);
    let own_stopped = own.inner();
    (0..MESSAGES).for_each(|wr_id| send(&early, wr_id));
    // It does not see that they find no RECV.
    let stopped = pair.inner();
    drop(own_stopped);
    let recvs: Vec<_> = (0..MESSAGES).map(|wr_id| RecvRequest::new(wr_id, [one.piece(8192..12288)])).collect();
    let bell = Bell::of(&one);
    one.qp.post_recv(&recvs).unwrap();
    assert!(bell.was_rung(), "more than one turn takes");
    drop(stopped);
}

#[test]
fn the_end_of_a_connection_waits_for_a_peer_at_work() {
    // The registration outlives the queue pair.
    let ends: [fn(Arc<dyn fulmen_verbs::QueuePair>); 3] =
        [|qp| qp.modify(&Transition::Error).unwrap(), |qp| qp.modify(&Transition::Reset).unwrap(), drop];
    let threads = ends.map(|end| {
        std::thread::spawn(move || {
            let [one, working] = [rich(), rich()];
            one.connect(&working);
            working.connect(&one);
            // It was stopped in the middle of a WRITE, for ever.
            pair_of(&working).inner().wire.work_on(one.key);
            let Side { qp, mr, .. } = one;
            let start = Instant::now();
            end(qp);
            assert!(start.elapsed() >= WORK_PATIENCE, "the peer may still write");
            drop(mr);
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_peer_that_is_reset_later_is_waited_for() {
    let [one, other] = [rich(), rich()];
    one.connect(&other);
    other.connect(&one);
    recv(&one, 1);
    send(&other, 1);
    assert_eq!(next(&one).status, CompletionStatus::Success);
    let access = pair_of(&one).inner().access;
    let again = |side: &Side| {
        side.qp.modify(&Transition::Reset).unwrap();
        side.qp.modify(&Transition::Init { port: 1, access }).unwrap();
    };
    again(&one);
    std::thread::scope(|scope| {
        let connected = scope.spawn(|| one.connect(&other));
        // Its wire is that of the connection before.
        again(&other);
        connected.join().unwrap();
    });
    // From INIT nothing changes that a peer is bound to.
    again(&other);
    other.connect(&one);
    recv(&one, 2);
    assert_eq!(one.poll(), [], "a message of the connection before");
    send(&other, 2);
    assert_eq!((next(&one).wr_id, next(&other).status), (2, CompletionStatus::Success));
}

#[test]
fn who_polls_one_queue_does_not_starve_the_others() {
    let polled = rich();
    let left_alone = side_on(polled.device.clone(), Profile::Infiniband, QueuePairKind::Rc);
    let peer = rich();
    left_alone.connect(&peer);
    peer.connect(&left_alone);
    recv(&left_alone, 1);
    let pair = pair_of(&polled);
    let directory = &pair.domain.device.directory;
    until("a device's thread that leaves the work to who polls", || {
        assert_eq!(polled.poll_one(), None);
        (!directory.is_asleep()).then_some(())
    });
    send(&peer, 1);
    let sent = until("a message to a queue that nobody polls", || {
        assert_eq!(polled.poll_one(), None);
        peer.poll_one()
    });
    assert_eq!(sent.status, CompletionStatus::Success);
}

#[test]
fn a_late_recv_stops_the_clock_before_the_bytes_are_there() {
    let [one, late] = [rich(), rich()];
    one.connect(&late);
    late.connect(&one);
    let sender = pair_of(&one);
    let stalled = |sender: &Inner| sender.link.as_ref().and_then(|link| link.stalled(sender.sent));
    // Out of the sender's memory, which has to be mapped first.
    let stopped = {
        let mut inner = sender.inner();
        inner.timers = Timers::default();
        drop(inner);
        one.qp.post_send(&[SendRequest::send(1, [one.piece(4096..8192)])]).unwrap();
        sender.inner()
    };
    until("a message without a RECV", || stalled(&stopped));
    recv(&late, 1);
    assert_eq!(stalled(&stopped), None, "there is a RECV");
    drop(stopped);
    assert_eq!((next(&late).status, next(&one).status), (CompletionStatus::Success, CompletionStatus::Success));
}

#[test]
fn a_device_is_found_where_another_one_was() {
    let node = Node::open().unwrap();
    let open = || crate::SoftDevice::open(&node, Profile::Infiniband).unwrap();
    let peer = rich();
    let first = side_on(open(), Profile::Infiniband, QueuePairKind::Rc);
    peer.connect(&first);
    drop(first);
    // The peer's queue pair keeps what it knows of the first device.
    let second = side_on(open(), Profile::Infiniband, QueuePairKind::Rc);
    let other = side_on(peer.device.clone(), Profile::Infiniband, QueuePairKind::Rc);
    other.connect(&second);
    second.connect(&other);
    recv(&second, 1);
    send(&other, 1);
    assert_eq!((next(&second).status, next(&other).status), (CompletionStatus::Success, CompletionStatus::Success));
}

fn narrow() -> [Side; 2] {
    let sides = [(); 2].map(|()| side(Profile::Thunderbolt, QueuePairKind::Uc));
    sides[0].connect(&sides[1]);
    sides[1].connect(&sides[0]);
    sides
}

/// Flow control holds a SEND until the RECV is posted (Apple's technote TN3205).
#[test]
fn thunderbolt_holds_a_send_until_its_recv_is_posted() {
    let [one, other] = narrow();
    send(&one, 1);
    for _ in 0..1000 {
        assert_eq!((one.poll_one(), other.poll_one()), (None, None), "there is no RECV");
    }
    recv(&other, 2);
    assert_eq!((next(&one).wr_id, next(&other).wr_id), (1, 2));
}

/// The same where nobody polls when the RECV comes.
#[test]
fn a_recv_wakes_the_thread_of_a_sender_that_is_held() {
    let [one, other] = narrow();
    send(&one, 1);
    falls_asleep(&one);
    let bell = Bell::of(&one);
    recv(&other, 2);
    assert!(bell.was_rung(), "the sender may go on");
    assert_eq!(next(&other).status, CompletionStatus::Success);
}

/// There are no acknowledgements: a completed SEND is not a delivered one (Apple's technote TN3205).
#[test]
fn thunderbolt_completes_a_send_before_it_is_delivered() {
    // The second one is longer than what travels in one piece elsewhere.
    for len in [64, 4096] {
        let [one, other] = narrow();
        recv(&other, 2);
        let pair = pair_of(&other);
        let stopped = pair.inner();
        one.qp.post_send(&[SendRequest::send(1, [one.piece(4096..4096 + len)])]).unwrap();
        assert_eq!(next(&one).status, CompletionStatus::Success);
        assert!(!stopped.recvs.is_empty(), "nothing was delivered");
        // What is on its way is lost with the queue pair.
        drop(one.qp);
        drop(stopped);
        assert_eq!(other.poll(), [], "{len} bytes");
    }
}

/// An error ends the queue pair, and not what had gone out before.
#[test]
fn thunderbolt_delivers_what_went_out_before_an_error() {
    let [one, other] = narrow();
    recv(&other, 2);
    let pair = pair_of(&other);
    let stopped = pair.inner();
    one.memory.fill(4096..4160, 0x42);
    send(&one, 1);
    one.qp.modify(&Transition::Error).unwrap();
    one.memory.fill(4096..4160, 0);
    drop(stopped);
    assert_eq!(next(&other).status, CompletionStatus::Success);
    let mut bytes = [0; 64];
    other.memory.read(8192, &mut bytes);
    assert_eq!(bytes, [0x42; 64]);
}
