//! Posting.

use fulmen_verbs::{
    CompletionStatus, PostError, QueuePairState, RecvRequest, SendRequest, VerbsError, check_post_recv, check_post_send,
};

use super::link::Link;
use super::receive::Turn;
use super::send::Send;
use super::{Inner, Pair, Recv};

impl Pair {
    pub(super) fn post_sends(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(cause) = self.queue_send(inner, request) {
                result = Err(PostError { index, cause });
                break;
            }
        }
        if inner.begun < inner.sends.len() {
            self.advance(inner);
            // What could not go out at once must not depend on inline bytes, which the caller may change now.
            for send in inner.sends.iter_mut().skip(inner.begun) {
                send.keep_inline();
            }
        }
        // The peer may have to be asked for RECVs.
        self.tell(inner, false);
        if self.waits_for_clock(inner) {
            // The device's thread may sleep, and nothing else starts the clock of a peer that is silent.
            self.domain.device.progress.kick();
        }
        result
    }

    /// Whether only time ends the requests: the peer does not listen.
    fn waits_for_clock(&self, inner: &Inner) -> bool {
        let Some(link) = inner.link.as_ref().filter(|_| !inner.sends.is_empty() && !self.holds()) else { return false };
        !link.is_alive() || !link.takes(inner.wire.incarnation)
    }

    fn queue_send(&self, inner: &mut Inner, request: &SendRequest) -> Result<(), VerbsError> {
        check_post_send(self.number, inner.state)?;
        let depth = self.domain.device.info.check_send(self.kind, &self.limits, request)?;
        if inner.send_used + depth > self.limits.send_depth.into() {
            return Err(self.full("send", self.limits.send_depth));
        }
        if inner.state == QueuePairState::Error {
            self.complete_send(request.wr_id, CompletionStatus::Flushed, super::send::opcode(&request.op), 0);
            return Ok(());
        }
        inner.send_used += depth;
        inner.sends.push_back(Send::new(request, depth, self.signal_all));
        Ok(())
    }

    pub(super) fn post_recvs(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        if self.shared.is_some() {
            let problem = "its RECVs come from a shared receive queue: post them there".to_owned();
            return Err(PostError { index: 0, cause: VerbsError::Invalid { what: "receive queue", problem } });
        }
        let mut inner = self.inner();
        let inner = &mut *inner;
        let had_none = inner.recvs.is_empty();
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(cause) = self.queue_recv(inner, request) {
                result = Err(PostError { index, cause });
                break;
            }
        }
        if self.holds() {
            inner.wire.grant(inner.posted);
            if let Some(link) = &inner.link {
                // The peer may hold a SEND for this.
                link.wake();
            }
        }
        if let Some(Link::Far(far)) = &inner.link
            && !far.holds_message()
        {
            // The peer hears of it at once only if it waits for it.
            self.attend(inner);
            self.tell(inner, false);
            return result;
        }
        // A message may wait for this, and nobody else may look.
        if had_none && self.receive(inner) == Turn::Full {
            self.domain.device.progress.kick();
        }
        result
    }

    fn queue_recv(&self, inner: &mut Inner, request: &RecvRequest) -> Result<(), VerbsError> {
        check_post_recv(self.number, inner.state)?;
        let depth = self.domain.device.info.check_recv(&self.limits, request)?;
        if inner.recv_used + depth > self.limits.recv_depth.into() {
            return Err(self.full("receive", self.limits.recv_depth));
        }
        if inner.state == QueuePairState::Error {
            self.complete_recv(request.wr_id, CompletionStatus::Flushed);
            return Ok(());
        }
        inner.recv_used += depth;
        inner.posted += 1;
        inner.recvs.push_back(Recv { request: request.clone(), depth });
        Ok(())
    }

    fn full(&self, queue: &'static str, depth: u32) -> VerbsError {
        VerbsError::QueueFull { queue, qp_num: self.number, depth }
    }
}
