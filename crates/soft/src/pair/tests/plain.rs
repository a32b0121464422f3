//! Memory that no peer can map.

use super::*;
use crate::sides::plain_side;

/// Where in a side's memory peers work, and where it keeps its own.
const THERE: usize = 4096;
const HERE: usize = 8192;

fn connected(kind: QueuePairKind, process_vm: bool) -> [Side; 2] {
    let sides = [(); 2].map(|()| plain_side(kind, process_vm));
    sides[0].connect(&sides[1]);
    sides[1].connect(&sides[0]);
    for side in &sides {
        pair_of(side).inner().timers = Timers::default();
    }
    sides
}

fn asked() -> [Side; 2] {
    connected(QueuePairKind::Rc, false)
}

fn there(peer: &Side) -> RemoteAddr {
    RemoteAddr { addr: (peer.memory.addr() + THERE) as u64, rkey: peer.key }
}

fn request(side: &Side, wr_id: u64, op: SendOp, len: usize) -> SendRequest {
    SendRequest::new(wr_id, op, [side.piece(HERE..HERE + len)])
}

fn bytes(side: &Side, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    side.memory.read(at, &mut bytes);
    bytes
}

#[test]
fn two_that_ask_each_other_do_not_block() {
    const EACH: u64 = 60;
    let sides = asked();
    // Neither side serves before both have asked for more than all rings hold.
    let stopped = [pair_of(&sides[0]), pair_of(&sides[1])];
    for [one, other] in [[0, 1], [1, 0]].map(|order| order.map(|at: usize| &sides[at])) {
        let guard = stopped.iter().find(|pair| pair.number != one.qp.qp_num()).map(|pair| pair.inner());
        for number in 0..EACH {
            let remote = there(other);
            let read = request(one, number * 2, SendOp::Read { remote }, 4096);
            let write = request(one, number * 2 + 1, SendOp::Write { remote, imm: None }, 4096);
            one.qp.post_send(&[read, write]).unwrap();
        }
        drop(guard);
    }
    let mut next = [0, 0];
    until("all of it", || {
        for (side, next) in sides.iter().zip(&mut next) {
            if let Some(done) = side.poll_one() {
                assert_eq!((done.wr_id, done.status), (*next, CompletionStatus::Success));
                *next += 1;
            }
        }
        (next == [2 * EACH; 2]).then_some(())
    });
}

#[test]
fn what_was_read_goes_out_behind_it() {
    for process_vm in [true, false] {
        let [one, other] = connected(QueuePairKind::Rc, process_vm);
        for round in 1..50 {
            one.memory.fill(HERE..HERE + 64, 0);
            other.memory.fill(THERE..THERE + 64, round);
            recv(&other, 7);
            let read = request(&one, 1, SendOp::Read { remote: there(&other) }, 64);
            let send = request(&one, 2, SendOp::Send { imm: None }, 64);
            one.qp.post_send(&[read, send]).unwrap();
            assert_eq!(
                [next(&one), next(&one)].map(|done| (done.wr_id, done.status.is_success())),
                [(1, true), (2, true)]
            );
            assert!(next(&other).status.is_success());
            assert_eq!(bytes(&other, 8192, 64), [round; 64]);
        }
    }
}

#[test]
fn what_is_done_here_and_what_is_asked_for_keep_their_order() {
    let [one, other] = connected(QueuePairKind::Rc, true);
    other.memory.fill(THERE..THERE + 64, 0);
    for round in 0..50_u64 {
        let remote = there(&other);
        let add = |wr_id| request(&one, wr_id, SendOp::FetchAdd { remote, add: 1 }, 8);
        let read = |wr_id| request(&one, wr_id, SendOp::Read { remote }, 8);
        // Reads are copied by the system, atomics are done by the owner.
        one.qp.post_send(&[read(0), add(1), add(2), read(3), add(4), read(5)]).unwrap();
        for wr_id in 0..6 {
            let done = next(&one);
            assert_eq!((done.wr_id, done.status), (wr_id, CompletionStatus::Success));
        }
        assert_eq!(bytes(&one, HERE, 8), (round * 3 + 3).to_ne_bytes(), "the last one saw all that came before");
    }
}

#[test]
fn what_is_written_here_does_not_overtake_what_is_asked_for() {
    for kind in [QueuePairKind::Rc, QueuePairKind::Uc] {
        let [one, other] = connected(kind, false);
        let mapped = Region::alloc(4096).unwrap();
        let mr = other.pd.register(&mapped, 0..4096, Access::all()).unwrap();
        let memory = mapped.expose().unwrap();
        let flag = RemoteAddr { addr: memory.addr() as u64, rkey: mr.rkey() };
        let write = |wr_id, remote| request(&one, wr_id, SendOp::Write { remote, imm: None }, 8);
        one.memory.fill(HERE..HERE + 8, 1);
        one.qp.post_send(&[write(1, flag)]).unwrap();
        assert!(next(&one).status.is_success(), "it is mapped from here on");
        let pair = pair_of(&other);
        let stopped = pair.inner();
        one.memory.fill(HERE..HERE + 8, 2);
        one.qp.post_send(&[write(2, there(&other)), write(3, flag)]).unwrap();
        assert_eq!(one.poll(), [], "nobody does the first one");
        let seen = || memory.atomic_u64(0).load(std::sync::atomic::Ordering::Acquire).to_ne_bytes();
        assert_eq!(seen(), [1; 8], "{kind}");
        drop(stopped);
        assert_eq!([next(&one), next(&one)].map(|done| (done.wr_id, done.status.is_success())), [(2, true), (3, true)]);
        assert_eq!((seen().to_vec(), bytes(&other, THERE, 8)), (vec![2; 8], vec![2; 8]));
    }
}

#[test]
fn who_cannot_copy_any_more_asks() {
    let [one, other] = connected(QueuePairKind::Rc, true);
    let read = |value| {
        other.memory.fill(THERE..THERE + 64, value);
        one.qp.post_send(&[request(&one, 1, SendOp::Read { remote: there(&other) }, 64)]).unwrap();
        assert!(next(&one).status.is_success());
        assert_eq!(bytes(&one, HERE, 64), [value; 64]);
    };
    read(1);
    let copies = || pair_of(&one).inner().link.as_mut().is_some_and(|link| link.near().remote.process().is_some());
    assert!(copies(), "a process may copy from itself");
    // As if another process had taken the peer's number.
    pair_of(&other).domain.device.proof.as_ref().unwrap().forge();
    read(2);
    assert!(!copies());
    one.memory.fill(HERE..HERE + 64, 3);
    one.qp.post_send(&[request(&one, 1, SendOp::Write { remote: there(&other), imm: None }, 64)]).unwrap();
    assert!(next(&one).status.is_success());
    assert_eq!(bytes(&other, THERE, 64), [3; 64]);
}

#[test]
fn what_is_asked_for_too_late_is_denied() {
    let ops: [fn(RemoteAddr) -> SendOp; 3] = [
        |remote| SendOp::Write { remote, imm: None },
        |remote| SendOp::Read { remote },
        |remote| SendOp::FetchAdd { remote, add: 1 },
    ];
    for op in ops {
        let [one, other] = asked();
        other.memory.fill(THERE..HERE, 5);
        let pair = pair_of(&other);
        let stopped = pair.inner();
        one.qp.post_send(&[request(&one, 1, op(there(&other)), 8)]).unwrap();
        assert_eq!(one.poll(), [], "nobody serves it");
        pair.domain.device.registrations.remove(&pair.domain.device.node, &pair.domain.device.directory, other.key);
        drop(stopped);
        assert_eq!(next(&one).status, CompletionStatus::RemoteAccess);
        assert_eq!(bytes(&other, THERE, 64), [5; 64]);
        assert_eq!(other.qp.state(), QueuePairState::ReadyToSend, "it has done nothing wrong");
    }
}

#[test]
fn over_uc_what_is_asked_for_too_late_is_lost() {
    let [one, other] = connected(QueuePairKind::Uc, false);
    let also = other.pd.register(other.memory.region(), 0..4096, Access::LOCAL_WRITE).unwrap();
    let piece = fulmen_verbs::Piece { memory: other.memory.slice(0..4096), lkey: also.lkey() };
    other.qp.post_recv(&[RecvRequest::new(7, [piece])]).unwrap();
    let pair = pair_of(&other);
    let stopped = pair.inner();
    one.qp.post_send(&[request(&one, 1, SendOp::Write { remote: there(&other), imm: Some(3) }, 64)]).unwrap();
    pair.domain.device.registrations.remove(&pair.domain.device.node, &pair.domain.device.directory, other.key);
    drop(stopped);
    assert_eq!(next(&one).status, CompletionStatus::Success);
    one.qp.post_send(&[request(&one, 2, SendOp::Send { imm: Some(4) }, 64)]).unwrap();
    let taken = next(&other);
    assert_eq!((taken.wr_id, taken.imm), (7, Some(4)), "the WRITE and its word are lost, and nothing else");
}

#[test]
fn answers_are_not_put_into_memory_that_was_given_back() {
    let [one, other] = asked();
    other.memory.fill(THERE..HERE, 5);
    let pair = pair_of(&other);
    let stopped = pair.inner();
    one.memory.fill(HERE..HERE + 64, 0);
    one.qp.post_send(&[request(&one, 1, SendOp::Read { remote: there(&other) }, 64)]).unwrap();
    let Side { mr, qp: _qp, cq, memory, .. } = one;
    drop(mr);
    drop(stopped);
    let done = until("the end of the READ", || {
        let mut one = [Completion::BLANK];
        (cq.poll(&mut one).unwrap() == 1).then_some(one[0])
    });
    assert_eq!(done.status, CompletionStatus::LocalProtection);
    let mut seen = [1; 64];
    memory.read(HERE, &mut seen);
    assert_eq!(seen, [0; 64]);
}

#[test]
fn requests_that_are_moved_out_of_a_registration_reach_nothing() {
    let ops: [fn(RemoteAddr) -> SendOp; 3] = [
        |remote| SendOp::Write { remote, imm: None },
        |remote| SendOp::Read { remote },
        |remote| SendOp::FetchAdd { remote, add: 1 },
    ];
    let ends = crate::sides::FENCED;
    for op in ops {
        for to in [ends.start - 8, ends.end, ends.end - 4] {
            let [one, other] = asked();
            other.memory.fill(0..crate::sides::LEN, 5);
            let wire = shared_words(&one, &Node::open().unwrap(), crate::layout::wire::SIZE)[1].clone();
            let pair = pair_of(&other);
            let stopped = pair.inner();
            one.qp.post_send(&[request(&one, 1, op(there(&other)), 8)]).unwrap();
            // The first frame of the ring: its head, the header, and the address that it is about.
            let address = wire.atomic_u64(crate::layout::wire::RING_AT + 128 + 8 + 16);
            let moved = (other.memory.addr() + to) as u64;
            assert_eq!(address.swap(moved, std::sync::atomic::Ordering::SeqCst), there(&other).addr);
            drop(stopped);
            let denied = [CompletionStatus::RemoteAccess, CompletionStatus::RemoteInvalidRequest];
            assert!(denied.contains(&next(&one).status), "byte {to}");
            assert_eq!(bytes(&other, 0, crate::sides::LEN), [5; crate::sides::LEN]);
        }
    }
}
