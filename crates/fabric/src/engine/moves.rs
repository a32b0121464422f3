//! Large moves, which somebody else makes for the engine: copies out of the peer's memory, and what a device sends and
//! receives.

use std::ops::Range;

use fulmen_memory::Exposed;

use super::frame::Status;
use super::link::{Control, Lent, Link};
use super::ops::{Op, OpId, Ops, Recv, RecvFor, RecvPhase, Send, SendPhase, Target};
use super::stripes::Part;
use super::{OpError, Place, checksum};

/// Where a [`struct@Copy`] goes.
#[derive(Debug)]
pub enum Into {
    /// Into this memory: as many bytes as the copy has.
    Memory(Exposed),
    /// Into the lent target of the operation.
    Lent,
}

/// Bytes to be copied out of the peer's memory. Its taker does it and says [`Link::copied`], or [`Link::put_back`].
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
    /// Their checksum, if they are to be verified.
    pub checksum: Option<u32>,
}

/// A move that the driver's device is to make. In the order in which they are given out.
#[derive(Debug)]
pub enum Posting {
    /// Post receives for the whole of `memory`, in chunks of the length that the drivers of both ends agree on, and say
    /// [`Link::granted`] as far as they are posted (or [`Link::grant`] for each where the link is striped), and [`Link::landed`] when all have completed.
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
    /// The same where the link is [striped](super::Rendezvous::Striped): send this part over its rail, as one SEND. The peer
    /// has posted a receive for it there, unless the rail has failed since. Parts of one rail keep their order. The driver
    /// says [`Link::parted`] when the device holds the memory no longer, whatever became of it.
    Part {
        /// The send.
        op: OpId,
        /// The part's bytes.
        memory: Exposed,
        /// Which they are, and over what they go.
        part: Part,
    },
}

impl Link {
    /// The next copy out of the peer's memory: of any operation whose target is exposed memory, or of the one to which
    /// `lent` belongs.
    #[inline]
    pub fn next_copy(&mut self, lent: &mut Lent<'_>) -> Option<Copy> {
        if self.copies.is_empty() { None } else { self.take_copy(lent) }
    }

    fn take_copy(&mut self, lent: &mut Lent<'_>) -> Option<Copy> {
        let able = |ops: &Ops, op: OpId, lent: &mut Lent<'_>| match ops.peek(op) {
            Op::Recv(Recv { target: Target::Lent(_), .. }) => lent.target(op).is_some(),
            _ => true,
        };
        let at = (0..self.copies.len()).find(|at| able(&self.ops, self.copies[*at], lent))?;
        let op = self.copies.remove(at)?;
        let Op::Recv(recv) = self.ops.get(op) else { unreachable!("only receives copy") };
        let RecvPhase::Copying { place, len, taken, .. } = &mut recv.phase else { unreachable!("it is to be copied") };
        *taken = true;
        let checksum = self.config.verify.then_some(place.checksum);
        let into = match &recv.target {
            Target::Memory { memory, .. } => Into::Memory(memory.slice(0..*len as usize)),
            Target::Lent(_) => Into::Lent,
        };
        Some(Copy { op, from: *place, len: *len, into, checksum })
    }

    /// A copy that was taken has not been begun, and is to be given out again.
    pub fn put_back(&mut self, op: OpId) {
        if !self.ops.is_live(op) {
            return;
        }
        let Op::Recv(Recv { phase: RecvPhase::Copying { taken, .. }, .. }) = self.ops.get(op) else { return };
        *taken = false;
        if self.severed || self.left {
            // Nobody was there to end it when the rest was ended.
            let error = if self.severed { OpError::Severed } else { OpError::Left };
            self.finish(op, Err(error));
        } else {
            self.copies.push_back(op);
        }
    }

    /// A copy that was taken has been made, or why not: the peer's memory could not be reached ([`OpError::Unreachable`]),
    /// the bytes are others than its sender said ([`OpError::Changed`]), or the peer has withdrawn them, for which the link
    /// is severed first.
    pub fn copied(&mut self, op: OpId, copied: Result<(), OpError>) {
        // Severing the link may have ended it meanwhile.
        if !self.ops.is_live(op) {
            return;
        }
        let Op::Recv(Recv { phase: RecvPhase::Copying { peer_op, len, .. }, .. }) = *self.ops.get(op) else { return };
        let (status, outcome) = match copied {
            Ok(()) => (Status::Delivered, Ok(len)),
            Err(_) if self.severed => (Status::Failed, Err(OpError::Severed)),
            Err(OpError::Changed) => (Status::Changed, Err(OpError::Changed)),
            Err(_) => (Status::Failed, Err(OpError::Unreachable)),
        };
        self.say_fin(op, peer_op, status, len);
        self.finish(op, outcome);
    }

    /// Tells the sender of offered bytes what became of them. A put has its answer instead.
    fn say_fin(&mut self, op: OpId, peer_op: u64, status: Status, len: u64) {
        if !matches!(self.ops.peek(op), Op::Recv(Recv { purpose: RecvFor::Served(_), .. })) {
            self.control.push_back(Control::Fin { op: peer_op, status, len });
        }
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
        let Op::Recv(Recv { phase: RecvPhase::Granted { peer_op, granted, len, .. }, .. }) = self.ops.get(op) else {
            return;
        };
        assert!(upto > *granted && upto <= *len, "a grant of {upto} after {granted} of {len} bytes");
        *granted = upto;
        self.control.push_back(Control::Cts { op: *peer_op, to: op, granted: upto, stream: false });
    }

    /// All bytes of this message have come into the memory that was posted for them. False if they are verified and wrong:
    /// the operation goes on, and the driver [gives the channel up](Link::give_up_moves) or severs the link.
    #[must_use]
    pub fn landed(&mut self, op: OpId) -> bool {
        if !self.ops.is_live(op) {
            return true;
        }
        let Op::Recv(Recv { phase: RecvPhase::Granted { peer_op, len, checksum, .. }, target, .. }) = self.ops.get(op)
        else {
            return true;
        };
        let (peer_op, len, checksum) = (*peer_op, *len, *checksum);
        if let Target::Memory { memory, .. } = target
            && self.config.verify
            && checksum::of(&memory.slice(0..len as usize)) != checksum
        {
            return false;
        }
        self.say_fin(op, peer_op, Status::Delivered, len);
        self.finish(op, Ok(len));
        true
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
            self.finish(op, outcome);
        }
    }
}
