//! Queue pairs: made, taken through their states, destroyed.

mod change;
mod post;

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fulmen_verbs::{
    Claim, PostError, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, QueuePairState, RecvRequest,
    SendRequest, Transition, VerbsError,
};

use crate::completion::Queue;
use crate::device::Core;
use crate::domain::Domain;
use crate::ffi::{self, number};
use crate::inflight::InFlight;
use post::{Buffer, RecvBuffer, SendBuffer};

/// A queue pair.
pub(crate) struct Pair {
    domain: Arc<Domain>,
    raw: NonNull<ffi::Qp>,
    number: u32,
    kind: QueuePairKind,
    limits: QueuePairLimits,
    signal_all: bool,
    /// What it was told to be; the device may have moved it to ERR since.
    state: AtomicU8,
    /// It is not known any more which requests the device has: nothing can be posted.
    lost: AtomicBool,
    /// The port, once it is in INIT. Whoever holds the lock changes the state.
    port: Mutex<u8>,
    send_queue: Arc<Queue>,
    recv_queue: Arc<Queue>,
    /// Whoever holds the lock is the poster of `sent`.
    send: Mutex<SendBuffer>,
    sent: Arc<InFlight>,
    /// Whoever holds the lock is the poster of `received`.
    recv: Mutex<RecvBuffer>,
    received: Arc<InFlight>,
    _claim: Claim,
}

// SAFETY: calls on a queue pair may be made by any thread at any time; it is destroyed by its last owner.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Pair {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        init: &QueuePairInit,
        send_queue: Arc<Queue>,
        recv_queue: Arc<Queue>,
    ) -> Result<Pair, VerbsError> {
        let core = &domain.core;
        let claim = core.budgets.queue_pairs.take()?;
        let key = core.next_pair()?;
        let (Some(post_send), Some(post_recv)) = (core.ops().post_send, core.ops().post_recv) else {
            return Err(VerbsError::Unsupported { device: core.info.name.clone(), what: "queue pairs" });
        };
        let mut attr = ffi::QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: send_queue.raw.as_ptr(),
            recv_cq: recv_queue.raw.as_ptr(),
            srq: std::ptr::null_mut(),
            // A queue of nothing is one that some devices refuse.
            cap: ffi::QpCap {
                max_send_wr: init.limits.send_depth.max(1),
                max_recv_wr: init.limits.recv_depth.max(1),
                max_send_sge: init.limits.send_pieces.max(1),
                max_recv_sge: init.limits.recv_pieces.max(1),
                max_inline_data: init.limits.inline_bytes,
            },
            qp_type: match init.kind {
                QueuePairKind::Rc => number::QPT_RC,
                QueuePairKind::Uc => number::QPT_UC,
                QueuePairKind::Ud => unreachable!("checked: this device has no datagram queue pairs"),
            },
            sq_sig_all: c_int::from(init.signal_all),
        };
        // SAFETY: the domain and both queues are open and kept by the queue pair; the attributes are whole.
        let raw =
            core.make("ibv_create_qp", || unsafe { (core.library.calls.create_qp)(domain.raw.as_ptr(), &mut attr) })?;
        let cap = if core.info.limits.frame.is_some() { granted(core, raw).unwrap_or(attr.cap) } else { attr.cap };
        let limits = QueuePairLimits {
            send_depth: cap.max_send_wr,
            recv_depth: cap.max_recv_wr,
            send_pieces: cap.max_send_sge,
            recv_pieces: cap.max_recv_sge,
            inline_bytes: cap.max_inline_data,
        };
        let sent = Arc::new(InFlight::new(key, false, limits.send_depth));
        let received = Arc::new(InFlight::new(key, true, limits.recv_depth));
        send_queue.attach(&sent);
        recv_queue.attach(&received);
        Ok(Pair {
            domain: domain.clone(),
            raw,
            // SAFETY: it was just made.
            number: unsafe { (*raw.as_ptr()).qp_num },
            kind: init.kind,
            limits,
            signal_all: init.signal_all,
            state: AtomicU8::new(code(QueuePairState::Reset)),
            lost: AtomicBool::new(false),
            port: Mutex::new(1),
            send_queue,
            recv_queue,
            send: Mutex::new(Buffer::new(post_send)),
            sent,
            recv: Mutex::new(Buffer::new(post_recv)),
            received,
            _claim: claim,
        })
    }

    fn core(&self) -> &Arc<Core> {
        &self.domain.core
    }

    /// What it was told to be.
    #[inline]
    fn told(&self) -> QueuePairState {
        STATES[usize::from(self.state.load(Ordering::Relaxed))]
    }

    fn set_told(&self, state: QueuePairState) {
        self.state.store(code(state), Ordering::Relaxed);
    }

    /// What it is: a system call where the device may have moved it.
    fn now(&self) -> QueuePairState {
        let told = self.told();
        if self.lost.load(Ordering::Relaxed) {
            return QueuePairState::Error;
        }
        let moves = [QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend, QueuePairState::SendDrain];
        if !moves.contains(&told) {
            return told;
        }
        match query(self.core(), self.raw, number::QP_STATE) {
            Some((attr, _)) if matches!(attr.qp_state, number::QPS_ERR | number::QPS_SQE) => QueuePairState::Error,
            None if self.core().is_gone() => QueuePairState::Error,
            // Where queue pairs cannot be asked, it counts what they were told.
            Some(_) | None => told,
        }
    }
}

const STATES: [QueuePairState; 6] = [
    QueuePairState::Reset,
    QueuePairState::Init,
    QueuePairState::ReadyToReceive,
    QueuePairState::ReadyToSend,
    QueuePairState::SendDrain,
    QueuePairState::Error,
];

fn code(state: QueuePairState) -> u8 {
    STATES.iter().position(|known| *known == state).unwrap_or(STATES.len() - 1) as u8
}

/// Asks the device about a queue pair; `None` if it does not answer.
fn query(core: &Core, raw: NonNull<ffi::Qp>, mask: u32) -> Option<(ffi::QpAttr, ffi::QpCap)> {
    // SAFETY: numbers alone, for which zero is a value.
    let mut attr: ffi::QpAttr = unsafe { std::mem::zeroed() };
    // SAFETY: numbers and pointers alone, for which zero is a value.
    let mut init: ffi::QpInitAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the queue pair lives, and both places are there.
    let returned = unsafe { (core.library.calls.query_qp)(raw.as_ptr(), &mut attr, mask as c_int, &mut init) };
    (returned == 0).then_some((attr, init.cap))
}

/// What the device gave, where it may have given less than it said.
fn granted(core: &Core, raw: NonNull<ffi::Qp>) -> Option<ffi::QpCap> {
    query(core, raw, number::QP_CAP).map(|(_, cap)| cap).filter(|cap| cap.max_send_wr > 0 && cap.max_recv_wr > 0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QueuePair for Pair {
    fn qp_num(&self) -> u32 {
        self.number
    }

    fn state(&self) -> QueuePairState {
        self.now()
    }

    fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    fn modify(&self, transition: &Transition) -> Result<(), VerbsError> {
        self.change(transition)
    }

    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        self.post_sends(requests)
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        self.post_recvs(requests)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // First the queue pair, without a detour over ERR, then the memory: until it is destroyed, the device may work
        // on what was posted.
        // SAFETY: this is the last owner, and it destroys once.
        let returned = unsafe { (self.core().library.calls.destroy_qp)(self.raw.as_ptr()) };
        self.send_queue.detach(&self.sent);
        self.recv_queue.detach(&self.received);
        if returned == 0 {
            return;
        }
        tracing::error!("{}", self.core().failed("ibv_destroy_qp", returned));
        // The device may still work on the memory, which must never become anything else.
        std::mem::forget((self.sent.clone(), self.received.clone(), self.domain.clone()));
        std::mem::forget((self.send_queue.clone(), self.recv_queue.clone()));
    }
}
