//! WRITE, READ and atomics.

use super::bed::{BOTH, Bed, Case, Failure, Need, Outcome, RC, ensure, ensure_eq};
use super::pattern;
use super::rig::{Rig, Setup};
use super::watch::check_done;
use crate::{CompletionOpcode, RemoteAddr, SendOp, SendRequest, VerbsError};

pub(super) const CASES: &[Case] = &[
    Case::new("one-sided: WRITE", BOTH, &[Need::Write], write),
    Case::new("one-sided: WRITE with immediate data", BOTH, &[Need::Write, Need::Immediate], write_with_immediate),
    Case::new("one-sided: WRITE gathers pieces", BOTH, &[Need::Write, Need::Pieces], write_gathers),
    Case::new("one-sided: inline WRITE", BOTH, &[Need::Write, Need::Inline], write_inline),
    Case::new("one-sided: READ", RC, &[Need::Read], read),
    Case::new("one-sided: READ scatters pieces", RC, &[Need::Read, Need::Pieces], read_scatters),
    Case::new("one-sided: WRITE and READ of zero bytes", RC, &[Need::Write, Need::Read], zero_bytes),
    Case::new("one-sided: WRITE and READ of many lengths", RC, &[Need::Write, Need::Read], lengths),
    Case::new("one-sided: fetch-and-add", RC, &[Need::Atomics], fetch_add),
    Case::new("one-sided: compare-and-swap", RC, &[Need::Atomics], compare_swap),
    Case::new("one-sided: atomics of two queue pairs on one word", RC, &[Need::Atomics], contended),
    Case::new("one-sided: a READ sees the WRITE before it", RC, &[Need::Write, Need::Read], read_after_write),
    Case::new("one-sided: what the device has not is refused", BOTH, &[], unsupported),
];

fn write(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.a.write(0..2000, 1);
    rig.b.memory.bytes.fill(0..4096, 0x55);
    let remote = rig.b.memory.remote(1001);
    rig.a.post(1, SendOp::Write { remote, imm: None }, 0..2000)?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Write)?;
    if rig.reliable() {
        rig.b.check(1001..3001, 1, "the bytes written")?;
    } else {
        // Without acknowledgements they arrive some time after the completion.
        let target = rig.b.memory.bytes.slice(1001..3001);
        rig.watch.until("the bytes written", |_| Ok(pattern::check(&target, 1, "the bytes written").ok()))?;
    }
    pattern::check_all(&rig.b.memory.bytes.slice(0..1001), 0x55, "the bytes before")?;
    pattern::check_all(&rig.b.memory.bytes.slice(3001..4096), 0x55, "the bytes after")?;
    rig.b_recvs_quiet("a WRITE takes no RECV")
}

fn write_with_immediate(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.a.write(0..500, 1);
    rig.b.memory.bytes.fill(0..4096, 0x55);
    rig.b.recv_range(7, 0..64)?;
    let remote = rig.b.memory.remote(1024);
    rig.a.post(1, SendOp::Write { remote, imm: Some(0xFEED_0001) }, 0..500)?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Write)?;
    let received = rig.b_received()?;
    check_done(&received, 7, CompletionOpcode::RecvWriteWithImm)?;
    ensure_eq!(received.imm, Some(0xFEED_0001), "the immediate data");
    ensure_eq!(received.byte_len, 500, "the bytes written, as told to the receiver");
    // The completion says that they are there.
    rig.b.check(1024..1524, 1, "the bytes written")?;
    pattern::check_all(&rig.b.memory.bytes.slice(0..1024), 0x55, "the memory of the RECV, of which no byte is used")?;
    // Without bytes it is a bell.
    rig.b.recv_range(8, 0..0)?;
    rig.a.post(2, SendOp::Write { remote, imm: Some(2) }, 0..0)?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Write)?;
    let received = rig.b_received()?;
    check_done(&received, 8, CompletionOpcode::RecvWriteWithImm)?;
    ensure_eq!(received.imm, Some(2), "the immediate data");
    Ok(())
}

fn write_gathers(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let message = pattern::bytes(4, 300);
    rig.a.memory.bytes.write(1000, &message[..10]);
    rig.a.memory.bytes.write(0, &message[10..]);
    let pieces = [rig.a.memory.piece(1000..1010), rig.a.memory.piece(0..290)];
    let remote = rig.b.memory.remote(3);
    rig.a.send(SendRequest::new(1, SendOp::Write { remote, imm: None }, pieces))?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Write)?;
    let target = rig.b.memory.bytes.slice(3..303);
    rig.watch.until("the bytes written", |_| Ok(pattern::check_bytes(&target, &message, "the bytes written").ok()))
}

fn write_inline(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let len = rig.a.qp.limits().inline_bytes as usize;
    rig.a.write(0..len, 1);
    let remote = rig.b.memory.remote(64);
    let op = SendOp::Write { remote, imm: None };
    rig.a.send(SendRequest { inline: true, ..SendRequest::new(1, op, [rig.a.memory.piece(0..len)]) })?;
    rig.a.memory.bytes.fill(0..len, 0xFF);
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Write)?;
    let target = rig.b.memory.bytes.slice(64..64 + len);
    rig.watch.until("the bytes written", |_| Ok(pattern::check(&target, 1, "the bytes written").ok()))
}

fn read(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.b.write(11..3011, 1);
    rig.a.memory.bytes.fill(0..4096, 0x55);
    let remote = rig.b.memory.remote(11);
    rig.a.post(1, SendOp::Read { remote }, 501..3501)?;
    let done = rig.a_sent()?;
    check_done(&done, 1, CompletionOpcode::Read)?;
    ensure_eq!(done.byte_len, 3000, "the bytes read");
    rig.a.check(501..3501, 1, "the bytes read")?;
    pattern::check_all(&rig.a.memory.bytes.slice(0..501), 0x55, "the bytes before")?;
    pattern::check_all(&rig.a.memory.bytes.slice(3501..4096), 0x55, "the bytes after")?;
    rig.b.check(11..3011, 1, "the bytes at the peer")
}

fn read_scatters(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.b.write(0..300, 1);
    let pieces = [rig.a.memory.piece(1000..1010), rig.a.memory.piece(0..290)];
    let remote = rig.b.memory.remote(0);
    rig.a.send(SendRequest::new(1, SendOp::Read { remote }, pieces))?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Read)?;
    let message = pattern::bytes(1, 300);
    pattern::check_bytes(&rig.a.memory.bytes.slice(1000..1010), &message[..10], "the first piece")?;
    pattern::check_bytes(&rig.a.memory.bytes.slice(0..290), &message[10..], "the second piece")
}

fn zero_bytes(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.a.memory.bytes.fill(0..64, 0x11);
    rig.b.memory.bytes.fill(0..64, 0x55);
    let remote = rig.b.memory.remote(0);
    rig.a.post(1, SendOp::Write { remote, imm: None }, 0..0)?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Write)?;
    rig.a.send(SendRequest::new(2, SendOp::Read { remote }, []))?;
    let done = rig.a_sent()?;
    check_done(&done, 2, CompletionOpcode::Read)?;
    ensure_eq!(done.byte_len, 0, "the bytes read");
    pattern::check_all(&rig.b.memory.bytes.slice(0..64), 0x55, "the peer's memory")?;
    pattern::check_all(&rig.a.memory.bytes.slice(0..64), 0x11, "this side's memory")
}

fn lengths(bed: &Bed) -> Outcome {
    const LARGEST: usize = 4 << 20;
    let mut rig = Rig::connected(bed, &Setup { bytes: LARGEST + 4096, ..Setup::default() })?;
    let mut lengths = vec![1, 7, 8, 9, 31, 64, 255, 4095, 4096, 4097, 65_535, 65_536, 1 << 20, LARGEST];
    lengths.retain(|len| *len as u64 <= bed.info().limits.message_bytes);
    for (wr_id, len) in (0..).zip(lengths) {
        let (from, to) = (wr_id as usize * 5, wr_id as usize * 3);
        rig.a.write(from..from + len, wr_id);
        let remote = rig.b.memory.remote(to);
        rig.a.post(wr_id, SendOp::Write { remote, imm: None }, from..from + len)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Write)?;
        rig.b.check(to..to + len, wr_id, &format!("{len} bytes written"))?;
        rig.a.memory.bytes.fill(0..len, 0);
        rig.a.post(wr_id, SendOp::Read { remote }, 0..len)?;
        let done = rig.a_sent()?;
        check_done(&done, wr_id, CompletionOpcode::Read)?;
        ensure_eq!(done.byte_len as usize, len, "the bytes read");
        rig.a.check(0..len, wr_id, &format!("{len} bytes read"))?;
    }
    Ok(())
}

/// Performs one atomic on the word at B's byte `at`, and gives what it brought.
fn atomic(rig: &mut Rig, wr_id: u64, op: SendOp) -> Outcome<u64> {
    rig.a.memory.bytes.fill(0..24, 0x55);
    rig.a.post(wr_id, op, 8..16)?;
    let opcode = match op {
        SendOp::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        _ => CompletionOpcode::CompareSwap,
    };
    check_done(&rig.a_sent()?, wr_id, opcode)?;
    pattern::check_all(&rig.a.memory.bytes.slice(0..8), 0x55, "the bytes before the old value")?;
    pattern::check_all(&rig.a.memory.bytes.slice(16..24), 0x55, "the bytes after the old value")?;
    let mut old = [0; 8];
    rig.a.memory.bytes.read(8, &mut old);
    Ok(u64::from_ne_bytes(old))
}

fn word(rig: &Rig) -> u64 {
    let mut word = [0; 8];
    rig.b.memory.bytes.read(64, &mut word);
    u64::from_ne_bytes(word)
}

fn fetch_add(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let remote = rig.b.memory.remote(64);
    let mut value: u64 = 0x0102_0304_0506_0708;
    rig.b.memory.bytes.write(64, &value.to_ne_bytes());
    for (wr_id, add) in [0, 1, u64::MAX, 0xFFFF_FFFF_0000, 1 << 63, 1 << 63].into_iter().enumerate() {
        ensure_eq!(atomic(&mut rig, wr_id as u64, SendOp::FetchAdd { remote, add })?, value, "the old value");
        value = value.wrapping_add(add);
        ensure_eq!(word(&rig), value, "the word after {add} was added");
    }
    Ok(())
}

fn compare_swap(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let remote = rig.b.memory.remote(64);
    rig.b.memory.bytes.write(64, &5_u64.to_ne_bytes());
    let missed = atomic(&mut rig, 1, SendOp::CompareSwap { remote, compare: 4, swap: 9 })?;
    ensure_eq!(missed, 5, "the old value");
    ensure_eq!(word(&rig), 5, "the word after a comparison that failed");
    let hit = atomic(&mut rig, 2, SendOp::CompareSwap { remote, compare: 5, swap: u64::MAX })?;
    ensure_eq!(hit, 5, "the old value");
    ensure_eq!(word(&rig), u64::MAX, "the word after a comparison that held");
    let hit = atomic(&mut rig, 3, SendOp::CompareSwap { remote, compare: u64::MAX, swap: 0 })?;
    ensure_eq!(hit, u64::MAX, "the old value");
    ensure_eq!(word(&rig), 0, "the word after the second swap");
    Ok(())
}

fn contended(bed: &Bed) -> Outcome {
    const EACH: u64 = 200;
    let mut first = Rig::connected(bed, &Setup::default())?;
    let mut second = Rig::connected(bed, &Setup::default())?;
    // Two queue pairs from elsewhere, and a word in a domain that both reach: B's of the first pair, registered for the
    // second pair's B as well.
    let region = first.b.memory.bytes.region();
    let also = second.b.pd.register(region, 0..4096, first.b.memory.mr.access())?;
    let one = first.b.memory.remote(64);
    let two = RemoteAddr { addr: one.addr, rkey: also.rkey() };
    first.b.memory.bytes.fill(64..72, 0);
    let mut seen = Vec::new();
    for wr_id in 0..EACH {
        first.a.post(wr_id, SendOp::FetchAdd { remote: one, add: 1 }, 8..16)?;
        second.a.post(wr_id, SendOp::FetchAdd { remote: two, add: 1 }, 8..16)?;
        for rig in [&mut first, &mut second] {
            check_done(&rig.a_sent()?, wr_id, CompletionOpcode::FetchAdd)?;
            let mut old = [0; 8];
            rig.a.memory.bytes.read(8, &mut old);
            seen.push(u64::from_ne_bytes(old));
        }
    }
    seen.sort_unstable();
    ensure!(seen.iter().copied().eq(0..2 * EACH), "each addition brings a value of its own: {seen:?}");
    ensure_eq!(word(&first), 2 * EACH, "the word after all additions");
    Ok(())
}

fn read_after_write(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let remote = rig.b.memory.remote(0);
    for round in 0..100 {
        rig.a.write(0..1024, round);
        let write = SendRequest::new(1, SendOp::Write { remote, imm: None }, [rig.a.memory.piece(0..1024)]);
        let read = SendRequest::new(2, SendOp::Read { remote }, [rig.a.memory.piece(2048..3072)]);
        // One list: the order in the queue is the order at the peer.
        rig.a.qp.post_send(&[SendRequest { signaled: false, ..write }, read])?;
        check_done(&rig.a_sent()?, 2, CompletionOpcode::Read)?;
        rig.a.check(2048..3072, round, "what was read after it was written")?;
    }
    Ok(())
}

fn unsupported(bed: &Bed) -> Outcome {
    let can = bed.info().capabilities;
    let rc = bed.kind == crate::QueuePairKind::Rc;
    let remote = RemoteAddr { addr: 0, rkey: 0 };
    let refusals = [
        (can.write, SendOp::Write { remote, imm: None }),
        (can.read && rc, SendOp::Read { remote }),
        (can.atomics && rc, SendOp::FetchAdd { remote, add: 1 }),
        (can.atomics && rc, SendOp::CompareSwap { remote, compare: 0, swap: 1 }),
    ];
    if refusals.iter().all(|(able, _)| *able) {
        return Err(Failure::Missing("lack of a one-sided operation".to_string()));
    }
    let mut rig = Rig::connected(bed, &Setup::default())?;
    for (_, op) in refusals.into_iter().filter(|(able, _)| !able) {
        let refused = rig.a.qp.post_send(&[SendRequest::new(1, op, [rig.a.memory.piece(0..8)])]);
        let right = refused.as_ref().is_err_and(|error| matches!(error.cause, VerbsError::Unsupported { .. }));
        ensure!(right, "{op:?} is not supported, and the device said {refused:?}");
    }
    rig.check_alive()
}
