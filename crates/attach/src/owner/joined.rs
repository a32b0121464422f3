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
    /// Those that would be its peers, and have said so while it was not joined to them.
    hellos: Vec<Hello>,
}

/// The word of a queue pair at the other end of a trunk that it is joined to one here.
#[derive(Clone, Copy)]
pub(super) struct Hello {
    pub trunk: u32,
    pub from: u32,
    pub session: u32,
}

/// One with a peer.
///
/// Each connection of a queue pair has a number. Both ends say theirs, and nothing is let in before the other end has said
/// this one's: so what is on its way from a connection before this one is known by the numbers that it bears.
pub(super) struct Joined {
    pub trunk: u32,
    pub remote: u32,
    /// Which connection this is, and which one of the peer's as far as that is known; and whether the peer knows this one.
    pub session: u32,
    pub peer: Option<u32>,
    pub is_known: bool,
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
    pub header: Header,
    pub slot: Slot,
}

/// Those that are remembered for a queue pair: more than a program can mean.
const HELLOS: usize = 1024;

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
    /// Remembers the word of one that is not, or no longer, this one's peer. Of each it is the last one's.
    pub(super) fn remember(&mut self, hello: Hello) {
        self.take_hello(hello.trunk, hello.from);
        if self.hellos.len() < HELLOS {
            self.hellos.push(hello);
        }
    }

    /// The word of this one, which is forgotten.
    pub(super) fn take_hello(&mut self, trunk: u32, from: u32) -> Option<Hello> {
        let at = self.hellos.iter().position(|hello| (hello.trunk, hello.from) == (trunk, from))?;
        Some(self.hellos.swap_remove(at))
    }

    /// Forgets what came over a trunk.
    pub(super) fn cut(&mut self, trunk: u32) {
        self.hellos.retain(|hello| hello.trunk != trunk);
    }

    /// All that were not answered.
    pub(super) fn into_hellos(self) -> Vec<Hello> {
        self.hellos
    }
}

pub(super) const BLANK: Header =
    Header { kind: Kind::Message, solicited: false, to: 0, from: 0, len: 0, number: 0, taken: 0, session: 0, peer: 0 };

/// What something that came is to a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is for it.
    Own,
    /// The same, and the first from which is known that the peer knows this connection.
    First,
    /// The peer is there, and does not know it yet.
    Hello,
    /// The peer has begun another connection: this one is over.
    Next,
    /// It is of another connection, which is over.
    Old,
}

impl Joined {
    /// To a queue pair at the other end of a trunk, which may have said which connection it has.
    pub(super) fn new(
        (trunk, remote): (u32, u32),
        session: u32,
        peer: Option<u32>,
        pair: Arc<dyn QueuePair>,
    ) -> Joined {
        Joined {
            trunk,
            remote,
            session,
            peer,
            is_known: false,
            pair,
            posted: VecDeque::new(),
            sent: 0,
            acknowledged: 0,
            received: 0,
            held: BTreeMap::new(),
            delivering: VecDeque::new(),
            taken: 0,
            told: 0,
            last: None,
        }
    }

    pub(super) fn header(&self, kind: Kind, number: u32) -> Header {
        let (session, peer) = (self.session, self.peer.unwrap_or(0));
        Header { kind, to: self.remote, from: number, taken: self.taken, session, peer, ..BLANK }
    }

    /// What came from the peer.
    pub(super) fn judge(&mut self, header: &Header) -> Verdict {
        let Header { kind, session, peer, .. } = *header;
        let is_newer = self.peer.is_none_or(|known| session >= known);
        if peer == self.session {
            // Of one that is gone.
            if session == 0 {
                return Verdict::Own;
            }
            if !is_newer {
                return Verdict::Old;
            }
            self.peer = Some(session);
            return if std::mem::replace(&mut self.is_known, true) { Verdict::Own } else { Verdict::First };
        }
        if peer != 0 || kind != Kind::Taken || !is_newer {
            return Verdict::Old;
        }
        if self.is_known && self.peer != Some(session) {
            return Verdict::Next;
        }
        self.peer = Some(session);
        Verdict::Hello
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
        if !self.is_known {
            return Ok(());
        }
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

#[cfg(test)]
mod tests {
    use fulmen_reach::Node;
    use fulmen_soft::{Profile, SoftDevice};
    use fulmen_verbs::{QueuePairInit, QueuePairKind, QueuePairLimits};

    use super::*;

    /// Queue pair 1's connection 5, to queue pair 2 over trunk 3.
    fn joined() -> Joined {
        let device = SoftDevice::open(&Node::open().unwrap(), Profile::Infiniband).unwrap();
        let queue = device.create_cq(1, None).unwrap();
        let limits = QueuePairLimits { send_depth: 1, recv_depth: 1, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
        let (kind, send_cq, recv_cq) = (QueuePairKind::Rc, queue.clone(), queue);
        let init = QueuePairInit { kind, send_cq, recv_cq, limits, signal_all: false, srq: None };
        Joined::new((3, 2), 5, None, device.alloc_pd().unwrap().create_qp(&init).unwrap())
    }

    fn header(kind: Kind, session: u32, peer: u32) -> Header {
        Header { kind, to: 1, from: 2, session, peer, ..BLANK }
    }

    fn is(verdict: Verdict, expected: Verdict) {
        assert!(verdict == expected);
    }

    #[test]
    fn connections_before_this_one_are_told_apart() {
        let mut joined = joined();
        // Late words of the peer's connection before, and for the one before this.
        is(joined.judge(&header(Kind::Taken, 7, 0)), Verdict::Hello);
        is(joined.judge(&header(Kind::Message, 7, 4)), Verdict::Old);
        is(joined.judge(&header(Kind::Gone, 7, 4)), Verdict::Old);
        is(joined.judge(&header(Kind::Gone, 7, 0)), Verdict::Old);
        assert!(!joined.is_known, "nothing is let in for a connection that may be over");
        // The peer's new one.
        is(joined.judge(&header(Kind::Taken, 8, 0)), Verdict::Hello);
        is(joined.judge(&header(Kind::Taken, 7, 0)), Verdict::Old);
        is(joined.judge(&header(Kind::Taken, 8, 5)), Verdict::First);
        assert!(joined.is_known && joined.peer == Some(8));
        is(joined.judge(&header(Kind::Message, 8, 5)), Verdict::Own);
        is(joined.judge(&header(Kind::Message, 7, 5)), Verdict::Old);
        // It begins anew.
        is(joined.judge(&header(Kind::Taken, 9, 0)), Verdict::Next);
    }

    #[test]
    fn a_queue_pair_that_is_gone_needs_no_connection() {
        let mut joined = joined();
        is(joined.judge(&header(Kind::Gone, 0, 4)), Verdict::Old);
        is(joined.judge(&header(Kind::Gone, 0, 5)), Verdict::Own);
    }

    #[test]
    fn the_last_word_of_each_is_remembered() {
        let mut pair = Pair::default();
        let hello = |trunk, from, session| Hello { trunk, from, session };
        [hello(1, 2, 3), hello(1, 4, 3), hello(1, 2, 5), hello(2, 2, 9)].into_iter().for_each(|one| pair.remember(one));
        assert_eq!(pair.take_hello(1, 2).map(|hello| hello.session), Some(5));
        assert!(pair.take_hello(1, 2).is_none());
        pair.cut(1);
        assert_eq!(pair.into_hellos().len(), 1);
    }
}
