//! A program's queue pair, as the switch has it: what is on its way to the program and from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fulmen_verbs::{QueuePair, RecvRequest, SendRequest};

use super::slots::{Slot, Slots};
use crate::wire::{Header, Kind, LONGEST_MESSAGE, WINDOW};

/// A program's queue pair.
#[derive(Default)]
pub(super) struct Pair {
    pub joined: Option<Joined>,
    /// What came before it was joined.
    pub early: Vec<Arrived>,
}

/// One with a peer.
pub(super) struct Joined {
    pub trunk: u32,
    pub remote: u32,
    /// Which connection this is, and which one of the peer's, once that is known.
    pub session: u32,
    pub peer: Option<u32>,
    pub pair: Arc<dyn QueuePair>,
    /// Where the program's next messages go, oldest first.
    pub posted: VecDeque<Slot>,
    /// Messages that went out, and those of them that the other program has taken.
    pub sent: u32,
    pub acknowledged: u32,
    /// Messages that came in order, those that came before their turn, and those that the program is about to take.
    pub received: u32,
    pub held: BTreeMap<u32, Arrived>,
    pub delivering: VecDeque<Slot>,
    /// Messages that the program has taken, and how many of them the other end knows of.
    pub taken: u32,
    pub told: u32,
    /// The other end sends nothing from this number on.
    pub last: Option<u32>,
}

/// A message that came over a trunk.
pub(super) struct Arrived {
    pub trunk: u32,
    pub header: Header,
    pub slot: Slot,
}

/// What a completion of the software device is of.
pub(super) fn inside_name(number: u32, is_recv: bool) -> u64 {
    u64::from(number) << 1 | u64::from(is_recv)
}

/// Why a queue pair or a trunk cannot go on.
pub(super) enum Broken {
    Pair,
    Trunk(String),
}

impl Pair {
    /// Keeps what came before its turn: of each sender that of its latest connection, which is its word that it is there and no
    /// more messages than it may send.
    pub(super) fn keep(&mut self, arrived: Arrived, slots: &mut Slots) {
        let (sender, Header { kind, session, .. }) = (arrived.sender(), arrived.header);
        let is_gone = kind == Kind::Gone;
        let is_over = |early: &Arrived| {
            early.sender() == sender && (early.header.session < session || is_gone && early.header.session == session)
        };
        self.forget(is_over, slots);
        let kept = || self.early.iter().filter(|early| early.sender() == sender);
        if is_gone || kept().any(|early| early.header.session > session) || kept().count() > WINDOW as usize {
            slots.give(arrived.slot);
        } else {
            self.early.push(arrived);
        }
    }

    pub(super) fn forget(&mut self, which: impl FnMut(&Arrived) -> bool, slots: &mut Slots) {
        let (over, stay) = std::mem::take(&mut self.early).into_iter().partition::<Vec<_>, _>(which);
        self.early = stay;
        over.into_iter().for_each(|early| slots.give(early.slot));
    }
}

impl Arrived {
    /// The trunk, and the queue pair at its other end.
    pub(super) fn sender(&self) -> (u32, u32) {
        (self.trunk, self.header.from)
    }
}

pub(super) const BLANK: Header =
    Header { kind: Kind::Message, solicited: false, to: 0, from: 0, len: 0, number: 0, taken: 0, session: 0, peer: 0 };

/// Of which connection something is that came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Of this one.
    Own,
    /// Of an earlier one.
    Old,
    /// Of one that is still to be.
    Early,
    /// Of the peer's next one.
    Next,
}

impl Joined {
    pub(super) fn header(&self, kind: Kind, number: u32) -> Header {
        let (session, peer) = (self.session, self.peer.unwrap_or(0));
        Header { kind, to: self.remote, from: number, taken: self.taken, session, peer, ..BLANK }
    }

    /// Of which connection this is, and, if nothing has come yet, with which of the peer's this one is.
    pub(super) fn judge(&mut self, header: &Header) -> Verdict {
        if header.peer != 0 && header.peer != self.session {
            return if header.peer < self.session { Verdict::Old } else { Verdict::Early };
        }
        match self.peer {
            // Of a queue pair that is gone.
            _ if header.session == 0 => Verdict::Own,
            // It may be of a connection before this one.
            None if header.peer == 0 && header.kind == Kind::Gone => Verdict::Old,
            None => {
                self.peer = Some(header.session);
                Verdict::Own
            }
            Some(peer) if header.session < peer => Verdict::Old,
            Some(peer) if header.session > peer => Verdict::Next,
            Some(_) => Verdict::Own,
        }
    }

    /// Takes what is of this connection: whether the queue pair can go on, if the trunk can.
    pub(super) fn take(&mut self, arrived: Arrived, slots: &mut Slots) -> Result<Result<(), Broken>, Broken> {
        let Arrived { header, .. } = &arrived;
        let (kind, to, number, taken) = (header.kind, header.to, header.number, header.taken);
        let is_nobodys = header.session == 0;
        if kind != Kind::Gone {
            let more = taken.wrapping_sub(self.acknowledged);
            // Those that come in another order than they were sent in may know less.
            if more <= self.sent.wrapping_sub(self.acknowledged) {
                self.acknowledged = taken;
            } else if more < u32::MAX / 2 {
                slots.give(arrived.slot);
                return Err(Broken::Trunk("its other end has taken more than was sent".into()));
            }
        }
        if kind == Kind::Message {
            if number.wrapping_sub(self.received) >= WINDOW || self.held.contains_key(&number) {
                slots.give(arrived.slot);
                return Err(Broken::Trunk("its other end sends more than it may".into()));
            }
            self.held.insert(number, arrived);
        } else {
            slots.give(arrived.slot);
        }
        if kind == Kind::Gone {
            // One that is nowhere any more cannot say how much it has sent.
            self.last = Some(if is_nobodys { self.received } else { number });
        }
        Ok(self.deliver(to).and_then(|()| self.let_in(to, slots)))
    }

    /// Takes as many messages from the program as may go out.
    pub(super) fn let_in(&mut self, number: u32, slots: &mut Slots) -> Result<(), Broken> {
        let allowed = WINDOW - self.sent.wrapping_sub(self.acknowledged).min(WINDOW);
        while (self.posted.len() as u32) < allowed {
            let slot = slots.take(slots.longest()).map_err(|_| Broken::Pair)?;
            let request = RecvRequest::new(inside_name(number, true), [slot.inside(Header::ROOM, LONGEST_MESSAGE)]);
            self.pair.post_recv(&[request]).map_err(|_| Broken::Pair)?;
            self.posted.push_back(slot);
        }
        Ok(())
    }

    /// Hands the program what came, in order.
    fn deliver(&mut self, number: u32) -> Result<(), Broken> {
        while let Some(arrived) = self.held.remove(&self.received) {
            self.received = self.received.wrapping_add(1);
            let Header { len, solicited, .. } = arrived.header;
            let piece = arrived.slot.inside(Header::ROOM, len as usize);
            self.delivering.push_back(arrived.slot);
            let request = SendRequest { solicited, ..SendRequest::send(inside_name(number, false), [piece]) };
            self.pair.post_send(&[request]).map_err(|_| Broken::Pair)?;
        }
        Ok(())
    }

    pub(super) fn is_done(&self) -> bool {
        self.last == Some(self.received) && self.delivering.is_empty()
    }
}
