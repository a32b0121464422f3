//! Frames that go out.

use std::ops::Range;

use fulmen_memory::Exposed;
use zerocopy::{Immutable, IntoBytes};

use super::RESERVE;
use super::frame::{
    ABORT, CtsBody, FRAGMENT_HEADER, FinBody, FragmentBody, Header, Kind, MATCHED, PREFIX, Prefix, RtsBody, STREAM,
};
use super::link::{Control, Lent, Link};
use super::ops::{Op, OpId, SendPhase, Source};

/// What follows the header of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing.
    Empty,
    /// This part of an operation's [memory](Link::memory).
    Memory(OpId, Range<usize>),
    /// This part of the memory that the thread lends.
    Lent(OpId, Range<usize>),
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

#[derive(Clone, Copy, Debug)]
enum Step {
    Control,
    Bye,
    Credit,
    /// The head of the queue has this phase next; `None`: it is done sending.
    Send(Option<SendPhase>),
}

impl Link {
    /// The next frame to go out, if there is one. Nothing has changed before [`Link::transmitted`] is told that it went,
    /// with no other call between.
    ///
    /// A frame out of lent memory is given only to the thread that lends it.
    #[must_use]
    pub fn transmit(&mut self, lent: &Lent<'_>) -> Option<Outgoing> {
        if self.severed {
            return None;
        }
        if self.credits > 0
            && let Some(control) = self.control.front()
        {
            let control = *control;
            return Some(self.control_frame(control));
        }
        if self.credits > RESERVE
            && let Some(op) = self.out.front()
        {
            let op = *op;
            if let Some(frame) = self.message_frame(op, lent) {
                return Some(frame);
            }
        }
        if self.closing && self.credits > 0 && self.out.is_empty() && self.control.is_empty() {
            return Some(self.frame(Kind::Bye, 0, 0, &(), Body::Empty, Step::Bye));
        }
        self.must_credit().then(|| self.frame(Kind::Credit, 0, 0, &(), Body::Empty, Step::Credit))
    }

    /// The frame that [`Link::transmit`] gave is on its way, its bytes copied.
    pub fn transmitted(&mut self, frame: &Outgoing) {
        self.next_out = self.next_out.wrapping_add(1);
        self.owed -= frame.credits;
        if !matches!(frame.step, Step::Credit) {
            self.credits -= 1;
        }
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
                self.control.pop_front();
            }
            Step::Send(phase) => {
                let op = *self.out.front().expect("the frame came from the head of the queue");
                let Op::Send(send) = self.ops.get(op) else { unreachable!("only sends are queued") };
                match phase {
                    Some(phase) => send.phase = phase,
                    None => {
                        let len = send.source.len();
                        self.ops.finish(op, Ok(len));
                    }
                }
                if !matches!(phase, Some(SendPhase::Streaming { .. })) {
                    self.out.pop_front();
                }
            }
        }
    }

    /// The header of a message of `len` bytes that can go out at once in one frame: nothing waits to go, and there is a
    /// credit. Either the frame goes, its bytes after the header, and [`Link::eager_sent`] is told, or nothing happened.
    #[inline]
    #[must_use]
    pub fn eager(&self, tag: u64, len: usize) -> Option<[u8; PREFIX]> {
        let idle = self.control.is_empty() && self.out.is_empty() && self.credits > RESERVE;
        if !idle || len > self.config.eager() || self.left || self.severed {
            return None;
        }
        Some(zerocopy::transmute!(self.prefix(Kind::Eager, 0, tag)))
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
                Source::Lent(_) => panic!("a lent source has no memory here"),
            },
            _ => panic!("only sends have frames with memory"),
        }
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
            Control::Cancel { op } => self.frame(Kind::Cancel, 0, op.to_u64(), &(), Body::Empty, step),
        }
    }

    fn message_frame(&self, op: OpId, lent: &Lent<'_>) -> Option<Outgoing> {
        let Op::Send(send) = self.ops.peek(op) else { unreachable!("only sends are queued") };
        let total = send.source.len();
        match send.phase {
            SendPhase::Offering => {
                let Source::Offered { place, .. } = &send.source else {
                    unreachable!("only offered memory is offered")
                };
                let (key, offset) = (place.key.into(), place.offset.into());
                let body = RtsBody { op: op.to_u64().into(), len: total.into(), key, offset };
                Some(self.frame(Kind::Rts, 0, send.tag, &body, Body::Empty, Step::Send(Some(SendPhase::Offered))))
            }
            SendPhase::Streaming { sent, to } => {
                let body = |range| match &send.source {
                    Source::Lent(_) => lent.source(op).map(|_| Body::Lent(op, range)),
                    _ => Some(Body::Memory(op, range)),
                };
                if to.is_none() && total <= self.config.eager() as u64 {
                    let body = body(0..total as usize)?;
                    return Some(self.frame(Kind::Eager, 0, send.tag, &(), body, Step::Send(None)));
                }
                let end = total.min(sent + (self.config.frame - FRAGMENT_HEADER) as u64);
                let body = body(sent as usize..end as usize)?;
                let step = Step::Send((end < total).then_some(SendPhase::Streaming { sent: end, to }));
                Some(self.fragment(op, send.tag, to, (total, sent), 0, body, step))
            }
            SendPhase::Aborting { sent, total, to } => {
                Some(self.fragment(op, send.tag, to, (total, sent), ABORT, Body::Empty, Step::Send(None)))
            }
            SendPhase::Offered | SendPhase::Moving { .. } => unreachable!("only sends with frames to go are queued"),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a frame")]
    fn fragment(
        &self,
        op: OpId,
        tag: u64,
        to: Option<u64>,
        (total, offset): (u64, u64),
        flags: u8,
        body: Body,
        step: Step,
    ) -> Outgoing {
        let fields = FragmentBody { total: total.into(), offset: offset.into(), op: op.to_u64().into() };
        let flags = flags | if to.is_some() { MATCHED } else { 0 };
        self.frame(Kind::EagerFragment, flags, to.unwrap_or(tag), &fields, body, step)
    }

    fn frame(
        &self,
        kind: Kind,
        flags: u8,
        word: u64,
        fields: &(impl IntoBytes + Immutable),
        body: Body,
        step: Step,
    ) -> Outgoing {
        Outgoing { header: Header::new(self.prefix(kind, flags, word), fields), body, step, credits: self.owed }
    }

    #[inline]
    fn prefix(&self, kind: Kind, flags: u8, word: u64) -> Prefix {
        let (credits, sequence) = (self.owed.into(), self.next_out.into());
        Prefix { kind: kind as u8, flags, credits, sequence, word: word.into() }
    }
}
