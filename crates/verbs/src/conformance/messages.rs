//! SEND and RECV.

use super::bed::{BOTH, Bed, Case, Failure, Need, Outcome, ensure, ensure_eq};
use super::pattern;
use super::rig::{Memory, Rig, Setup, all_access, region_in_one_piece};
use super::watch::check_done;
use crate::{CompletionOpcode, Piece, RecvRequest, SendOp, SendRequest, VerbsError};

pub(super) const CASES: &[Case] = &[
    Case::new("messages: SEND meets RECV", BOTH, &[], send_receive),
    Case::new("messages: both ways at once", BOTH, &[], both_ways),
    Case::new("messages: SEND with immediate data", BOTH, &[Need::Immediate], immediate),
    Case::new("messages: immediate data that is not there is refused", BOTH, &[], no_immediate),
    Case::new("messages: inline data is copied when it is posted", BOTH, &[Need::Inline], inline),
    Case::new("messages: more inline data than allowed is refused", BOTH, &[], inline_limit),
    Case::new("messages: unsignalled sends complete silently", BOTH, &[], unsignalled),
    Case::new("messages: signal_all makes every send visible", BOTH, &[], signal_all),
    Case::new("messages: gathered and scattered pieces", BOTH, &[Need::Pieces], scatter_gather),
    Case::new("messages: zero bytes", BOTH, &[], zero_bytes),
    Case::new("messages: a RECV longer than its message", BOTH, &[], longer_receive),
    Case::new("messages: every length around a border, up to 4 MiB", BOTH, &[], lengths),
    Case::new("messages: longer than the device's limit is refused", BOTH, &[], message_limit),
];

fn send_receive(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.a.write(0..1000, 1);
    rig.b.memory.bytes.fill(0..1200, 0x55);
    rig.b.recv_range(10, 100..1100)?;
    rig.a.send_range(20, 0..1000)?;
    let sent = rig.a_sent()?;
    check_done(&sent, 20, CompletionOpcode::Send)?;
    ensure_eq!(sent.qp_num, rig.a.qp.qp_num(), "the queue pair of the SEND's completion");
    let received = rig.b_received()?;
    check_done(&received, 10, CompletionOpcode::Recv)?;
    ensure_eq!(received.qp_num, rig.b.qp.qp_num(), "the queue pair of the RECV's completion");
    ensure_eq!(received.byte_len, 1000, "the bytes received");
    ensure_eq!(received.imm, None, "the immediate data of a SEND without");
    rig.b.check(100..1100, 1, "the message")?;
    pattern::check_all(&rig.b.memory.bytes.slice(0..100), 0x55, "the bytes before the RECV")?;
    pattern::check_all(&rig.b.memory.bytes.slice(1100..1200), 0x55, "the bytes after the RECV")?;
    rig.a.check(0..1000, 1, "the sender's bytes")
}

fn both_ways(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    for round in 0..20 {
        rig.a.write(0..256, round);
        rig.b.write(0..256, round + 1000);
        rig.a.recv_range(round, 512..768)?;
        rig.b.recv_range(round, 512..768)?;
        rig.a.send_range(round, 0..256)?;
        rig.b.send_range(round, 0..256)?;
        check_done(&rig.a_sent()?, round, CompletionOpcode::Send)?;
        check_done(&rig.b_sent()?, round, CompletionOpcode::Send)?;
        check_done(&rig.a_received()?, round, CompletionOpcode::Recv)?;
        check_done(&rig.b_received()?, round, CompletionOpcode::Recv)?;
        rig.b.check(512..768, round, "A's message")?;
        rig.a.check(512..768, round + 1000, "B's message")?;
    }
    Ok(())
}

fn immediate(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    for (wr_id, imm) in [(1, None), (2, Some(0)), (3, Some(0x0102_0304)), (4, Some(u32::MAX)), (5, None)] {
        rig.a.write(0..32, wr_id);
        rig.b.recv_range(wr_id, 0..32)?;
        rig.a.post(wr_id, SendOp::Send { imm }, 0..32)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
        let received = rig.b_received()?;
        check_done(&received, wr_id, CompletionOpcode::Recv)?;
        ensure_eq!(received.imm, imm, "the immediate data");
        rig.b.check(0..32, wr_id, "the message")?;
    }
    Ok(())
}

fn no_immediate(bed: &Bed) -> Outcome {
    if bed.info().capabilities.immediate {
        return Err(Failure::Missing("lack of immediate data".to_string()));
    }
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let request = SendRequest::new(1, SendOp::Send { imm: Some(1) }, [rig.a.memory.piece(0..8)]);
    let refused = rig.a.qp.post_send(&[request]);
    let right = refused.as_ref().is_err_and(|error| matches!(error.cause, VerbsError::Unsupported { .. }));
    ensure!(right, "a device without immediate data is to say so, and said {refused:?}");
    rig.check_alive()
}

fn inline(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let len = rig.a.qp.limits().inline_bytes as usize;
    ensure!(len >= bed.info().limits.inline_bytes.min(64) as usize, "the queue pair has less inline room than asked");
    rig.a.write(0..len, 1);
    // The key is not looked at: bytes on their way already need none.
    let piece = Piece { memory: rig.a.memory.bytes.slice(0..len), lkey: !rig.a.memory.mr.lkey() };
    let request = SendRequest { inline: true, ..SendRequest::send(1, [piece]) };
    // Where a SEND waits for its RECV, the bytes change before the device could need them again.
    let waits = bed.info().capabilities.holds_sends || rig.reliable();
    if !waits {
        rig.b.recv_range(2, 0..len)?;
    }
    rig.a.send(request)?;
    rig.a.memory.bytes.fill(0..len, 0xFF);
    if waits {
        rig.b.recv_range(2, 0..len)?;
    }
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Send)?;
    check_done(&rig.b_received()?, 2, CompletionOpcode::Recv)?;
    rig.b.check(0..len, 1, "the inline message as it was when posted")
}

fn inline_limit(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let len = rig.a.qp.limits().inline_bytes as usize + 1;
    let memory = Memory::new(bed, &*rig.a.device, &*rig.a.pd, len, all_access(bed.info()))?;
    let request = SendRequest { inline: true, ..SendRequest::send(1, [memory.piece(0..len)]) };
    let refused = rig.a.qp.post_send(&[request]);
    let right = refused.as_ref().is_err_and(|error| {
        error.index == 0 && matches!(error.cause, VerbsError::Limit { .. } | VerbsError::Unsupported { .. })
    });
    ensure!(right, "{len} inline bytes are one too many, and the device said {refused:?}");
    rig.check_alive()
}

fn unsignalled(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { depth: 16, ..Setup::default() })?;
    // Round and round the queue, so that silent sends must give their places back.
    for round in 0..40_u64 {
        for wr_id in 0..8 {
            rig.b.recv_range(wr_id, 64 * wr_id as usize..64 * (wr_id as usize + 1))?;
        }
        rig.a.write(0..512, round);
        for wr_id in 0..8 {
            let at = 64 * wr_id as usize;
            let piece = rig.a.memory.piece(at..at + 64);
            rig.a.send(SendRequest { signaled: wr_id == 7, ..SendRequest::send(100 + wr_id, [piece]) })?;
        }
        for wr_id in 0..8 {
            check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
        }
        check_done(&rig.a_sent()?, 107, CompletionOpcode::Send)?;
        rig.b.check(0..512, round, "eight messages")?;
    }
    rig.a_sends_quiet("no other send was signalled")
}

fn signal_all(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup { signal_all: true, ..Setup::default() })?;
    for wr_id in 0..4 {
        rig.b.recv_range(wr_id, 0..64)?;
        let piece = rig.a.memory.piece(0..64);
        rig.a.send(SendRequest { signaled: wr_id % 2 == 0, ..SendRequest::send(wr_id, [piece]) })?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
        check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
    }
    Ok(())
}

fn scatter_gather(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let second = Memory::new(bed, &*rig.a.device, &*rig.a.pd, 4096, all_access(bed.info()))?;
    let message = pattern::bytes(9, 300);
    rig.a.memory.bytes.write(8, &message[..100]);
    second.bytes.write(3, &message[100..]);
    rig.b.memory.bytes.fill(0..1024, 0x55);
    // Two registrations, and where four pieces fit, empty ones among them.
    let mut gathered = vec![rig.a.memory.piece(8..108), second.piece(3..203)];
    let mut scattered = vec![rig.b.memory.piece(500..517), rig.b.memory.piece(0..283)];
    if rig.a.qp.limits().send_pieces >= 4 && rig.b.qp.limits().recv_pieces >= 4 {
        gathered.insert(1, second.piece(7..7));
        gathered.push(rig.a.memory.piece(0..0));
        scattered.insert(0, rig.b.memory.piece(9..9));
        scattered.insert(2, rig.b.memory.piece(1..1));
    }
    rig.b.recv(RecvRequest::new(1, scattered))?;
    rig.a.send(SendRequest::send(2, gathered))?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Send)?;
    let received = rig.b_received()?;
    check_done(&received, 1, CompletionOpcode::Recv)?;
    ensure_eq!(received.byte_len, 300, "the bytes received");
    let memory = rig.b.memory.bytes.clone();
    pattern::check_bytes(&memory.slice(500..517), &message[..17], "the first piece")?;
    pattern::check_bytes(&memory.slice(0..283), &message[17..], "the second piece")?;
    pattern::check_all(&memory.slice(283..500), 0x55, "the bytes between the pieces")?;
    pattern::check_all(&memory.slice(517..1024), 0x55, "the bytes after the pieces")?;

    // A message that ends inside a piece leaves the rest alone.
    memory.fill(0..1024, 0x55);
    rig.b.recv(RecvRequest::new(3, [rig.b.memory.piece(0..40), rig.b.memory.piece(100..200)]))?;
    rig.a.send(SendRequest::send(4, [rig.a.memory.piece(8..58)]))?;
    check_done(&rig.a_sent()?, 4, CompletionOpcode::Send)?;
    check_done(&rig.b_received()?, 3, CompletionOpcode::Recv)?;
    pattern::check_bytes(&memory.slice(0..40), &message[..40], "the first piece")?;
    pattern::check_bytes(&memory.slice(100..110), &message[40..50], "the second piece")?;
    pattern::check_all(&memory.slice(110..1024), 0x55, "the bytes after the message")
}

fn zero_bytes(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.b.memory.bytes.fill(0..64, 0x55);
    // Without pieces, and with an empty one.
    rig.b.recv(RecvRequest::new(1, []))?;
    rig.a.send(SendRequest::send(2, []))?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Send)?;
    let received = rig.b_received()?;
    check_done(&received, 1, CompletionOpcode::Recv)?;
    ensure_eq!(received.byte_len, 0, "the bytes received");
    rig.b.recv_range(3, 0..64)?;
    rig.a.send_range(4, 5..5)?;
    check_done(&rig.a_sent()?, 4, CompletionOpcode::Send)?;
    let received = rig.b_received()?;
    check_done(&received, 3, CompletionOpcode::Recv)?;
    ensure_eq!(received.byte_len, 0, "the bytes received");
    pattern::check_all(&rig.b.memory.bytes.slice(0..64), 0x55, "the RECV of an empty message")
}

fn longer_receive(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.a.write(0..100, 1);
    rig.b.memory.bytes.fill(0..512, 0x55);
    rig.b.recv_range(1, 0..512)?;
    rig.a.send_range(2, 0..100)?;
    check_done(&rig.a_sent()?, 2, CompletionOpcode::Send)?;
    let received = rig.b_received()?;
    check_done(&received, 1, CompletionOpcode::Recv)?;
    ensure_eq!(received.byte_len, 100, "the bytes received");
    rig.b.check(0..100, 1, "the message")?;
    pattern::check_all(&rig.b.memory.bytes.slice(100..512), 0x55, "the rest of the RECV")
}

fn lengths(bed: &Bed) -> Outcome {
    const LARGEST: usize = 4 << 20;
    let limits = &bed.info().limits;
    let depth = limits.depth_of(LARGEST as u64 + 1).max(16);
    let depth = u32::try_from(depth).unwrap_or(u32::MAX).min(limits.queue_depth);
    let mut rig = Rig::connected(bed, &Setup { depth, bytes: LARGEST + 4096, ..Setup::default() })?;
    let mut lengths = vec![1, 2, 3, 7, 8, 15, 16];
    // Cache lines, eager frames, transmission units, pages, pipes, huge pages.
    for border in [32, 48, 64, 128, 192, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536, 1 << 18, 1 << 20, 2 << 20] {
        lengths.extend([border - 1, border, border + 1]);
    }
    lengths.extend([40_000, 1_000_003, LARGEST - 1, LARGEST]);
    lengths.retain(|len| {
        *len as u64 <= limits.message_bytes && limits.depth_of(*len as u64) <= rig.a.qp.limits().send_depth.into()
    });
    for (wr_id, len) in (0..).zip(lengths) {
        // Odd addresses on both sides, which differ.
        let (from, to) = (wr_id as usize % 61, wr_id as usize % 59);
        rig.a.write(from..from + len, wr_id);
        rig.b.memory.bytes.fill(to..to + len + 1, 0x55);
        rig.b.recv_range(wr_id, to..to + len)?;
        rig.a.send_range(wr_id, from..from + len)?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
        let received = rig.b_received()?;
        check_done(&received, wr_id, CompletionOpcode::Recv)?;
        ensure_eq!(received.byte_len as usize, len, "the bytes received");
        rig.b.check(to..to + len, wr_id, &format!("the message of {len} bytes"))?;
        pattern::check_all(&rig.b.memory.bytes.slice(to + len..to + len + 1), 0x55, "the byte after the message")?;
    }
    Ok(())
}

fn message_limit(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let limit = bed.info().limits.message_bytes;
    // Pieces of a send may overlap, so that little memory makes a long message. It is never touched.
    let pieces = u64::from(rig.a.qp.limits().send_pieces.max(1));
    let each = (limit + 1).div_ceil(pieces);
    let len = usize::try_from(each).ok().filter(|len| *len <= 4 << 30);
    let Some(len) = len else {
        return Err(Failure::Missing(format!("limit on messages that can be reached ({limit} bytes)")));
    };
    let region = region_in_one_piece(bed, &*rig.a.device, len)?;
    let mr = rig.a.pd.register(&region, 0..len, crate::Access::LOCAL_WRITE)?;
    let bytes = region.expose()?;
    let mut left = limit + 1;
    let mut list = Vec::new();
    while left > 0 {
        let part = left.min(each);
        list.push(Piece { memory: bytes.slice(0..part as usize), lkey: mr.lkey() });
        left -= part;
    }
    let refused = rig.a.qp.post_send(&[SendRequest::send(1, list)]);
    let right = refused.as_ref().is_err_and(|error| matches!(error.cause, VerbsError::Limit { .. }));
    ensure!(right, "a SEND of {} bytes is one byte too long, and the device said {refused:?}", limit + 1);
    rig.check_alive()
}
