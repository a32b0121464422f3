//! The end that asks: requests that go out, and answers that come.

use zerocopy::IntoBytes;

use super::wire::{
    Answer, Asked, COUNTED, CounterBody, DIRECT, FIRST, OFFERED, PlaceBody, RequestBody, SwapBody, Verb,
};
use super::{Ask, Atomic};
use crate::engine::exports::Rights;
use crate::engine::frame::{self, Header, Incoming, Kind, PREFIX, Status};
use crate::engine::link::{Lent, Link};
use crate::engine::ops::{
    AtomicOp, Get, Named, Op, OpId, Ops, Put, Recv, RecvFor, RecvPhase, Send, SendFor, SendPhase, Source, Target,
};
use crate::engine::outgoing::{Body, Outgoing, Queue, Step};
use crate::engine::{OpError, ProtocolError, Rendezvous};

/// Bytes up to which a put shares a frame with others.
const SHORT: u64 = 256;

impl Put {
    fn flags(&self) -> u8 {
        if self.then.is_some() { COUNTED } else { 0 }
    }

    /// Bytes of its request, without what it puts.
    fn header(&self) -> usize {
        size_of::<RequestBody>() + if self.then.is_some() { size_of::<CounterBody>() } else { 0 }
    }
}

impl Link {
    /// The next frame of requests, or of a put whose bytes need many.
    pub(in crate::engine) fn ask_frame(&mut self, lent: &Lent<'_>) -> Option<Outgoing> {
        while let Some(Ask::Fence) = self.one.asks.front() {
            if self.one.unordered > 0 {
                return None;
            }
            self.one.asks.pop_front();
        }
        let op = self.one.next_ask()?;
        if let Op::Send(Send { phase: SendPhase::Streaming { sent: 1.., .. } | SendPhase::Aborting { .. }, .. }) =
            self.ops.peek(op)
        {
            return self.send_frame(Queue::Asks, op, lent);
        }
        if self.one.unanswered >= self.config.requests() {
            return None;
        }
        match self.pack() {
            0 => self.long_put(op, lent),
            count => {
                let prefix = self.prefix(Kind::Requests, 0, count as u64);
                Some(self.outgoing(Header::new(prefix, &()), Body::Packed, Step::Asks(count)))
            }
        }
    }

    /// Packs the requests at the head of the queue that share a frame: how many.
    fn pack(&mut self) -> usize {
        let room = self.config.frame - PREFIX;
        let most = self.config.requests() - self.one.unanswered;
        let rendezvous = self.config.rendezvous;
        let packed = &mut self.one.packed;
        packed.clear();
        let mut count = 0;
        for ask in self.one.asks.iter().take(most) {
            let Ask::Op(op) = ask else { break };
            let before = packed.len();
            if !pack_one(&self.ops, rendezvous, *op, room - before, packed) {
                break;
            }
            count += 1;
        }
        count
    }

    /// The first frame of a put that has one to itself.
    fn long_put(&mut self, op: OpId, lent: &Lent<'_>) -> Option<Outgoing> {
        let Op::Send(Send { purpose: SendFor::Put(put), source, .. }) = self.ops.peek(op) else {
            unreachable!("only puts need a frame to themselves")
        };
        let (put, total) = (*put, source.len());
        let room = self.config.frame - PREFIX - put.header();
        let end = total.min(room as u64);
        let flags = put.flags() | if end < total { FIRST } else { 0 };
        let request = RequestBody::new(Verb::Put, flags, op.to_u64(), put.to, total);
        let body = self.body(op, 0..end as usize, lent)?;
        let prefix = self.prefix(Kind::Requests, 0, 1);
        let header = match put.then {
            Some(counter) => Header::with_two(prefix, &request, &CounterBody::from(counter)),
            None => Header::new(prefix, &request),
        };
        let phase = if end < total {
            SendPhase::Streaming { sent: end, to: None }
        } else {
            SendPhase::Unanswered { in_order: true }
        };
        Some(self.outgoing(header, body, Step::Send(Queue::Asks, Some(phase))))
    }

    /// So many requests at the head of the queue have gone out.
    pub(in crate::engine) fn asks_sent(&mut self, count: usize) {
        for _ in 0..count {
            let Some(Ask::Op(op)) = self.one.asks.pop_front() else { unreachable!("the frame was packed from there") };
            let in_order = match self.ops.get(op) {
                Op::Atomic(atomic) => {
                    atomic.sent = true;
                    true
                }
                Op::Send(send) => {
                    let offered = send.phase == SendPhase::Offering;
                    send.phase = if offered { SendPhase::Offered } else { SendPhase::Unanswered { in_order: true } };
                    !offered
                }
                Op::Recv(recv) => {
                    recv.phase = RecvPhase::Asked { len: recv.target.room(), given_up: false };
                    false
                }
                Op::Free | Op::Done(_) => unreachable!("what has ended is not queued"),
            };
            self.asked(in_order);
        }
    }

    /// A frame of the put at the head of the queue has gone out, which has this phase next; `None`: it has ended.
    pub(in crate::engine) fn put_sent(&mut self, before: SendPhase, next: Option<SendPhase>) {
        if matches!(before, SendPhase::Streaming { sent: 0, .. }) {
            self.asked(true);
        }
        if !matches!(next, Some(SendPhase::Streaming { .. })) {
            self.one.asks.pop_front();
        }
    }

    /// Answers that came.
    pub(in crate::engine) fn on_answers(
        &mut self,
        count: u64,
        frame: &(impl Incoming + ?Sized),
    ) -> Result<(), ProtocolError> {
        let bytes = (frame.len() - PREFIX) as u64;
        if count == 0 || count.checked_mul(size_of::<Answer>() as u64) != Some(bytes) {
            return Err(ProtocolError::Malformed { what: "the number of answers in a frame" });
        }
        for at in (PREFIX..frame.len()).step_by(size_of::<Answer>()) {
            self.on_answer(&frame::read(frame, at, "an answer")?)?;
        }
        Ok(())
    }

    fn on_answer(&mut self, answer: &Answer) -> Result<(), ProtocolError> {
        const WRONG: ProtocolError = ProtocolError::Malformed { what: "the request that an answer names" };
        let Named::Live(op, slot) = self.ops.named(answer.op.get()) else { return Err(WRONG) };
        match slot {
            Op::Atomic(AtomicOp { at, sent: true, .. }) => {
                let outcome = answer.outcome(&Asked { at: *at, len: 8, need: Rights::ATOMIC, then: None })?;
                self.answered(true);
                self.finish(op, outcome);
                Ok(())
            }
            Op::Recv(Recv { purpose: RecvFor::Get(Get { from }), phase: RecvPhase::Asked { len, .. }, .. }) => {
                let outcome = answer.outcome(&Asked { at: *from, len: *len, need: Rights::READ, then: None })?;
                if outcome.is_ok() && *len > 0 {
                    return Err(ProtocolError::Malformed { what: "an answer instead of bytes" });
                }
                self.finish(op, outcome.map(|_| 0));
                Ok(())
            }
            Op::Send(Send { purpose: SendFor::Put(put), .. }) => {
                let put = *put;
                self.on_put_answer(op, &put, answer)
            }
            _ => Err(WRONG),
        }
    }

    fn on_put_answer(&mut self, op: OpId, put: &Put, answer: &Answer) -> Result<(), ProtocolError> {
        const WRONG: ProtocolError = ProtocolError::Malformed { what: "an answer to a put that is not over" };
        let Op::Send(send) = self.ops.get(op) else { unreachable!("puts are sends") };
        let len = send.source.len();
        let outcome = answer.outcome(&Asked { at: put.to, len, need: Rights::WRITE, then: put.then })?.map(|_| len);
        match &mut send.phase {
            SendPhase::Unanswered { in_order } => {
                let in_order = *in_order;
                self.answered(in_order);
            }
            SendPhase::Offered => self.answered(false),
            SendPhase::Moving { granted, sent, fin: fin @ None } => {
                if outcome.is_ok() && *granted < len {
                    return Err(WRONG);
                }
                let status = match outcome {
                    Ok(_) => Status::Delivered,
                    Err(OpError::Cancelled) => Status::Cancelled,
                    Err(_) => Status::Failed,
                };
                let waits = *sent < *granted;
                if waits {
                    // The device still holds the memory.
                    *fin = Some(status);
                }
                self.answered(false);
                if waits {
                    return Ok(());
                }
            }
            // Refused, while its bytes are still going out: the owner is told where they end.
            SendPhase::Streaming { sent: sent @ 1.., to: None } => {
                let Err(error) = outcome else { return Err(WRONG) };
                send.phase = SendPhase::Aborting { sent: *sent, total: len, to: None, ends: true };
                send.source = Source::Lent(0);
                self.answered(true);
                let stand_in = self.stand_in(op, error);
                for ask in &mut self.one.asks {
                    if *ask == Ask::Op(op) {
                        *ask = Ask::Op(stand_in);
                    }
                }
                self.finish(op, Err(error));
                return Ok(());
            }
            SendPhase::Aborting { to: None, ends: ends @ false, .. } if outcome.is_err() => {
                *ends = true;
                self.answered(true);
                return Ok(());
            }
            _ => return Err(WRONG),
        }
        self.finish(op, outcome);
        Ok(())
    }
}

/// Appends an operation's request, if it shares a frame with others and has room.
fn pack_one(ops: &Ops, rendezvous: Rendezvous, op: OpId, room: usize, packed: &mut Vec<u8>) -> bool {
    let number = op.to_u64();
    match ops.peek(op) {
        Op::Atomic(AtomicOp { at, atomic, .. }) => {
            let request = RequestBody::new(atomic.verb(), 0, number, *at, 8);
            match *atomic {
                Atomic::FetchAdd(add) => fits(room, packed, &[request.as_bytes(), &add.to_le_bytes()]),
                Atomic::CompareSwap { expect, new } => {
                    let swap = SwapBody { expect: expect.into(), new: new.into() };
                    fits(room, packed, &[request.as_bytes(), swap.as_bytes()])
                }
            }
        }
        Op::Recv(Recv { purpose: RecvFor::Get(Get { from }), target, .. }) => {
            // Whoever maps the peer's memory copies into anything.
            let direct = match target {
                Target::Memory { direct, .. } => *direct || rendezvous == Rendezvous::Mapped,
                Target::Lent(_) => rendezvous == Rendezvous::Mapped,
            };
            let flags = if direct { DIRECT } else { 0 };
            fits(room, packed, &[RequestBody::new(Verb::Get, flags, number, *from, target.room()).as_bytes()])
        }
        Op::Send(Send { purpose: SendFor::Put(put), source, phase }) => {
            pack_put(put, source, *phase, number, room, packed)
        }
        _ => unreachable!("only one-sided operations ask"),
    }
}

fn pack_put(put: &Put, source: &Source, phase: SendPhase, number: u64, room: usize, packed: &mut Vec<u8>) -> bool {
    let counter = put.then.map(CounterBody::from);
    let counter = counter.as_ref().map_or(&[][..], IntoBytes::as_bytes);
    let request = |flags| RequestBody::new(Verb::Put, put.flags() | flags, number, put.to, source.len());
    match (phase, source) {
        (SendPhase::Offering, Source::Offered { place, .. }) => {
            let place = PlaceBody { key: place.key.into(), offset: place.offset.into() };
            fits(room, packed, &[request(OFFERED).as_bytes(), counter, place.as_bytes()])
        }
        (SendPhase::Streaming { sent: 0, .. }, Source::Bytes(bytes)) => {
            fits(room, packed, &[request(0).as_bytes(), counter, bytes])
        }
        (SendPhase::Streaming { sent: 0, .. }, Source::Memory(memory) | Source::Offered { memory, .. }) => {
            let len = memory.len();
            if len as u64 > SHORT || put.header() + len > room {
                return false;
            }
            fits(room, packed, &[request(0).as_bytes(), counter]);
            let at = packed.len();
            packed.resize(at + len, 0);
            memory.read(0, &mut packed[at..]);
            true
        }
        _ => false,
    }
}

/// Appends all parts, if there is room for them.
fn fits(room: usize, packed: &mut Vec<u8>, parts: &[&[u8]]) -> bool {
    if parts.iter().map(|part| part.len()).sum::<usize>() > room {
        return false;
    }
    parts.iter().for_each(|part| packed.extend_from_slice(part));
    true
}
