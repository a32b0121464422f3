//! What the conformance suite does not reach: much in both directions, memory that is given back in the middle, peers of
//! both sorts at one device, and connections that were before.

use fulmen_memory::Pool;
use fulmen_soft::Profile;
use fulmen_verbs::{
    Access, Carrier, CompletionStatus, Piece, QueuePairKind, RecvRequest, RemoteAddr, SendOp, SendRequest, Transition,
    VerbsError,
};

use super::side::{Side, until};
use super::{Hosts, V4};

const OK: CompletionStatus = CompletionStatus::Success;

fn rich() -> Hosts {
    Hosts::new(Profile::Infiniband, V4)
}

fn connected(bytes: usize) -> [Side; 2] {
    let hosts = rich();
    Side::pair(&[hosts.open(), hosts.open()], QueuePairKind::Rc, bytes)
}

#[test]
fn the_carrier_is_told() {
    let [one, other] = connected(4096);
    for side in [&one, &other] {
        assert_eq!(side.qp.carrier(), Carrier::Tcp { sealed: false });
    }
}

/// Nobody hears of requests that complete invisibly, but room for others comes back, although neither side does anything.
#[test]
fn what_nobody_waits_for_is_acknowledged_all_the_same() {
    const DEPTH: u32 = 16;
    let hosts = rich();
    let devices = [hosts.open(), hosts.open()];
    let [one, other] = [0, 1].map(|index| Side::of_depth(&devices[index], QueuePairKind::Rc, 4096, DEPTH));
    one.connect(&other).expect("a peer");
    other.connect(&one).expect("a peer");
    let post = |wr_id, op, signaled| {
        let mut request = SendRequest::new(wr_id, op, [one.piece(0, 8)]);
        request.signaled = signaled;
        match one.qp.post_send(&[request]) {
            Ok(()) => Some(()),
            Err(refused) if matches!(refused.cause, VerbsError::QueueFull { .. }) => None,
            Err(refused) => panic!("{refused:?}"),
        }
    };
    let write = SendOp::Write { remote: other.remote(64), imm: None };
    for wr_id in 0..u64::from(3 * DEPTH) {
        // Of both sorts, the peer's program hears of one alone.
        let op = if wr_id % 2 == 0 { SendOp::Send { imm: None } } else { write };
        if wr_id % 2 == 0 {
            other.recv(wr_id, 0, 8);
        }
        until("room for a request", || post(wr_id, op, false));
    }
    for wr_id in (0..u64::from(3 * DEPTH)).step_by(2) {
        other.expect(wr_id, OK);
    }
    assert!(one.poll().is_none(), "they complete invisibly");
    until("room for one that does not", || post(99, write, true));
    one.expect(99, OK);
}

/// More than both directions of a connection hold, of everything, before anybody takes anything: no side waits for the
/// other one in a ring.
#[test]
fn much_in_both_directions_at_once() {
    const LEN: usize = 8 << 20;
    const EACH: u64 = 4;
    let [one, other] = connected(4 * LEN);
    for (side, peer) in [(&one, &other), (&other, &one)] {
        side.memory.fill(0..LEN, 0x11);
        side.memory.fill(LEN..2 * LEN, 0x22);
        for round in 0..EACH {
            side.recv(100 + round, 2 * LEN, LEN);
            side.post(3 * round, SendOp::Read { remote: peer.remote(LEN) }, 3 * LEN, LEN);
            side.send(3 * round + 1, 0, LEN);
            side.post(3 * round + 2, SendOp::Write { remote: peer.remote(2 * LEN), imm: None }, 0, LEN);
        }
    }
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    until("everything in both directions", || {
        for (index, side) in [&one, &other].into_iter().enumerate() {
            while let Some(done) = side.poll() {
                assert_eq!(done.status, OK, "{done:?}");
                let (count, first) = if done.wr_id < 100 { (&mut sent[index], 0) } else { (&mut received[index], 100) };
                assert_eq!(done.wr_id, first + *count, "each queue keeps its order");
                *count += 1;
            }
        }
        (sent == [3 * EACH; 2] && received == [EACH; 2]).then_some(())
    });
    for side in [&one, &other] {
        let mut bytes = vec![0; 2 * LEN];
        side.memory.read(2 * LEN, &mut bytes);
        assert!(bytes[..LEN].iter().all(|byte| *byte == 0x11) && bytes[LEN..].iter().all(|byte| *byte == 0x22));
    }
}

/// After the end of a registration nobody writes a byte of it, in whichever middle that was.
#[test]
fn memory_that_is_given_back_stays_as_it_is() {
    const LEN: usize = 16 << 20;
    for (op, waits) in [("WRITE", 0), ("WRITE", 50), ("SEND", 0), ("SEND", 50), ("READ", 0), ("READ", 50)] {
        let [one, other] = connected(LEN);
        let Side { memory, region, .. } = &other;
        let victim = other.pd.register(region, 0..LEN, Access::all()).expect("a second registration");
        let remote = RemoteAddr { addr: memory.addr() as u64, rkey: victim.rkey() };
        let piece = Piece { memory: memory.clone(), lkey: victim.lkey() };
        one.memory.fill(0..LEN, 0x77);
        match op {
            "WRITE" => one.post(1, SendOp::Write { remote, imm: None }, 0, LEN),
            "SEND" => {
                other.qp.post_recv(&[RecvRequest::new(2, [piece])]).expect("a RECV");
                one.send(1, 0, LEN);
            }
            // What it brings goes where it may no longer.
            _ => {
                let read = SendRequest::new(1, SendOp::Read { remote: one.remote(0) }, [piece]);
                other.qp.post_send(&[read]).expect("a READ");
            }
        }
        // Some of it has come, or nothing; or all of it, if the device's threads were faster.
        let mut ended = None;
        let mut look = || {
            ended = ended.or_else(|| one.poll()).or_else(|| other.poll());
            ended
        };
        if waits > 0 {
            until("the first bytes", || {
                look();
                let mut first = [0];
                memory.read(0, &mut first);
                (first == [0x77]).then_some(())
            });
        }
        for _ in 0..waits {
            look();
        }
        drop(victim);
        memory.fill(0..LEN, 0x55);
        let ended = until("the end of the request", &mut look);
        for _ in 0..300 {
            one.poll();
            other.poll();
        }
        let mut bytes = vec![0; LEN];
        memory.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0x55), "{op}: written after the registration had ended ({ended:?})");
    }
}

/// Peers WRITE into registered memory of which a pool has cut blocks, as over shared memory.
#[test]
fn memory_of_pools_is_reached() {
    let [one, other] = connected(4096);
    let region = fulmen_memory::Region::alloc(1 << 20).expect("memory");
    let pool = Pool::new(&region).expect("a pool");
    let block = pool.take(4096).expect("a block");
    let mr = other.pd.register(&region, 0..1 << 20, Access::all()).expect("a registration");
    let exposed = block.into_exposed();
    let remote = RemoteAddr { addr: exposed.addr() as u64, rkey: mr.rkey() };
    one.memory.fill(0..4096, 0x42);
    one.post(1, SendOp::Write { remote, imm: None }, 0, 4096);
    let done = until("a WRITE", || {
        other.poll();
        one.poll()
    });
    assert_eq!(done.status, OK);
    let mut bytes = [0; 4096];
    exposed.read(0, &mut bytes);
    assert_eq!(bytes, [0x42; 4096]);
}

#[test]
fn one_device_has_a_peer_on_its_host_and_one_elsewhere() {
    let hosts = rich();
    let home = super::host();
    let [device, near, far] = [home, home, super::host()].map(|host| hosts.open_on(host));
    let to_near = Side::pair(&[device.clone(), near], QueuePairKind::Rc, 1 << 20);
    let to_far = Side::pair(&[device, far], QueuePairKind::Rc, 1 << 20);
    assert_eq!(to_near[0].qp.carrier(), Carrier::SharedMemory);
    assert!(matches!(to_far[0].qp.carrier(), Carrier::Tcp { .. }));
    for round in 0..100 {
        for (index, [one, other]) in [&to_near, &to_far].into_iter().enumerate() {
            let len = if round % 10 == 9 { 500_000 } else { 100 };
            one.memory.fill(0..len, round as u8 + index as u8);
            other.recv(round, 0, len);
            one.send(round, 0, len);
        }
        for [one, other] in [&to_near, &to_far] {
            other.expect(round, OK);
            one.expect(round, OK);
        }
        for (index, [_, other]) in [&to_near, &to_far].into_iter().enumerate() {
            let mut seen = [0];
            other.memory.read(99, &mut seen);
            assert_eq!(seen, [round as u8 + index as u8]);
        }
    }
}

/// What was sent over a connection before is none of the next one's, whichever end is reset first.
#[test]
fn a_connection_after_a_reset_is_a_new_one() {
    let mut sides = connected(4096);
    for round in 0..20 {
        let [one, other] = &sides;
        // It finds no RECV before the end.
        one.memory.fill(0..64, 0xee);
        one.send(1, 0, 64);
        other.reset();
        one.reset();
        one.connect(other).expect("a peer");
        other.connect(one).expect("a peer");
        other.memory.fill(0..64, 0);
        other.recv(2, 0, 64);
        one.memory.fill(0..64, round);
        one.send(3, 0, 64);
        other.expect(2, OK);
        one.expect(3, OK);
        let mut seen = [0; 64];
        other.memory.read(0, &mut seen);
        assert_eq!(seen, [round; 64]);
        sides.reverse();
    }
}

#[test]
fn who_is_not_there_is_named() {
    let hosts = rich();
    let [one, other] = [0, 1].map(|_| Side::new(&hosts.open(), QueuePairKind::Rc, 4096));
    let uc = Side::new(&other.device, QueuePairKind::Uc, 4096);
    let kinds = one.connect(&uc).expect_err("another kind");
    assert!(matches!(&kinds, VerbsError::Unreachable { cause, .. } if cause.contains("kind")), "{kinds}");
    let third = Side::new(&hosts.open(), QueuePairKind::Rc, 4096);
    third.qp.modify(&Transition::Error).expect("ERR");
    // It stays in error for longer than anybody waits.
    let stale = one.connect(&third).expect_err("a peer in error");
    assert!(matches!(stale, VerbsError::Stale { .. }), "{stale}");
}
