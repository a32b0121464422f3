use std::collections::VecDeque;
use std::ops::Range;
use std::task::Poll;

use fulmen_memory::Exposed;

use super::frame::Status;
use super::ops::{Op, OpId, Ops, Recv, RecvPhase, Send, SendPhase, Source, Target};
use super::{Config, OpError, Place, RESERVE, Rendezvous};

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

/// Where a [`Copy`] goes.
#[derive(Debug)]
pub enum Into {
    /// Into this memory: as many bytes as the copy has.
    Memory(Exposed),
    /// Into the lent target of the operation.
    Lent,
}

/// Bytes to be copied out of the peer's memory. Its taker does it and says [`Link::copied`].
#[derive(Debug)]
pub struct Copy {
    /// The receive.
    pub op: OpId,
    /// Where the bytes are.
    pub from: Place,
    /// How many.
    pub len: u64,
    /// Where they go.
    pub into: Into,
}

/// A move that the driver's device is to make. In the order in which they are given out.
#[derive(Debug)]
pub enum Posting {
    /// Post receives for the whole of `memory`, in chunks of the length that the drivers of both ends agree on, and say
    /// [`Link::granted`] as far as they are posted, and [`Link::landed`] when all have completed.
    Receive {
        /// The receive.
        op: OpId,
        /// The message's bytes.
        memory: Exposed,
    },
    /// Send this part of `memory`, in chunks: the peer has posted receives for it. Ranges of one message follow one
    /// another. The driver says [`Link::sent`] when the device has done it and no longer holds the memory.
    Send {
        /// The send.
        op: OpId,
        /// The message's bytes.
        memory: Exposed,
        /// Those that are to go now.
        range: Range<u64>,
    },
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
    Cts { op: u64, to: OpId, granted: u64, stream: bool },
    Fin { op: u64, status: Status, len: u64 },
    Cancel { op: OpId },
}

/// A message that no receive has asked for yet.
#[derive(Debug)]
pub(super) struct Unexpected {
    pub tag: u64,
    pub body: UnexpectedBody,
}

#[derive(Debug)]
pub(super) enum UnexpectedBody {
    /// `bytes` of a message of `total`; only the newest can be incomplete.
    Bytes { bytes: Vec<u8>, total: u64, peer_op: u64 },
    /// An offer.
    Offer { peer_op: u64, len: u64, place: Place },
}

impl Unexpected {
    /// What it counts towards the bound.
    pub(super) fn weight(&self) -> u64 {
        const EACH: u64 = 64;
        match &self.body {
            UnexpectedBody::Bytes { bytes, .. } => bytes.len() as u64 + EACH,
            UnexpectedBody::Offer { .. } => EACH,
        }
    }
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
    /// Sends that have frames to go, oldest first.
    pub(super) out: VecDeque<OpId>,
    pub(super) control: VecDeque<Control>,
    pub(super) copies: VecDeque<OpId>,
    pub(super) postings: VecDeque<Posting>,
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
}

impl Link {
    /// One end of a new link.
    ///
    /// # Panics
    /// If the configuration is out of its bounds.
    #[must_use]
    pub fn new(config: Config) -> Link {
        config.check();
        Link {
            config,
            ops: Ops::default(),
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
            kept: 0,
            inbound: Inbound::Nothing,
            out: VecDeque::new(),
            control: VecDeque::new(),
            copies: VecDeque::new(),
            postings: VecDeque::new(),
            credits: config.credits,
            owed: 0,
            withheld: 0,
            next_out: 0,
            next_in: 0,
            closing: false,
            left: false,
            severed: false,
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
        let op = self.ops.add(Op::Send(Send { tag, source, phase }));
        self.out.push_back(op);
        op
    }

    /// Starts to receive a message.
    pub fn recv(&mut self, tag: u64, target: Target) -> OpId {
        let phase = RecvPhase::Posted;
        let op = self.ops.add(Op::Recv(Recv { target, phase, stash: Vec::new(), drained: 0 }));
        if let Some(at) = self.unexpected.iter().position(|message| message.tag == tag) {
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

    /// How many operations have not ended.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.ops.unfinished()
    }

    /// How many sends have not ended.
    #[must_use]
    pub fn sending(&self) -> usize {
        self.ops.sending()
    }

    /// Gives an operation up. After [`Cancel::Released`] it is gone: nothing of it is written or read any more. In the
    /// other cases it stays, to be polled or detached.
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
            Op::Send(send) => match send.phase {
                SendPhase::Streaming { sent: 0, to: None } | SendPhase::Offering => {
                    dequeue = true;
                    Cancel::Released
                }
                SendPhase::Streaming { sent, to } => {
                    let total = send.source.len();
                    send.phase = SendPhase::Aborting { sent, total, to };
                    send.source = Source::Lent(0);
                    self.ops.detach(op);
                    return Cancel::Released;
                }
                SendPhase::Offered => {
                    self.control.push_back(Control::Cancel { op });
                    Cancel::Busy
                }
                SendPhase::Moving { .. } | SendPhase::Aborting { .. } => Cancel::Busy,
            },
        };
        if dequeue {
            self.out.retain(|queued| *queued != op);
        }
        self.control.extend(fin);
        if verdict == Cancel::Released {
            self.unkeep(op);
            self.ops.remove(op);
        }
        verdict
    }

    /// The next copy out of the peer's memory: of any operation whose target is exposed memory, or of the one to which
    /// `lent` belongs.
    pub fn next_copy(&mut self, lent: &mut Lent<'_>) -> Option<Copy> {
        let able = |ops: &Ops, op: OpId, lent: &mut Lent<'_>| match ops.peek(op) {
            Op::Recv(Recv { target: Target::Lent(_), .. }) => lent.target(op).is_some(),
            _ => true,
        };
        let at = (0..self.copies.len()).find(|at| able(&self.ops, self.copies[*at], lent))?;
        let op = self.copies.remove(at)?;
        let Op::Recv(recv) = self.ops.get(op) else { unreachable!("only receives copy") };
        let RecvPhase::Copying { place, len, taken, .. } = &mut recv.phase else { unreachable!("it is to be copied") };
        *taken = true;
        let into = match &recv.target {
            Target::Memory { memory, .. } => Into::Memory(memory.slice(0..*len as usize)),
            Target::Lent(_) => Into::Lent,
        };
        Some(Copy { op, from: *place, len: *len, into })
    }

    /// A copy that was taken has been made, or the peer's memory could not be reached.
    pub fn copied(&mut self, op: OpId, reached: bool) {
        // Severing the link may have ended it meanwhile.
        if !self.ops.is_live(op) {
            return;
        }
        let Op::Recv(Recv { phase: RecvPhase::Copying { peer_op, len, .. }, .. }) = *self.ops.get(op) else { return };
        let (status, outcome) =
            if reached { (Status::Delivered, Ok(len)) } else { (Status::Failed, Err(OpError::Unreachable)) };
        self.control.push_back(Control::Fin { op: peer_op, status, len });
        self.ops.finish(op, outcome);
    }

    /// The next move for the device.
    pub fn next_posting(&mut self) -> Option<Posting> {
        self.postings.pop_front()
    }

    /// Receives are posted for the first `granted` bytes of this message: the peer may send them.
    ///
    /// # Panics
    /// If the operation receives less, or no more than was granted before.
    pub fn granted(&mut self, op: OpId, upto: u64) {
        if !self.ops.is_live(op) {
            return;
        }
        let Op::Recv(Recv { phase: RecvPhase::Granted { peer_op, granted, len }, .. }) = self.ops.get(op) else {
            return;
        };
        assert!(upto > *granted && upto <= *len, "a grant of {upto} after {granted} of {len} bytes");
        *granted = upto;
        self.control.push_back(Control::Cts { op: *peer_op, to: op, granted: upto, stream: false });
    }

    /// All bytes of this message have come into the memory that was posted for them.
    pub fn landed(&mut self, op: OpId) {
        if !self.ops.is_live(op) {
            return;
        }
        let Op::Recv(Recv { phase: RecvPhase::Granted { peer_op, len, .. }, .. }) = *self.ops.get(op) else { return };
        self.control.push_back(Control::Fin { op: peer_op, status: Status::Delivered, len });
        self.ops.finish(op, Ok(len));
    }

    /// The device has sent the first `upto` bytes of this message, and holds their memory no longer.
    ///
    /// # Panics
    /// If fewer were granted, or that was said before.
    pub fn sent(&mut self, op: OpId, upto: u64) {
        if !self.ops.is_live(op) {
            return;
        }
        let Op::Send(Send { phase: SendPhase::Moving { granted, sent, fin }, source, .. }) = self.ops.get(op) else {
            return;
        };
        assert!(upto > *sent && upto <= *granted, "{upto} bytes are sent after {sent} of {granted}");
        *sent = upto;
        if let Some(status) = fin.filter(|_| sent == granted) {
            let outcome = status.outcome(source.len());
            self.ops.finish(op, outcome);
        }
    }

    /// Tells the peer that nothing more comes, once all that is to go has gone. No operation may be started any more.
    pub fn close(&mut self) {
        self.closing = true;
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
            let ends = match self.ops.peek(op) {
                Op::Done(_) | Op::Free => false,
                Op::Send(send) => sends_of_fragments || !matches!(send.phase, SendPhase::Streaming { .. }),
                Op::Recv(recv) => match recv.phase {
                    RecvPhase::Filling { got, total } => got < total,
                    // Somebody writes its memory at this moment, who will say `copied`.
                    RecvPhase::Copying { taken, .. } => !taken,
                    _ => true,
                },
            };
            if ends {
                self.unkeep(op);
                self.ops.finish(op, Err(error));
            }
        }
        self.posted.clear();
        self.copies.clear();
        self.postings.clear();
        self.inbound = Inbound::Nothing;
        let ops = &self.ops;
        self.out.retain(|op| ops.is_live(*op) && matches!(ops.peek(*op), Op::Send(_)));
        if self.severed {
            self.control.clear();
        }
        // What is incomplete stays so; an offer of a peer that is gone cannot be taken.
        let mut dropped = 0;
        self.unexpected.retain(|message| {
            let whole =
                matches!(&message.body, UnexpectedBody::Bytes { bytes, total, .. } if bytes.len() as u64 == *total);
            dropped += if whole { 0 } else { message.weight() };
            whole
        });
        self.release(dropped);
    }

    /// Why no new operation can succeed.
    fn over(&self) -> Option<OpError> {
        if self.severed {
            Some(OpError::Severed)
        } else if self.left {
            Some(OpError::Left)
        } else {
            None
        }
    }

    /// A posted receive or a new one has met an offer.
    pub(super) fn accept(&mut self, op: OpId, peer_op: u64, len: u64, place: Place) {
        let rendezvous = self.config.rendezvous;
        let Op::Recv(recv) = self.ops.get(op) else { unreachable!("only receives accept") };
        let room = recv.target.room();
        if len > room {
            self.control.push_back(Control::Fin { op: peer_op, status: Status::Truncated, len });
            self.ops.finish(op, Err(OpError::Truncated { len, room }));
            return;
        }
        match (rendezvous, &recv.target) {
            (Rendezvous::Mapped, _) => {
                recv.phase = RecvPhase::Copying { peer_op, place, len, taken: false };
                self.copies.push_back(op);
            }
            (Rendezvous::Matched, Target::Memory { memory, direct: true }) => {
                let memory = memory.slice(0..len as usize);
                recv.phase = RecvPhase::Granted { peer_op, granted: 0, len };
                self.postings.push_back(Posting::Receive { op, memory });
            }
            (Rendezvous::Matched, _) => {
                recv.phase = RecvPhase::Filling { got: 0, total: len };
                self.control.push_back(Control::Cts { op: peer_op, to: op, granted: 0, stream: true });
            }
        }
    }

    /// Gives a message that came before its receive to it.
    fn take_unexpected(&mut self, op: OpId, at: usize) {
        let Some(message) = self.unexpected.remove(at) else { return };
        let newest = at == self.unexpected.len();
        let weight = message.weight();
        match message.body {
            UnexpectedBody::Offer { peer_op, len, place } => self.accept(op, peer_op, len, place),
            UnexpectedBody::Bytes { bytes, total, peer_op } => {
                let got = bytes.len() as u64;
                let incoming = newest && self.inbound == Inbound::Unexpected;
                if self.begin_filling(op, total, peer_op) {
                    self.inbound = if incoming { Inbound::Op(op) } else { self.inbound };
                    self.fill(op, bytes);
                } else if incoming {
                    self.inbound = Inbound::Discard { got, total };
                }
            }
        }
        self.release(weight);
    }

    /// Bytes that were kept are gone: the sender may go on.
    pub(super) fn release(&mut self, weight: u64) {
        self.kept -= weight;
        if self.kept <= self.config.unexpected {
            self.owed += std::mem::take(&mut self.withheld);
        }
    }

    /// Drops what is kept for a receive.
    pub(super) fn unkeep(&mut self, op: OpId) {
        if let Op::Recv(recv) = self.ops.get(op) {
            let stashed = std::mem::take(&mut recv.stash).len() as u64;
            self.release(stashed);
        }
    }

    /// A frame of the peer's has been read. If its bytes are kept and that is too much, its credit is kept as well.
    pub(super) fn consumed(&mut self, kept_before: u64) {
        if self.kept > kept_before && self.kept > self.config.unexpected {
            self.withheld += 1;
        } else {
            self.owed += 1;
        }
    }

    /// Whether a Credit frame has to go, if no other frame does: the peer may be out of credits.
    pub(super) fn must_credit(&self) -> bool {
        let enough = if self.withheld > 0 { RESERVE / 2 } else { self.config.credits / 2 };
        self.owed >= enough
    }
}
