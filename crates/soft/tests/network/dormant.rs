//! Connections that are opened by the first request of either side.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_soft::Profile;
use fulmen_trust::Authority;
use fulmen_verbs::{Carrier, CompletionStatus, Device, QueuePairKind, SendOp};

use super::side::{Side, until};
use super::{Hosts, V4};

const OK: CompletionStatus = CompletionStatus::Success;
/// Long enough for a connection that should not be opened.
const MOMENT: Duration = Duration::from_millis(30);
/// Longer than a peer is looked for.
const LONGEST_LOOK: Duration = Duration::from_secs(20);

fn lazy() -> Hosts {
    Hosts { on_first_use: true, ..Hosts::new(Profile::Infiniband, V4) }
}

/// Two devices; the first one's queue pairs open their connections.
fn devices(hosts: &Hosts) -> [Arc<dyn Device>; 2] {
    let mut devices = [hosts.open(), hosts.open()];
    devices.sort_by_key(|device| device.port(1).expect("a port").lid);
    devices
}

fn send_and_see(one: &Side, other: &Side, wr_id: u64) {
    other.recv(wr_id + 1, 64, 64);
    one.memory.fill(0..64, wr_id as u8);
    one.send(wr_id, 0, 64);
    other.expect(wr_id + 1, OK);
    one.expect(wr_id, OK);
    let mut came = [0; 64];
    other.memory.read(64, &mut came);
    assert_eq!(came, [wr_id as u8; 64]);
}

fn poll_for(time: Duration, sides: &[Side]) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        sides.iter().for_each(|side| assert!(side.poll().is_none()));
        thread::yield_now();
    }
}

#[test]
fn whichever_side_begins_opens_the_connection_and_nobody_before() {
    let authority = Authority::from_secret(&[7; 32]).expect("an authority");
    let sealed = Hosts { seal: Some(authority.identity("a rank").expect("an identity")), ..lazy() };
    let thunderbolt = Hosts { profile: Profile::Thunderbolt, ..lazy() };
    for hosts in [lazy(), sealed, thunderbolt] {
        let kinds: &[_] = match hosts.profile {
            Profile::Thunderbolt => &[QueuePairKind::Uc],
            _ => &[QueuePairKind::Rc, QueuePairKind::Uc],
        };
        for (kind, begins) in kinds.iter().flat_map(|kind| [(kind, 0), (kind, 1)]) {
            let sides = Side::pair(&devices(&hosts), *kind, 4096);
            // RECVs open nothing.
            sides.iter().for_each(|side| side.recv(90, 128, 64));
            poll_for(MOMENT, &sides);
            for side in &sides {
                assert!(side.qp.is_dormant() && !side.qp.is_peer_gone());
                assert!(matches!(side.qp.carrier(), Carrier::Tcp { .. }));
            }
            let (one, other) = (&sides[begins], &sides[1 - begins]);
            one.send(1, 0, 64);
            other.expect(90, OK);
            one.expect(1, OK);
            assert!(sides.iter().all(|side| !side.qp.is_dormant()));
            other.send(2, 0, 64);
            one.expect(90, OK);
            other.expect(2, OK);
        }
    }
}

/// Asked for what needs no RECV, too.
#[test]
fn one_sided_requests_open_the_connection() {
    for begins in [0, 1] {
        for write in [true, false] {
            let sides = Side::pair(&devices(&lazy()), QueuePairKind::Rc, 4096);
            let (one, other) = (&sides[begins], &sides[1 - begins]);
            one.memory.fill(0..8, 5);
            other.memory.fill(64..72, 9);
            let op = if write {
                SendOp::Write { remote: other.remote(128), imm: None }
            } else {
                SendOp::Read { remote: other.remote(64) }
            };
            one.post(1, op, 0, 8);
            // The other side's program does nothing.
            one.expect(1, OK);
            let (mut here, mut there) = ([0; 8], [0; 8]);
            one.memory.read(0, &mut here);
            other.memory.read(128, &mut there);
            assert_eq!((here, there), if write { ([5; 8], [5; 8]) } else { ([9; 8], [0; 8]) });
        }
    }
}

#[test]
fn both_sides_may_begin_at_once() {
    let devices = devices(&lazy());
    for round in 0..40 {
        let sides = Side::pair(&devices, QueuePairKind::Rc, 4096);
        sides.iter().for_each(|side| side.recv(1, 64, 64));
        thread::scope(|scope| {
            for side in &sides {
                scope.spawn(move || {
                    side.send(2, 0, 64);
                    let mut done = [1, 2].map(|_| until("both ends of both messages", || side.poll()));
                    done.sort_by_key(|done| done.wr_id);
                    assert_eq!(done.map(|done| (done.wr_id, done.status)), [(1, OK), (2, OK)], "round {round}");
                });
            }
        });
    }
}

#[test]
fn of_many_queue_pairs_only_those_that_are_used_have_a_connection() {
    let devices = devices(&lazy());
    let pairs: Vec<[Side; 2]> = (0..16).map(|_| Side::pair(&devices, QueuePairKind::Rc, 4096)).collect();
    for (used, begins) in [(3, 0), (11, 1)] {
        send_and_see(&pairs[used][begins], &pairs[used][1 - begins], 10);
    }
    thread::sleep(MOMENT);
    let woken: Vec<usize> = (0..16).filter(|at| pairs[*at].iter().any(|side| !side.qp.is_dormant())).collect();
    assert_eq!(woken, [3, 11]);
}

/// Who is ready first may send at once: it goes when the other side is there.
#[test]
fn a_peer_that_is_not_ready_yet_is_waited_for() {
    for begins in [0, 1] {
        let devices = devices(&lazy());
        let sides = [0, 1].map(|index: usize| Side::new(&devices[index], QueuePairKind::Rc, 4096));
        let (one, other) = (&sides[begins], &sides[1 - begins]);
        one.connect(other).expect("a peer");
        one.send(1, 0, 64);
        thread::sleep(MOMENT);
        assert!(one.poll().is_none());
        other.connect(one).expect("a peer");
        other.recv(2, 64, 64);
        other.expect(2, OK);
        one.expect(1, OK);
    }
}

/// One device opens connections at once, and the other one on first use.
#[test]
fn devices_that_differ_in_it_connect() {
    for eager in [0, 1] {
        for begins in [0, 1] {
            let mut devices = [lazy().open(), Hosts::new(Profile::Infiniband, V4).open()];
            devices.sort_by_key(|device| device.port(1).expect("a port").lid);
            let mut sides = Side::pair(&devices, QueuePairKind::Rc, 4096);
            if eager == 1 {
                sides.reverse();
            }
            send_and_see(&sides[begins], &sides[1 - begins], 4);
        }
    }
}

#[test]
fn a_peer_that_is_not_there_is_found_out_by_the_first_request() {
    for kind in [QueuePairKind::Rc, QueuePairKind::Uc] {
        for (begins, device_too) in [(0, false), (1, false), (0, true), (1, true)] {
            // Where somebody else was given the device's port, the peer may be looked for there as long as one ever is.
            // That does not happen each time.
            let mut took = (0..3).map(|_| find_out(kind, begins, device_too));
            assert!(took.any(|took| took < Duration::from_secs(5)), "{kind:?}, {begins}, {device_too}: not at once");
        }
    }
}

/// How long a first request takes to find out that the peer has gone, or its device, too.
fn find_out(kind: QueuePairKind, begins: usize, device_too: bool) -> Duration {
    let devices = devices(&lazy());
    let [one, other] = Side::pair(&devices, kind, 4096);
    let mut devices = devices.map(Some);
    let (stays, goes) = if begins == 0 { (one, other) } else { (other, one) };
    drop(goes);
    if device_too {
        devices[1 - begins] = None;
    }
    stays.send(1, 0, 64);
    // What UC sends to nobody is lost.
    let status = if kind == QueuePairKind::Rc { CompletionStatus::RetryExceeded } else { OK };
    let began = Instant::now();
    stays.expect(1, status);
    let took = began.elapsed();
    assert!(took < LONGEST_LOOK, "it takes {took:?}");
    took
}

#[test]
fn queue_pairs_that_were_never_used_are_reset_and_connected_again() {
    let devices = devices(&lazy());
    for begins in [0, 1] {
        let sides = Side::pair(&devices, QueuePairKind::Rc, 4096);
        for round in 0..3 {
            sides.iter().for_each(Side::reset);
            sides[0].connect(&sides[1]).expect("a peer");
            sides[1].connect(&sides[0]).expect("a peer");
            if round != 1 {
                send_and_see(&sides[begins], &sides[1 - begins], 20);
            }
        }
    }
}

/// In the middle of it, on either side: nothing is left behind for the next one.
#[test]
fn queue_pairs_may_go_while_their_connection_is_opened() {
    let devices = devices(&lazy());
    for round in 0..40 {
        let sides = Side::pair(&devices, QueuePairKind::Rc, 4096);
        sides[round % 2].send(1, 0, 64);
        if round % 3 == 0 {
            thread::sleep(Duration::from_micros(100 * (round as u64 % 7)));
        }
        sides[round / 2 % 2].reset();
    }
    let sides = Side::pair(&devices, QueuePairKind::Rc, 4096);
    send_and_see(&sides[0], &sides[1], 30);
}
