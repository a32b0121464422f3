//! Posting, as programs do it with `ibv_post_send`, `ibv_post_recv` and `ibv_post_srq_recv`.

use std::ffi::c_int;
use std::slice;

use fulmen_soft::Profile;
use fulmen_verbs::{Destination, Pieces, PostError, RecvRequest, RemoteAddr, SendOp, SendRequest, VerbsError};

use super::ah::Ah;
use super::inline::{Errno, InlineRoom};
use super::qp::Qp;
use super::srq::Srq;
use crate::error::{self, Call};
use crate::export;
use crate::ffi::*;
use crate::lint::{self, SendAsked};
use crate::memory::Memory;

/// Requests that are handed to the device at a time.
const BATCH: usize = 16;

/// Flags that requests of these transports know.
const KNOWN_FLAGS: u32 = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// What posting to a send queue needs, behind its lock.
pub(super) struct Sender {
    pub(super) inline: InlineRoom,
    /// The requests that are being made. Its room is kept from post to post.
    pub(super) batch: Vec<SendRequest>,
    /// The first error of a batch of `ibv_wr_start`.
    pub(super) failed: Option<Errno>,
}

impl Sender {
    pub(super) fn new(inline_bytes: u32) -> Sender {
        let inline = InlineRoom::new(inline_bytes as usize);
        Sender { inline, batch: Vec::with_capacity(BATCH), failed: None }
    }

    /// Forgets the requests, which were posted or are not to be.
    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.inline.clear();
        self.failed = None;
    }

    /// Makes a request.
    ///
    /// # Safety
    /// `wr` is as the manual page of `ibv_post_send` wants it.
    unsafe fn add(&mut self, qp: &Qp, wr: &ibv_send_wr) -> Result<(), Errno> {
        let flags = wr.send_flags;
        if let Some(lint) = qp.lint {
            // SAFETY: the list has as many elements, by the contract of this function.
            let asked = unsafe { asked(wr) };
            if let Some(errno) = lint.post_send("ibv_post_send", qp.pair.qp_num(), &asked) {
                return Err(errno);
            }
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the opcode says which members are set.
        let op = unsafe { operation(qp, wr) }?;
        // SAFETY: the list has as many elements, by the contract of this function.
        let list = unsafe { list(wr.sg_list, wr.num_sge, qp.limits.send_pieces) }?;
        let inline = flags & IBV_SEND_INLINE != 0;
        let pieces = if inline {
            let total = list.iter().map(|sge| sge.length as usize).sum();
            // SAFETY: inline elements are addresses of readable memory, by the contract of this function.
            unsafe { self.inline.keep(total, list.iter().map(|sge| (sge.addr as *const u8, sge.length as usize))) }?
        } else {
            pieces(qp.memory(), list)
        };
        self.batch.push(SendRequest {
            wr_id: wr.wr_id,
            op,
            pieces,
            signaled: flags & IBV_SEND_SIGNALED != 0,
            inline,
            solicited: flags & IBV_SEND_SOLICITED != 0,
        });
        Ok(())
    }
}

/// What a request is to do, for lint.
///
/// # Safety
/// The list has as many elements as it says.
unsafe fn asked(wr: &ibv_send_wr) -> SendAsked {
    // SAFETY: by the contract of this function; how many a queue pair takes is said elsewhere.
    let list = unsafe { list(wr.sg_list, wr.num_sge, u32::MAX) }.unwrap_or_default();
    SendAsked {
        is_send: matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM),
        op: match wr.opcode {
            IBV_WR_SEND => "IBV_WR_SEND",
            IBV_WR_SEND_WITH_IMM => "IBV_WR_SEND_WITH_IMM",
            IBV_WR_RDMA_WRITE => "IBV_WR_RDMA_WRITE",
            IBV_WR_RDMA_WRITE_WITH_IMM => "IBV_WR_RDMA_WRITE_WITH_IMM",
            IBV_WR_RDMA_READ => "IBV_WR_RDMA_READ",
            IBV_WR_ATOMIC_CMP_AND_SWP => "IBV_WR_ATOMIC_CMP_AND_SWP",
            IBV_WR_ATOMIC_FETCH_AND_ADD => "IBV_WR_ATOMIC_FETCH_AND_ADD",
            _ => "another operation",
        },
        has_imm: matches!(wr.opcode, IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM),
        is_inline: wr.send_flags & IBV_SEND_INLINE != 0,
        sges: list.len(),
        bytes: list.iter().map(|sge| u64::from(sge.length)).sum(),
    }
}

/// The pieces of a list. Empty elements are left out, whatever their keys.
#[inline]
pub(super) fn pieces(memory: &Memory, list: &[ibv_sge]) -> Pieces {
    let mut pieces = Pieces::new();
    for sge in list.iter().filter(|sge| sge.length > 0) {
        memory.add_pieces(sge.lkey, sge.addr, sge.length, &mut pieces);
    }
    pieces
}

/// What posting to a receive queue needs, behind its lock: the requests that are being made.
pub(super) struct Receiver(Vec<RecvRequest>);

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver(Vec::with_capacity(BATCH))
    }

    /// Makes a request.
    ///
    /// # Safety
    /// `wr` is as the manual page of `ibv_post_recv` wants it.
    unsafe fn add(&mut self, memory: &Memory, most: u32, wr: &ibv_recv_wr) -> Result<(), Errno> {
        // SAFETY: the list has as many elements, by the contract of this function.
        let list = unsafe { list(wr.sg_list, wr.num_sge, most) }?;
        self.0.push(RecvRequest { wr_id: wr.wr_id, pieces: pieces(memory, list) });
        Ok(())
    }
}

/// What lint says to a receive request.
///
/// # Safety
/// The list has as many elements as it says.
unsafe fn check_recv(qp: &Qp, wr: &ibv_recv_wr) -> Result<(), Errno> {
    let Some(lint) = qp.lint else { return Ok(()) };
    // SAFETY: by the contract of this function; how many a queue pair takes is said elsewhere.
    let list = unsafe { list(wr.sg_list, wr.num_sge, u32::MAX) }.unwrap_or_default();
    let bytes = list.iter().map(|sge| u64::from(sge.length)).sum();
    lint.post_recv(qp.pair.qp_num(), list.len(), bytes).map_or(Ok(()), Err)
}

/// A list of at most `most` elements.
///
/// # Safety
/// `count` elements lie at `start`, and stay as they are meanwhile.
unsafe fn list<'a>(start: *const ibv_sge, count: c_int, most: u32) -> Result<&'a [ibv_sge], Errno> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    if count == 0 {
        return Ok(&[]);
    }
    if count > most as usize || start.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the contract of this function.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

/// What a request does. Immediate data is a number in network byte order in C.
///
/// # Safety
/// Those members of `wr` are set that its opcode and the kind of the queue pair ask for.
#[inline]
unsafe fn operation(qp: &Qp, wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    let imm = || Some(u32::from_be(wr.imm_data));
    // SAFETY: WRITEs and READs have it.
    let rdma = || {
        // SAFETY: as above.
        let rdma = unsafe { wr.wr.rdma };
        RemoteAddr { addr: rdma.remote_addr, rkey: rdma.rkey }
    };
    Ok(match wr.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => {
            let imm = if wr.opcode == IBV_WR_SEND { None } else { imm() };
            if qp.is_datagram() {
                // SAFETY: SENDs of datagram queue pairs have it.
                let ud = unsafe { wr.wr.ud };
                // SAFETY: it is null or an address handle that lives.
                let to = unsafe { destination(qp, ud.ah, ud.remote_qpn, ud.remote_qkey) }?;
                SendOp::SendTo { to, imm }
            } else {
                SendOp::Send { imm }
            }
        }
        IBV_WR_RDMA_WRITE => SendOp::Write { remote: rdma(), imm: None },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write { remote: rdma(), imm: imm() },
        IBV_WR_RDMA_READ => SendOp::Read { remote: rdma() },
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: atomics have it.
            let atomic = unsafe { wr.wr.atomic };
            let remote = RemoteAddr { addr: atomic.remote_addr, rkey: atomic.rkey };
            if wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
                SendOp::FetchAdd { remote, add: atomic.compare_add }
            } else {
                SendOp::CompareSwap { remote, compare: atomic.compare_add, swap: atomic.swap }
            }
        }
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW | IBV_WR_SEND_WITH_INV | IBV_WR_TSO | IBV_WR_ATOMIC_WRITE => {
            return Err(libc::EOPNOTSUPP);
        }
        _ => return Err(libc::EINVAL),
    })
}

/// The address of a datagram.
///
/// # Safety
/// `ah` is null or an address handle that lives.
#[inline]
pub(super) unsafe fn destination(qp: &Qp, ah: *mut ibv_ah, number: u32, qkey: u32) -> Result<Destination, Errno> {
    /// Of a key with this bit, the queue pair's own takes the place (InfiniBand specification, 10.2.5).
    const PRIVILEGED: u32 = 1 << 31;
    if ah.is_null() {
        return Err(libc::EINVAL);
    }
    let qkey = if qkey & PRIVILEGED == 0 { qkey } else { qp.qkey() };
    // SAFETY: by the contract of this function.
    let handle = unsafe { Ah::of(ah) }.number();
    Ok(Destination { handle, qp_num: number, qkey })
}

/// A request of a list.
trait Linked {
    fn next(&self) -> *mut Self;
}

impl Linked for ibv_send_wr {
    fn next(&self) -> *mut ibv_send_wr {
        self.next
    }
}

impl Linked for ibv_recv_wr {
    fn next(&self) -> *mut ibv_recv_wr {
        self.next
    }
}

/// What a call that posts returns for a request that it refuses: on Linux the number of the error, on Apple's devices
/// its negative.
pub(super) fn returned(profile: Profile, errno: Errno) -> c_int {
    match profile {
        Profile::Infiniband => errno,
        Profile::Thunderbolt => -lint::number(errno),
    }
}

/// The number of a device's refusal. A full queue is how programs learn to wait, and seldom worth a line.
pub(super) fn refused(profile: Profile, cause: &VerbsError) -> Errno {
    let errno = error::errno_of(profile, cause, Call::Post);
    if let Some(lint) = lint::get() {
        lint.refused("", cause);
    }
    match cause {
        VerbsError::QueueFull { .. } => tracing::debug!(errno, "posting failed: {cause}"),
        _ => tracing::info!(errno, "posting failed: {cause}"),
    }
    errno
}

/// Posts a list in batches: 0, or an error number and, through `bad`, the first request that was not posted.
///
/// # Safety
/// `first` is null or the first request of a list that ends with null; `bad` can be written.
#[inline]
unsafe fn post_list<W: Linked, S>(
    profile: Profile,
    maker: &mut S,
    first: *mut W,
    bad: *mut *mut W,
    mut add: impl FnMut(&mut S, &W) -> Result<(), Errno>,
    mut post: impl FnMut(&mut S) -> Result<(), PostError>,
) -> c_int {
    let refuse = |wr: *mut W, errno: Errno| {
        if !bad.is_null() {
            // SAFETY: it can be written, by the contract of this function.
            unsafe { *bad = wr };
        }
        error::set_errno(errno);
        returned(profile, errno)
    };
    let mut next = first;
    loop {
        let start = next;
        let mut failed = None;
        let mut made = 0;
        while made < BATCH && !next.is_null() {
            // SAFETY: a request of the list.
            let wr = unsafe { &*next };
            if let Err(errno) = add(maker, wr) {
                tracing::info!(
                    errno,
                    "posting failed: the request makes no sense, or asks for what the device has not"
                );
                failed = Some(errno);
                break;
            }
            made += 1;
            next = wr.next();
        }
        if made > 0
            && let Err(PostError { index, cause }) = post(maker)
        {
            let mut wr = start;
            for _ in 0..index {
                // SAFETY: one of the requests that were made above.
                wr = unsafe { (*wr).next() };
            }
            return refuse(wr, refused(profile, &cause));
        }
        if let Some(errno) = failed {
            return refuse(next, errno);
        }
        if next.is_null() {
            return 0;
        }
    }
}

/// `ibv_post_send`.
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    export::guard("ibv_post_send", || {
        // SAFETY: a queue pair that lives.
        let qp = unsafe { Qp::of(qp) };
        let mut sender = qp.sender.lock();
        // SAFETY: the list is as the manual page says.
        unsafe {
            post_list(
                qp.profile,
                &mut *sender,
                wr,
                bad,
                |sender, wr| sender.add(qp, wr),
                |sender| {
                    let posted = qp.pair.post_send(&sender.batch);
                    sender.clear();
                    posted
                },
            )
        }
    })
}

/// `ibv_post_recv`.
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    export::guard("ibv_post_recv", || {
        // SAFETY: a queue pair that lives.
        let qp = unsafe { Qp::of(qp) };
        let mut receiver = qp.receiver.lock();
        let (memory, most) = (qp.memory(), qp.limits.recv_pieces);
        // SAFETY: the list is as the manual page says.
        unsafe {
            post_list(
                qp.profile,
                &mut *receiver,
                wr,
                bad,
                |receiver, wr| {
                    check_recv(qp, wr)?;
                    receiver.add(memory, most, wr)
                },
                |receiver| {
                    let posted = qp.pair.post_recv(&receiver.0);
                    receiver.0.clear();
                    posted
                },
            )
        }
    })
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    export::guard("ibv_post_srq_recv", || {
        // SAFETY: a shared receive queue that lives.
        let srq = unsafe { Srq::of(srq) };
        let mut receiver = srq.receiver.lock();
        let (memory, most) = (srq.memory(), srq.queue.pieces());
        // SAFETY: the list is as the manual page says.
        unsafe {
            post_list(
                srq.profile,
                &mut *receiver,
                wr,
                bad,
                |receiver, wr| receiver.add(memory, most, wr),
                |receiver| {
                    let posted = srq.queue.post_recv(&receiver.0);
                    receiver.0.clear();
                    posted
                },
            )
        }
    })
}
