//! What only the inside can test: hostile wires, peers that are gone or stopped, and what is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, Region};
use fulmen_reach::{Node, NodeAddress, ShareKey};
use fulmen_verbs::{
    Access, AddressHandle, AddressPath, Completion, CompletionQueue, CompletionStatus, Destination, Device, Gid,
    MemoryRegion, Piece, ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, QueuePairState,
    RecvRequest, SendOp, SendRequest, SharedReceiveQueue, Transition, VerbsError,
};
use proptest::prelude::*;

use super::Notice;
use super::incoming::{Attach, Attaching};
use super::wire::OwnWire;
use crate::completion::QueueHandle;
use crate::device::{DeviceCore, MOST_DEVICES, lock};
use crate::layout::datagrams as at;
use crate::{Profile, SoftDevice, SoftOptions};

/// Reached by no test that succeeds.
const LONG: Duration = Duration::from_secs(30);
const LEN: usize = 64 << 10;

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

struct Side {
    device: Arc<dyn Device>,
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    memory: Exposed,
    pd: Arc<dyn ProtectionDomain>,
    mr: Arc<dyn MemoryRegion>,
}

fn side(patience: Duration) -> Side {
    let options = SoftOptions { recv_patience: patience, ..SoftOptions::new(Profile::Infiniband) };
    on(SoftDevice::open_as(&Node::open().unwrap(), options).unwrap())
}

fn on(device: Arc<dyn Device>) -> Side {
    fed_by(device, |_| None)
}

/// A side whose RECVs come from the queue that `srq` makes.
fn fed_by(
    device: Arc<dyn Device>,
    srq: impl FnOnce(&Arc<dyn ProtectionDomain>) -> Option<Arc<dyn SharedReceiveQueue>>,
) -> Side {
    let pd = device.alloc_pd().unwrap();
    let region = Region::alloc(LEN).unwrap();
    let mr = pd.register(&region, 0..LEN, Access::LOCAL_WRITE).unwrap();
    let cq = device.create_cq(4096, None).unwrap();
    let limits =
        QueuePairLimits { send_depth: 1024, recv_depth: 1024, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let init = QueuePairInit {
        kind: QueuePairKind::Ud,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        limits,
        signal_all: true,
        srq: srq(&pd),
    };
    let qp = pd.create_qp(&init).unwrap();
    let steps = [
        Transition::DatagramInit { port: 1, qkey: 7 },
        Transition::DatagramReceive,
        Transition::DatagramSend { send_psn: 0 },
    ];
    steps.iter().for_each(|step| qp.modify(step).unwrap());
    Side { device, cq, qp, memory: region.expose().unwrap(), pd, mr }
}

impl Side {
    fn gid(&self) -> Gid {
        self.device.gid_table(1).unwrap()[0].gid
    }

    fn handle(&self, remote_gid: Gid) -> Arc<dyn AddressHandle> {
        self.pd.create_ah(&AddressPath { port: 1, remote_gid, remote_lid: 0, local_gid_index: 0 }).unwrap()
    }

    fn send(&self, handle: &Arc<dyn AddressHandle>, qp_num: u32, wr_id: u64, len: usize) {
        let to = Destination { handle: handle.number(), qp_num, qkey: 7 };
        let piece = Piece { memory: self.memory.slice(0..len), lkey: self.mr.lkey() };
        self.qp.post_send(&[SendRequest::new(wr_id, SendOp::SendTo { to, imm: None }, [piece])]).unwrap();
    }

    fn recv(&self, wr_id: u64) {
        let piece = Piece { memory: self.memory.slice(8192..16384), lkey: self.mr.lkey() };
        self.qp.post_recv(&[RecvRequest::new(wr_id, [piece])]).unwrap();
    }

    fn poll(&self) -> Option<Completion> {
        let mut one = [Completion::BLANK];
        (self.cq.poll(&mut one).unwrap() == 1).then_some(one[0])
    }

    #[track_caller]
    fn next(&self) -> Completion {
        until("a completion", || self.poll())
    }
}

/// The device behind a side.
fn core(side: &Side) -> Arc<DeviceCore> {
    side.cq.as_any().downcast_ref::<QueueHandle>().unwrap().0.device.clone()
}

fn counted(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Sends a message that arrives: the way is open.
#[track_caller]
fn opened(one: &Side, other: &Side) -> Arc<dyn AddressHandle> {
    let handle = one.handle(other.gid());
    other.recv(1);
    one.send(&handle, other.qp.qp_num(), 2, 100);
    assert!(one.next().status.is_success());
    let taken = other.next();
    assert_eq!((taken.wr_id, taken.byte_len), (1, 140), "{taken:?}");
    handle
}

#[test]
fn nobody_is_no_failure() {
    let one = side(Duration::ZERO);
    let closed = Node::open().unwrap();
    let other = side(Duration::ZERO);
    // A node that is gone, one without a device, and bytes that name no node.
    let deviceless = Node::open().unwrap();
    let gone = Gid(*closed.address().name());
    drop(closed);
    for gid in [gone, Gid(*deviceless.address().name()), Gid([9; 16])] {
        let handle = one.handle(gid);
        for wr_id in 0..10 {
            one.send(&handle, other.qp.qp_num(), wr_id, 100);
        }
        for wr_id in 0..10 {
            let sent = one.next();
            assert_eq!((sent.wr_id, sent.status), (wr_id, CompletionStatus::Success));
        }
    }
    opened(&one, &other);
}

#[test]
fn a_device_is_found_again_where_another_one_was() {
    let one = side(Duration::ZERO);
    let node = Node::open().unwrap();
    let open = || on(SoftDevice::open(&node, Profile::Infiniband).unwrap());
    let first = open();
    let handle = opened(&one, &first);
    drop(first);
    let second = open();
    second.recv(1);
    // Those that come while nobody is there are lost.
    until("a message to the second one", || {
        one.send(&handle, second.qp.qp_num(), 3, 64);
        assert!(one.next().status.is_success());
        second.poll()
    });
}

#[test]
fn a_receiver_that_is_slow_is_waited_for() {
    const MESSAGES: u64 = 600;
    let [one, slow] = [LONG, LONG].map(side);
    let handle = opened(&one, &slow);
    for wr_id in 0..MESSAGES {
        one.memory.write(0, &wr_id.to_ne_bytes());
        one.send(&handle, slow.qp.qp_num(), wr_id, 4096);
        if wr_id < 8 {
            // What is in the ring is as it was then; what waits is the sender's to leave alone.
            assert_eq!(one.next().wr_id, wr_id);
        }
    }
    // Some are kept, some fill the ring, and the others wait here.
    let mut sent = 8;
    until("a ring that is full", || {
        sent += u64::from(one.poll().is_some());
        (sent > super::receive::MOST_WAITING as u64 + 8).then_some(())
    });
    assert_eq!(slow.poll(), None);
    let mut taken = 0;
    slow.recv(0);
    while taken < MESSAGES {
        if let Some(done) = slow.poll() {
            assert_eq!((done.wr_id, done.byte_len), (taken, 4136));
            let mut number = [0; 8];
            slow.memory.read(8192 + 40, &mut number);
            assert!(taken >= 8 || u64::from_ne_bytes(number) == taken, "in order");
            taken += 1;
            slow.recv(taken);
        }
        sent += u64::from(one.poll().is_some());
    }
    until("all sends", || {
        sent += u64::from(one.poll().is_some());
        (sent == MESSAGES).then_some(())
    });
    assert_eq!(counted(&core(&slow).datagrams.counts.no_recv), 0, "none was lost");
}

#[test]
fn patience_ends_and_begins_anew_with_a_recv() {
    let [one, other] = [LONG, Duration::from_millis(50)].map(side);
    let handle = opened(&one, &other);
    let lost = || counted(&core(&other).datagrams.counts.no_recv);
    for wr_id in 0..3 {
        one.send(&handle, other.qp.qp_num(), wr_id, 64);
    }
    // Nobody polls: the device's own thread gives up on them.
    until("messages that are lost", || (lost() == 3).then_some(()));
    one.send(&handle, other.qp.qp_num(), 3, 64);
    until("a message that is lost at once", || (lost() == 4).then_some(()));
    other.recv(7);
    one.send(&handle, other.qp.qp_num(), 4, 64);
    assert_eq!(other.next().wr_id, 7);
    // One that waits is taken by a RECV that comes in time; a busy machine may need more tries.
    until("a message that was waited for", || {
        one.send(&handle, other.qp.qp_num(), 5, 64);
        other.recv(8);
        other.poll()
    });
}

#[test]
fn a_queue_pair_without_recvs_does_not_hold_up_others() {
    let [one, receiver] = [LONG, LONG].map(side);
    let silent = on(receiver.device.clone());
    let handle = opened(&one, &receiver);
    for wr_id in 0..super::receive::MOST_WAITING as u64 {
        one.send(&handle, silent.qp.qp_num(), wr_id, 64);
    }
    receiver.recv(5);
    one.send(&handle, receiver.qp.qp_num(), 99, 64);
    assert_eq!(receiver.next().wr_id, 5);
    // More of them stay in the ring, until there are RECVs.
    for wr_id in 0..10 {
        one.send(&handle, silent.qp.qp_num(), wr_id, 64);
    }
    one.send(&handle, receiver.qp.qp_num(), 99, 64);
    receiver.recv(6);
    let taken: Vec<u64> = (0..super::receive::MOST_WAITING as u64 + 10)
        .map(|wr_id| {
            silent.recv(wr_id);
            silent.next().wr_id
        })
        .collect();
    assert!(taken.is_sorted());
    assert_eq!(receiver.next().wr_id, 6);
}

#[test]
fn ways_that_nobody_uses_are_left() {
    let [one, other] = [LONG, LONG].map(side);
    let handle = opened(&one, &other);
    let senders = || lock(&core(&other).datagrams.incoming).len();
    let routes = || lock(&core(&one).datagrams.routes).len();
    assert_eq!((senders(), routes()), (1, 1));
    drop(handle);
    until("a way that is left", || (routes() == 0).then_some(()));
    until("a sender that is let go", || (senders() == 0).then_some(()));
    // And a device that closes tells its receivers.
    let handle = opened(&one, &other);
    assert_eq!(senders(), 1);
    drop((handle, one));
    until("a sender that has closed", || (senders() == 0).then_some(()));
    assert_eq!(core(&other).datagrams.addresses().len(), 0);
}

#[test]
fn handles_are_limited_and_come_back() {
    let one = side(LONG);
    let path = AddressPath { port: 1, remote_gid: one.gid(), remote_lid: 0, local_gid_index: 0 };
    let handles: Vec<_> = (0..super::address::MOST_HANDLES).map(|_| one.pd.create_ah(&path).unwrap()).collect();
    let refused = one.pd.create_ah(&path).map(|_| ());
    assert!(matches!(refused, Err(VerbsError::Limit { .. })), "{refused:?}");
    drop(handles);
    assert!(one.pd.create_ah(&path).is_ok());
    // A handle means something in its own domain alone.
    let other = on(one.device.clone());
    let handle = one.handle(other.gid());
    let to = Destination { handle: handle.number(), qp_num: 1, qkey: 1 };
    let refused = other.qp.post_send(&[SendRequest::new(1, SendOp::SendTo { to, imm: None }, [])]);
    assert!(matches!(refused.map_err(|error| error.cause), Err(VerbsError::Invalid { .. })));
}

/// A side that makes wires of its own and gives notice of them.
fn offer(bad: &Side, victim: &Side) -> OwnWire {
    let (from, to) = (core(bad), core(victim));
    let wire = OwnWire::new(&from.node).unwrap();
    let (a, b) = Notice { from: from.index, to: to.index, share: wire.share() }.to_numbers();
    let peer = from.node.connect(&to.node.address(), LONG).unwrap();
    peer.notify(a, b, LONG).unwrap();
    // Another time, which is one time too many.
    peer.notify(a, b, LONG).unwrap();
    until("a receiver that attaches", || wire.is_attached().then_some(()));
    wire
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![0_usize..64, 4000_usize..4200, 8000_usize..8200];
    let flags = prop_oneof![Just(0_u8), Just(4_u8), any::<u8>()];
    (len, flags, any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(len, flags, index, byte, right)| {
        let mut frame = vec![byte; len];
        frame.iter_mut().zip([flags, index]).for_each(|(place, byte)| *place = byte);
        if right && len >= 16 {
            // The key is right; the number is filled in.
            frame[12..16].copy_from_slice(&7_u32.to_ne_bytes());
        }
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_wires_harm_nobody(
        all in prop::collection::vec((frames(), any::<bool>()), 1..40),
        scribbles in prop::collection::vec((0..at::SIZE / 8, any::<u64>()), 0..16),
    ) {
        let [bad, victim] = [Duration::ZERO, Duration::ZERO].map(side);
        victim.memory.fill(0..LEN, 0x55);
        let number = victim.qp.qp_num().to_ne_bytes();
        let mut wire = offer(&bad, &victim);
        for (wr_id, (mut frame, named)) in (0..).zip(all) {
            if named && frame.len() >= 8 {
                frame[4..8].copy_from_slice(&number);
            }
            if let QueuePairState::ReadyToSend = victim.qp.state() {
                victim.recv(wr_id);
            }
            let _ = wire.ring.try_push(&[&frame]);
            if let Some(taken) = victim.poll() {
                prop_assert!(taken.byte_len <= 40 + 4096, "{:?}", taken);
            }
        }
        let words = wire.words();
        for (word, value) in scribbles {
            words.atomic_u64(word * 8).store(value, Ordering::SeqCst);
            victim.poll();
        }
        for outside in [0..8192, 16384..LEN] {
            let mut seen = vec![0; outside.len()];
            victim.memory.read(outside.start, &mut seen);
            prop_assert!(seen.iter().all(|byte| *byte == 0x55), "memory outside of the RECV");
        }
        // Others are served.
        let good = on(victim.device.clone());
        opened(&bad, &good);
    }
}

#[test]
fn a_flood_of_notices_ends_somewhere() {
    let victim = side(LONG);
    let node = Node::open().unwrap();
    let core = core(&victim);
    let peer = node.connect(&core.node.address(), LONG).unwrap();
    // The device's thread has enough to do with the node's missing devices.
    for share in 0..2 * super::MOST_SENDERS as u64 {
        let from = share as u32 % MOST_DEVICES;
        let (a, b) = Notice { from, to: core.index, share: ShareKey::from_u64(share) }.to_numbers();
        peer.notify(a, b, LONG).unwrap();
        peer.notify(!a, b, LONG).unwrap();
        assert!(lock(&core.datagrams.attaching).len() <= MOST_DEVICES as usize);
    }
    let good = side(LONG);
    opened(&good, &victim);
}

/// A node may say that it has any name until it is connected to.
#[test]
fn notices_in_many_names_shut_nobody_out() {
    let named = |number: u32| {
        let mut name = [0xfe, 0x80, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 1, 0, 0, 0];
        name[2..6].copy_from_slice(&number.to_be_bytes());
        Attach::new(NodeAddress::on_this_host(name).unwrap(), Notice { from: 0, to: 0, share: ShareKey::from_u64(9) })
    };
    let mut attaching = Attaching::default();
    for number in 0..2 * super::MOST_SENDERS as u32 {
        attaching.note(named(number));
    }
    assert_eq!(attaching.len(), super::MOST_SENDERS);
    let good = named(u32::MAX);
    attaching.note(named(u32::MAX));
    let turn = (0..super::MOST_SENDERS).find(|turn| {
        let (sender, at) = attaching.next().unwrap();
        let found = sender.is_of_same_device(&good);
        // Notices go on to come. What was looked for in vain has no claim before them.
        attaching.note(named(*turn as u32));
        attaching.again(sender, at);
        assert!(attaching.len() <= super::MOST_SENDERS);
        found
    });
    assert_eq!(turn, Some(super::MOST_SENDERS - 1));
}

/// Another queue pair took the RECV for a message that did not come whole.
#[test]
fn a_recv_that_is_given_back_takes_the_message_that_waits() {
    let one = side(Duration::ZERO);
    let options = SoftOptions { recv_patience: LONG, ..SoftOptions::new(Profile::Infiniband) };
    let device = SoftDevice::open_as(&Node::open().unwrap(), options).unwrap();
    let mut shared = None;
    let other = fed_by(device, |pd| {
        shared = Some(pd.create_srq(4, 1).unwrap());
        shared.clone()
    });
    let handle = one.handle(other.gid());
    one.send(&handle, other.qp.qp_num(), 2, 100);
    let device = core(&other);
    let pair = device.datagrams.pairs()[&other.qp.qp_num()].clone();
    until("a message that waits", || pair.look_at_clock(&device.datagrams.counts).next);
    let queue = crate::shared::own(&pair.domain, shared.as_ref().unwrap()).unwrap();
    let piece = Piece { memory: other.memory.slice(8192..16384), lkey: other.mr.lkey() };
    queue.give_back(RecvRequest::new(5, [piece]));
    let taken = other.next();
    assert_eq!((taken.wr_id, taken.byte_len), (5, 140));
}
