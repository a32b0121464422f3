//! Tagged messages between two ranks.
//!
//! A receive takes the oldest message of its tag from its rank. Eight bits of a tag ([`TAG_LABEL`](crate::TAG_LABEL)) do not
//! choose the message but say what it is: a receive that meets a message of another label fails. Short messages go out at once; a message out of registered
//! memory (the [pool](Fabric::pool), a [window](Fabric::window)) of at least [`Flow::rendezvous`](crate::Flow) bytes moves
//! with one copy, made by the receiver, and its send ends when that is done; other long ones go in frames, and their send
//! ends with the last frame. A rank keeps up to [`Flow::unexpected`](crate::Flow) bytes of messages that nobody has asked
//! for; beyond that, their sender waits. So two ranks that both first send long messages to one another, and then receive,
//! wait in vain: start one of the two. What a rank sends to itself is copied, and kept until it receives it.
//!
//! See [`engine`](crate::engine) for the protocol.

use std::sync::MutexGuard;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;

use crate::driver::{Payload, Takes};
use crate::engine::{Cancel, Landing, Lent, OpError, OpId, Source, Target};
use crate::lanes::Lane;
use crate::liveness::Fate;
use crate::operation::Operation;
use crate::{Action, Fabric, FabricError, Loss, OpName, What, clock};

/// Payload up to which a message of exposed memory goes through the stack.
const SHORT: usize = 256;

/// What errors call them.
pub(crate) const SEND: OpName = "send";
pub(crate) const RECV: OpName = "recv";

impl Fabric {
    /// Sends a message and returns when its memory can be used again.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRank`], [`FabricError::PeerLost`], [`FabricError::TimedOut`], and
    /// [`FabricError::Refused`] if the receiver is seen to take less. After an error, the message may have been received
    /// or not. Memory that the receiver may still copy after a time-out stays in use until it has or is lost.
    pub fn send(&self, to: u32, tag: u64, data: &Exposed, timeout: Duration) -> Result<(), FabricError> {
        if data.len() <= SHORT {
            let mut bytes = [0; SHORT];
            let bytes = &mut bytes[..data.len()];
            data.read(0, bytes);
            return self.send_bytes(to, tag, bytes, timeout);
        }
        let running = self.inner.recorder.begin(What::of(Action::Send, to, tag, data.len()));
        self.inner.recorder.ended(running, self.push_memory(to, tag, data, timeout))
    }

    fn push_memory(&self, to: u32, tag: u64, data: &Exposed, timeout: Duration) -> Result<(), FabricError> {
        if to == self.rank() {
            return self.send_own(tag, copy(data));
        }
        self.check_alive(SEND, to)?;
        let mut lane = self.lane(SEND, to)?;
        if (data.len() as u64) < self.flow().rendezvous {
            match self.push(SEND, to, lane, tag, Payload::Memory(data))? {
                None => return Ok(()),
                Some(full) => lane = full,
            }
        }
        let source = lane.wire.source(data.clone());
        let op = lane.link.send(tag, source);
        drop(lane);
        self.finish(SEND, to, op, timeout, &mut Lent::Nothing).map(drop)
    }

    /// Sends a message out of plain memory. As [`Fabric::send`]; its bytes go in frames.
    ///
    /// # Errors
    /// As [`Fabric::send`].
    pub fn send_bytes(&self, to: u32, tag: u64, data: &[u8], timeout: Duration) -> Result<(), FabricError> {
        let pushed = self.push_bytes(to, tag, data);
        // While the frame, if it is one, is on its way.
        let running = self.inner.recorder.begin(What::of(Action::Send, to, tag, data.len()));
        let sent = pushed.and_then(|full| {
            let Some(mut lane) = full else { return Ok(()) };
            let op = lane.link.send(tag, Source::Lent(data.len() as u64));
            drop(lane);
            self.finish(SEND, to, op, timeout, &mut Lent::Source(op, data)).map(drop)
        });
        self.inner.recorder.ended(running, sent)
    }

    /// Sends it if it can go at once in one frame; else gives the lane back.
    #[inline]
    fn push_bytes(&self, to: u32, tag: u64, data: &[u8]) -> Result<Option<MutexGuard<'_, Lane>>, FabricError> {
        if to == self.rank() {
            return self.send_own(tag, data.to_vec()).map(|()| None);
        }
        self.check_alive(SEND, to)?;
        let lane = self.lane(SEND, to)?;
        self.push(SEND, to, lane, tag, Payload::Bytes(data))
    }

    /// Sends a message that can go at once in one frame; gives the lane back if it cannot.
    #[inline]
    fn push<'a>(
        &'a self,
        op: OpName,
        to: u32,
        mut lane: MutexGuard<'a, Lane>,
        tag: u64,
        payload: Payload<'_>,
    ) -> Result<Option<MutexGuard<'a, Lane>>, FabricError> {
        let Some(header) = lane.link.eager(tag, payload.len()) else { return Ok(Some(lane)) };
        let Lane { link, wire, .. } = &mut *lane;
        match wire.push(link, &header, payload) {
            Ok(true) => {
                link.eager_sent();
                drop(lane);
                self.inner.lanes.pass_on();
                Ok(None)
            }
            Ok(false) => Ok(Some(lane)),
            Err(broken) => {
                self.inner.lanes.fail(to, &mut lane, broken);
                drop(lane);
                self.check_alive(op, to).map(|()| None)
            }
        }
    }

    /// Receives the oldest message of this tag, and returns how many bytes it has.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRank`], [`FabricError::PeerLost`], [`FabricError::TimedOut`], [`FabricError::Truncated`] for
    /// a message that does not fit and [`FabricError::Mislabelled`] for one of another label, of which nothing is written, and [`FabricError::Cancelled`] if the sender gave up
    /// midway. After an error nothing is written any more; a device that is at it keeps the memory in use until it is done.
    pub fn recv(&self, from: u32, tag: u64, into: &Exposed, timeout: Duration) -> Result<usize, FabricError> {
        let running = self.inner.recorder.begin(What::of(Action::Recv, from, tag, into.len()));
        self.inner.recorder.ended(running, self.pull_memory(from, tag, into, timeout))
    }

    /// Receives into plain memory. As [`Fabric::recv`]; after an error, bytes of the message may have been written.
    ///
    /// # Errors
    /// As [`Fabric::recv`].
    pub fn recv_bytes(&self, from: u32, tag: u64, into: &mut [u8], timeout: Duration) -> Result<usize, FabricError> {
        let running = self.inner.recorder.begin(What::of(Action::Recv, from, tag, into.len()));
        self.inner.recorder.ended(running, self.pull_bytes(from, tag, into, timeout))
    }

    fn pull_memory(&self, from: u32, tag: u64, into: &Exposed, timeout: Duration) -> Result<usize, FabricError> {
        if from == self.rank() {
            let received = self.recv_own(tag, into.len(), timeout, |bytes| into.write(0, bytes));
            return received.map(|len| len as usize);
        }
        let mut lane = match self.take(from, tag, &mut Landing::Memory(into))? {
            Ok(len) => return Ok(len),
            Err(lane) => lane,
        };
        let target = lane.wire.target(into.clone());
        let op = lane.link.recv(tag, target);
        self.pull(from, lane, op, timeout, &mut Lent::Nothing)
    }

    #[inline]
    fn pull_bytes(&self, from: u32, tag: u64, into: &mut [u8], timeout: Duration) -> Result<usize, FabricError> {
        if from == self.rank() {
            let received = self.recv_own(tag, into.len(), timeout, |bytes| into[..bytes.len()].copy_from_slice(bytes));
            return received.map(|len| len as usize);
        }
        let mut lane = match self.take(from, tag, &mut Landing::Bytes(into))? {
            Ok(len) => return Ok(len),
            Err(lane) => lane,
        };
        let op = lane.link.recv(tag, Target::Lent(into.len() as u64));
        self.pull(from, lane, op, timeout, &mut Lent::Target(op, into))
    }

    #[inline]
    fn pull(
        &self,
        from: u32,
        lane: MutexGuard<'_, Lane>,
        op: OpId,
        timeout: Duration,
        lent: &mut Lent<'_>,
    ) -> Result<usize, FabricError> {
        // Most often it is there, or nearly.
        match self.poll_locked(from, lane, op, lent, None) {
            Poll::Ready(outcome) => self.told(RECV, from, outcome),
            Poll::Pending => self.finish(RECV, from, op, timeout, lent),
        }
        .map(|len| len as usize)
    }

    /// Starts to send a message. The handle owns the memory until the operation has ended.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRank`] and [`FabricError::PeerLost`]; what happens later, the handle tells.
    pub fn start_send(&self, to: u32, tag: u64, data: &Exposed) -> Result<Operation, FabricError> {
        if to == self.rank() {
            self.send_own(tag, copy(data))?;
            let running = self.inner.recorder.begin(What::of(Action::Send, to, tag, data.len()).started());
            return Ok(Operation::ended(self, to, SEND, data.len() as u64).recorded(running));
        }
        let op = self.begin_send(SEND, to, tag, data)?;
        let running = self.inner.recorder.begin(What::of(Action::Send, to, tag, data.len()).started());
        Ok(self.go_on(SEND, to, op, true).recorded(running))
    }

    /// Starts to receive a message.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRank`]; what happens later, the handle tells.
    pub fn start_recv(&self, from: u32, tag: u64, into: &Exposed) -> Result<Operation, FabricError> {
        if from == self.rank() {
            self.inner.check_goes_on(RECV)?;
            let running = self.inner.recorder.begin(What::of(Action::Recv, from, tag, into.len()).started());
            let receive = Operation::from_own(self, self.inner.own.ask(tag), tag, into);
            return Ok(receive.recorded(running));
        }
        let op = self.begin_recv(RECV, from, tag, into)?;
        let running = self.inner.recorder.begin(What::of(Action::Recv, from, tag, into.len()).started());
        // Of many receives that are started together, none is worth a look at all that the device carries.
        Ok(self.go_on(RECV, from, op, false).recorded(running))
    }

    /// Moves all operations that are under way on, as far as it goes now, and takes what has come. Waiting does that, too.
    pub fn progress(&self) {
        self.inner.lanes.note_look();
        self.inner.lanes.pump_all();
    }

    fn begin_send(&self, name: OpName, to: u32, tag: u64, data: &Exposed) -> Result<OpId, FabricError> {
        self.check_alive(name, to)?;
        let mut lane = self.lane(name, to)?;
        let source = lane.wire.source(data.clone());
        Ok(lane.link.send(tag, source))
    }

    fn begin_recv(&self, name: OpName, from: u32, tag: u64, into: &Exposed) -> Result<OpId, FabricError> {
        let mut lane = self.lane(name, from)?;
        let target = lane.wire.target(into.clone());
        Ok(lane.link.recv(tag, target))
    }

    /// Moves a new operation on as far as it goes at once; the progress thread sees to the rest. `looks`: what has come since
    /// may help it on, and is asked for if it has not ended.
    pub(crate) fn go_on(&self, name: OpName, rank: u32, op: OpId, looks: bool) -> Operation {
        let lanes = &self.inner.lanes;
        if let Some(lane) = lanes.lock(rank) {
            let (_, mut lane) = lanes.pump_seen(rank, lane, &mut Lent::Nothing, Takes::For(op), None);
            if looks && !lane.link.is_done(op) {
                lane = lanes.pump(rank, lane, &mut Lent::Nothing, Takes::For(op), None).1;
            }
            let done = lane.link.is_done(op);
            drop(lane);
            lanes.pass_on();
            if !done {
                self.inner.progress.need();
            }
        }
        Operation::on_link(self, rank, name, op)
    }

    pub(crate) fn lane(&self, op: OpName, rank: u32) -> Result<MutexGuard<'_, Lane>, FabricError> {
        self.inner.check_peer(op, rank)?;
        self.inner.lanes.lock(rank).ok_or(FabricError::NoLink { op, rank })
    }

    /// A message to a lost rank would be sent for nobody.
    #[inline]
    pub(crate) fn check_alive(&self, op: OpName, rank: u32) -> Result<(), FabricError> {
        match self.inner.lanes.life.cause(rank) {
            None => Ok(()),
            Some(fate) => Err(self.inner.failure(op, fate)),
        }
    }

    /// Moves the lane on and looks whether the operation has ended. `until` is its deadline, if it has one.
    pub(crate) fn poll_op(
        &self,
        rank: u32,
        op: OpId,
        lent: &mut Lent<'_>,
        until: Option<Instant>,
    ) -> Poll<Result<u64, OpError>> {
        let lanes = &self.inner.lanes;
        let lane = lanes.lock(rank).expect("the lane on which the operation was started");
        self.poll_locked(rank, lane, op, lent, until)
    }

    #[inline]
    fn poll_locked(
        &self,
        rank: u32,
        lane: MutexGuard<'_, Lane>,
        op: OpId,
        lent: &mut Lent<'_>,
        until: Option<Instant>,
    ) -> Poll<Result<u64, OpError>> {
        let lanes = &self.inner.lanes;
        lanes.note_look();
        let mut lane = lane;
        if !lane.link.is_done(op) {
            lane = lanes.pump(rank, lane, lent, Takes::For(op), until).1;
        }
        let outcome = lane.link.poll(op, lent);
        if outcome.is_ready() && lane.link.has_answers() {
            // It made room that the peer may wait for.
            lane = lanes.pump(rank, lane, lent, Takes::For(op), until).1;
        }
        drop(lane);
        lanes.pass_on();
        outcome
    }

    /// Waits for an operation's end, and gives it up at the deadline.
    pub(crate) fn finish(
        &self,
        name: OpName,
        rank: u32,
        op: OpId,
        timeout: Duration,
        lent: &mut Lent<'_>,
    ) -> Result<u64, FabricError> {
        let until = Some(clock::after(timeout));
        let outcome = self.wait(name, &[rank], timeout, || self.poll_op(rank, op, lent, until));
        match outcome {
            Ok(outcome) => self.told(name, rank, outcome),
            Err(error) => loop {
                let lanes = &self.inner.lanes;
                let mut lane = lanes.lock(rank).expect("the lane on which the operation was started");
                match lane.link.cancel(op) {
                    Cancel::Released => {
                        // The peer may have to hear of it.
                        drop(lanes.pump(rank, lane, &mut Lent::Nothing, Takes::All, until));
                        // Another thread's message may be the next to go now.
                        lanes.parker.wake();
                        return Err(error);
                    }
                    Cancel::Busy => {
                        lane.link.detach(op);
                        drop(lanes.pump(rank, lane, &mut Lent::Nothing, Takes::All, until));
                        self.inner.progress.need();
                        return Err(error);
                    }
                    // It has ended at the last moment.
                    Cancel::Finished => match lane.link.poll(op, lent) {
                        Poll::Ready(Ok(value)) => return Ok(value),
                        _ => return Err(error),
                    },
                    Cancel::Copying => {
                        drop(lane);
                        thread::yield_now();
                    }
                }
            },
        }
    }

    /// The outcome of an operation in the words of the fabric.
    pub(crate) fn told(&self, op: OpName, rank: u32, outcome: Result<u64, OpError>) -> Result<u64, FabricError> {
        let link = self.link_to(rank);
        outcome.map_err(|error| match error {
            OpError::Truncated { len, room } => FabricError::Truncated { op, rank, link, len, room },
            OpError::Mislabelled { label } => FabricError::Mislabelled { op, rank, link, label },
            OpError::Refused { len } => FabricError::Refused { op, rank, link, len },
            OpError::Cancelled => FabricError::Cancelled { op, rank, link },
            OpError::Unreachable => {
                FabricError::PeerFailed { op, rank, problem: "the sender's memory could not be mapped".into() }
            }
            OpError::Changed => FabricError::Changed { op, rank, link },
            OpError::NoSuchKey => FabricError::NoSuchKey { op, rank },
            OpError::OutOfBounds { offset, len, size } => {
                FabricError::OutOfBounds { op, rank, offset, len, region: size }
            }
            OpError::NotPermitted { need } => FabricError::NotPermitted { op, rank, need },
            OpError::Misaligned { offset } => FabricError::Misaligned { op, rank, offset },
            OpError::Left | OpError::Severed => {
                let fate = self.inner.lanes.life.cause(rank).unwrap_or(Fate::Lost { rank, loss: Loss::Left });
                self.inner.failure(op, fate)
            }
        })
    }
}

fn copy(data: &Exposed) -> Vec<u8> {
    let mut bytes = vec![0; data.len()];
    data.read(0, &mut bytes);
    bytes
}
