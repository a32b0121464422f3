//! The receive queue of a datagram queue pair.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fulmen_reach::ring::Frame;
use fulmen_verbs::{
    Access, Completion, CompletionOpcode, CompletionStatus, Origin, PostError, QueuePairState, RecvRequest, VerbsError,
    check_post_recv,
};

use super::Counts;
use super::message::{GRH, HEADER, Header};
use super::pair::{Inner, UdPair};
use crate::pair::{Driven, each_piece};
use crate::shared::Fed;

/// Messages that wait for a RECV outside of their ring, so that those of other queue pairs pass by.
pub(super) const MOST_WAITING: usize = 64;

/// What a queue pair receives with.
pub(super) struct Receiving {
    recvs: VecDeque<Recv>,
    used: u64,
    /// Messages that found no RECV, oldest first.
    early: VecDeque<Early>,
    /// A message was kept in vain: further ones are lost at once until a RECV is posted.
    lossy: bool,
    /// A message stays in its ring, since too many wait here.
    stalled: bool,
    /// The shared receive queue was empty, and feeds this queue pair when it no longer is.
    hungry: bool,
}

struct Recv {
    request: RecvRequest,
    depth: u64,
}

/// A message that waits for a RECV.
struct Early {
    header: Header,
    lid: u16,
    grh: Option<[u8; GRH]>,
    bytes: Vec<u8>,
    until: Instant,
}

/// Where the bytes of a message are.
#[derive(Clone, Copy)]
pub(super) enum Body<'a, 'f> {
    Frame(&'a Frame<'f>),
    Kept(&'a [u8]),
}

/// What became of the next message of a ring.
pub(super) enum Taken {
    /// There is none.
    Nothing,
    /// It is delivered, or lost.
    Yes,
    /// It stays until its queue pair has room, or until this time.
    Later(Instant),
}

impl Body<'_, '_> {
    fn len(&self) -> usize {
        match self {
            Body::Frame(frame) => frame.len() - HEADER,
            Body::Kept(bytes) => bytes.len(),
        }
    }

    fn keep(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        match self {
            Body::Frame(frame) => frame.read(HEADER, &mut bytes),
            Body::Kept(kept) => bytes.copy_from_slice(kept),
        }
        bytes
    }

    /// Copies it behind the room for the routing header.
    fn copy_into(&self, recv: &RecvRequest) {
        each_piece(&recv.pieces, GRH, self.len(), |memory, start, len, done| match self {
            Body::Frame(frame) => frame.copy_to(HEADER + done, memory, start, len),
            Body::Kept(bytes) => memory.write(start, &bytes[done..done + len]),
        });
    }
}

impl Receiving {
    pub(super) fn new(depth: u32) -> Receiving {
        let recvs = VecDeque::with_capacity(depth as usize);
        Receiving { recvs, used: 0, early: VecDeque::new(), lossy: false, stalled: false, hungry: false }
    }

    /// Forgets everything, and gives the RECVs that were posted.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = RecvRequest> + use<> {
        let recvs = std::mem::take(&mut self.recvs);
        // The shared queue still has it in its list of those who found none.
        *self = Receiving { hungry: self.hungry, ..Receiving::new(0) };
        recvs.into_iter().map(|recv| recv.request)
    }

    /// Gives up on the messages that wait, and on those that follow.
    fn lose_early(&mut self, counts: &Counts) {
        self.early.drain(..).for_each(|_| Counts::add(&counts.no_recv));
        self.lossy = true;
    }
}

impl UdPair {
    /// Takes a message into the next RECV, keeps it, or drops it.
    pub(super) fn take_in(
        &self,
        header: &Header,
        lid: u16,
        grh: Option<[u8; GRH]>,
        body: Body<'_, '_>,
        counts: &Counts,
    ) -> Taken {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let receives = matches!(
            inner.state,
            QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend | QueuePairState::SendDrain
        );
        if !receives {
            Counts::add(&counts.no_pair);
            return Taken::Yes;
        }
        if header.qkey != inner.qkey {
            Counts::add(&counts.wrong_key);
            return Taken::Yes;
        }
        let receiving = &mut inner.receiving;
        if receiving.early.is_empty()
            && let Some(request) = self.next_recv(receiving)
        {
            self.place(inner, request, header, lid, grh, body);
            return Taken::Yes;
        }
        let patience = self.domain.device.options.recv_patience;
        if patience == Duration::ZERO || receiving.lossy {
            Counts::add(&counts.no_recv);
            return Taken::Yes;
        }
        let now = Instant::now();
        let oldest = receiving.early.front().map(|early| early.until);
        match oldest {
            Some(until) if until <= now => {
                receiving.lose_early(counts);
                Counts::add(&counts.no_recv);
                Taken::Yes
            }
            Some(until) if receiving.early.len() >= MOST_WAITING => {
                receiving.stalled = true;
                Taken::Later(until)
            }
            _ => {
                let until = now + patience;
                receiving.early.push_back(Early { header: *header, lid, grh, bytes: body.keep(), until });
                if oldest.is_none() {
                    // The device's thread looks when it is too late.
                    self.domain.device.progress.kick();
                }
                Taken::Yes
            }
        }
    }

    /// The RECV for the next message.
    fn next_recv(&self, receiving: &mut Receiving) -> Option<RecvRequest> {
        if let Some(shared) = &self.shared {
            return shared.take(&self.this, &mut receiving.hungry);
        }
        let Recv { request, depth } = receiving.recvs.pop_front()?;
        receiving.used -= depth;
        Some(request)
    }

    /// Puts a message into a RECV.
    ///
    /// A message that is longer than its RECV completes it with a length error, which is what the InfiniBand Architecture
    /// Specification has for receive requests that are too small (volume 1, 11.6.2), and an error of the receive queue takes
    /// the queue pair to ERR, whatever its service (10.3.1), as on the UC queue pairs here. Some hardware drops the message
    /// without a word instead; a program that forgot the room for the routing header learns it here.
    fn place(
        &self,
        inner: &mut Inner,
        request: RecvRequest,
        header: &Header,
        lid: u16,
        grh: Option<[u8; GRH]>,
        body: Body<'_, '_>,
    ) {
        let whole = GRH + body.len();
        let status = if whole as u64 > request.bytes() {
            CompletionStatus::LocalLength
        } else if !self.is_local(&request.pieces, Access::LOCAL_WRITE) {
            CompletionStatus::LocalProtection
        } else {
            CompletionStatus::Success
        };
        if !status.is_success() {
            self.complete_recv(request.wr_id, status);
            self.break_off(inner);
            return;
        }
        if let Some(grh) = grh {
            each_piece(&request.pieces, 0, GRH, |memory, start, len, done| {
                memory.write(start, &grh[done..done + len]);
            });
        }
        body.copy_into(&request);
        let completion = Completion {
            wr_id: request.wr_id,
            status,
            opcode: CompletionOpcode::Recv,
            byte_len: whole as u32,
            imm: header.imm,
            qp_num: self.number,
            origin: Some(Origin { qp_num: header.from, lid, grh: grh.is_some() }),
        };
        // Its memory is let go before another thread can see that it is done.
        drop(request);
        self.recv_queue.push(completion, header.solicited);
    }

    pub(super) fn complete_recv(&self, wr_id: u64, status: CompletionStatus) {
        let (opcode, qp_num) = (CompletionOpcode::Recv, self.number);
        self.recv_queue.push(Completion { wr_id, status, opcode, qp_num, ..Completion::BLANK }, false);
    }

    pub(super) fn post_recvs(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(cause) = self.queue_recv(inner, request) {
                result = Err(PostError { index, cause });
                break;
            }
        }
        self.take_early(inner);
        result
    }

    fn queue_recv(&self, inner: &mut Inner, request: &RecvRequest) -> Result<(), VerbsError> {
        if self.shared.is_some() {
            let problem = "its RECVs come from a shared receive queue: post them there".to_owned();
            return Err(VerbsError::Invalid { what: "receive request", problem });
        }
        check_post_recv(self.number, inner.state)?;
        let depth = self.domain.device.info.check_recv(&self.limits, request)?;
        let receiving = &mut inner.receiving;
        if receiving.used + depth > self.limits.recv_depth.into() {
            let (queue, qp_num, depth) = ("receive", self.number, self.limits.recv_depth);
            return Err(VerbsError::QueueFull { queue, qp_num, depth });
        }
        if inner.state == QueuePairState::Error {
            self.complete_recv(request.wr_id, CompletionStatus::Flushed);
            return Ok(());
        }
        receiving.used += depth;
        receiving.lossy = false;
        receiving.recvs.push_back(Recv { request: request.clone(), depth });
        Ok(())
    }

    /// Takes the messages that waited for RECVs.
    fn take_early(&self, inner: &mut Inner) {
        while !inner.receiving.early.is_empty() {
            let Some(request) = self.next_recv(&mut inner.receiving) else { return };
            let Some(early) = inner.receiving.early.pop_front() else { return };
            self.place(inner, request, &early.header, early.lid, early.grh, Body::Kept(&early.bytes));
        }
        if std::mem::take(&mut inner.receiving.stalled) {
            // What stayed in its ring is for the device's thread, if nobody polls.
            self.domain.device.progress.kick();
        }
    }

    /// Gives up on messages that waited for too long: when to look again.
    pub(super) fn look_at_clock(&self, counts: &Counts) -> Driven {
        let mut inner = self.inner();
        if self.shared.is_some() {
            // RECVs that were given back feed nobody.
            self.take_early(&mut inner);
        }
        let Some(until) = inner.receiving.early.front().map(|early| early.until) else { return Driven::default() };
        if Instant::now() < until {
            return Driven { next: Some(until), ..Driven::default() };
        }
        inner.receiving.lose_early(counts);
        Driven { worked: true, ..Driven::default() }
    }
}

impl Fed for UdPair {
    fn feed(&self) {
        let mut inner = self.inner();
        (inner.receiving.hungry, inner.receiving.lossy) = (false, false);
        self.take_early(&mut inner);
    }
}
