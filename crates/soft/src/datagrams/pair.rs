//! Datagram queue pairs: their states, and what they send.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use fulmen_reach::ring::Reservation;
use fulmen_verbs::{
    Access, AsyncEvent, Claim, Completion, CompletionOpcode, CompletionStatus, Pieces, PostError, QueuePair,
    QueuePairInit, QueuePairKind, QueuePairLimits, QueuePairState, RecvRequest, SendOp, SendRequest, Transition,
    VerbsError, check_post_send,
};

use super::address;
use super::message::{Header, LONGEST};
use super::receive::Receiving;
use super::route::{Pushed, Route};
use crate::completion::Queue;
use crate::device::lock;
use crate::domain::Domain;
use crate::pair::{Driven, each_piece};
use crate::shared::SharedQueue;

/// A datagram queue pair.
pub(super) struct UdPair {
    pub(super) domain: Arc<Domain>,
    pub(super) number: u32,
    pub(super) limits: QueuePairLimits,
    signal_all: bool,
    send_queue: Arc<Queue>,
    pub(super) recv_queue: Arc<Queue>,
    /// Where its RECVs come from, if they are not its own.
    pub(super) shared: Option<Arc<SharedQueue>>,
    pub(super) this: Weak<UdPair>,
    inner: Mutex<Inner>,
    /// Whether messages wait to go out, to be looked at without the lock.
    waiting: AtomicBool,
}

pub(super) struct Inner {
    pub(super) state: QueuePairState,
    pub(super) qkey: u32,
    /// Requests that have not gone out, oldest first.
    sends: VecDeque<Send>,
    send_used: u64,
    /// In SQD: how many of them, from the front, may still go out.
    draining: usize,
    pub(super) receiving: Receiving,
}

/// A request of the send queue.
struct Send {
    wr_id: u64,
    header: Header,
    route: Option<Arc<Route>>,
    pieces: Pieces,
    inline: bool,
    /// The bytes of an inline request that could not go out at once.
    kept: Option<Vec<u8>>,
    signaled: bool,
    bytes: u32,
    depth: u64,
}

impl UdPair {
    fn new(
        domain: &Arc<Domain>,
        init: &QueuePairInit,
        send_queue: Arc<Queue>,
        recv_queue: Arc<Queue>,
        shared: Option<Arc<SharedQueue>>,
    ) -> Result<Arc<UdPair>, VerbsError> {
        let device = &domain.device;
        let Some(number) = device.take_slot() else {
            let limit = device.info.limits.queue_pairs.into();
            let (device, what) = (device.info.name.clone(), "queue pairs");
            return Err(VerbsError::Limit { device, what, asked: limit + 1, limit });
        };
        let limits = QueuePairLimits {
            send_depth: init.limits.send_depth.max(1),
            recv_depth: if shared.is_some() { 0 } else { init.limits.recv_depth.max(1) },
            send_pieces: init.limits.send_pieces.max(1),
            recv_pieces: if shared.is_some() { 0 } else { init.limits.recv_pieces.max(1) },
            inline_bytes: init.limits.inline_bytes,
        };
        let inner = Inner {
            state: QueuePairState::Reset,
            qkey: 0,
            sends: VecDeque::with_capacity(limits.send_depth as usize),
            send_used: 0,
            draining: 0,
            receiving: Receiving::new(limits.recv_depth),
        };
        let pair = Arc::new_cyclic(|this| UdPair {
            domain: domain.clone(),
            number,
            limits,
            signal_all: init.signal_all,
            send_queue,
            recv_queue,
            shared,
            this: this.clone(),
            inner: Mutex::new(inner),
            waiting: AtomicBool::new(false),
        });
        pair.send_queue.attach_datagrams();
        pair.recv_queue.attach_datagrams();
        device.datagrams.pairs_mut().insert(number, pair.clone());
        Ok(pair)
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Sends what can be sent.
    pub(super) fn drive(&self) -> Driven {
        self.advance(&mut self.inner())
    }

    fn advance(&self, inner: &mut Inner) -> Driven {
        let mut driven = Driven::default();
        loop {
            let may_go = match inner.state {
                QueuePairState::ReadyToSend => true,
                QueuePairState::SendDrain => inner.draining > 0,
                _ => false,
            };
            let Some(send) = inner.sends.front().filter(|_| may_go) else { break };
            match self.send(send) {
                Ok(Pushed::Later(until)) => {
                    driven.next = Some(until);
                    break;
                }
                // Nobody tells the sender of an unreliable service what becomes of a message.
                Ok(Pushed::Sent | Pushed::Lost) => {
                    let (wr_id, signaled, bytes) = (send.wr_id, send.signaled, send.bytes);
                    inner.send_used -= send.depth;
                    inner.draining = inner.draining.saturating_sub(1);
                    // Its memory is let go before another thread can see that it is done.
                    inner.sends.pop_front();
                    if signaled {
                        self.complete_send(wr_id, CompletionStatus::Success, bytes);
                    }
                }
                Err(status) => {
                    let wr_id = send.wr_id;
                    inner.sends.pop_front();
                    self.complete_send(wr_id, status, 0);
                    self.break_off(inner);
                }
            }
            driven.worked = true;
        }
        self.waiting.store(!inner.sends.is_empty(), Ordering::Relaxed);
        driven
    }

    fn send(&self, send: &Send) -> Result<Pushed, CompletionStatus> {
        if !send.inline && !self.is_local(&send.pieces, Access::empty()) {
            return Err(CompletionStatus::LocalProtection);
        }
        let Some(route) = &send.route else { return Ok(Pushed::Lost) };
        let len = send.bytes as usize;
        let fill = |frame: &mut Reservation<'_>| match &send.kept {
            Some(kept) => frame.write(kept),
            None => send.pieces.iter().for_each(|piece| frame.copy_from(&piece.memory)),
        };
        Ok(route.push(&self.domain.device, &send.header, len, fill))
    }

    /// Whether the keys of all pieces allow what is needed.
    pub(super) fn is_local(&self, pieces: &[fulmen_verbs::Piece], needed: Access) -> bool {
        let registrations = &self.domain.device.registrations;
        let mut named = pieces.iter().filter(|piece| !piece.memory.is_empty());
        named.all(|piece| registrations.place(piece, self.domain.number, needed).is_some())
    }

    fn complete_send(&self, wr_id: u64, status: CompletionStatus, byte_len: u32) {
        let (opcode, qp_num) = (CompletionOpcode::Send, self.number);
        let completion = Completion { wr_id, status, opcode, byte_len, qp_num, ..Completion::BLANK };
        self.send_queue.push(completion, false);
    }

    /// Moves to the error state and flushes both queues.
    pub(super) fn break_off(&self, inner: &mut Inner) {
        let before = std::mem::replace(&mut inner.state, QueuePairState::Error);
        for send in inner.sends.drain(..) {
            self.complete_send(send.wr_id, CompletionStatus::Flushed, 0);
        }
        for recv in inner.receiving.drain() {
            self.complete_recv(recv.wr_id, CompletionStatus::Flushed);
        }
        inner.forget();
        self.waiting.store(false, Ordering::Relaxed);
        if self.shared.is_some() && before != QueuePairState::Error {
            self.domain.device.tell(AsyncEvent::LastReceive { qp_num: self.number });
        }
    }

    fn change(&self, transition: &Transition) -> Result<(), VerbsError> {
        let device = &self.domain.device;
        device.check_own("modify")?;
        if let Transition::Init { .. } | Transition::ReadyToReceive { .. } | Transition::ReadyToSend { .. } = transition
        {
            let problem = "a datagram queue pair has no peer: use the datagram transitions".to_owned();
            return Err(VerbsError::Invalid { what: "transition", problem });
        }
        let mut inner = self.inner();
        let inner = &mut *inner;
        device.info.check_transition(self.number, inner.state, transition)?;
        match *transition {
            Transition::Reset => {
                inner.sends.clear();
                drop(inner.receiving.drain());
                inner.forget();
                self.waiting.store(false, Ordering::Relaxed);
            }
            Transition::DatagramInit { qkey, .. } => inner.qkey = qkey,
            Transition::SendDrain if inner.state == QueuePairState::ReadyToSend => inner.draining = inner.sends.len(),
            Transition::Error => self.break_off(inner),
            _ => {}
        }
        inner.state = transition.target();
        self.advance(inner);
        Ok(())
    }

    fn post_sends(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let waited = inner.sends.len();
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(cause) = self.queue_send(inner, request) {
                result = Err(PostError { index, cause });
                break;
            }
        }
        let posted = inner.sends.len() - waited;
        let waits = self.advance(inner).next.is_some();
        for send in inner.sends.iter_mut().rev().take(posted) {
            // What could not go out at once must not depend on inline bytes, which the caller may change now.
            send.keep_inline();
        }
        if waits && waited == 0 {
            // The device's thread may sleep, and has to look when it is too late.
            self.domain.device.progress.kick();
        }
        result
    }

    fn queue_send(&self, inner: &mut Inner, request: &SendRequest) -> Result<(), VerbsError> {
        let info = &self.domain.device.info;
        check_post_send(self.number, inner.state)?;
        let depth = info.check_send(QueuePairKind::Ud, &self.limits, request)?;
        let SendOp::SendTo { to, imm } = request.op else {
            return Err(VerbsError::Unsupported { device: info.name.clone(), what: "RDMA over UD queue pairs" });
        };
        info.check_limit("bytes in one datagram", request.bytes(), LONGEST as u64)?;
        let address = address::find(&self.domain, to.handle)?;
        if inner.send_used + depth > self.limits.send_depth.into() {
            let (queue, qp_num, depth) = ("send", self.number, self.limits.send_depth);
            return Err(VerbsError::QueueFull { queue, qp_num, depth });
        }
        if inner.state == QueuePairState::Error {
            self.complete_send(request.wr_id, CompletionStatus::Flushed, 0);
            return Ok(());
        }
        inner.send_used += depth;
        let header = Header {
            to: to.qp_num,
            from: self.number,
            qkey: to.qkey,
            solicited: request.solicited,
            imm,
            global: address.global,
        };
        inner.sends.push_back(Send {
            wr_id: request.wr_id,
            header,
            route: address.route(&self.domain, to.qp_num),
            pieces: request.pieces.clone(),
            inline: request.inline,
            kept: None,
            signaled: request.signaled || self.signal_all,
            // Longer ones were refused.
            bytes: request.bytes() as u32,
            depth,
        });
        Ok(())
    }
}

impl Send {
    fn keep_inline(&mut self) {
        if self.inline && self.kept.is_none() {
            let mut bytes = vec![0; self.bytes as usize];
            each_piece(&self.pieces, 0, self.bytes as usize, |memory, start, len, done| {
                memory.read(start, &mut bytes[done..done + len]);
            });
            self.pieces.clear();
            self.kept = Some(bytes);
        }
    }
}

impl Inner {
    fn forget(&mut self) {
        (self.send_used, self.draining) = (0, 0);
    }
}

/// What users hold of a datagram queue pair. Dropping it destroys the queue pair.
struct Handle {
    pair: Arc<UdPair>,
    _claim: Claim,
}

/// Makes a datagram queue pair in a domain.
pub(crate) fn create(
    domain: &Arc<Domain>,
    init: &QueuePairInit,
    send_queue: Arc<Queue>,
    recv_queue: Arc<Queue>,
    shared: Option<Arc<SharedQueue>>,
) -> Result<Arc<dyn QueuePair>, VerbsError> {
    let claim = domain.device.budgets.queue_pairs.take()?;
    Ok(Arc::new(Handle { pair: UdPair::new(domain, init, send_queue, recv_queue, shared)?, _claim: claim }))
}

impl QueuePair for Handle {
    fn qp_num(&self) -> u32 {
        self.pair.number
    }

    fn state(&self) -> QueuePairState {
        self.pair.inner().state
    }

    fn limits(&self) -> QueuePairLimits {
        self.pair.limits
    }

    fn modify(&self, transition: &Transition) -> Result<(), VerbsError> {
        self.pair.change(transition)
    }

    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        self.pair.post_sends(requests)
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        self.pair.post_recvs(requests)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let pair = &self.pair;
        let device = &pair.domain.device;
        if device.node.is_inherited() {
            return;
        }
        device.datagrams.pairs_mut().remove(&pair.number);
        {
            let mut inner = pair.inner();
            inner.state = QueuePairState::Reset;
            inner.sends.clear();
            drop(inner.receiving.drain());
        }
        pair.send_queue.detach_datagrams();
        pair.recv_queue.detach_datagrams();
        device.give_slot_back(pair.number);
    }
}
