//! Posting.
//!
//! Requests are noted in flight, with handles to their memory, before the device hears of them, since it may complete
//! them before its call returns. What it refuses is taken back.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use fulmen_verbs::{
    CompletionOpcode, Piece, Pieces, PostError, QueuePairState, RecvRequest, SendOp, SendRequest, VerbsError,
    check_post_recv, check_post_send,
};

use super::{Pair, lock};
use crate::errno;
use crate::ffi::{self, number};
use crate::inflight::{InFlight, Request};

/// What a post is written into. It keeps its room from one post to the next.
pub(super) struct Buffer<Wr> {
    post: unsafe extern "C" fn(*mut ffi::Qp, *mut Wr, *mut *mut Wr) -> c_int,
    requests: Vec<Wr>,
    pieces: Vec<ffi::Sge>,
}

pub(super) type SendBuffer = Buffer<ffi::SendWr>;
pub(super) type RecvBuffer = Buffer<ffi::RecvWr>;

// SAFETY: the pointers inside of requests point into the buffer itself, and mean something during a post only.
unsafe impl<Wr> Send for Buffer<Wr> {}

/// A request of either queue, as the library wants it.
pub(super) trait Chained {
    fn set_next(&mut self, next: *mut Self);
}

impl Chained for ffi::SendWr {
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl Chained for ffi::RecvWr {
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

/// Which requests of a list the device refused.
enum Refused {
    /// This one and those behind it.
    From(usize, c_int),
    /// It did not say.
    Unknown(c_int),
}

impl<Wr: Chained> Buffer<Wr> {
    /// Room for some requests from the start.
    pub(super) fn new(post: unsafe extern "C" fn(*mut ffi::Qp, *mut Wr, *mut *mut Wr) -> c_int) -> Buffer<Wr> {
        Buffer { post, requests: Vec::with_capacity(16), pieces: Vec::with_capacity(32) }
    }

    /// Begins a post of so many requests with so many pieces, which will not move while they are written.
    fn begin(&mut self, requests: usize, pieces: usize) {
        self.requests.clear();
        self.pieces.clear();
        self.requests.reserve(requests);
        self.pieces.reserve(pieces);
    }

    /// Writes the pieces of a request. Empty ones are left out: some devices take a length of 0 for the longest.
    fn list(&mut self, pieces: &[Piece]) -> (*mut ffi::Sge, c_int) {
        let first = self.pieces.len();
        let full = pieces.iter().filter(|piece| !piece.memory.is_empty());
        self.pieces.extend(full.map(|piece| ffi::Sge {
            addr: piece.memory.addr() as u64,
            // A message's length was checked, and is less than 4 GiB.
            length: piece.memory.len() as u32,
            lkey: piece.lkey,
        }));
        let count = self.pieces.len() - first;
        (self.pieces.as_mut_ptr().wrapping_add(first), count as c_int)
    }

    /// Hands the requests to the device.
    ///
    /// # Safety
    /// The queue pair lives, and the memory that the requests name is kept until they have ended.
    unsafe fn hand_over(&mut self, pair: *mut ffi::Qp) -> Result<(), Refused> {
        let count = self.requests.len();
        let first = self.requests.as_mut_ptr();
        for (index, request) in self.requests.iter_mut().enumerate() {
            let next = if index + 1 < count { first.wrapping_add(index + 1) } else { std::ptr::null_mut() };
            request.set_next(next);
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the requests and their lists lie in this buffer, where nothing moves meanwhile; the rest is the
        // caller's promise.
        let returned = unsafe { (self.post)(pair, first, &mut bad) };
        if returned == 0 {
            return Ok(());
        }
        let range = first.addr()..first.wrapping_add(count).addr();
        Err(match bad {
            bad if !bad.is_null() && range.contains(&bad.addr()) => {
                Refused::From((bad.addr() - range.start) / size_of::<Wr>(), returned)
            }
            // The only one.
            _ if count == 1 => Refused::From(0, returned),
            _ => Refused::Unknown(returned),
        })
    }
}

impl Pair {
    #[inline]
    pub(super) fn post_sends(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        let mut buffer = lock(&self.send);
        buffer.begin(requests.len(), requests.iter().map(|request| request.pieces.len()).sum());
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(cause) = self.write_send(&mut buffer, request) {
                result = Err(PostError { index, cause });
                break;
            }
        }
        self.hand_over(&mut buffer, &self.sent, "ibv_post_send").and(result)
    }

    #[inline]
    pub(super) fn post_recvs(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        let mut buffer = lock(&self.recv);
        buffer.begin(requests.len(), requests.iter().map(|request| request.pieces.len()).sum());
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(cause) = self.write_recv(&mut buffer, request) {
                result = Err(PostError { index, cause });
                break;
            }
        }
        self.hand_over(&mut buffer, &self.received, "ibv_post_recv").and(result)
    }

    fn write_send(&self, buffer: &mut SendBuffer, request: &SendRequest) -> Result<(), VerbsError> {
        check_post_send(self.number, self.told())?;
        self.check_known()?;
        let depth = self.core().info.check_send(self.kind, &self.limits, request)?;
        if !self.sent.has_room(depth) {
            return Err(self.full("send", self.limits.send_depth));
        }
        let (sg_list, num_sge) = buffer.list(&request.pieces);
        let visible = request.signaled || self.signal_all;
        let mut flags = 0;
        for (set, flag) in [
            (visible, number::SEND_SIGNALED),
            (request.solicited, number::SEND_SOLICITED),
            (request.inline, number::SEND_INLINE),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let (opcode, ended, imm, wr) = operation(&request.op);
        // What is copied by the post needs no memory afterwards.
        let pieces = if request.inline { Pieces::new() } else { request.pieces.clone() };
        let noted = Request {
            wr_id: request.wr_id,
            pieces,
            opcode: ended,
            bytes: request.bytes() as u32,
            depth: depth as u32,
            visible,
        };
        // SAFETY: the lock of the buffer makes this thread the only poster, and there is room.
        let tag = unsafe { self.sent.push(noted) };
        buffer.requests.push(ffi::SendWr {
            wr_id: tag.0,
            next: std::ptr::null_mut(),
            sg_list,
            num_sge,
            opcode,
            send_flags: flags,
            imm_data: imm.unwrap_or(0).to_be(),
            wr,
            rest: [0; 7],
        });
        Ok(())
    }

    fn write_recv(&self, buffer: &mut RecvBuffer, request: &RecvRequest) -> Result<(), VerbsError> {
        check_post_recv(self.number, self.told())?;
        self.check_known()?;
        let depth = self.core().info.check_recv(&self.limits, request)?;
        if !self.received.has_room(depth) {
            return Err(self.full("receive", self.limits.recv_depth));
        }
        let (sg_list, num_sge) = buffer.list(&request.pieces);
        let noted = Request {
            wr_id: request.wr_id,
            pieces: request.pieces.clone(),
            opcode: CompletionOpcode::Recv,
            bytes: request.bytes() as u32,
            depth: depth as u32,
            visible: true,
        };
        // SAFETY: the lock of the buffer makes this thread the only poster, and there is room.
        let tag = unsafe { self.received.push(noted) };
        buffer.requests.push(ffi::RecvWr { wr_id: tag.0, next: std::ptr::null_mut(), sg_list, num_sge });
        Ok(())
    }

    /// Hands over what was written, and takes back what is refused.
    fn hand_over<Wr: Chained>(
        &self,
        buffer: &mut Buffer<Wr>,
        queue: &InFlight,
        call: &'static str,
    ) -> Result<(), PostError> {
        let count = buffer.requests.len();
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the queue pair lives as long as this object, and the requests were noted with their memory.
        let refused = match unsafe { buffer.hand_over(self.raw.as_ptr()) } {
            Ok(()) => {
                // The device has them all, whatever comes of the flush.
                if self.told() == QueuePairState::Error
                    && let Err(error) = self.flush()
                {
                    tracing::warn!("what was posted to queue pair {} in ERR may stay: {error}", self.number);
                }
                return Ok(());
            }
            Err(refused) => refused,
        };
        let (index, errno) = match refused {
            Refused::From(index, errno) => {
                // SAFETY: the lock of the buffer makes this thread the only poster; the device has none of these.
                unsafe { queue.take_back((count - index) as u64) };
                (index, errno)
            }
            Refused::Unknown(errno) => {
                // Some of them may be on their way: their memory stays until the queue pair is gone.
                self.lose();
                (0, errno)
            }
        };
        self.core().look_at_events();
        let full = !matches!(refused, Refused::Unknown(_)) && errno::positive(errno) == libc::ENOMEM;
        let cause = match full {
            true if call == "ibv_post_send" => self.full("send", self.limits.send_depth),
            true => self.full("receive", self.limits.recv_depth),
            false => self.core().failed(call, errno),
        };
        Err(PostError { index, cause })
    }

    /// Ends the queue pair: it is not known any more what the device has.
    fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
        if let Err(error) = self.flush() {
            tracing::warn!("a queue pair that is lost did not go to ERR: {error}");
        }
    }

    fn check_known(&self) -> Result<(), VerbsError> {
        if !self.lost.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(VerbsError::System {
            device: self.core().info.name.clone(),
            call: "posting",
            cause: format!(
                "an earlier list for queue pair {} was refused, and the device did not say from where on: make a new one",
                self.number
            ),
        })
    }

    fn full(&self, queue: &'static str, depth: u32) -> VerbsError {
        VerbsError::QueueFull { queue, qp_num: self.number, depth }
    }
}

/// The operation as the library writes it: its number, what it completes as, immediate data, and the peer's memory.
fn operation(op: &SendOp) -> (u32, CompletionOpcode, Option<u32>, ffi::Wr) {
    // The longest member first, so that all bytes are defined.
    let atomic = |remote_addr, rkey, compare_add, swap| ffi::Wr {
        atomic: ffi::WrAtomic { remote_addr, compare_add, swap, rkey },
    };
    let rdma = |remote: fulmen_verbs::RemoteAddr| {
        let mut wr = atomic(0, 0, 0, 0);
        wr.rdma = ffi::WrRdma { remote_addr: remote.addr, rkey: remote.rkey };
        wr
    };
    match *op {
        SendOp::SendTo { .. } => unreachable!("checked: this device has no datagram queue pairs"),
        SendOp::Send { imm: None } => (number::WR_SEND, CompletionOpcode::Send, None, atomic(0, 0, 0, 0)),
        SendOp::Send { imm } => (number::WR_SEND_WITH_IMM, CompletionOpcode::Send, imm, atomic(0, 0, 0, 0)),
        SendOp::Write { remote, imm: None } => (number::WR_RDMA_WRITE, CompletionOpcode::Write, None, rdma(remote)),
        SendOp::Write { remote, imm } => (number::WR_RDMA_WRITE_WITH_IMM, CompletionOpcode::Write, imm, rdma(remote)),
        SendOp::Read { remote } => (number::WR_RDMA_READ, CompletionOpcode::Read, None, rdma(remote)),
        SendOp::FetchAdd { remote, add } => {
            let wr = atomic(remote.addr, remote.rkey, add, 0);
            (number::WR_ATOMIC_FETCH_AND_ADD, CompletionOpcode::FetchAdd, None, wr)
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            let wr = atomic(remote.addr, remote.rkey, compare, swap);
            (number::WR_ATOMIC_CMP_AND_SWP, CompletionOpcode::CompareSwap, None, wr)
        }
    }
}
