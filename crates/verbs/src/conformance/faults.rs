//! Bounds, keys and rights: a wrong one fails a completion and harms nothing.

use std::ops::Range;
use std::sync::Arc;

use super::bed::{BOTH, Bed, Case, Need, Outcome, RC, ensure, ensure_eq};
use super::pattern;
use super::rig::{Memory, Rig, Setup, all_access};
use super::watch::{check_done, check_one_of, check_status};
use crate::{
    Access, CompletionOpcode, CompletionStatus, MemoryRegion, Piece, QueuePairState, RecvRequest, RemoteAddr, SendOp,
    SendRequest, VerbsError,
};

pub(super) const CASES: &[Case] = &[
    Case::new("faults: a SEND out of bounds", BOTH, &[], send_bounds),
    Case::new("faults: a SEND with a wrong, stale or foreign key", BOTH, &[], send_keys),
    Case::new("faults: a RECV out of bounds", BOTH, &[], recv_bounds),
    Case::new("faults: a RECV with a wrong, stale or foreign key", BOTH, &[], recv_keys),
    Case::new("faults: a RECV into memory without LOCAL_WRITE", BOTH, &[], recv_rights),
    Case::new("faults: a WRITE out of the peer's bounds", BOTH, &[Need::Write], write_bounds),
    Case::new("faults: a WRITE with a wrong, stale or foreign key", BOTH, &[Need::Write], write_keys),
    Case::new("faults: a WRITE without the right", BOTH, &[Need::Write], write_rights),
    Case::new("faults: a READ out of bounds", RC, &[Need::Read], read_bounds),
    Case::new("faults: a READ with a wrong, stale or foreign key", RC, &[Need::Read], read_keys),
    Case::new("faults: a READ without the right", RC, &[Need::Read], read_rights),
    Case::new("faults: an atomic without the right", RC, &[Need::Atomics], atomic_rights),
    Case::new("faults: an atomic on a word that is not aligned", RC, &[Need::Atomics], atomic_alignment),
    Case::new("faults: registrations that make no sense are refused", BOTH, &[], registrations),
];

/// Bytes that are registered, with as many at each side that are not.
const FENCED: Range<usize> = 4096..8192;

/// What a key can be wrong by.
const WRONG_KEYS: [&str; 3] = ["wrong", "stale", "foreign"];

/// A registration of the middle of a side's memory only.
fn fenced(side: &super::rig::Side) -> Outcome<Arc<dyn MemoryRegion>> {
    Ok(side.pd.register(side.memory.bytes.region(), FENCED, all_access(side.info()))?)
}

/// Keys (local, remote) that are no good at a side, for each of [`WRONG_KEYS`]. The handle keeps the last one alive.
fn wrong_keys(side: &super::rig::Side) -> Outcome<([(u32, u32); 3], impl Sized + use<>)> {
    let region = side.memory.bytes.region();
    let access = all_access(side.info());
    let stale = side.pd.register(region, 0..4096, access)?;
    let stale_keys = (stale.lkey(), stale.rkey());
    drop(stale);
    let domain = side.device.alloc_pd()?;
    let foreign = domain.register(region, 0..region.len(), access)?;
    let foreign_keys = (foreign.lkey(), foreign.rkey());
    let good = &side.memory.mr;
    Ok(([(!good.lkey(), !good.rkey()), stale_keys, foreign_keys], (domain, foreign)))
}

/// Posts a request on A that A itself must fail with `LocalProtection`.
fn fails_locally(rig: &mut Rig, request: SendRequest, what: &str) -> Outcome {
    let wr_id = request.wr_id;
    let posted = rig.a.qp.post_send(&[request]);
    ensure!(posted.is_ok(), "{what} fails its completion, and posting said {posted:?}");
    check_status(&rig.a_sent()?, wr_id, CompletionStatus::LocalProtection)?;
    ensure_eq!(rig.a.qp.state(), QueuePairState::Error, "A's state after {what}");
    Ok(())
}

fn send_bounds(bed: &Bed) -> Outcome {
    // The registration itself, and a byte too many at each of its sides.
    for (range, good) in [(FENCED, true), (4095..5000, false), (8000..8193, false), (0..16, false), (9000..9001, false)]
    {
        let mut rig = Rig::connected(bed, &Setup::default())?;
        let mr = fenced(&rig.a)?;
        rig.a.write(range.clone(), 1);
        rig.b.memory.bytes.fill(0..4096, 0x55);
        rig.b.recv_range(2, 0..range.len())?;
        let piece = Piece { memory: rig.a.memory.bytes.slice(range.clone()), lkey: mr.lkey() };
        let request = SendRequest::send(1, [piece]);
        if good {
            rig.a.send(request)?;
            check_done(&rig.a_sent()?, 1, CompletionOpcode::Send)?;
            check_done(&rig.b_received()?, 2, CompletionOpcode::Recv)?;
            rig.b.check(0..range.len(), 1, "the message out of the whole registration")?;
        } else {
            fails_locally(&mut rig, request, &format!("a SEND of {range:?} out of {FENCED:?}"))?;
            pattern::check_all(&rig.b.memory.bytes.slice(0..4096), 0x55, "the peer's memory")?;
        }
    }
    Ok(())
}

fn send_keys(bed: &Bed) -> Outcome {
    for (index, what) in WRONG_KEYS.into_iter().enumerate() {
        let mut rig = Rig::connected(bed, &Setup::default())?;
        let (keys, _alive) = wrong_keys(&rig.a)?;
        rig.b.memory.bytes.fill(0..64, 0x55);
        rig.b.recv_range(2, 0..64)?;
        let piece = Piece { memory: rig.a.memory.bytes.slice(0..64), lkey: keys[index].0 };
        fails_locally(&mut rig, SendRequest::send(1, [piece]), &format!("a SEND with a {what} key"))?;
        pattern::check_all(&rig.b.memory.bytes.slice(0..64), 0x55, "the peer's memory")?;
    }
    Ok(())
}

/// Sends 64 bytes into a RECV that B must fail with `LocalProtection`.
fn fails_receiving(rig: &mut Rig, piece: Piece, what: &str) -> Outcome {
    let target = piece.memory.clone();
    target.fill(0..target.len(), 0x55);
    let posted = rig.b.qp.post_recv(&[RecvRequest::new(2, [piece])]);
    ensure!(posted.is_ok(), "{what} fails its completion, and posting said {posted:?}");
    rig.a.send_range(1, 0..64)?;
    check_status(&rig.b_received()?, 2, CompletionStatus::LocalProtection)?;
    ensure_eq!(rig.b.qp.state(), QueuePairState::Error, "B's state after {what}");
    let sent = rig.a_sent()?;
    match rig.reliable() {
        true => check_status(&sent, 1, CompletionStatus::RemoteOperation)?,
        // Nobody tells the sender.
        false => check_done(&sent, 1, CompletionOpcode::Send)?,
    }
    pattern::check_all(&target, 0x55, "the memory of a RECV that failed")
}

fn recv_bounds(bed: &Bed) -> Outcome {
    for range in [4095..4159, 8129..8193, 0..64] {
        let mut rig = Rig::connected(bed, &Setup::default())?;
        let mr = fenced(&rig.b)?;
        let what = format!("a RECV into {range:?} of {FENCED:?}");
        let piece = Piece { memory: rig.b.memory.bytes.slice(range), lkey: mr.lkey() };
        fails_receiving(&mut rig, piece, &what)?;
    }
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let mr = fenced(&rig.b)?;
    rig.b.recv(RecvRequest::new(2, [Piece { memory: rig.b.memory.bytes.slice(8128..8192), lkey: mr.lkey() }]))?;
    rig.a.send_range(1, 0..64)?;
    check_done(&rig.b_received()?, 2, CompletionOpcode::Recv)
}

fn recv_keys(bed: &Bed) -> Outcome {
    for (index, what) in WRONG_KEYS.into_iter().enumerate() {
        let mut rig = Rig::connected(bed, &Setup::default())?;
        let (keys, _alive) = wrong_keys(&rig.b)?;
        let piece = Piece { memory: rig.b.memory.bytes.slice(0..64), lkey: keys[index].0 };
        fails_receiving(&mut rig, piece, &format!("a RECV with a {what} key"))?;
    }
    Ok(())
}

fn recv_rights(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let memory = Memory::new(bed, &*rig.b.device, &*rig.b.pd, 4096, Access::empty())?;
    fails_receiving(&mut rig, memory.piece(0..64), "a RECV into memory without LOCAL_WRITE")
}

/// Posts a request on A that B must refuse, and checks that B's memory is left alone. `forbidden` tells which statuses
/// say so to A; a pair without acknowledgements says nothing.
fn refused_by_peer(rig: &mut Rig, op: SendOp, len: usize, forbidden: &[CompletionStatus], what: &str) -> Outcome {
    let memory = rig.b.memory.bytes.clone();
    memory.fill(0..memory.len(), 0x55);
    rig.a.memory.bytes.fill(0..len, 0x11);
    let posted = rig.a.qp.post_send(&[SendRequest::new(1, op, [rig.a.memory.piece(0..len)])]);
    ensure!(posted.is_ok(), "{what} fails its completion, and posting said {posted:?}");
    let sent = rig.a_sent()?;
    if rig.reliable() {
        check_one_of(&sent, 1, forbidden).map_err(|_| format!("{what} ended with {:?}", sent.status))?;
        ensure_eq!(rig.a.qp.state(), QueuePairState::Error, "A's state after {what}");
    } else {
        check_status(&sent, 1, CompletionStatus::Success)?;
        // Whatever the device still does with it happens while it is polled.
        rig.b_recvs_quiet("a WRITE takes no RECV")?;
    }
    pattern::check_all(&memory, 0x55, &format!("the peer's memory after {what}"))?;
    pattern::check_all(&rig.a.memory.bytes.slice(0..len), 0x11, &format!("this side's memory after {what}"))
}

const ACCESS: &[CompletionStatus] = &[CompletionStatus::RemoteAccess];
/// Devices differ in whether a right of the queue pair (not of the memory) counts as access or as an invalid request.
const ACCESS_OR_INVALID: &[CompletionStatus] =
    &[CompletionStatus::RemoteAccess, CompletionStatus::RemoteInvalidRequest];

/// Tries an operation at the borders of a registration at B.
fn remote_bounds(bed: &Bed, op: fn(RemoteAddr) -> SendOp, name: &str) -> Outcome {
    for range in [4095..4159, 8129..8193, 0..64, 8192..8193, 4095..8192] {
        let mut rig = Rig::connected(bed, &Setup::default())?;
        let mr = fenced(&rig.b)?;
        let remote = RemoteAddr { rkey: mr.rkey(), ..rig.b.memory.remote(range.start) };
        let what = format!("a {name} of {range:?} in {FENCED:?}");
        refused_by_peer(&mut rig, op(remote), range.len(), ACCESS, &what)?;
    }
    // An address so high that its end wraps around.
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let remote = RemoteAddr { addr: u64::MAX - 8, rkey: rig.b.memory.mr.rkey() };
    refused_by_peer(&mut rig, op(remote), 64, ACCESS, &format!("a {name} at the end of the address space"))?;
    // The whole registration, and its last byte.
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let mr = fenced(&rig.b)?;
    for (wr_id, range) in (1..).zip([FENCED, 8191..8192]) {
        let remote = RemoteAddr { rkey: mr.rkey(), ..rig.b.memory.remote(range.start) };
        rig.a.post(wr_id, op(remote), 0..range.len())?;
        check_status(&rig.a_sent()?, wr_id, CompletionStatus::Success)?;
    }
    Ok(())
}

fn remote_keys(bed: &Bed, op: fn(RemoteAddr) -> SendOp, name: &str) -> Outcome {
    for (index, what) in WRONG_KEYS.into_iter().enumerate() {
        let mut rig = Rig::connected(bed, &Setup::default())?;
        let (keys, _alive) = wrong_keys(&rig.b)?;
        let remote = RemoteAddr { rkey: keys[index].1, ..rig.b.memory.remote(0) };
        refused_by_peer(&mut rig, op(remote), 64, ACCESS, &format!("a {name} with a {what} key"))?;
    }
    Ok(())
}

/// Tries an operation without `right`, once at the memory and once at the queue pair.
fn remote_rights(bed: &Bed, op: fn(RemoteAddr) -> SendOp, len: usize, right: Access, name: &str) -> Outcome {
    let all = all_access(bed.devices[1].info());
    let setup = Setup { memory_access: Some(all - right), ..Setup::default() };
    let mut rig = Rig::connected(bed, &setup)?;
    let remote = rig.b.memory.remote(0);
    refused_by_peer(&mut rig, op(remote), len, ACCESS, &format!("a {name} in memory without {right:?}"))?;
    let setup = Setup { qp_access: Some(all - right), ..Setup::default() };
    let mut rig = Rig::connected(bed, &setup)?;
    let remote = rig.b.memory.remote(0);
    let what = format!("a {name} through a queue pair without {right:?}");
    refused_by_peer(&mut rig, op(remote), len, ACCESS_OR_INVALID, &what)
}

/// Brings bytes into memory of A without LOCAL_WRITE.
fn local_rights(bed: &Bed, op: fn(RemoteAddr) -> SendOp, len: usize, name: &str) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let memory = Memory::new(bed, &*rig.a.device, &*rig.a.pd, 4096, Access::empty())?;
    memory.bytes.fill(0..len, 0x55);
    rig.b.memory.bytes.fill(0..64, 0x77);
    let request = SendRequest::new(1, op(rig.b.memory.remote(0)), [memory.piece(0..len)]);
    fails_locally(&mut rig, request, &format!("a {name} into memory without LOCAL_WRITE"))?;
    pattern::check_all(&memory.bytes.slice(0..len), 0x55, "memory without LOCAL_WRITE")
}

fn write_op(remote: RemoteAddr) -> SendOp {
    SendOp::Write { remote, imm: None }
}

fn read_op(remote: RemoteAddr) -> SendOp {
    SendOp::Read { remote }
}

fn add_op(remote: RemoteAddr) -> SendOp {
    SendOp::FetchAdd { remote, add: 1 }
}

fn swap_op(remote: RemoteAddr) -> SendOp {
    SendOp::CompareSwap { remote, compare: 0x5555_5555_5555_5555, swap: 1 }
}

fn write_bounds(bed: &Bed) -> Outcome {
    remote_bounds(bed, write_op, "WRITE")
}

fn write_keys(bed: &Bed) -> Outcome {
    remote_keys(bed, write_op, "WRITE")
}

fn write_rights(bed: &Bed) -> Outcome {
    remote_rights(bed, write_op, 64, Access::REMOTE_WRITE, "WRITE")
}

fn read_bounds(bed: &Bed) -> Outcome {
    remote_bounds(bed, read_op, "READ")?;
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let mr = fenced(&rig.a)?;
    let piece = Piece { memory: rig.a.memory.bytes.slice(8129..8193), lkey: mr.lkey() };
    let request = SendRequest::new(1, read_op(rig.b.memory.remote(0)), [piece]);
    fails_locally(&mut rig, request, "a READ out of the local bounds")
}

fn read_keys(bed: &Bed) -> Outcome {
    remote_keys(bed, read_op, "READ")
}

fn read_rights(bed: &Bed) -> Outcome {
    remote_rights(bed, read_op, 64, Access::REMOTE_READ, "READ")?;
    local_rights(bed, read_op, 64, "READ")
}

fn atomic_rights(bed: &Bed) -> Outcome {
    for (op, name) in [(add_op as fn(RemoteAddr) -> SendOp, "fetch-and-add"), (swap_op, "compare-and-swap")] {
        remote_rights(bed, op, 8, Access::REMOTE_ATOMIC, name)?;
        local_rights(bed, op, 8, name)?;
    }
    Ok(())
}

fn atomic_alignment(bed: &Bed) -> Outcome {
    for at in [1, 4, 7] {
        let mut rig = Rig::connected(bed, &Setup::default())?;
        let remote = rig.b.memory.remote(at);
        refused_by_peer(&mut rig, add_op(remote), 8, ACCESS_OR_INVALID, &format!("an atomic at byte {at} of a word"))?;
    }
    // An atomic brings 8 bytes: other room is refused before it is tried.
    let mut rig = Rig::connected(bed, &Setup::default())?;
    for len in [0, 4, 16] {
        let request = SendRequest::new(1, add_op(rig.b.memory.remote(0)), [rig.a.memory.piece(0..len)]);
        let refused = rig.a.qp.post_send(&[request]);
        let right = refused.as_ref().is_err_and(|error| matches!(error.cause, VerbsError::Invalid { .. }));
        ensure!(right, "an atomic with room for {len} bytes makes no sense, and the device said {refused:?}");
    }
    rig.check_alive()
}

fn registrations(bed: &Bed) -> Outcome {
    let rig = Rig::reset(bed, &Setup::default())?;
    let region = rig.a.memory.bytes.region();
    let len = region.len();
    let all = all_access(bed.info());
    let mut tries = vec![(0..len + 1, all), (len..len + 1, all), (0..0, all)];
    if bed.info().capabilities.write {
        tries.push((0..4096, Access::REMOTE_WRITE));
    }
    if bed.info().capabilities.atomics {
        tries.push((0..4096, Access::REMOTE_ATOMIC));
    }
    for (range, access) in tries {
        let refused = rig.a.pd.register(region, range.clone(), access).map(|mr| mr.range());
        let right = matches!(refused, Err(VerbsError::Invalid { .. }));
        ensure!(right, "registering {range:?} of {len} bytes for {access:?} makes no sense, and gave {refused:?}");
    }
    let mr = rig.a.pd.register(region, 100..5000, Access::LOCAL_WRITE)?;
    ensure_eq!(mr.range(), 100..5000, "the bytes registered");
    ensure_eq!(mr.access(), Access::LOCAL_WRITE, "the rights registered");
    ensure_eq!(mr.region().id(), region.id(), "the region registered");
    Ok(())
}
