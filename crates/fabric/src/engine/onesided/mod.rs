//! One-sided operations: a rank reads and writes memory that its peer has [exported](super::Exports), and the peer's end of
//! the link does it there, whoever moves it on. No thread of the program takes part.
//!
//! # Requests and answers
//!
//! An operation is a *request* to the owner of the memory. The owner checks the key, the rights, the bounds and the
//! alignment before it touches anything, and refuses what does not fit: that ends the operation and not the link. Requests
//! that are short are packed into frames as they wait, and so are answers. Each request has one answer, but for gets, which
//! end with their bytes.
//!
//! - *Put*: its bytes come with the request, or the first of them with it and the others in `PutFragment` frames behind
//!   it. Of an [`Offered`](super::Source::Offered) source the request says where it is, and it is moved like an offered
//!   message whose receive is the exported memory. A counter is added to when all bytes have landed.
//! - *Get*: the owner sends the bytes in fragments that name the operation, or, into memory that a device or the reader
//!   reaches, offers them as a message is offered, and the operation takes the offer.
//! - *Atomics*: done by the owner, on a word that its processors' atomics also work on.
//!
//! # Order
//!
//! Requests of a link are carried out in the order in which they were started, but for gets and for puts of offered
//! sources, whose bytes move later. [`Link::fence`](super::Link::fence) holds requests back until those have ended. There
//! is no order between requests and messages: neither waits for the other.
//!
//! # Bounds
//!
//! A link has at most [`Config::requests`](super::Config::requests) requests under way in a direction. Bytes that answer a
//! get are never too many: their reader asked for them. So no credit is ever withheld for one-sided operations, and they
//! go on while messages are held. They leave half of the [`RESERVE`](super::RESERVE) to answers.

mod asking;
mod serving;
pub(super) mod wire;

use std::collections::VecDeque;

use fulmen_memory::Exposed;

use self::wire::Answer;
use super::exports::Exports;
use super::link::{Inbound, Link};
use super::ops::{AtomicOp, Get, Op, OpId, Put, Recv, RecvFor, RecvPhase, Send, SendFor, SendPhase, Source, Target};

/// A place in memory that the peer has exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The key that the peer's [`Exports`] gave out.
    pub key: u64,
    /// Bytes from the start of what was exported.
    pub offset: u64,
}

/// A word of 64 bits that the owner adds to when all bytes of a put have landed: whoever sees the new value sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Where it is: aligned to 8 bytes, in memory with [`Rights::ATOMIC`](super::Rights).
    pub at: At,
    /// What is added to it, wrapping.
    pub add: u64,
}

/// What happens to a word of 64 bits. The operation's outcome is the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// It grows by so much, wrapping.
    FetchAdd(u64),
    /// It gets the new value if it has the expected one.
    CompareSwap {
        /// The value it must have.
        expect: u64,
        /// The value it gets.
        new: u64,
    },
}

/// One of many operations of a [batch](Link::batch).
#[derive(Clone, Debug)]
pub enum Request {
    /// Bytes to put.
    Put {
        /// Where to.
        at: At,
        /// The bytes.
        bytes: Box<[u8]>,
        /// What is added to afterwards.
        then: Option<Counter>,
    },
    /// Bytes to get.
    Get {
        /// Where from.
        at: At,
        /// Where they go.
        into: Target,
    },
    /// A word to change.
    Atomic {
        /// Where it is.
        at: At,
        /// What happens to it.
        atomic: Atomic,
    },
}

/// What waits for its turn to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Op(OpId),
    /// What follows waits for what went before.
    Fence,
}

/// The part of a link that has to do with one-sided operations.
#[derive(Debug)]
pub(super) struct OneSided {
    /// What the peer may reach.
    exports: Exports,
    /// Operations whose requests are to go, oldest first.
    asks: VecDeque<Ask>,
    /// Operations whose bytes are to go because the peer asked for them, oldest first.
    pub data: VecDeque<OpId>,
    /// Answers to the peer.
    answers: VecDeque<Answer>,
    /// Where the fragments of the peer's put belong.
    pub landing: Inbound,
    /// This end's requests that are under way.
    unanswered: usize,
    /// Those of them that are not carried out in order.
    unordered: usize,
    /// The peer's requests that are under way.
    serving: usize,
    /// The peer's requests that changed memory, wrapping.
    served: u32,
    /// The bytes of a [packed](super::Body::Packed) frame.
    packed: Vec<u8>,
}

impl OneSided {
    pub(super) fn new(exports: Exports) -> OneSided {
        OneSided {
            exports,
            asks: VecDeque::new(),
            data: VecDeque::new(),
            answers: VecDeque::new(),
            landing: Inbound::Nothing,
            unanswered: 0,
            unordered: 0,
            serving: 0,
            served: 0,
            packed: Vec::new(),
        }
    }

    /// Whether something is to go to the peer.
    pub(super) fn has_frames(&self) -> bool {
        !(self.asks.is_empty() && self.data.is_empty() && self.answers.is_empty())
    }

    #[inline]
    pub(super) fn has_asks(&self) -> bool {
        !self.asks.is_empty()
    }

    /// Whether no operation is under way in either direction.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        !self.has_frames() && self.unanswered == 0 && self.unordered == 0 && self.serving == 0
    }

    /// As a peer does that goes on without answers.
    #[cfg(test)]
    pub(super) fn forget_asked(&mut self) {
        self.unanswered = 0;
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    pub(super) fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// The next frame has these bytes.
    pub(super) fn pack_bytes(&mut self, bytes: &[u8]) {
        self.packed.clear();
        self.packed.extend_from_slice(bytes);
    }

    /// The operation whose request goes next.
    pub(super) fn next_ask(&self) -> Option<OpId> {
        match self.asks.front() {
            Some(Ask::Op(op)) => Some(*op),
            _ => None,
        }
    }

    /// An operation is gone before its request was sent.
    pub(super) fn dequeue(&mut self, op: OpId) {
        self.asks.retain(|ask| *ask != Ask::Op(op));
    }

    /// The link is over.
    pub(super) fn clear(&mut self) {
        self.asks.clear();
        self.data.clear();
        self.landing = Inbound::Nothing;
    }

    /// Nothing goes to the peer any more.
    pub(super) fn clear_answers(&mut self) {
        self.answers.clear();
    }
}

impl Link {
    /// Starts to put bytes into the peer's memory. It ends with their number when they have landed there, and the counter
    /// was added to. Of a put that is refused nothing is written; one that is given up midway may be written in part.
    pub fn put(&mut self, to: At, source: Source, then: Option<Counter>) -> OpId {
        let phase = match &source {
            Source::Offered { memory, .. } if !memory.is_empty() && !self.config.verify => SendPhase::Offering,
            _ => SendPhase::Streaming { sent: 0, to: None },
        };
        self.ask(Op::Send(Send { purpose: SendFor::Put(Put { to, then }), source, phase }))
    }

    /// Starts to get bytes out of the peer's memory: as many as the target has. A target that is `direct` is filled by the
    /// device if the peer's memory is also, and the bytes are more than two frames.
    pub fn get(&mut self, from: At, into: Target) -> OpId {
        let purpose = RecvFor::Get(Get { from });
        self.ask(Op::Recv(Recv {
            purpose,
            target: into,
            phase: RecvPhase::Asking,
            stash: Vec::new(),
            drained: 0,
            asked: true,
        }))
    }

    /// Starts to change a word in the peer's memory. It ends with the old value.
    pub fn atomic(&mut self, at: At, atomic: Atomic) -> OpId {
        self.ask(Op::Atomic(AtomicOp { at, atomic, sent: false }))
    }

    /// Starts many operations, in as few frames as they fit in. Each has an outcome of its own.
    pub fn batch(&mut self, requests: Vec<Request>) -> Vec<OpId> {
        let start = |request| match request {
            Request::Put { at, bytes, then } => self.put(at, Source::Bytes(bytes), then),
            Request::Get { at, into } => self.get(at, into),
            Request::Atomic { at, atomic } => self.atomic(at, atomic),
        };
        requests.into_iter().map(start).collect()
    }

    /// One-sided operations that are started later take effect at the peer after those that were started earlier.
    pub fn fence(&mut self) {
        let needed = !self.one.asks.is_empty() || self.one.unordered > 0;
        if needed && self.one.asks.back() != Some(&Ask::Fence) {
            self.one.asks.push_back(Ask::Fence);
        }
    }

    /// How many of the peer's one-sided operations have changed this rank's memory so far, wrapping: whoever waits for a
    /// word of it looks again when this moves.
    #[inline]
    #[must_use]
    pub fn served(&self) -> u32 {
        self.one.served
    }

    /// Whether all one-sided operations of this end have ended.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.one.asks.is_empty() && self.one.unanswered == 0
    }

    /// This end's one-sided operations that have not ended, those that nobody asks for any more among them.
    #[must_use]
    pub fn one_sided(&self) -> Vec<OpId> {
        let open = |op: &OpId| match self.ops.peek(*op) {
            Op::Send(send) => matches!(send.purpose, SendFor::Put(_)),
            Op::Recv(recv) => matches!(recv.purpose, RecvFor::Get(_)),
            Op::Atomic(_) => true,
            Op::Done(_) | Op::Free => false,
        };
        if self.is_quiet() { Vec::new() } else { self.ops.ids().into_iter().filter(open).collect() }
    }

    /// Whether an operation has ended, though its outcome may have been told.
    #[inline]
    #[must_use]
    pub fn has_ended(&self, op: OpId) -> bool {
        !self.ops.is_live(op) || self.is_done(op)
    }

    /// Whether a request of the peer that was accepted still reads or writes any of these bytes.
    #[must_use]
    pub fn is_serving(&self, memory: &Exposed) -> bool {
        let overlaps = |other: &Exposed| {
            let end = |memory: &Exposed| memory.offset() + memory.len();
            let same = memory.region().id() == other.region().id();
            same && memory.offset() < end(other) && other.offset() < end(memory)
        };
        let serves = |id: OpId| match self.ops.peek(id) {
            Op::Recv(Recv { purpose: RecvFor::Served(put), target, .. }) => {
                let counts = put.then.as_ref().is_some_and(|growth| overlaps(&growth.word));
                counts || matches!(target, Target::Memory { memory, .. } if overlaps(memory))
            }
            Op::Send(Send { purpose: SendFor::Served { .. }, source, .. }) => {
                matches!(source, Source::Memory(memory) | Source::Offered { memory, .. } if overlaps(memory))
            }
            _ => false,
        };
        self.one.serving > 0 && self.ops.ids().into_iter().any(serves)
    }

    /// The memory that the peer may reach.
    #[must_use]
    pub fn exports(&self) -> &Exports {
        &self.one.exports
    }

    fn ask(&mut self, op: Op) -> OpId {
        if let Some(error) = self.over() {
            return self.ops.add(Op::Done(Err(error)));
        }
        let op = self.ops.add(op);
        self.one.asks.push_back(Ask::Op(op));
        op
    }

    /// An operation's request has gone out.
    fn asked(&mut self, in_order: bool) {
        self.one.unanswered += 1;
        self.one.unordered += usize::from(!in_order);
    }

    /// It is answered, in whatever way.
    fn answered(&mut self, in_order: bool) {
        self.one.unanswered -= 1;
        self.one.unordered -= usize::from(!in_order);
    }

    /// Keeps the accounts of one-sided operations when one ends. Said of every operation that ends or is dropped, before.
    #[inline]
    pub(super) fn settle(&mut self, op: OpId, outcome: &Result<u64, super::OpError>) {
        match self.ops.peek(op) {
            Op::Recv(Recv { purpose: RecvFor::Get(_), phase, .. }) if *phase != RecvPhase::Asking => {
                self.answered(false);
            }
            Op::Recv(Recv { purpose: RecvFor::Served(_), .. }) => self.serve_put_end(op, outcome),
            Op::Send(Send { purpose: SendFor::Served { .. }, .. }) => self.one.serving -= 1,
            _ => {}
        }
    }
}
