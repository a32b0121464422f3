//! The end that owns the memory: requests that come, and answers that go out. Nothing in a request is trusted.

use std::sync::atomic::Ordering;

use fulmen_memory::Exposed;
use zerocopy::IntoBytes;

use super::wire::{
    About, Answer, COUNTED, CounterBody, DIRECT, FIRST, OFFERED, PlaceBody, RequestBody, SwapBody, Verb,
};
use super::{At, Counter};
use crate::engine::exports::{Found, Rights};
use crate::engine::frame::{self, FRAGMENT_HEADER, FragmentBody, Header, Incoming, Kind, PREFIX};
use crate::engine::incoming::Fragment;
use crate::engine::link::{Inbound, Lent, Link};
use crate::engine::ops::{
    Growth, Op, OpId, Recv, RecvFor, RecvPhase, Send, SendFor, SendPhase, ServedPut, Source, Target,
};
use crate::engine::outgoing::{Body, Outgoing, Step};
use crate::engine::{OpError, Place, ProtocolError};

const WORD: u64 = size_of::<u64>() as u64;

/// Why a request is refused.
type Refusal = (About, OpError);

/// What a put may write, and what grows afterwards.
type Permit = (Found, Option<Growth>);

/// A put as its request says it.
struct Asking {
    op: u64,
    at: At,
    len: u64,
    then: Option<Counter>,
}

impl Link {
    /// Requests that came.
    pub(in crate::engine) fn on_requests(
        &mut self,
        count: u64,
        frame: &(impl Incoming + ?Sized),
    ) -> Result<(), ProtocolError> {
        let mut at = PREFIX;
        for _ in 0..count {
            if at == frame.len() {
                break;
            }
            // An honest peer has half as many: some that it knows to be over are still held by this end's device.
            let limit = 2 * self.config.requests();
            if self.one.serving >= limit {
                return Err(ProtocolError::Requests { limit });
            }
            self.one.serving += 1;
            at = self.on_request(frame, at)?;
        }
        if count == 0 || at != frame.len() {
            return Err(ProtocolError::Malformed { what: "the number of requests in a frame" });
        }
        Ok(())
    }

    /// One request, from offset `at` of its frame on: where it ends.
    fn on_request(&mut self, frame: &(impl Incoming + ?Sized), at: usize) -> Result<usize, ProtocolError> {
        let request: RequestBody = frame::read(frame, at, "a request")?;
        let body = at + size_of::<RequestBody>();
        let verb = Verb::parse(request.verb)?;
        let allowed = match verb {
            Verb::Put if request.flags & FIRST != 0 => COUNTED | FIRST,
            Verb::Put => COUNTED | OFFERED,
            Verb::Get => DIRECT,
            Verb::FetchAdd | Verb::CompareSwap => 0,
        };
        if request.flags & !allowed != 0 {
            return Err(ProtocolError::Malformed { what: "the flags of a request" });
        }
        match verb {
            Verb::Put => self.on_put(&request, frame, body),
            Verb::Get => {
                self.on_get(&request);
                Ok(body)
            }
            Verb::FetchAdd => {
                let add: [u8; 8] = frame::read(frame, body, "a fetch-add")?;
                self.on_atomic(&request, |word| word.fetch_add(u64::from_le_bytes(add), Ordering::AcqRel))?;
                Ok(body + add.len())
            }
            Verb::CompareSwap => {
                let SwapBody { expect, new } = frame::read(frame, body, "a compare-swap")?;
                self.on_atomic(&request, |word| {
                    let swapped = word.compare_exchange(expect.get(), new.get(), Ordering::AcqRel, Ordering::Acquire);
                    swapped.unwrap_or_else(|found| found)
                })?;
                Ok(body + size_of::<SwapBody>())
            }
        }
    }

    fn on_atomic(
        &mut self,
        request: &RequestBody,
        change: impl FnOnce(&std::sync::atomic::AtomicU64) -> u64,
    ) -> Result<(), ProtocolError> {
        if request.len.get() != WORD {
            return Err(ProtocolError::Malformed { what: "the length of a word" });
        }
        let At { key, offset } = request.at();
        let outcome = match self.one.exports.find(key, offset, WORD, Rights::ATOMIC) {
            Ok(word) => {
                self.one.served = self.one.served.wrapping_add(1);
                Ok(change(word.atomic_u64(0)))
            }
            Err(error) => Err((About::Request, error)),
        };
        self.answer(request.op.get(), outcome);
        Ok(())
    }

    fn on_put(
        &mut self,
        request: &RequestBody,
        frame: &(impl Incoming + ?Sized),
        mut body: usize,
    ) -> Result<usize, ProtocolError> {
        let mut put = Asking { op: request.op.get(), at: request.at(), len: request.len.get(), then: None };
        if request.flags & COUNTED != 0 {
            let counter: CounterBody = frame::read(frame, body, "a counter")?;
            put.then = Some(counter.into());
            body += size_of::<CounterBody>();
        }
        if request.flags & OFFERED != 0 {
            let place: PlaceBody = frame::read(frame, body, "an offered put")?;
            if put.len == 0 {
                return Err(ProtocolError::Malformed { what: "an offer of nothing" });
            }
            let place = Place { key: place.key.get(), offset: place.offset.get(), checksum: 0 };
            match self.permit(&put) {
                Ok((found, then)) => {
                    let op = self.serve_put(&put, found, then);
                    self.meet_offer(op, put.op, put.len, place);
                }
                Err(refusal) => self.answer(put.op, Err(refusal)),
            }
            return Ok(body + size_of::<PlaceBody>());
        }
        let payload = (frame.len() - body) as u64;
        if request.flags & FIRST != 0 {
            if payload == 0 || payload >= put.len || self.one.landing != Inbound::Nothing {
                return Err(ProtocolError::Malformed { what: "the beginning of a put" });
            }
            match self.permit(&put) {
                Ok((found, then)) => {
                    let op = self.serve_put(&put, found, then);
                    self.one.landing = Inbound::Op(op);
                    self.deliver(op, frame, body, &mut Lent::Nothing);
                }
                Err(refusal) => {
                    self.one.landing = Inbound::Discard { got: payload, total: put.len };
                    self.answer(put.op, Err(refusal));
                }
            }
            return Ok(frame.len());
        }
        if payload < put.len {
            return Err(ProtocolError::Short { what: "a put", len: frame.len() });
        }
        let outcome = self.permit(&put).map(|(found, then)| {
            land(frame, body, &found.memory);
            count(then.as_ref());
            self.one.served = self.one.served.wrapping_add(1);
            put.len
        });
        self.answer(put.op, outcome);
        Ok(body + put.len as usize)
    }

    /// Everything about a put that the owner checks, before a byte of it is written.
    fn permit(&self, put: &Asking) -> Result<Permit, Refusal> {
        let exports = &self.one.exports;
        let found = exports.look_up(put.at.key, put.at.offset, put.len, Rights::WRITE);
        let found = found.map_err(|error| (About::Request, error))?;
        let Some(Counter { at, add }) = put.then else { return Ok((found, None)) };
        let word = exports.find(at.key, at.offset, WORD, Rights::ATOMIC).map_err(|error| (About::Counter, error))?;
        Ok((found, Some(Growth { word, add })))
    }

    /// A put whose bytes are still to come.
    fn serve_put(&mut self, put: &Asking, found: Found, then: Option<Growth>) -> OpId {
        let purpose = RecvFor::Served(ServedPut { to: put.op, then });
        let target = Target::Memory { memory: found.memory, direct: found.direct.is_some() };
        let phase = RecvPhase::Filling { got: 0, total: put.len };
        let op = self.ops.add(Op::Recv(Recv { purpose, target, phase, stash: Vec::new(), drained: 0, asked: true }));
        self.ops.detach(op);
        op
    }

    /// All bytes of a put have landed, or no more come.
    pub(super) fn serve_put_end(&mut self, op: OpId, outcome: &Result<u64, OpError>) {
        let Op::Recv(Recv { purpose: RecvFor::Served(put), .. }) = self.ops.peek(op) else { return };
        let to = put.to;
        if outcome.is_ok() {
            count(put.then.as_ref());
            self.one.served = self.one.served.wrapping_add(1);
        }
        self.answer(to, outcome.map_err(|error| (About::Request, error)));
    }

    /// A fragment of a put.
    pub(in crate::engine) fn on_put_fragment(
        &mut self,
        word: u64,
        flags: u8,
        frame: &(impl Incoming + ?Sized),
    ) -> Result<(), ProtocolError> {
        let fields: FragmentBody = frame::read(frame, PREFIX, "a fragment")?;
        let payload = (frame.len() - FRAGMENT_HEADER) as u64;
        let fragment = Fragment::new(&fields, payload, flags)?;
        if word != 0 {
            return Err(ProtocolError::Malformed { what: "a put's fragment with a tag" });
        }
        match self.one.landing {
            Inbound::Op(op) => self.continue_op(op, &fragment, frame, &mut Lent::Nothing),
            Inbound::Discard { got, total } => {
                self.one.landing = fragment.discard(got, total)?;
                Ok(())
            }
            Inbound::Nothing | Inbound::Unexpected => {
                Err(ProtocolError::Malformed { what: "a put's fragment without a first one" })
            }
        }
    }

    fn on_get(&mut self, request: &RequestBody) {
        let (to, At { key, offset }, len) = (request.op.get(), request.at(), request.len.get());
        let found = match self.one.exports.look_up(key, offset, len, Rights::READ) {
            Ok(found) if len > 0 => found,
            nothing => {
                self.answer(to, nothing.map(|_| 0).map_err(|error| (About::Request, error)));
                return;
            }
        };
        let few = len <= self.config.framed_get();
        let may_offer = !few && !self.config.verify;
        let (source, phase) = match found {
            Found { memory, direct: Some(place) } if may_offer && request.flags & DIRECT != 0 => {
                (Source::Offered { memory, place }, SendPhase::Offering)
            }
            Found { memory, .. } => (Source::Memory(memory), SendPhase::Streaming { sent: 0, to: Some(to) }),
        };
        let op = self.ops.add(Op::Send(Send { purpose: SendFor::Served { to }, source, phase }));
        self.ops.detach(op);
        self.one.data.push_back(op);
    }

    fn answer(&mut self, op: u64, outcome: Result<u64, Refusal>) {
        if self.over().is_some() {
            return;
        }
        self.one.answers.push_back(Answer::new(op, outcome));
    }

    /// The next frame of answers, of which there are some.
    pub(in crate::engine) fn answers_frame(&mut self) -> Outgoing {
        let most = (self.config.frame - PREFIX) / size_of::<Answer>();
        let packed = &mut self.one.packed;
        packed.clear();
        let mut count = 0;
        for answer in self.one.answers.iter().take(most) {
            packed.extend_from_slice(answer.as_bytes());
            count += 1;
        }
        let prefix = self.prefix(Kind::Answers, 0, count as u64);
        self.outgoing(Header::new(prefix, &()), Body::Packed, Step::Answers(count))
    }

    /// So many answers have gone out.
    pub(in crate::engine) fn answers_sent(&mut self, count: usize) {
        self.one.answers.drain(..count);
        self.one.serving -= count;
    }
}

/// Writes a put that came in one frame.
fn land(frame: &(impl Incoming + ?Sized), at: usize, memory: &Exposed) {
    const SHORT: usize = 128;
    let len = memory.len();
    // A payload of a cache line or two goes faster through the stack.
    if len <= SHORT {
        let mut bytes = [0; SHORT];
        frame.read(at, &mut bytes[..len]);
        memory.write(0, &bytes[..len]);
    } else {
        frame.copy_to(at, memory, 0, len);
    }
}

/// Adds to the counter of a put whose bytes have landed.
fn count(then: Option<&Growth>) {
    if let Some(Growth { word, add }) = then {
        word.atomic_u64(0).fetch_add(*add, Ordering::Release);
    }
}
