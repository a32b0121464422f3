use std::collections::VecDeque;
use std::task::Poll;

use super::carried::Carriage;
use super::exports::Exports;
use super::fallback::Fallback;
use super::frame::{FragmentBody, Prefix, Status};
use super::matching::{EACH, Unexpected, UnexpectedBody, meets};
use super::moves::Posting;
use super::onesided::OneSided;
use super::ops::{Op, OpId, Ops, Recv, RecvFor, RecvPhase, Send, SendFor, SendPhase, Source, Target};
use super::outgoing::Queue;
use super::stripes::{Part, Word};
use super::{Config, OpError};

/// Plain memory of the thread that moves the link on, for the operation that it waits for.
#[derive(Debug)]
pub enum Lent<'a> {
    /// None.
    Nothing,
    /// The bytes of a [`Source::Lent`].
    Source(OpId, &'a [u8]),
    /// The bytes of a [`Target::Lent`].
    Target(OpId, &'a mut [u8]),
}

impl Lent<'_> {
    /// The lent source of this operation.
    #[must_use]
    pub fn source(&self, op: OpId) -> Option<&[u8]> {
        match self {
            Lent::Source(own, bytes) if *own == op => Some(bytes),
            _ => None,
        }
    }

    /// The lent target of this operation.
    #[must_use]
    pub fn target(&mut self, op: OpId) -> Option<&mut [u8]> {
        match self {
            Lent::Target(own, bytes) if *own == op => Some(bytes),
            _ => None,
        }
    }
}

/// What came of [`Link::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// It is gone, and its memory is released.
    Released,
    /// It has an outcome already: [`Link::poll`] tells it.
    Finished,
    /// Somebody copies into its memory at this moment; it ends when the copy does.
    Copying,
    /// Its memory is in the hands of the device or the peer. It ends when they are done, or when the link is severed.
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Cts {
        op: u64,
        to: OpId,
        granted: u64,
        stream: bool,
    },
    Fin {
        op: u64,
        status: Status,
        len: u64,
    },
    Cancel {
        op: OpId,
    },
    /// A Fin for an offer that the peer took back before a receive met it. It still counts as kept: else a peer that offers
    /// and takes back without end, and lets no answer go out, would have answers pile up here.
    TakenBack {
        op: u64,
    },
    Forsake,
    Grant {
        op: u64,
        to: OpId,
        part: Part,
    },
    Tell(Word),
}

/// Where the fragments that come now belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inbound {
    Nothing,
    /// To this receive.
    Op(OpId),
    /// To the newest unexpected message.
    Unexpected,
    /// Nowhere.
    Discard {
        got: u64,
        total: u64,
    },
}

/// One end of a link. See the [module](super).
#[derive(Debug)]
pub struct Link {
    pub(super) config: Config,
    pub(super) ops: Ops,
    /// Receives that wait for a message, oldest first.
    pub(super) posted: VecDeque<(u64, OpId)>,
    /// Messages that wait for a receive, oldest first.
    pub(super) unexpected: VecDeque<Unexpected>,
    /// Bytes that are kept for receives.
    pub(super) kept: u64,
    pub(super) inbound: Inbound,
    /// The header of the fragment that [comes in parts](Link::receive_part).
    pub(super) in_parts: Option<(Prefix, FragmentBody)>,
    /// Sends that have frames to go, oldest first.
    pub(super) out: VecDeque<OpId>,
    pub(super) control: VecDeque<Control>,
    pub(super) copies: VecDeque<OpId>,
    pub(super) postings: VecDeque<Posting>,
    /// What the peer's driver has said to this end's.
    pub(super) told: VecDeque<Word>,
    pub(super) one: OneSided,
    /// Where this link carries frames of others.
    pub(super) carriage: Option<Box<Carriage>>,
    /// The queue that is looked at first for the next frame.
    pub(super) turn: Queue,
    /// Frames that may still be sent.
    pub(super) credits: u16,
    /// Credits to be given back with the next frame.
    pub(super) owed: u16,
    /// Credits that are held back while too much is kept.
    pub(super) withheld: u16,
    pub(super) next_out: u32,
    pub(super) next_in: u32,
    /// Bye is to be said after everything else.
    pub(super) closing: bool,
    /// The peer has said Bye.
    pub(super) left: bool,
    pub(super) severed: bool,
    pub(super) fallback: Fallback,
}

impl Link {
    /// One end of a new link, whose peer may reach no memory.
    ///
    /// # Panics
    /// If the configuration is out of its bounds.
    #[must_use]
    pub fn new(config: Config) -> Link {
        Link::with_exports(config, Exports::new())
    }

    /// One end of a new link, whose peer may reach what is exported.
    ///
    /// # Panics
    /// If the configuration is out of its bounds.
    #[must_use]
    pub fn with_exports(config: Config, exports: Exports) -> Link {
        config.check();
        Link {
            config,
            ops: Ops::default(),
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
            kept: 0,
            inbound: Inbound::Nothing,
            in_parts: None,
            out: VecDeque::new(),
            control: VecDeque::new(),
            copies: VecDeque::new(),
            postings: VecDeque::new(),
            told: VecDeque::new(),
            one: OneSided::new(exports),
            carriage: None,
            turn: Queue::Out,
            credits: config.credits,
            owed: 0,
            withheld: 0,
            next_out: 0,
            next_in: 0,
            closing: false,
            left: false,
            severed: false,
            fallback: Fallback::default(),
        }
    }

    /// How it was set up.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Starts to send a message.
    pub fn send(&mut self, tag: u64, source: Source) -> OpId {
        if let Some(error) = self.over() {
            return self.ops.add(Op::Done(Err(error)));
        }
        let phase = match &source {
            Source::Offered { memory, .. } if !memory.is_empty() => SendPhase::Offering,
            _ => SendPhase::Streaming { sent: 0, to: None },
        };
        let op = self.ops.add(Op::Send(Send { purpose: SendFor::Message { tag }, source, phase }));
        self.out.push_back(op);
        op
    }

    /// Starts to receive a message.
    pub fn recv(&mut self, tag: u64, target: Target) -> OpId {
        let phase = RecvPhase::Posted;
        let purpose = RecvFor::Message { tag };
        let op = self.ops.add(Op::Recv(Recv { purpose, target, phase, stash: Vec::new(), drained: 0, asked: false }));
        if let Some(at) = self.unexpected.iter().position(|message| meets(message.tag, tag)) {
            self.take_unexpected(op, at);
        } else if let Some(error) = self.over() {
            self.ops.finish(op, Err(error));
        } else {
            self.posted.push_back((tag, op));
        }
        op
    }

    /// The outcome of an operation: the bytes of the message. Once it is told, the operation is gone. A receive into lent
    /// memory gets its bytes here, so that its thread has to call this again and again.
    ///
    /// # Panics
    /// If the operation is gone.
    pub fn poll(&mut self, op: OpId, lent: &mut Lent<'_>) -> Poll<Result<u64, OpError>> {
        if let Some(bytes) = lent.target(op) {
            self.drain(op, bytes);
        }
        match self.ops.peek(op) {
            Op::Done(outcome) => {
                let outcome = *outcome;
                self.ops.remove(op);
                Poll::Ready(outcome)
            }
            _ => Poll::Pending,
        }
    }

    /// Bytes of messages that are kept until somebody asks for them.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// Whether an operation has an outcome.
    ///
    /// # Panics
    /// If the operation is gone.
    #[must_use]
    pub fn is_done(&self, op: OpId) -> bool {
        matches!(self.ops.peek(op), Op::Done(_))
    }

    /// Lets an operation end without anybody asking for its outcome. Not for operations on lent memory.
    pub fn detach(&mut self, op: OpId) {
        self.ops.detach(op);
    }

    /// How many operations have got an outcome so far, wrapping.
    #[inline]
    #[must_use]
    pub fn ended(&self) -> u32 {
        self.ops.ended()
    }

    /// The operations whose frames go next: of the messages, and of the one-sided operations.
    #[inline]
    #[must_use]
    pub fn heads(&self) -> [Option<OpId>; 2] {
        [self.out.front().copied(), self.one.next_ask()]
    }

    /// Those of them whose frames only the threads that lend their memory can send.
    #[inline]
    #[must_use]
    pub fn awaits_lender(&self) -> [Option<OpId>; 2] {
        let lent = |op: &OpId| matches!(self.ops.peek(*op), Op::Send(Send { source: Source::Lent(_), .. }));
        self.heads().map(|head| head.filter(lent))
    }

    /// How many operations have not ended, the peer's among them for which this end still moves bytes.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.ops.unfinished()
    }

    /// Whether answers or credits are to go to the peer.
    #[inline]
    #[must_use]
    pub fn has_answers(&self) -> bool {
        !self.control.is_empty() || self.one.has_answers() || self.must_credit()
    }

    /// How many sends have not ended.
    #[must_use]
    pub fn sending(&self) -> usize {
        self.ops.sending()
    }

    /// Gives an operation up. After [`Cancel::Released`] it is gone: nothing of it is written or read any more at this
    /// end. In the other cases it stays, to be polled or detached. A one-sided operation whose request has gone out may
    /// still take effect at the peer.
    ///
    /// # Panics
    /// If the operation is gone.
    pub fn cancel(&mut self, op: OpId) -> Cancel {
        let (mut fin, mut dequeue) = (None, false);
        let verdict = match self.ops.get(op) {
            Op::Done(_) | Op::Free => Cancel::Finished,
            Op::Recv(recv) => match recv.phase {
                RecvPhase::Posted => {
                    self.posted.retain(|(_, posted)| *posted != op);
                    Cancel::Released
                }
                RecvPhase::Asking => {
                    self.one.dequeue(op);
                    Cancel::Released
                }
                RecvPhase::Asked { len, .. } => {
                    recv.phase = RecvPhase::Asked { len, given_up: true };
                    recv.target = Target::Lent(0);
                    self.ops.detach(op);
                    return Cancel::Released;
                }
                RecvPhase::Filling { got, total } if self.inbound == Inbound::Op(op) => {
                    self.inbound = Inbound::Discard { got, total };
                    Cancel::Released
                }
                RecvPhase::Filling { got, total } if got < total => {
                    // Its fragments name the operation, which stays until the last has come.
                    recv.phase = RecvPhase::Discarding { got, total };
                    recv.target = Target::Lent(0);
                    self.unkeep(op);
                    self.ops.detach(op);
                    return Cancel::Released;
                }
                RecvPhase::Filling { .. } => Cancel::Released,
                RecvPhase::Copying { taken: true, .. } => Cancel::Copying,
                RecvPhase::Copying { peer_op, len, .. } => {
                    self.copies.retain(|copy| *copy != op);
                    fin = Some(Control::Fin { op: peer_op, status: Status::Cancelled, len });
                    Cancel::Released
                }
                RecvPhase::Granted { .. } | RecvPhase::Discarding { .. } => Cancel::Busy,
            },
            // Its bytes are not this end's. It may be carried out, or not.
            Op::Atomic(atomic) if atomic.sent => {
                self.ops.detach(op);
                return Cancel::Released;
            }
            Op::Atomic(_) => {
                dequeue = true;
                Cancel::Released
            }
            Op::Send(send) => match send.phase {
                SendPhase::Streaming { sent: 0, to: None } | SendPhase::Offering => {
                    dequeue = true;
                    Cancel::Released
                }
                SendPhase::Streaming { sent, to } => {
                    let total = send.source.len();
                    let ends = matches!(send.purpose, SendFor::Message { .. });
                    send.phase = SendPhase::Aborting { sent, total, to, ends };
                    send.source = Source::Lent(0);
                    self.ops.detach(op);
                    return Cancel::Released;
                }
                SendPhase::Unanswered { .. } => {
                    send.source = Source::Lent(0);
                    self.ops.detach(op);
                    return Cancel::Released;
                }
                SendPhase::Offered => {
                    // A put has met its receive as soon as it comes.
                    if let SendFor::Message { .. } = send.purpose {
                        self.control.push_back(Control::Cancel { op });
                    }
                    Cancel::Busy
                }
                SendPhase::Moving { .. } | SendPhase::Aborting { .. } => Cancel::Busy,
            },
        };
        if dequeue {
            self.out.retain(|queued| *queued != op);
            self.one.dequeue(op);
        }
        self.control.extend(fin);
        if verdict == Cancel::Released {
            self.unkeep(op);
            self.settle(op, &Err(OpError::Cancelled));
            self.ops.remove(op);
        }
        verdict
    }

    /// Tells the peer that nothing more comes, once all that is to go has gone. No operation may be started any more.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether any frame has come.
    pub(crate) fn has_heard(&self) -> bool {
        self.next_in > 0
    }

    /// Whether the peer has closed its end. What it sent before can still be received.
    #[must_use]
    pub fn peer_left(&self) -> bool {
        self.left
    }

    /// Ends everything: the peer is lost or broke the protocol. Operations end with [`OpError::Severed`]; messages that
    /// have come completely can still be received. The driver sees to it that no device writes for them any more.
    pub fn sever(&mut self) {
        self.severed = true;
        self.end_all(OpError::Severed, true);
    }

    /// Whether the link was severed.
    #[must_use]
    pub fn is_severed(&self) -> bool {
        self.severed
    }

    /// Ends operations that need the peer: all but receives that have their whole message.
    pub(super) fn end_all(&mut self, error: OpError, sends_of_fragments: bool) {
        for op in self.ops.ids() {
            let mut outcome = Err(error);
            let ends = match self.ops.peek(op) {
                Op::Done(_) | Op::Free => false,
                // The peer has said how it ended. Only this end's device still held the memory, which the driver has it
                // let go.
                Op::Send(Send { phase: SendPhase::Moving { fin: Some(status), .. }, source, .. }) => {
                    outcome = status.outcome(source.len());
                    true
                }
                Op::Send(Send {
                    purpose: SendFor::Message { .. },
                    phase: SendPhase::Streaming { to: None, .. },
                    ..
                }) => sends_of_fragments,
                Op::Send(_) | Op::Atomic(_) => true,
                Op::Recv(recv) => match recv.phase {
                    RecvPhase::Filling { got, total } => got < total,
                    // Somebody writes its memory at this moment, who will say `copied`.
                    RecvPhase::Copying { taken, .. } => !taken,
                    _ => true,
                },
            };
            if ends {
                self.unkeep(op);
                self.finish(op, outcome);
            }
        }
        self.one.clear();
        self.posted.clear();
        self.copies.clear();
        self.postings.clear();
        self.inbound = Inbound::Nothing;
        let ops = &self.ops;
        self.out.retain(|op| ops.is_live(*op) && matches!(ops.peek(*op), Op::Send(_)));
        // What is incomplete stays so; an offer of a peer that is gone cannot be taken.
        let mut dropped = 0;
        if self.severed {
            let taken_back = |control: &&Control| matches!(control, Control::TakenBack { .. });
            dropped = self.control.iter().filter(taken_back).count() as u64 * EACH;
            self.control.clear();
            self.one.clear_answers();
        }
        self.unexpected.retain(|message| {
            let whole =
                matches!(&message.body, UnexpectedBody::Bytes { bytes, total, .. } if bytes.len() as u64 == *total);
            dropped += if whole { 0 } else { message.weight() };
            whole
        });
        self.release(dropped);
    }

    /// Ends an operation.
    #[inline]
    pub(super) fn finish(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.settle(op, &outcome);
        self.ops.finish(op, outcome);
    }

    /// Why no new operation can succeed.
    pub(super) fn over(&self) -> Option<OpError> {
        if self.severed {
            Some(OpError::Severed)
        } else if self.left {
            Some(OpError::Left)
        } else {
            None
        }
    }
}
