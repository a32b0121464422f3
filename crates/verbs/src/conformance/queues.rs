//! Queues: their depth, their order, and what becomes of them on failure.

use super::bed::{BOTH, Bed, Case, Failure, Need, Outcome, ensure, ensure_eq, supported};
use super::rig::{Rig, Setup, Side, connect};
use super::watch::{Watch, check_done, check_status, nothing};
use crate::{CompletionOpcode, CompletionStatus, PostError, RecvRequest, SendRequest, Transition, VerbsError};

pub(super) const CASES: &[Case] = &[
    Case::new("queues: flush on error keeps the order of both queues", BOTH, &[], flush),
    Case::new("queues: a failure flushes what is behind it", BOTH, &[], failure_flushes),
    Case::new("queues: a completion queue that overflows says so", BOTH, &[], overflow),
    Case::new("queues: a completion queue grows and shrinks", BOTH, &[], resize),
    Case::new("queues: a receive queue is as deep as it says", BOTH, &[], recv_depth),
    Case::new("queues: a send queue is as deep as it says", BOTH, &[Need::Waits], send_depth),
    Case::new("queues: depth counts frames", BOTH, &[Need::Frames], frames),
    Case::new("queues: a list is posted up to the request that is refused", BOTH, &[], partial_list),
    Case::new("queues: more pieces than given are refused", BOTH, &[], too_many_pieces),
    Case::new("queues: two queue pairs share a completion queue", BOTH, &[], shared),
    Case::new("queues: one completion queue for both directions", BOTH, &[], one_queue),
    Case::new("queues: a queue pair gets at least what it asked for", BOTH, &[], given),
];

fn flush(bed: &Bed) -> Outcome {
    const COUNT: u64 = 10;
    let mut rig = Rig::connected(bed, &Setup::default())?;
    for wr_id in 0..COUNT {
        rig.a.recv_range(wr_id, 0..64)?;
        let piece = rig.a.memory.piece(0..64);
        // Silent sends are flushed visibly; where some may be sent before, every one has to tell what became of it.
        let signaled = !rig.reliable() || wr_id % 2 == 0;
        rig.a.send(SendRequest { signaled, ..SendRequest::send(100 + wr_id, [piece]) })?;
    }
    rig.a.qp.modify(&Transition::Error)?;
    for wr_id in 0..COUNT {
        check_status(&rig.a_received()?, wr_id, CompletionStatus::Flushed)?;
    }
    let mut flushed = rig.reliable();
    for wr_id in 0..COUNT {
        let sent = rig.a_sent()?;
        // Without acknowledgements, the first ones may have been sent before.
        flushed |= sent.status == CompletionStatus::Flushed;
        let status = if flushed { CompletionStatus::Flushed } else { CompletionStatus::Success };
        check_status(&sent, 100 + wr_id, status)?;
    }
    Ok(())
}

fn failure_flushes(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.b.recv_range(1, 0..64)?;
    rig.b.recv_range(2, 0..64)?;
    rig.a.recv_range(3, 0..64)?;
    let good = SendRequest::send(10, [rig.a.memory.piece(0..64)]);
    let mut bad = rig.a.memory.piece(0..64);
    bad.lkey = !bad.lkey;
    let behind = SendRequest { signaled: false, ..SendRequest::send(12, [rig.a.memory.piece(0..64)]) };
    rig.a.qp.post_send(&[good, SendRequest::send(11, [bad]), behind])?;
    check_done(&rig.a_sent()?, 10, CompletionOpcode::Send)?;
    check_status(&rig.a_sent()?, 11, CompletionStatus::LocalProtection)?;
    check_status(&rig.a_sent()?, 12, CompletionStatus::Flushed)?;
    check_status(&rig.a_received()?, 3, CompletionStatus::Flushed)?;
    check_done(&rig.b_received()?, 1, CompletionOpcode::Recv)?;
    rig.b_recvs_quiet("the second SEND never left")
}

fn overflow(bed: &Bed) -> Outcome {
    let device = &bed.devices[0];
    let setup = Setup { depth: bed.info().limits.queue_depth.min(4096), bytes: 4096, ..Setup::default() };
    let small = device.create_cq(1, None)?;
    ensure!(small.entries() >= 1, "a completion queue of at least one entry was asked for");
    let other = device.create_cq(16, None)?;
    // RECVs that are flushed complete without a peer: as many queue pairs as it takes to overflow.
    let mut sides = Vec::new();
    let mut made: u64 = 0;
    while made <= u64::from(small.entries()) {
        ensure!(sides.len() < 64, "64 queue pairs flushed {made} RECVs into {} entries", small.entries());
        let side = Side::with_queues(device, bed, &setup, other.clone(), small.clone())?;
        side.init(&setup)?;
        let room = u64::from(side.qp.limits().recv_depth).min(u64::from(small.entries()) + 1 - made);
        for wr_id in 0..room {
            side.recv_range(wr_id, 0..8)?;
        }
        side.qp.modify(&Transition::Error)?;
        made += room;
        sides.push(side);
    }
    let mut watch = Watch::new([other]);
    let mut came = 0;
    let told = watch.until("an overflow to be told", |_| {
        let mut room = [nothing(); 64];
        match small.poll(&mut room) {
            Ok(count) => came += count,
            Err(error) => return Ok(Some(error)),
        }
        ensure!(came as u64 <= small.entries().into(), "{came} completions came out of {} entries", small.entries());
        Ok(None)
    })?;
    ensure!(matches!(told, VerbsError::Overflow { .. }), "an overflow is told as such, and not as: {told}");
    // It stays broken, and says so.
    let again = small.poll(&mut [nothing(); 4]);
    ensure!(matches!(again, Err(VerbsError::Overflow { .. })), "a queue that overflowed said {again:?} afterwards");
    Ok(())
}

fn is_full(result: &Result<(), PostError>) -> bool {
    result.as_ref().is_err_and(|error| matches!(error.cause, VerbsError::QueueFull { .. }))
}

fn recv_depth(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { depth: 8, ..Setup::default() })?;
    let depth = u64::from(rig.b.qp.limits().recv_depth);
    for wr_id in 0..depth {
        rig.b.recv_range(wr_id, 0..64)?;
    }
    let refused = rig.b.qp.post_recv(&[RecvRequest::new(depth, [rig.b.memory.piece(0..64)])]);
    ensure!(is_full(&refused), "{depth} RECVs fill the queue, and posting another said {refused:?}");
    // One taken makes room for one.
    rig.a.send_range(1, 0..64)?;
    check_done(&rig.b_received()?, 0, CompletionOpcode::Recv)?;
    rig.b.recv_range(depth, 0..64)?;
    let refused = rig.b.qp.post_recv(&[RecvRequest::new(depth, [rig.b.memory.piece(0..64)])]);
    ensure!(is_full(&refused), "the queue is full again, and posting another RECV said {refused:?}");
    Ok(())
}

fn send_depth(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { depth: 8, ..Setup::default() })?;
    if !rig.reliable() {
        // The peer holds the first SENDs; how many a device takes off its queue before that is its own matter, unless it
        // is stopped.
        rig.a.qp.modify(&Transition::SendDrain)?;
    }
    let depth = u64::from(rig.a.qp.limits().send_depth);
    for wr_id in 0..depth {
        rig.a.send_range(wr_id, 0..64)?;
    }
    let refused = rig.a.qp.post_send(&[SendRequest::send(depth, [rig.a.memory.piece(0..64)])]);
    ensure!(is_full(&refused), "{depth} SENDs fill the queue, and posting another said {refused:?}");
    if !rig.reliable() {
        rig.a.ready_to_send(&Setup::default())?;
    }
    for wr_id in 0..depth {
        rig.b.recv_range(wr_id, 0..64)?;
        check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    }
    rig.check_alive()
}

fn frames(bed: &Bed) -> Outcome {
    let frame = bed.info().limits.frame.expect("a case that needs frames") as usize;
    fill_with_frames(bed, frame)?;
    // What is larger than the whole queue never fits.
    let rig = Rig::connected(bed, &Setup { depth: 4, ..Setup::default() })?;
    let len = (rig.a.qp.limits().send_depth as usize) * frame + 1;
    ensure!(len <= rig.a.memory.bytes.len(), "a queue of 4 frames became one of {len} bytes");
    let refused = rig.a.qp.post_send(&[SendRequest::send(1, [rig.a.memory.piece(0..len)])]);
    ensure!(refused.is_err(), "{len} bytes are more frames than the queue has, and were taken");
    Ok(())
}

fn fill_with_frames(bed: &Bed, frame: usize) -> Outcome {
    let rig = Rig::connected(bed, &Setup { depth: 12, ..Setup::default() })?;
    let depth = rig.b.qp.limits().recv_depth;
    let mut left = depth;
    let mut wr_id = 0;
    // Three frames at a time, each a byte into its last frame; what is left one by one.
    while left > 0 {
        let (count, len) = if left >= 3 { (3, 2 * frame + 1) } else { (1, 0) };
        rig.b.recv_range(wr_id, 0..len)?;
        left -= count;
        wr_id += 1;
    }
    let refused = rig.b.qp.post_recv(&[RecvRequest::new(wr_id, [])]);
    ensure!(is_full(&refused), "{wr_id} RECVs fill {depth} frames, and posting another said {refused:?}");
    ensure!(wr_id < u64::from(depth), "frames were counted, and not requests");
    Ok(())
}

fn partial_list(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { depth: 8, ..Setup::default() })?;
    let depth = rig.b.qp.limits().recv_depth as usize;
    let list: Vec<RecvRequest> =
        (0..depth + 2).map(|wr_id| RecvRequest::new(wr_id as u64, [rig.b.memory.piece(0..64)])).collect();
    let refused = rig.b.qp.post_recv(&list);
    let index = refused.as_ref().err().map(|error| error.index);
    ensure!(index == Some(depth) && is_full(&refused), "{depth} of {} RECVs fit: {refused:?}", list.len());
    rig.b.qp.modify(&Transition::Error)?;
    for (wr_id, received) in rig.b_received_all(depth)?.iter().enumerate() {
        check_status(received, wr_id as u64, CompletionStatus::Flushed)?;
    }
    rig.b_recvs_quiet("those after the refused one were not posted")
}

fn too_many_pieces(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let limits = rig.a.qp.limits();
    let pieces = vec![rig.a.memory.piece(0..1); limits.send_pieces as usize + 1];
    let refused = rig.a.qp.post_send(&[SendRequest::send(1, pieces)]);
    let limit = |result: &Result<(), PostError>| {
        result.as_ref().is_err_and(|error| matches!(error.cause, VerbsError::Limit { .. }))
    };
    ensure!(limit(&refused), "a SEND of a piece too many was to be refused, and the device said {refused:?}");
    let pieces = vec![rig.a.memory.piece(0..1); limits.recv_pieces as usize + 1];
    let refused = rig.a.qp.post_recv(&[RecvRequest::new(1, pieces)]);
    ensure!(limit(&refused), "a RECV of a piece too many was to be refused, and the device said {refused:?}");
    rig.check_alive()
}

fn shared(bed: &Bed) -> Outcome {
    const COUNT: u64 = 50;
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    if bed.info().limits.queue_pairs < 4 {
        return Err(Failure::Missing("four queue pairs".to_string()));
    }
    let (sends, recvs) = (left.create_cq(256, None)?, left.create_cq(256, None)?);
    let a = [
        Side::with_queues(left, bed, &setup, sends.clone(), recvs.clone())?,
        Side::with_queues(left, bed, &setup, sends.clone(), recvs.clone())?,
    ];
    let (far_sends, far_recvs) = (right.create_cq(256, None)?, right.create_cq(256, None)?);
    let b = [
        Side::with_queues(right, bed, &setup, far_sends.clone(), far_recvs.clone())?,
        Side::with_queues(right, bed, &setup, far_sends.clone(), far_recvs.clone())?,
    ];
    ensure!(a[0].qp.qp_num() != a[1].qp.qp_num(), "two queue pairs of one device have one number");
    for (a, b) in a.iter().zip(&b) {
        connect(a, b, &setup)?;
    }
    let mut watch = Watch::new([sends, recvs, far_sends, far_recvs]);
    for wr_id in 0..COUNT {
        for (index, (a, b)) in (0..).zip(a.iter().zip(&b)) {
            b.recv_range(wr_id, 0..64)?;
            a.write(0..64, 2 * wr_id + index);
            a.send_range(wr_id, 0..64)?;
        }
        for (queue, sides) in [(0, &a), (3, &b)] {
            let mut numbers = watch.take(queue, 2)?.into_iter().map(|completion| {
                check_status(&completion, wr_id, CompletionStatus::Success).map(|()| completion.qp_num)
            });
            let mut found = [numbers.next().expect("two")?, numbers.next().expect("two")?];
            let mut wanted = [sides[0].qp.qp_num(), sides[1].qp.qp_num()];
            found.sort_unstable();
            wanted.sort_unstable();
            ensure_eq!(found, wanted, "the queue pairs of the completions");
        }
        for (index, b) in (0..).zip(&b) {
            b.check(0..64, 2 * wr_id + index, "the message")?;
        }
    }
    Ok(())
}

fn one_queue(bed: &Bed) -> Outcome {
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    let (near, far) = (left.create_cq(256, None)?, right.create_cq(256, None)?);
    let a = Side::with_queues(left, bed, &setup, near.clone(), near.clone())?;
    let b = Side::with_queues(right, bed, &setup, far.clone(), far.clone())?;
    connect(&a, &b, &setup)?;
    let mut watch = Watch::new([near, far]);
    a.recv_range(1, 0..64)?;
    b.recv_range(2, 0..64)?;
    a.send_range(3, 64..128)?;
    b.send_range(4, 64..128)?;
    for (queue, mut wanted) in [
        (0, [(1, CompletionOpcode::Recv), (3, CompletionOpcode::Send)]),
        (1, [(2, CompletionOpcode::Recv), (4, CompletionOpcode::Send)]),
    ] {
        let first = watch.next(queue)?;
        if first.wr_id != wanted[0].0 {
            wanted.swap(0, 1);
        }
        check_done(&first, wanted[0].0, wanted[0].1)?;
        check_done(&watch.next(queue)?, wanted[1].0, wanted[1].1)?;
    }
    Ok(())
}

fn resize(bed: &Bed) -> Outcome {
    const COUNT: u64 = 40;
    let setup = Setup::default();
    let [left, right] = &bed.devices;
    let a = Side::new(left, bed, &setup)?;
    let queue = right.create_cq(2, None)?;
    let b = Side::with_queues(right, bed, &setup, right.create_cq(256, None)?, queue)?;
    connect(&a, &b, &setup)?;
    supported(b.recv_cq.resize(COUNT as u32))?;
    ensure!(u64::from(b.recv_cq.entries()) >= COUNT, "it has {} entries now", b.recv_cq.entries());
    let mut watch = Watch::new([a.send_cq.clone(), b.recv_cq.clone()]);
    for wr_id in 0..COUNT {
        b.recv_range(wr_id, 0..64)?;
    }
    b.qp.modify(&Transition::Error)?;
    // A device that moves completions while it is polled has its chance; all of them wait then, and there is room for
    // no fewer.
    for _ in 0..super::watch::QUIET_POLLS {
        b.recv_cq.poll(&mut [])?;
    }
    let refused = b.recv_cq.resize(1);
    ensure!(
        matches!(refused, Err(VerbsError::Invalid { .. })),
        "{COUNT} completions wait, and resizing said {refused:?}"
    );
    for wr_id in 0..COUNT / 2 {
        check_status(&watch.next(1)?, wr_id, CompletionStatus::Flushed)?;
    }
    b.recv_cq.resize(2 * COUNT as u32)?;
    for wr_id in COUNT / 2..COUNT {
        check_status(&watch.next(1)?, wr_id, CompletionStatus::Flushed)?;
    }
    b.recv_cq.resize(1)?;
    let (most, limit) = (right.info().limits.completion_entries, b.recv_cq.entries());
    let Some(more) = most.checked_add(1) else { return Ok(()) };
    let refused = b.recv_cq.resize(more);
    ensure!(
        matches!(refused, Err(VerbsError::Limit { .. })),
        "{most} is the limit, and {more} entries said {refused:?}"
    );
    ensure_eq!(b.recv_cq.entries(), limit, "the entries after what was refused");
    Ok(())
}

fn given(bed: &Bed) -> Outcome {
    let rig = Rig::reset(bed, &Setup { depth: 5, ..Setup::default() })?;
    let (asked, given) = (super::rig::queue_pair_limits(bed.info(), 5), rig.a.qp.limits());
    let enough = given.send_depth >= asked.send_depth
        && given.recv_depth >= asked.recv_depth
        && given.send_pieces >= asked.send_pieces
        && given.recv_pieces >= asked.recv_pieces
        && given.inline_bytes >= asked.inline_bytes;
    ensure!(enough, "{asked:?} was asked for, and {given:?} was given");
    let cq = rig.a.device.create_cq(5, None)?;
    ensure!(cq.entries() >= 5, "5 entries were asked for, and {} were given", cq.entries());
    Ok(())
}
