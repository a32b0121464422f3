//! Datagrams: queue pairs without a connection, and address handles.
//!
//! A datagram may be lost. One that goes to a queue pair with a RECV, on a fabric that carries nothing else, is expected to
//! arrive all the same.

mod refused;

use std::sync::Arc;

use super::PATIENCE;
use super::bed::{Bed, Case, Failure, Need, Outcome, UD, ensure, ensure_eq};
use super::pattern;
use super::rig::{Rig, Setup, Side, usable_gid};
use super::watch::{Watch, check_done, check_status};
use crate::{
    Access, AddressHandle, AddressPath, Completion, CompletionOpcode, CompletionStatus, Destination, Gid, Mtu, Path,
    QueuePairKind, QueuePairState, RnrTimer, SendOp, SendRequest, Transition, VerbsError,
};

pub(super) const CASES: &[Case] = &[
    Case::new("datagrams: a message arrives behind room for a routing header", UD, &[], arrives),
    Case::new("datagrams: every length up to a transmission unit, and none beyond", UD, &[], lengths),
    Case::new("datagrams: the routing header says where a message comes from", UD, &[], routing_header),
    Case::new("datagrams: a LID alone is an address", UD, &[], by_lid),
    Case::new("datagrams: an answer finds its way by what came", UD, &[], answer),
    Case::new("datagrams: a message to the own queue pair", UD, &[], to_itself),
    Case::new("datagrams: immediate data", UD, &[Need::Immediate], immediate),
    Case::new("datagrams: inline data is copied when it is posted", UD, &[Need::Inline], inline),
    Case::new("datagrams: gathered and scattered pieces", UD, &[Need::Pieces], scatter_gather),
    Case::new("datagrams: solicited messages only", UD, &[], solicited),
    Case::new("datagrams: a wrong key is dropped", UD, &[], wrong_key),
    Case::new("datagrams: a wrong number is dropped", UD, &[], wrong_number),
    Case::new("datagrams: without a RECV the sender goes on", UD, &[], no_recv),
    Case::new("datagrams: a RECV that is too short gets nothing", UD, &[], too_long),
    Case::new("datagrams: a queue pair in INIT takes nothing", UD, &[], not_ready),
    Case::new("datagrams: messages of several senders, each in order", UD, &[], several_senders),
    Case::new("datagrams: RECVs out of a shared queue", UD, &[Need::SharedReceive], shared_receive),
    Case::new("datagrams: a handle may go once the message is posted", UD, &[], handle_goes),
    Case::new("datagrams: an unknown handle is refused", UD, &[], refused::unknown_handle),
    Case::new("datagrams: transitions with a peer are refused", UD, &[], refused::no_peer),
    Case::new("datagrams: connected queue pairs refuse them", super::bed::BOTH, &[], refused::connected),
    Case::new("datagrams: a SEND without an address is refused", UD, &[], refused::no_address),
    Case::new("datagrams: a wrong local key fails", UD, &[], refused::wrong_local_key),
    Case::new("datagrams: ERR flushes, RESET forgets", UD, &[], refused::flushes),
];

const QKEY: u32 = 0x1111_1111;
/// Bytes of a RECV before the message.
const HEAD: usize = 40;
/// What memory holds that nothing was written to.
const UNTOUCHED: u8 = 0x55;

fn ready(side: &Side, qkey: u32) -> Outcome {
    side.qp.modify(&Transition::DatagramInit { port: side.port, qkey })?;
    side.qp.modify(&Transition::DatagramReceive)?;
    Ok(side.qp.modify(&Transition::DatagramSend { send_psn: 7 })?)
}

/// Two queue pairs in RTS.
fn rig(bed: &Bed) -> Outcome<Rig> {
    let rig = Rig::reset(bed, &Setup::default())?;
    ready(&rig.a, QKEY)?;
    ready(&rig.b, QKEY)?;
    rig.b.memory.bytes.fill(0..rig.b.memory.bytes.len(), UNTOUCHED);
    Ok(rig)
}

/// A handle of `side`'s domain for a port.
fn handle(side: &Side, remote_gid: Gid, remote_lid: u16) -> Outcome<Arc<dyn AddressHandle>> {
    let local_gid_index = usable_gid(side)?.index;
    Ok(side.pd.create_ah(&AddressPath { port: side.port, remote_gid, remote_lid, local_gid_index })?)
}

/// A handle of `from`'s domain for `to`'s port.
fn handle_for(from: &Side, to: &Side) -> Outcome<Arc<dyn AddressHandle>> {
    handle(from, usable_gid(to)?.gid, to.device.port(to.port)?.lid)
}

fn destination(handle: &Arc<dyn AddressHandle>, to: &Side) -> Destination {
    Destination { handle: handle.number(), qp_num: to.qp.qp_num(), qkey: QKEY }
}

fn to(handle: &Arc<dyn AddressHandle>, side: &Side) -> SendOp {
    SendOp::SendTo { to: destination(handle, side), imm: None }
}

/// Checks a RECV's completion of a message of `len` bytes from `from`.
fn check_taken(taken: &Completion, wr_id: u64, len: usize, from: &Side) -> Outcome {
    check_done(taken, wr_id, CompletionOpcode::Recv)?;
    ensure_eq!(taken.byte_len as usize, HEAD + len, "the bytes of a message and the room before it");
    let origin = taken.origin.ok_or_else(|| "a datagram's completion says who sent it".to_owned())?;
    ensure_eq!(origin.qp_num, from.qp.qp_num(), "the sender's queue pair");
    Ok(())
}

/// Sends a message from A to B, and checks it: both work.
fn check_alive(rig: &mut Rig) -> Outcome {
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.a.write(0..64, 77);
    rig.b.recv_range(901, 0..HEAD + 64)?;
    rig.a.post(900, to(&handle, &rig.b), 0..64)?;
    check_done(&rig.a_sent()?, 900, CompletionOpcode::Send)?;
    let taken = rig.b_received()?;
    check_taken(&taken, 901, 64, &rig.a)?;
    rig.b.check(HEAD..HEAD + 64, 77, "the message")
}

fn arrives(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.a.write(0..1000, 1);
    rig.b.recv_range(10, 100..1300)?;
    rig.a.post(20, to(&handle, &rig.b), 0..1000)?;
    check_done(&rig.a_sent()?, 20, CompletionOpcode::Send)?;
    let taken = rig.b_received()?;
    check_taken(&taken, 10, 1000, &rig.a)?;
    ensure_eq!(taken.qp_num, rig.b.qp.qp_num(), "the queue pair of the RECV's completion");
    ensure_eq!(taken.imm, None, "the immediate data of a message without");
    rig.b.check(140..1140, 1, "the message")?;
    let bytes = &rig.b.memory.bytes;
    pattern::check_all(&bytes.slice(0..100), UNTOUCHED, "the bytes before the RECV")?;
    pattern::check_all(&bytes.slice(1140..1400), UNTOUCHED, "the bytes after the message")
}

fn lengths(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let most = rig.a.device.port(rig.a.port)?.active_mtu.bytes() as usize;
    let handle = handle_for(&rig.a, &rig.b)?;
    for (wr_id, len) in (0..).zip([0, 1, 7, 15, 16, 17, 64, 255, most - 1, most]) {
        rig.a.write(0..len, wr_id);
        rig.b.recv_range(wr_id, 0..HEAD + len)?;
        rig.a.post(wr_id, to(&handle, &rig.b), 0..len)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
        check_taken(&rig.b_received()?, wr_id, len, &rig.a)?;
        rig.b.check(HEAD..HEAD + len, wr_id, "the message")?;
    }
    match rig.a.qp.post_send(&[SendRequest::new(1, to(&handle, &rig.b), [rig.a.memory.piece(0..most + 1)])]) {
        Err(_) => Ok(()),
        // A device may tell later.
        Ok(()) => check_status(&rig.a_sent()?, 1, CompletionStatus::LocalLength),
    }
}

fn routing_header(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.b.recv_range(1, 0..HEAD + 64)?;
    rig.a.post(1, to(&handle, &rig.b), 0..64)?;
    let taken = rig.b_received()?;
    check_taken(&taken, 1, 64, &rig.a)?;
    ensure!(taken.origin.is_some_and(|origin| origin.grh), "a message to a GID has a routing header");
    let mut header = [0; HEAD];
    rig.b.memory.bytes.read(0, &mut header);
    ensure_eq!(header[0] >> 4, 6, "the version of the routing header");
    ensure_eq!(header[8..24], usable_gid(&rig.a)?.gid.0, "the sender's GID");
    ensure_eq!(header[24..40], usable_gid(&rig.b)?.gid.0, "the receiver's GID");
    Ok(())
}

/// A handle for a port by its LID alone.
fn handle_by_lid(from: &Side, to: &Side) -> Outcome<Arc<dyn AddressHandle>> {
    let lid = to.device.port(to.port)?.lid;
    if lid == 0 {
        return Err(Failure::Missing("LIDs".to_owned()));
    }
    handle(from, Gid::default(), lid)
}

fn by_lid(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_by_lid(&rig.a, &rig.b)?;
    rig.b.recv_range(1, 0..HEAD + 64)?;
    rig.a.post(1, to(&handle, &rig.b), 0..64)?;
    let taken = rig.b_received()?;
    check_taken(&taken, 1, 64, &rig.a)?;
    let lid = rig.a.device.port(rig.a.port)?.lid;
    let wanted = Some(crate::Origin { qp_num: rig.a.qp.qp_num(), lid, grh: false });
    ensure_eq!(taken.origin, wanted, "the origin of a message");
    pattern::check_all(&rig.b.memory.bytes.slice(0..HEAD), UNTOUCHED, "the room for a routing header that is not there")
}

fn answer(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle_of_b = handle_for(&rig.a, &rig.b)?;
    for round in 0..20 {
        rig.a.recv_range(round, 4096..4096 + HEAD + 64)?;
        rig.b.recv_range(round, 0..HEAD + 64)?;
        rig.a.post(round, to(&handle_of_b, &rig.b), 0..64)?;
        let taken = rig.b_received()?;
        check_taken(&taken, round, 64, &rig.a)?;
        let mut source = Gid::default();
        rig.b.memory.bytes.read(8, &mut source.0);
        let origin = taken.origin.ok_or_else(|| "no origin".to_owned())?;
        let back = handle(&rig.b, source, origin.lid)?;
        let to = Destination { handle: back.number(), qp_num: origin.qp_num, qkey: QKEY };
        rig.b.post(round, SendOp::SendTo { to, imm: None }, HEAD..HEAD + 64)?;
        check_taken(&rig.a_received()?, round, 64, &rig.b)?;
        check_done(&rig.a_sent()?, round, CompletionOpcode::Send)?;
        check_done(&rig.b_sent()?, round, CompletionOpcode::Send)?;
    }
    Ok(())
}

fn to_itself(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.a)?;
    rig.a.write(0..64, 5);
    rig.a.recv_range(1, 1000..1000 + HEAD + 64)?;
    rig.a.post(2, to(&handle, &rig.a), 0..64)?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Send)?;
    check_taken(&rig.a_received()?, 1, 64, &rig.a)?;
    rig.a.check(1000 + HEAD..1064 + HEAD, 5, "the message")
}

fn immediate(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    for imm in [0, 7, u32::MAX] {
        rig.b.recv_range(1, 0..HEAD)?;
        let op = SendOp::SendTo { to: destination(&handle, &rig.b), imm: Some(imm) };
        rig.a.post(1, op, 0..0)?;
        let taken = rig.b_received()?;
        check_taken(&taken, 1, 0, &rig.a)?;
        ensure_eq!(taken.imm, Some(imm), "the immediate data");
    }
    Ok(())
}

fn inline(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    let len = (rig.a.qp.limits().inline_bytes as usize).min(64);
    // The first one may have to wait for the way to be found.
    for wr_id in 0..4 {
        rig.a.write(0..len, wr_id);
        rig.b.recv_range(wr_id, 0..HEAD + len)?;
        let request = SendRequest::new(wr_id, to(&handle, &rig.b), [rig.a.memory.piece(0..len)]);
        rig.a.send(SendRequest { inline: true, ..request })?;
        rig.a.memory.bytes.fill(0..len, 0);
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
        check_taken(&rig.b_received()?, wr_id, len, &rig.a)?;
        rig.b.check(HEAD..HEAD + len, wr_id, "the bytes as they were when they were posted")?;
    }
    Ok(())
}

fn scatter_gather(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    let message = pattern::bytes(3, 120);
    rig.a.memory.bytes.write(0, &message[..50]);
    rig.a.memory.bytes.write(500, &message[50..]);
    let pieces = [rig.a.memory.piece(0..50), rig.a.memory.piece(500..570)];
    // The border lies in the room for the routing header.
    let into = [rig.b.memory.piece(0..30), rig.b.memory.piece(1000..1000 + 10 + 120)];
    rig.b.recv(crate::RecvRequest::new(1, into))?;
    rig.a.send(SendRequest::new(1, to(&handle, &rig.b), pieces))?;
    check_taken(&rig.b_received()?, 1, 120, &rig.a)?;
    pattern::check_bytes(&rig.b.memory.bytes.slice(1010..1130), &message, "the message")?;
    pattern::check_all(&rig.b.memory.bytes.slice(30..1000), UNTOUCHED, "the bytes between the pieces")
}

fn solicited(bed: &Bed) -> Outcome {
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    let channel = right.create_channel()?;
    let a = Side::new(left, bed, &setup)?;
    let b = Side::with_queues(right, bed, &setup, right.create_cq(256, None)?, right.create_cq(256, Some(&channel))?)?;
    ready(&a, QKEY)?;
    ready(&b, QKEY)?;
    let mut rig = Rig::of(a, b, bed.kind);
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.b.recv_cq.request_notify(true)?;
    for (wr_id, solicited) in [(1, false), (2, true)] {
        rig.b.recv_range(wr_id, 0..HEAD + 64)?;
        let request = SendRequest::new(wr_id, to(&handle, &rig.b), [rig.a.memory.piece(0..64)]);
        rig.a.send(SendRequest { solicited, ..request })?;
        if solicited {
            // Nobody polls: the device moves the message, and wakes this thread.
            ensure!(channel.wait(PATIENCE)?, "a solicited message brought no event in {} s", PATIENCE.as_secs());
        }
        check_taken(&rig.b_received()?, wr_id, 64, &rig.a)?;
        ensure!(!channel.wait(std::time::Duration::ZERO)?, "an unsolicited message, or the same again, is no event");
    }
    Ok(())
}

fn wrong_key(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.b.recv_range(1, 0..HEAD + 64)?;
    let wrong = Destination { qkey: QKEY + 1, ..destination(&handle, &rig.b) };
    rig.a.post(2, SendOp::SendTo { to: wrong, imm: None }, 64..128)?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Send)?;
    rig.a.write(0..64, 9);
    rig.a.post(3, to(&handle, &rig.b), 0..64)?;
    check_taken(&rig.b_received()?, 1, 64, &rig.a)?;
    rig.b.check(HEAD..HEAD + 64, 9, "the message with the right key")?;
    rig.b_recvs_quiet("a message with a wrong key")
}

fn wrong_number(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.b.recv_range(1, 0..HEAD + 64)?;
    for (wr_id, bit) in (0..).zip([1, 1 << 20, 1 << 12]) {
        let nobody = Destination { qp_num: rig.b.qp.qp_num() ^ bit, ..destination(&handle, &rig.b) };
        rig.a.post(wr_id, SendOp::SendTo { to: nobody, imm: None }, 64..128)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    }
    rig.b_recvs_quiet("messages for nobody")?;
    rig.a.post(9, to(&handle, &rig.b), 0..64)?;
    check_taken(&rig.b_received()?, 1, 64, &rig.a)
}

fn no_recv(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    for wr_id in 0..10 {
        rig.a.write(0..64, wr_id);
        rig.a.post(wr_id, to(&handle, &rig.b), 0..64)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    }
    rig.b_recvs_quiet("messages without a RECV")?;
    // What was not lost comes first.
    for wr_id in 0..11 {
        rig.b.recv_range(wr_id, 0..HEAD + 64)?;
    }
    rig.a.write(0..64, 99);
    rig.a.post(99, to(&handle, &rig.b), 0..64)?;
    check_done(&rig.a_sent()?, 99, CompletionOpcode::Send)?;
    let wanted = pattern::bytes(99, 64);
    rig.watch.until("the message that has a RECV", |watch| {
        let taken = watch.pending(super::rig::B_RECVS);
        let mut seen = vec![0; 64];
        rig.b.memory.bytes.read(HEAD, &mut seen);
        Ok(taken.filter(|taken| taken.status.is_success() && seen == wanted))
    })?;
    Ok(())
}

fn too_long(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.b.recv_range(1, 0..HEAD + 63)?;
    rig.a.post(2, to(&handle, &rig.b), 0..64)?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Send)?;
    rig.watch.settle()?;
    // A device may drop it, or complete the RECV with an error.
    if let Some(taken) = rig.watch.pending(super::rig::B_RECVS) {
        check_status(&taken, 1, CompletionStatus::LocalLength)?;
    }
    let end = rig.b.memory.bytes.len();
    pattern::check_all(&rig.b.memory.bytes.slice(HEAD + 63..end), UNTOUCHED, "the bytes after the RECV")?;
    rig.b.qp.modify(&Transition::Reset)?;
    ready(&rig.b, QKEY)?;
    check_alive(&mut rig)
}

fn not_ready(bed: &Bed) -> Outcome {
    let mut rig = Rig::reset(bed, &Setup::default())?;
    ready(&rig.a, QKEY)?;
    rig.b.qp.modify(&Transition::DatagramInit { port: rig.b.port, qkey: QKEY })?;
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.b.recv_range(1, 0..HEAD + 64)?;
    rig.a.post(1, to(&handle, &rig.b), 0..64)?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Send)?;
    rig.b_recvs_quiet("a message to a queue pair in INIT")?;
    let refused = rig.b.qp.post_send(&[SendRequest::new(1, to(&handle, &rig.b), [])]);
    let refused = refused.map_err(|error| error.cause);
    ensure!(matches!(refused, Err(VerbsError::State { .. })), "posting in INIT: {refused:?}");
    // It takes messages from RTR on.
    rig.b.qp.modify(&Transition::DatagramReceive)?;
    rig.a.write(0..64, 6);
    rig.a.post(2, to(&handle, &rig.b), 0..64)?;
    check_taken(&rig.b_received()?, 1, 64, &rig.a)?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Send)?;
    rig.b.check(HEAD..HEAD + 64, 6, "the message")?;
    ensure_eq!(rig.b.qp.state(), QueuePairState::ReadyToReceive, "the state");
    rig.b.qp.modify(&Transition::DatagramSend { send_psn: 7 })?;
    check_alive(&mut rig)
}

fn several_senders(bed: &Bed) -> Outcome {
    const EACH: u64 = 40;
    let setup = Setup { depth: 256, ..Setup::default() };
    let [left, right] = &bed.devices;
    let receiver = Side::new(right, bed, &setup)?;
    ready(&receiver, QKEY)?;
    let mut senders = Vec::new();
    for device in [left, left, left, right] {
        let side = Side::new(device, bed, &setup)?;
        ready(&side, QKEY)?;
        let handle = handle_for(&side, &receiver)?;
        senders.push((side, handle));
    }
    let queues = [&receiver.recv_cq].into_iter().chain(senders.iter().map(|(side, _)| &side.send_cq));
    let mut watch = Watch::new(queues.cloned().collect::<Vec<_>>());
    let slot = |wr_id: u64| wr_id as usize * 64..wr_id as usize * 64 + HEAD + 8;
    let all = EACH * senders.len() as u64;
    for wr_id in 0..all {
        receiver.recv_range(wr_id, slot(wr_id))?;
    }
    for round in 0..EACH {
        for (side, handle) in &senders {
            let at = round as usize * 8;
            side.memory.bytes.write(at, &round.to_ne_bytes());
            side.post(round, to(handle, &receiver), at..at + 8)?;
        }
    }
    let mut seen = vec![0; senders.len()];
    for number in 0..all {
        let taken = watch.next(0)?;
        ensure_eq!(taken.wr_id, number, "RECVs are used in order");
        let from = senders.iter().position(|(side, _)| taken.origin.is_some_and(|it| it.qp_num == side.qp.qp_num()));
        let from = from.ok_or_else(|| format!("nobody of the senders: {taken:?}"))?;
        check_taken(&taken, number, 8, &senders[from].0)?;
        let mut round = [0; 8];
        receiver.memory.bytes.read(slot(number).start + HEAD, &mut round);
        ensure_eq!(u64::from_ne_bytes(round), seen[from], "a sender's messages come in order");
        seen[from] += 1;
    }
    for queue in 1..=senders.len() {
        for round in 0..EACH {
            check_done(&watch.next(queue)?, round, CompletionOpcode::Send)?;
        }
    }
    Ok(())
}

fn shared_receive(bed: &Bed) -> Outcome {
    const EACH: u64 = 8;
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    let sender = Side::new(left, bed, &setup)?;
    ready(&sender, QKEY)?;
    let owner = Side::new(right, bed, &setup)?;
    let srq = owner.pd.create_srq(64, 1)?;
    let recv_cq = right.create_cq(256, None)?;
    let receivers = [(); 2].map(|()| {
        owner.pd.create_qp(&crate::QueuePairInit {
            kind: bed.kind,
            send_cq: owner.send_cq.clone(),
            recv_cq: recv_cq.clone(),
            limits: super::rig::queue_pair_limits(owner.info(), setup.depth),
            signal_all: false,
            srq: Some(srq.clone()),
        })
    });
    let mut watch = Watch::new([sender.send_cq.clone(), recv_cq]);
    let handle = handle_for(&sender, &owner)?;
    let mut posted = 0;
    for receiver in receivers {
        let receiver = receiver?;
        receiver.modify(&Transition::DatagramInit { port: owner.port, qkey: QKEY })?;
        receiver.modify(&Transition::DatagramReceive)?;
        for _ in 0..EACH {
            let slot = posted as usize * 128..posted as usize * 128 + HEAD + 64;
            sender.write(0..64, posted);
            srq.post_recv(&[crate::RecvRequest::new(posted, [owner.memory.piece(slot.clone())])])?;
            let to = Destination { handle: handle.number(), qp_num: receiver.qp_num(), qkey: QKEY };
            sender.post(posted, SendOp::SendTo { to, imm: None }, 0..64)?;
            check_done(&watch.next(0)?, posted, CompletionOpcode::Send)?;
            let taken = watch.next(1)?;
            check_taken(&taken, posted, 64, &sender)?;
            ensure_eq!(taken.qp_num, receiver.qp_num(), "the queue pair that took the message");
            owner.check(slot.start + HEAD..slot.end, posted, "the message")?;
            posted += 1;
        }
        let refused = receiver.post_recv(&[crate::RecvRequest::new(1, [])]);
        ensure!(refused.is_err(), "a queue pair with a shared receive queue takes RECVs of its own");
    }
    Ok(())
}

fn handle_goes(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    for wr_id in 0..20 {
        let handle = handle_for(&rig.a, &rig.b)?;
        rig.b.recv_range(wr_id, 0..HEAD + 64)?;
        rig.a.post(wr_id, to(&handle, &rig.b), 0..64)?;
        drop(handle);
        check_taken(&rig.b_received()?, wr_id, 64, &rig.a)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    }
    Ok(())
}
