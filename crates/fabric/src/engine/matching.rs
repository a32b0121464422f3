//! Messages and receives that meet, and what is kept until they do.

use fulmen_memory::Exposed;

use super::frame::{self, Incoming, Kind, PREFIX, Prefix, Status};
use super::link::{Control, Inbound, Link};
use super::moves::Posting;
use super::ops::{Op, OpId, Recv, RecvFor, RecvPhase, Target};
use super::{LABEL, OpError, Place, ProtocolError, RESERVE, Rendezvous};

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

/// Whether a message and a receive of these tags belong together.
#[inline]
pub(super) fn meets(one: u64, other: u64) -> bool {
    (one ^ other) & !LABEL == 0
}

/// Where a message [is taken](Link::take) to.
pub enum Landing<'a> {
    /// Plain memory.
    Bytes(&'a mut [u8]),
    /// Memory that others may reach.
    Memory(&'a Exposed),
}

impl Landing<'_> {
    fn len(&self) -> usize {
        match self {
            Landing::Bytes(bytes) => bytes.len(),
            Landing::Memory(memory) => memory.len(),
        }
    }
}

/// Copies a frame's payload into memory.
#[inline]
pub(super) fn land(frame: &(impl Incoming + ?Sized), header: usize, memory: &Exposed, at: usize) {
    let payload = frame.len() - header;
    // A payload of a cache line or two goes faster through the stack.
    if payload <= 128 {
        let mut bytes = [0; 128];
        frame.read(header, &mut bytes[..payload]);
        memory.write(at, &bytes[..payload]);
    } else {
        frame.copy_to(header, memory, at, payload);
    }
}

/// What each message counts towards the bound, beside its bytes.
pub(super) const EACH: u64 = 64;

impl Unexpected {
    /// What it counts towards the bound.
    pub(super) fn weight(&self) -> u64 {
        match &self.body {
            UnexpectedBody::Bytes { bytes, .. } => bytes.len() as u64 + EACH,
            UnexpectedBody::Offer { .. } => EACH,
        }
    }
}

impl Recv {
    /// Refuses a message that is another thing than this receive asked for, or longer.
    fn takes(&self, tag: u64, len: u64) -> Result<(), OpError> {
        if !matches!(self.purpose, RecvFor::Message { tag: own } if own == tag) {
            return Err(OpError::Mislabelled { label: (tag >> LABEL.trailing_zeros()) as u8 });
        }
        let room = self.target.room();
        if len > room { Err(OpError::Truncated { len, room }) } else { Ok(()) }
    }
}

impl Link {
    /// Whether nothing is under way, nor kept, nor to go: a receive that begins now is met by the next message, if that is one of its tag.
    #[inline]
    #[must_use]
    pub fn takes(&self) -> bool {
        let idle = self.ops.is_empty() && self.unexpected.is_empty() && self.inbound == Inbound::Nothing;
        idle && self.control.is_empty() && !self.is_queued() && !self.left && !self.severed
    }

    /// Takes the next frame, if it is a whole message of this tag that fits: its bytes are copied then, and it is told how many they are.
    /// Any other stays for [`Link::receive`]. As a receive that is posted and polled, without an operation; only while the link
    /// [takes](Link::takes).
    ///
    /// # Errors
    /// As [`Link::receive`].
    #[inline]
    pub fn take(
        &mut self,
        tag: u64,
        frame: &(impl Incoming + ?Sized),
        into: &mut Landing<'_>,
    ) -> Result<Option<usize>, ProtocolError> {
        let prefix: Prefix = frame::read(frame, 0, "a header")?;
        let len = frame.len() - PREFIX;
        if prefix.kind != Kind::Eager as u8 || prefix.word.get() != tag || len > into.len() {
            return Ok(None);
        }
        let mut come = PREFIX;
        while come < frame.len() {
            let end = frame.come(come);
            if end == come {
                // It stays until all of it has come.
                return Ok(None);
            }
            let at = come - PREFIX;
            match into {
                Landing::Bytes(bytes) => frame.read(come, &mut bytes[at..at + (end - come)]),
                Landing::Memory(memory) if end - come == len => land(frame, PREFIX, memory, 0),
                Landing::Memory(memory) => frame.copy_to(come, memory, at, end - come),
            }
            come = end;
        }
        self.admit(&prefix, frame.len())?;
        self.owed += 1;
        Ok(Some(len))
    }

    /// A posted receive or a new one has met an offer.
    pub(super) fn accept(&mut self, op: OpId, tag: u64, peer_op: u64, len: u64, place: Place) {
        let Op::Recv(recv) = self.ops.get(op) else { unreachable!("only receives accept") };
        if let Err(unfit) = recv.takes(tag, len) {
            self.control.push_back(Control::Fin { op: peer_op, status: Status::Truncated, len });
            self.ops.finish(op, Err(unfit));
            return;
        }
        self.meet_offer(op, peer_op, len, place);
    }

    /// Begins to move offered bytes into their target, which has room for them.
    pub(super) fn meet_offer(&mut self, op: OpId, peer_op: u64, len: u64, place: Place) {
        let (rendezvous, moves) = (self.config.rendezvous, self.has_moves());
        let Op::Recv(recv) = self.ops.get(op) else { unreachable!("only receives accept") };
        match (rendezvous, &recv.target) {
            (Rendezvous::Mapped, _) => {
                recv.phase = RecvPhase::Copying { peer_op, place, len, taken: false };
                self.copies.push_back(op);
            }
            (Rendezvous::Matched | Rendezvous::Striped, Target::Memory { memory, direct: true }) if moves => {
                let memory = memory.slice(0..len as usize);
                recv.phase = RecvPhase::Granted { peer_op, granted: 0, len, checksum: place.checksum };
                self.postings.push_back(Posting::Receive { op, memory });
            }
            (Rendezvous::Matched | Rendezvous::Striped, _) => {
                recv.phase = RecvPhase::Filling { got: 0, total: len };
                recv.asked = true;
                self.control.push_back(Control::Cts { op: peer_op, to: op, granted: 0, stream: true });
            }
        }
    }

    /// Gives a message that came before its receive to it.
    pub(super) fn take_unexpected(&mut self, op: OpId, at: usize) {
        let Some(message) = self.unexpected.remove(at) else { return };
        let newest = at == self.unexpected.len();
        let weight = message.weight();
        match message.body {
            UnexpectedBody::Offer { peer_op, len, place } => self.accept(op, message.tag, peer_op, len, place),
            UnexpectedBody::Bytes { bytes, total, peer_op } => {
                let got = bytes.len() as u64;
                let incoming = newest && self.inbound == Inbound::Unexpected;
                if self.begin_filling(op, message.tag, total, peer_op) {
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
            let counted = if recv.asked { 0 } else { stashed };
            self.release(counted);
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

    /// Prepares a receive for a message of `total` bytes; false if it does not fit, which ends the receive.
    pub(super) fn begin_filling(&mut self, op: OpId, tag: u64, total: u64, peer_op: u64) -> bool {
        let Op::Recv(recv) = self.ops.get(op) else { unreachable!("only receives are filled") };
        if let Err(unfit) = recv.takes(tag, total) {
            self.ops.finish(op, Err(unfit));
            if !self.config.goes_whole(total) {
                self.control.push_back(Control::Fin { op: peer_op, status: Status::Truncated, len: total });
            }
            return false;
        }
        recv.phase = RecvPhase::Filling { got: 0, total };
        true
    }

    /// Gives a receive bytes that were kept, which no longer count as kept. They are less than its whole message, or all.
    pub(super) fn fill(&mut self, op: OpId, bytes: Vec<u8>) {
        let Op::Recv(recv) = self.ops.get(op) else { unreachable!("only receives get payload") };
        let RecvPhase::Filling { got, total } = &mut recv.phase else { unreachable!("it is being filled") };
        *got = bytes.len() as u64;
        let (whole, total) = (*got == *total, *total);
        match &recv.target {
            Target::Memory { memory, .. } => {
                memory.write(0, &bytes);
                if whole {
                    self.ops.finish(op, Ok(total));
                }
            }
            Target::Lent(_) => {
                self.kept += bytes.len() as u64;
                recv.stash = bytes;
            }
        }
    }

    /// Moves what was kept for a receive into its lent memory.
    pub(super) fn drain(&mut self, op: OpId, into: &mut [u8]) {
        let Op::Recv(recv) = self.ops.get(op) else { return };
        let RecvPhase::Filling { got, total } = recv.phase else { return };
        let (at, stashed) = (recv.drained as usize, recv.stash.len());
        into[at..at + stashed].copy_from_slice(&recv.stash);
        recv.stash.clear();
        recv.drained = got;
        let counted = if recv.asked { 0 } else { stashed as u64 };
        self.release(counted);
        if got == total {
            self.finish(op, Ok(total));
        }
    }
}
