//! Posting by calls, `ibv_wr_*`: each builder makes a request, setters complete it, and all go out together.

use std::ffi::{c_int, c_void};
use std::slice;

use fulmen_verbs::{Capabilities, Pieces, QueuePairKind, RemoteAddr, SendOp, SendRequest};

use super::inline::Errno;
use super::post::{Sender, destination, pieces, refused, returned};
use super::qp::Qp;
use crate::export;
use crate::ffi::*;
use crate::lint::SendAsked;

/// The operations that a queue pair can be made for.
pub(super) fn operations(kind: QueuePairKind, can: &Capabilities) -> u64 {
    let mut operations = IBV_QP_EX_WITH_SEND;
    let mut add = |possible: bool, more: ibv_qp_create_send_ops_flags| {
        if possible {
            operations |= more;
        }
    };
    add(can.immediate, IBV_QP_EX_WITH_SEND_WITH_IMM);
    let connected = kind != QueuePairKind::Ud;
    add(connected && can.write, IBV_QP_EX_WITH_RDMA_WRITE);
    add(connected && can.write && can.immediate, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
    let reliable = kind == QueuePairKind::Rc;
    add(reliable && can.read, IBV_QP_EX_WITH_RDMA_READ);
    add(reliable && can.atomics, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
    operations.into()
}

/// Puts the calls into a new queue pair, which was made for some operations.
pub(super) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(compare_swap);
    qp.wr_atomic_fetch_add = Some(fetch_add);
    qp.wr_bind_mw = Some(bind_mw);
    qp.wr_local_inv = Some(refuse_key);
    qp.wr_rdma_read = Some(read);
    qp.wr_rdma_write = Some(write);
    qp.wr_rdma_write_imm = Some(write_imm);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(refuse_key);
    qp.wr_send_tso = Some(send_tso);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_xrc_srqn = Some(refuse_key);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_atomic_write = Some(atomic_write);
}

/// Runs one call of a batch. Its error, and a panic, are kept for the end of the batch.
///
/// # Safety
/// `qp` is a queue pair between `ibv_wr_start` and the end of the batch, which this thread began.
#[inline]
unsafe fn within(qp: *mut ibv_qp_ex, call: impl FnOnce(&Qp, &ibv_qp_ex, &mut Sender) -> Result<(), Errno>) {
    let result = export::guard_with(
        "ibv_wr_*",
        || Err(libc::EIO),
        || {
            // SAFETY: a queue pair that lives, whose lock this thread took in `start`.
            let (own, sender) = unsafe {
                let own = Qp::of(qp.cast());
                (own, own.sender.value())
            };
            if sender.failed.is_some() {
                return Ok(());
            }
            // SAFETY: the program writes it in this thread only, by the contract of these calls.
            let fields = unsafe { &*qp };
            call(own, fields, sender)
        },
    );
    if let Err(errno) = result {
        // SAFETY: as above.
        let sender = unsafe { Qp::of(qp.cast()).sender.value() };
        sender.failed.get_or_insert(errno);
    }
}

/// Begins a request.
///
/// # Safety
/// As for [`within`].
#[inline]
unsafe fn build(qp: *mut ibv_qp_ex, needed: ibv_qp_create_send_ops_flags, op: SendOp) {
    // SAFETY: by the contract of this function.
    unsafe {
        within(qp, |own, fields, sender| {
            if own.operations & u64::from(needed) == 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let flags = fields.wr_flags;
            if flags & !(IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE) != 0 {
                return Err(libc::EINVAL);
            }
            sender.batch.push(SendRequest {
                wr_id: fields.wr_id,
                op,
                pieces: Pieces::new(),
                signaled: flags & IBV_SEND_SIGNALED != 0,
                // Told by the setter of the bytes.
                inline: false,
                solicited: flags & IBV_SEND_SOLICITED != 0,
            });
            Ok(())
        });
    }
}

/// Changes the request that was begun last.
///
/// # Safety
/// As for [`within`].
#[inline]
unsafe fn set(qp: *mut ibv_qp_ex, change: impl FnOnce(&Qp, &mut Sender, usize) -> Result<(), Errno>) {
    // SAFETY: by the contract of this function.
    unsafe {
        within(qp, |own, _, sender| {
            let last = sender.batch.len().checked_sub(1).ok_or(libc::EINVAL)?;
            change(own, sender, last)
        });
    }
}

/// What a request is to do, for lint. An element that the device takes in two pieces is one.
fn asked(request: &SendRequest) -> SendAsked {
    let (op, imm) = match request.op {
        SendOp::Send { imm } | SendOp::SendTo { imm, .. } => ("ibv_wr_send", imm),
        SendOp::Write { imm, .. } => ("ibv_wr_rdma_write", imm),
        SendOp::Read { .. } => ("ibv_wr_rdma_read", None),
        SendOp::FetchAdd { .. } => ("ibv_wr_atomic_fetch_add", None),
        SendOp::CompareSwap { .. } => ("ibv_wr_atomic_cmp_swp", None),
    };
    SendAsked {
        is_send: matches!(request.op, SendOp::Send { .. } | SendOp::SendTo { .. }),
        op,
        has_imm: imm.is_some(),
        is_inline: request.inline,
        // `ibv_wr_set_sge_list` has refused more.
        sges: 1,
        bytes: request.bytes(),
    }
}

fn at(addr: u64, rkey: u32) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}

unsafe extern "C" fn compare_swap(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let op = SendOp::CompareSwap { remote: at(addr, rkey), compare, swap };
    // SAFETY: called between start and complete.
    unsafe { build(qp, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, op) }
}

unsafe extern "C" fn fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let op = SendOp::FetchAdd { remote: at(addr, rkey), add };
    // SAFETY: called between start and complete.
    unsafe { build(qp, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, op) }
}

unsafe extern "C" fn read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: called between start and complete.
    unsafe { build(qp, IBV_QP_EX_WITH_RDMA_READ, SendOp::Read { remote: at(addr, rkey) }) }
}

unsafe extern "C" fn write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: called between start and complete.
    unsafe { build(qp, IBV_QP_EX_WITH_RDMA_WRITE, SendOp::Write { remote: at(addr, rkey), imm: None }) }
}

unsafe extern "C" fn write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    let op = SendOp::Write { remote: at(addr, rkey), imm: Some(u32::from_be(imm)) };
    // SAFETY: called between start and complete.
    unsafe { build(qp, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, op) }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: called between start and complete.
    unsafe { build(qp, IBV_QP_EX_WITH_SEND, SendOp::Send { imm: None }) }
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: called between start and complete.
    unsafe { build(qp, IBV_QP_EX_WITH_SEND_WITH_IMM, SendOp::Send { imm: Some(u32::from_be(imm)) }) }
}

/// What these devices have not.
///
/// # Safety
/// As for [`within`].
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: by the contract of this function.
    unsafe { within(qp, |_, _, _| Err(libc::EOPNOTSUPP)) }
}

unsafe extern "C" fn refuse_key(qp: *mut ibv_qp_ex, _key: u32) {
    // SAFETY: called between start and complete.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, _mw: *mut ibv_mw, _rkey: u32, _info: *const ibv_mw_bind_info) {
    // SAFETY: called between start and complete.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _len: u16, _mss: u16) {
    // SAFETY: called between start and complete.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, _rkey: u32, _addr: u64, _word: *const c_void) {
    // SAFETY: called between start and complete.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, qkey: u32) {
    // SAFETY: called between start and complete, with an address handle that lives.
    unsafe {
        set(qp, |own, sender, last| {
            let to = destination(own, ah, number, qkey)?;
            let op = &mut sender.batch[last].op;
            match *op {
                SendOp::Send { imm } | SendOp::SendTo { imm, .. } => *op = SendOp::SendTo { to, imm },
                _ => return Err(libc::EINVAL),
            }
            Ok(())
        });
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: called between start and complete.
    unsafe {
        set(qp, |own, sender, last| {
            sender.batch[last].pieces = pieces(own.memory(), &[ibv_sge { addr, length, lkey }]);
            Ok(())
        });
    }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: called between start and complete, with a list of so many elements.
    unsafe {
        set(qp, |own, sender, last| {
            let list = elements(list, count, own.limits.send_pieces as usize)?;
            sender.batch[last].pieces = pieces(own.memory(), list);
            Ok(())
        });
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: called between start and complete, with readable bytes.
    unsafe { set_inline_data_list(qp, 1, &ibv_data_buf { addr, length }) }
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: called between start and complete, with a list of so many runs of readable bytes.
    unsafe {
        set(qp, |own, sender, last| {
            // Each run has a byte at least, or does not matter.
            let list = elements(list, count, own.limits.inline_bytes.max(1) as usize)?;
            let total = list.iter().try_fold(0_usize, |sum, run| sum.checked_add(run.length)).ok_or(libc::EINVAL)?;
            let runs = list.iter().map(|run| (run.addr.cast_const().cast(), run.length));
            sender.batch[last].pieces = sender.inline.keep(total, runs)?;
            sender.batch[last].inline = true;
            Ok(())
        });
    }
}

/// A list of at most `most` elements.
///
/// # Safety
/// So many elements lie at `start`, and stay as they are meanwhile.
unsafe fn elements<'a, T>(start: *const T, count: usize, most: usize) -> Result<&'a [T], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    if count > most || start.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the contract of this function.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair that lives.
    let own = unsafe { Qp::of(qp.cast()) };
    own.sender.acquire();
    // SAFETY: the lock was just taken.
    unsafe { own.sender.value() }.clear();
}

/// Nothing is posted if a call of the batch failed. If the queue has no room for all, those that fit are posted.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a queue pair that lives, whose lock this thread took in `start`.
    let (own, sender) = unsafe {
        let own = Qp::of(qp.cast());
        (own, own.sender.value())
    };
    let result = export::guard("ibv_wr_complete", || {
        if let Some(errno) = sender.failed {
            return errno;
        }
        if sender.batch.is_empty() {
            return 0;
        }
        if let Some(lint) = own.lint {
            let check = |request| lint.post_send("ibv_wr_complete", own.pair.qp_num(), &asked(request));
            if let Some(errno) = sender.batch.iter().find_map(check) {
                return errno;
            }
        }
        own.pair.post_send(&sender.batch).map_or_else(|error| refused(own.profile, &error.cause), |()| 0)
    });
    sender.clear();
    own.sender.release();
    returned(own.profile, result)
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair that lives, whose lock this thread took in `start`.
    let own = unsafe { Qp::of(qp.cast()) };
    // SAFETY: as above.
    unsafe { own.sender.value() }.clear();
    own.sender.release();
}
