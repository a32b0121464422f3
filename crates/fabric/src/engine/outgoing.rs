//! Frames that go out.

use std::ops::Range;

use fulmen_memory::Exposed;
use zerocopy::{Immutable, IntoBytes};

use super::frame::{
    ABORT, CtsBody, FinBody, FragmentBody, GrantBody, Header, Kind, MATCHED, PREFIX, Prefix, RtsBody, STREAM, Status,
};
use super::link::{Control, Lent, Link};
use super::matching::EACH;
use super::ops::{Op, OpId, Send, SendFor, SendPhase, Source};
use super::{RESERVE, checksum};

/// What follows the header of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing.
    Empty,
    /// This part of an operation's [memory](Link::memory).
    Memory(OpId, Range<usize>),
    /// This part of the memory that the thread lends.
    Lent(OpId, Range<usize>),
    /// All that the link has [packed](Link::packed).
    Packed,
}

/// A frame that is to go out.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Its first bytes.
    pub header: Header,
    /// The rest.
    pub body: Body,
    step: Step,
    credits: u16,
}

/// Where frames come from that can wait.
///
/// Of four bytes, as it is read: were it written as one, the next frame would wait until all writes of the one before are through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Queue {
    /// Messages.
    Out,
    /// Bytes that the peer asked for.
    Data,
    /// Requests of one-sided operations.
    Asks,
    /// Frames of others.
    Carried,
}

impl Queue {
    /// In turn, so that none starves another.
    fn next(self) -> Queue {
        match self {
            Queue::Out => Queue::Data,
            Queue::Data => Queue::Asks,
            Queue::Asks => Queue::Carried,
            Queue::Carried => Queue::Out,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Control,
    /// So many answers.
    Answers(usize),
    Bye,
    Credit,
    /// The head of the queue has this phase next; `None`: it has ended.
    Send(Queue, Option<SendPhase>),
    /// So many requests.
    Asks(usize),
    /// A frame of others.
    Carried,
}

impl Link {
    /// The next frame to go out, if there is one. Nothing has changed before [`Link::transmitted`] is told that it went,
    /// with no other call between.
    ///
    /// A frame out of lent memory is given only to the thread that lends it.
    #[inline]
    #[must_use]
    pub fn transmit(&mut self, lent: &Lent<'_>) -> Option<Outgoing> {
        // Most looks at a link find nothing to go.
        let idle = self.control.is_empty() && !self.is_queued() && !self.closing && !self.credits_go();
        if idle || self.severed { None } else { self.next_frame(lent) }
    }

    fn next_frame(&mut self, lent: &Lent<'_>) -> Option<Outgoing> {
        if self.credits > 0
            && let Some(control) = self.control.front()
        {
            let control = *control;
            return Some(self.control_frame(control));
        }
        if self.credits > 0 && self.one.has_answers() {
            return Some(self.answers_frame());
        }
        if let Some(frame) = self.queued_frame(lent) {
            return Some(frame);
        }
        if self.closing && self.credits > 0 && self.control.is_empty() && !self.is_queued() {
            return Some(self.frame(Kind::Bye, 0, 0, &(), Body::Empty, Step::Bye));
        }
        self.credits_go().then(|| self.frame(Kind::Credit, 0, 0, &(), Body::Empty, Step::Credit))
    }

    /// Whether a frame of some queue, or an answer, may be to go.
    #[inline]
    pub(super) fn is_queued(&self) -> bool {
        let carries = self.carriage.as_ref().is_some_and(|carriage| !carriage.is_idle());
        !self.out.is_empty() || self.one.has_frames() || carries
    }

    /// Whether a frame is to go for its credits alone.
    #[inline]
    fn credits_go(&self) -> bool {
        self.must_credit() || self.fallback.nudged
    }

    /// A frame of one of the queues, each in its turn.
    fn queued_frame(&mut self, lent: &Lent<'_>) -> Option<Outgoing> {
        let first = self.turn;
        let mut queue = first;
        loop {
            let head = match queue {
                // The end of a message that was given up lets the peer drop what it keeps of it, and is no message itself.
                Queue::Out => self.out.front().filter(|op| {
                    let aborts =
                        matches!(self.ops.peek(**op), Op::Send(Send { phase: SendPhase::Aborting { .. }, .. }));
                    self.credits > if aborts { RESERVE / 2 } else { RESERVE }
                }),
                Queue::Data => self.one.data.front().filter(|_| self.credits > RESERVE / 2),
                Queue::Asks if self.credits > RESERVE / 2 && self.one.has_asks() => {
                    if let Some(frame) = self.ask_frame(lent) {
                        return Some(frame);
                    }
                    None
                }
                Queue::Carried if self.credits > RESERVE / 2 => {
                    if let Some(frame) = self.carried_frame() {
                        return Some(frame);
                    }
                    None
                }
                Queue::Asks | Queue::Carried => None,
            };
            if let Some(op) = head.copied()
                && let Some(frame) = self.send_frame(queue, op, lent)
            {
                return Some(frame);
            }
            queue = queue.next();
            if queue == first {
                return None;
            }
        }
    }

    /// The frame that [`Link::transmit`] gave is on its way, its bytes copied.
    pub fn transmitted(&mut self, frame: &Outgoing) {
        self.next_out = self.next_out.wrapping_add(1);
        self.owed -= frame.credits;
        if !matches!(frame.step, Step::Credit) {
            self.credits -= 1;
        }
        self.fallback.nudged = false;
        match frame.step {
            Step::Credit =>
            {
                #[cfg(feature = "planted-bugs")]
                if self.config.planted == Some(super::Planted::CreditOffByOne) {
                    self.owed += 1;
                }
            }
            Step::Bye => self.closing = false,
            Step::Control => {
                if let Some(Control::TakenBack { .. }) = self.control.pop_front() {
                    self.release(EACH);
                }
            }
            Step::Answers(count) => self.answers_sent(count),
            Step::Asks(count) => {
                self.turn = Queue::Asks.next();
                self.asks_sent(count);
            }
            Step::Carried => {
                self.turn = Queue::Carried.next();
                self.carried_sent();
            }
            Step::Send(queue, phase) => {
                self.turn = queue.next();
                self.sent_from(queue, phase);
            }
        }
    }

    /// A frame of the operation at the head of a queue has gone out.
    fn sent_from(&mut self, queue: Queue, phase: Option<SendPhase>) {
        let op = match queue {
            Queue::Out => self.out.front().copied(),
            Queue::Data => self.one.data.front().copied(),
            Queue::Asks => self.one.next_ask(),
            Queue::Carried => None,
        };
        let op = op.expect("the frame came from the head of the queue");
        let Op::Send(send) = self.ops.get(op) else { unreachable!("only sends have such frames") };
        let (before, len) = (send.phase, send.source.len());
        match phase {
            Some(phase) => send.phase = phase,
            None => self.finish(op, Ok(len)),
        }
        let more = matches!(phase, Some(SendPhase::Streaming { .. }));
        match queue {
            Queue::Asks => self.put_sent(before, phase),
            Queue::Out if !more => drop(self.out.pop_front()),
            Queue::Data if !more => drop(self.one.data.pop_front()),
            Queue::Out | Queue::Data | Queue::Carried => {}
        }
    }

    /// The header of a message of `len` bytes that can go out at once in one frame: nothing waits to go, and there is a
    /// credit. Either the frame goes, its bytes after the header, and [`Link::eager_sent`] is told, or nothing happened.
    #[inline]
    #[must_use]
    pub fn eager(&self, tag: u64, len: usize) -> Option<[u8; PREFIX]> {
        let idle = self.control.is_empty() && self.out.is_empty() && self.credits > RESERVE;
        if !idle || !self.config.goes_whole(len as u64) || self.left || self.severed {
            return None;
        }
        Some(zerocopy::transmute!(self.prefix(Kind::Eager, 0, tag)))
    }

    /// Whether the peer has taken all frames that need a credit: it gave all credits back.
    #[inline]
    #[must_use]
    pub fn all_taken(&self) -> bool {
        self.credits == self.config.credits
    }

    /// The frame of [`Link::eager`] is on its way.
    #[inline]
    pub fn eager_sent(&mut self) {
        self.next_out = self.next_out.wrapping_add(1);
        self.owed = 0;
        self.credits -= 1;
    }

    /// The memory of a send whose frame goes out.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn memory(&self, op: OpId) -> &Exposed {
        match self.ops.peek(op) {
            Op::Send(send) => match &send.source {
                Source::Memory(memory) | Source::Offered { memory, .. } => memory,
                Source::Lent(_) | Source::Bytes(_) => panic!("this source has no exposed memory"),
            },
            _ => panic!("only sends have frames with memory"),
        }
    }

    /// The bytes that follow the header of a frame with [`Body::Packed`], from its [`Link::transmit`] on.
    #[must_use]
    pub fn packed(&self) -> &[u8] {
        self.one.packed()
    }

    fn control_frame(&self, control: Control) -> Outgoing {
        let step = Step::Control;
        match control {
            Control::Cts { op, to, granted, stream } => {
                let body = CtsBody { op: to.to_u64().into(), granted: granted.into() };
                self.frame(Kind::Cts, if stream { STREAM } else { 0 }, op, &body, Body::Empty, step)
            }
            Control::Fin { op, status, len } => {
                self.frame(Kind::Fin, status as u8, op, &FinBody { len: len.into() }, Body::Empty, step)
            }
            Control::TakenBack { op } => {
                let body = FinBody { len: 0.into() };
                self.frame(Kind::Fin, Status::Cancelled as u8, op, &body, Body::Empty, step)
            }
            Control::Grant { op, to, part } => {
                let body = GrantBody {
                    op: to.to_u64().into(),
                    offset: part.offset.into(),
                    len: part.len.into(),
                    rail: part.rail.into(),
                    incarnation: part.incarnation.into(),
                };
                self.frame(Kind::Grant, 0, op, &body, Body::Empty, step)
            }
            Control::Tell(word) => {
                let header = Header::with_bytes(self.prefix(Kind::Tell, 0, 0), word.as_bytes());
                self.outgoing(header, Body::Empty, step)
            }
            Control::Forsake => self.frame(Kind::Forsake, 0, 0, &(), Body::Empty, step),
            Control::Cancel { op } => self.frame(Kind::Cancel, 0, op.to_u64(), &(), Body::Empty, step),
        }
    }

    /// The next frame of an operation that sends bytes.
    pub(super) fn send_frame(&mut self, queue: Queue, op: OpId, lent: &Lent<'_>) -> Option<Outgoing> {
        let Op::Send(send) = self.ops.peek(op) else { unreachable!("only sends are queued") };
        let (purpose, phase, total) = (send.purpose, send.phase, send.source.len());
        match phase {
            SendPhase::Offering => {
                let Source::Offered { memory, place } = &send.source else {
                    unreachable!("only offered memory is offered")
                };
                let (key, offset) = (place.key.into(), place.offset.into());
                let checksum = if self.config.verify { checksum::of(memory).into() } else { 0.into() };
                let body = RtsBody { op: op.to_u64().into(), len: total.into(), key, offset, checksum };
                let (flags, word) = match purpose {
                    SendFor::Message { tag } => (0, tag),
                    SendFor::Served { to } => (MATCHED, to),
                    SendFor::Put(_) => unreachable!("a put is offered by its request"),
                };
                Some(self.frame(
                    Kind::Rts,
                    flags,
                    word,
                    &body,
                    Body::Empty,
                    Step::Send(queue, Some(SendPhase::Offered)),
                ))
            }
            SendPhase::Streaming { sent, to } => {
                if let SendFor::Message { tag } = purpose
                    && to.is_none()
                    && self.config.goes_whole(total)
                {
                    let body = self.body(op, 0..total as usize, lent)?;
                    return Some(self.frame(Kind::Eager, 0, tag, &(), body, Step::Send(queue, None)));
                }
                let end = sent + self.config.fragment(&send.source, sent);
                let body = self.body(op, sent as usize..end as usize, lent)?;
                let next = match purpose {
                    _ if end < total => Some(SendPhase::Streaming { sent: end, to }),
                    SendFor::Put(_) => Some(SendPhase::Unanswered { in_order: to.is_none() }),
                    SendFor::Message { .. } | SendFor::Served { .. } => None,
                };
                let flags = if to.is_some() { MATCHED } else { 0 };
                Some(self.fragment(op, to, (total, sent), flags, body, Step::Send(queue, next)))
            }
            SendPhase::Aborting { sent, total, to, ends } => {
                let step = Step::Send(queue, (!ends).then_some(SendPhase::Unanswered { in_order: to.is_none() }));
                let flags = ABORT | if to.is_some() { MATCHED } else { 0 };
                Some(self.fragment(op, to, (total, sent), flags, Body::Empty, step))
            }
            SendPhase::Offered | SendPhase::Moving { .. } | SendPhase::Unanswered { .. } => {
                unreachable!("only sends with frames to go are queued")
            }
        }
    }

    /// What follows the header of a frame with these bytes of an operation's source; none if its lender is not here.
    pub(super) fn body(&mut self, op: OpId, range: Range<usize>, lent: &Lent<'_>) -> Option<Body> {
        let Op::Send(send) = self.ops.peek(op) else { unreachable!("only sends have bytes") };
        match &send.source {
            Source::Lent(_) => lent.source(op).map(|_| Body::Lent(op, range)),
            Source::Memory(_) | Source::Offered { .. } => Some(Body::Memory(op, range)),
            Source::Bytes(bytes) => {
                self.one.pack_bytes(&bytes[range]);
                Some(Body::Packed)
            }
        }
    }

    fn fragment(
        &self,
        op: OpId,
        to: Option<u64>,
        (total, offset): (u64, u64),
        flags: u8,
        body: Body,
        step: Step,
    ) -> Outgoing {
        let Op::Send(send) = self.ops.peek(op) else { unreachable!("only sends have fragments") };
        let (kind, word) = match (to, send.purpose) {
            (Some(to), _) => (Kind::EagerFragment, to),
            (None, SendFor::Message { tag }) => (Kind::EagerFragment, tag),
            (None, SendFor::Put(_) | SendFor::Served { .. }) => (Kind::PutFragment, 0),
        };
        let fields = FragmentBody { total: total.into(), offset: offset.into(), op: op.to_u64().into() };
        self.frame(kind, flags, word, &fields, body, step)
    }

    pub(super) fn frame(
        &self,
        kind: Kind,
        flags: u8,
        word: u64,
        fields: &(impl IntoBytes + Immutable),
        body: Body,
        step: Step,
    ) -> Outgoing {
        self.outgoing(Header::new(self.prefix(kind, flags, word), fields), body, step)
    }

    pub(super) fn outgoing(&self, header: Header, body: Body, step: Step) -> Outgoing {
        Outgoing { header, body, step, credits: self.owed }
    }

    #[inline]
    pub(super) fn prefix(&self, kind: Kind, flags: u8, word: u64) -> Prefix {
        let (credits, sequence) = (self.owed.into(), self.next_out.into());
        Prefix { kind: kind as u8, flags, credits, sequence, word: word.into() }
    }
}
