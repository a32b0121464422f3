//! A virtual network with random operations and random delays, and a model of what must come of it.

use std::collections::{HashMap, VecDeque};
use std::task::Poll;

use fulmen_memory::{Exposed, Pool, Region};
use proptest::prelude::*;

use super::super::frame::Kind;
use super::super::*;
use super::remote::Remote;
use super::{CANARY, Dice, config, kinds};

const ARENA: usize = 8 << 20;

struct Sending {
    op: Option<OpId>,
    tag: u64,
    bytes: Vec<u8>,
    lent: bool,
    cancelled: bool,
    outcome: Option<Result<u64, OpError>>,
}

struct Receiving {
    op: Option<OpId>,
    tag: u64,
    memory: Option<Exposed>,
    bytes: Vec<u8>,
    room: usize,
    cancelled: bool,
    outcome: Option<Result<u64, OpError>>,
}

/// One rank: its end of the link and what it has under way.
pub(super) struct End {
    pub(super) link: Link,
    /// Frames on their way to this end, and how much of the first one it has taken.
    wire: VecDeque<Vec<u8>>,
    taken: usize,
    /// Bytes on their way through the device's channel to this end.
    channel: VecDeque<u8>,
    /// Sends of this end's device that have not completed: operation, and where the sent part of its message ends.
    flying: VecDeque<(OpId, u64)>,
    /// Receives posted to the device: memory, operation, bytes granted, bytes come.
    posted: VecDeque<(Exposed, OpId, usize, usize)>,
    /// The channel is gone at this end.
    gave_up: bool,
    sends: Vec<Sending>,
    recvs: Vec<Receiving>,
    pub(super) remote: Remote,
}

pub(super) struct World {
    pub(super) ends: [End; 2],
    pub(super) dice: Dice,
    pub(super) pool: Pool,
    /// What offers say: key to memory.
    pub(super) places: HashMap<u64, Exposed>,
    may_cancel: bool,
    /// One in so many steps is one of one-sided operations; never for 0.
    one_sided: usize,
}

impl World {
    pub(super) fn new(seed: u64, rendezvous: Rendezvous, may_cancel: bool, one_sided: usize) -> World {
        let pool = Pool::new(&Region::alloc(ARENA).unwrap()).unwrap();
        let (mut dice, mut places) = (Dice::new(seed), HashMap::new());
        let mut end = || {
            let (remote, exports) = Remote::new(&pool, &mut dice, &mut places);
            End {
                link: Link::with_exports(config(rendezvous), exports),
                wire: VecDeque::new(),
                taken: 0,
                channel: VecDeque::new(),
                flying: VecDeque::new(),
                posted: VecDeque::new(),
                gave_up: false,
                sends: Vec::new(),
                recvs: Vec::new(),
                remote,
            }
        };
        let ends = [end(), end()];
        World { ends, dice, pool, places, may_cancel, one_sided }
    }

    pub(super) fn take(&self, len: usize) -> Exposed {
        self.pool.take(len).unwrap().into_exposed()
    }

    /// Memory that the peer finds by the place.
    pub(super) fn offer(&mut self, memory: &Exposed) -> Place {
        let key = self.places.len() as u64 + 100;
        self.places.insert(key, memory.clone());
        Place { key, ..Place::default() }
    }

    pub(super) fn length(&mut self) -> usize {
        match self.dice.below(8) {
            0 => 0,
            // The longest that go in one frame, or in one of the long ones, and the shortest that do not.
            1 => [240, 300, 484][self.dice.below(3)],
            2 => [241, 301, 485][self.dice.below(3)],
            3 => self.dice.below(6000),
            4 => 216 * self.dice.below(8),
            _ => self.dice.below(400),
        }
    }

    fn start_send(&mut self, side: usize, tag: u64) {
        let len = self.length();
        let salt = self.ends[side].sends.len() * 7 + side + 1;
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + salt * 13) as u8).collect();
        let kind = self.dice.below(3);
        let source = if kind == 0 {
            Source::Lent(len as u64)
        } else {
            let memory = self.take(len);
            memory.write(0, &bytes);
            if kind == 1 {
                Source::Memory(memory)
            } else {
                let place = self.offer(&memory);
                Source::Offered { memory, place }
            }
        };
        let end = &mut self.ends[side];
        let op = Some(end.link.send(tag, source));
        end.sends.push(Sending { op, tag, bytes, lent: kind == 0, cancelled: false, outcome: None });
    }

    fn start_recv(&mut self, side: usize, tag: u64, room: usize) {
        let kind = self.dice.below(3);
        if kind == 0 && self.take_next(side, tag, room) {
            return;
        }
        let (memory, target) = if kind == 0 {
            (None, Target::Lent(room as u64))
        } else {
            let memory = self.take(room);
            memory.fill(0..room, CANARY);
            (Some(memory.clone()), Target::Memory { memory, direct: kind == 1 })
        };
        let end = &mut self.ends[side];
        let op = Some(end.link.recv(tag, target));
        let bytes = vec![CANARY; room];
        end.recvs.push(Receiving { op, tag, memory, bytes, room, cancelled: false, outcome: None });
    }

    /// Receives what has come without an operation, if it is to be had so.
    fn take_next(&mut self, side: usize, tag: u64, room: usize) -> bool {
        let End { link, wire, taken, recvs, .. } = &mut self.ends[side];
        let Some(frame) = wire.front().filter(|_| link.takes()) else { return false };
        assert_eq!(*taken, 0, "a link in the middle of a message takes none");
        let mut bytes = vec![CANARY; room];
        let Some(len) = link.take(tag, frame.as_slice(), &mut Landing::Bytes(&mut bytes)).unwrap() else {
            return false;
        };
        wire.pop_front();
        let outcome = Some(Ok(len as u64));
        recvs.push(Receiving { op: None, tag, memory: None, bytes, room, cancelled: false, outcome });
        true
    }

    /// The operation of which this thread lends the memory, chosen anew each time: threads come and go.
    fn with_lent<T>(&mut self, side: usize, act: impl FnOnce(&mut Link, &mut Lent<'_>) -> T) -> T {
        let first = self.dice.below(2) == 0;
        if self.one_sided > 0 && self.dice.below(2) == 0 {
            let End { link, remote, .. } = &mut self.ends[side];
            return act(link, &mut remote.lent(first, &mut self.dice));
        }
        let pick = self.lent_recv(side);
        let End { link, sends, recvs, .. } = &mut self.ends[side];
        let send = sends.iter().find(|send| send.lent && send.op.is_some());
        let recv = pick.map(|pick| &mut recvs[pick]);
        let mut lent = match (send, recv) {
            (Some(send), _) if first => Lent::Source(send.op.unwrap(), &send.bytes),
            (_, Some(recv)) => Lent::Target(recv.op.unwrap(), &mut recv.bytes),
            (Some(send), None) => Lent::Source(send.op.unwrap(), &send.bytes),
            (None, None) => Lent::Nothing,
        };
        act(link, &mut lent)
    }

    /// One of the receives into lent memory that are under way.
    fn lent_recv(&mut self, side: usize) -> Option<usize> {
        let under_way = |recv: &Receiving| recv.memory.is_none() && recv.op.is_some();
        let recvs: Vec<_> =
            self.ends[side].recvs.iter().enumerate().filter(|(_, recv)| under_way(recv)).map(|(at, _)| at).collect();
        (!recvs.is_empty()).then(|| recvs[self.dice.below(recvs.len())])
    }

    /// Whether an operation may wait for the thread that lends its memory.
    fn lends(&self) -> bool {
        self.ends.iter().any(|end| {
            let sends = end.sends.iter().any(|send| send.lent && send.op.is_some());
            // Those that have met no message would wait for ever.
            let met = |recv: &Receiving| {
                recv.memory.is_none()
                    && recv.op.is_some_and(|op| !end.link.posted.iter().any(|(_, posted)| *posted == op))
            };
            sends || end.recvs.iter().any(met) || end.remote.lends()
        })
    }

    /// Sends one frame, if one is to go.
    pub(super) fn transmit(&mut self, side: usize) -> bool {
        if self.ends[side].link.all_taken() {
            let unread = self.ends[1 - side].wire.iter().filter(|frame| frame[0] != Kind::Credit as u8);
            assert_eq!(unread.count(), 0, "the peer is said to have taken them");
        }
        let frame = self.with_lent(side, |link, lent| {
            let frame = link.transmit(lent)?;
            let mut bytes = frame.header.as_bytes().to_vec();
            match &frame.body {
                Body::Empty => {}
                Body::Packed => bytes.extend(link.packed()),
                Body::Memory(op, range) => {
                    let mut body = vec![0; range.len()];
                    link.memory(*op).read(range.start, &mut body);
                    bytes.extend(body);
                }
                Body::Lent(op, range) => bytes.extend(&lent.source(*op).unwrap()[range.clone()]),
            }
            link.transmitted(&frame);
            Some(bytes)
        });
        let Some(frame) = frame else { return false };
        let other = &mut self.ends[1 - side];
        other.wire.push_back(frame);
        assert!(
            other.wire.len() <= other.link.config().receive_buffers(),
            "more frames than the receiver has room for"
        );
        true
    }

    fn receive(&mut self, side: usize) -> bool {
        let Some(frame) = self.ends[side].wire.pop_front() else { return false };
        let (taken, len) = (self.ends[side].taken, frame.len());
        if taken > 0 || comes_in_parts(frame[0]) && len > FRAGMENT_HEADER && self.dice.below(3) == 0 {
            let begun = taken.max(FRAGMENT_HEADER);
            let end = begun + 1 + self.dice.below(len - begun);
            self.with_lent(side, |link, lent| link.receive_part(frame.as_slice(), taken..end, lent)).unwrap();
            self.ends[side].taken = if end < len { end } else { 0 };
            if end < len {
                self.ends[side].wire.push_front(frame);
            }
        } else {
            self.with_lent(side, |link, lent| link.receive(frame.as_slice(), lent)).unwrap();
        }
        let link = &self.ends[side].link;
        let bound = 2000 + 16 * 500 + 16 * 64;
        assert!(link.kept <= bound, "{} bytes are kept", link.kept);
        true
    }

    /// The device's channel breaks: whatever was on its way is lost.
    fn give_up_moves(&mut self, side: usize) {
        let end = &mut self.ends[side];
        (end.channel, end.flying, end.posted, end.gave_up) = (VecDeque::new(), VecDeque::new(), VecDeque::new(), true);
        end.link.give_up_moves();
    }

    /// Does one of the large moves.
    fn carry(&mut self, side: usize) -> bool {
        if self.ends[side].link.is_forsaken() {
            self.give_up_moves(side);
            return true;
        }
        let places = std::mem::take(&mut self.places);
        let copied = self.with_lent(side, |link, lent| {
            link.next_copy(lent).map(|copy| {
                let (from, at) = (&places[&copy.from.key], copy.from.offset as usize);
                match copy.into {
                    Into::Memory(memory) => from.copy_to(at, &memory, 0, copy.len as usize),
                    Into::Lent => from.read(at, &mut lent.target(copy.op).unwrap()[..copy.len as usize]),
                }
                link.copied(copy.op, Ok(()));
            })
        });
        self.places = places;
        if copied.is_some() {
            return true;
        }
        if let Some(posting) = self.ends[side].link.next_posting() {
            match posting {
                Posting::Receive { op, memory } => self.ends[side].posted.push_back((memory, op, 0, 0)),
                Posting::Send { op, memory, range } => {
                    self.ends[side].flying.push_back((op, range.end));
                    let mut bytes = vec![0; (range.end - range.start) as usize];
                    memory.read(range.start as usize, &mut bytes);
                    if !self.ends[1 - side].gave_up {
                        self.ends[1 - side].channel.extend(bytes);
                    }
                }
                Posting::Part { .. } => unreachable!("this link is not striped"),
            }
            return true;
        }
        if self.dice.below(2) == 0
            && let Some((op, upto)) = self.ends[side].flying.pop_front()
        {
            self.ends[side].link.sent(op, upto);
            return true;
        }
        let step = 1 + self.dice.below(900);
        let End { link, posted, channel, .. } = &mut self.ends[side];
        // Only the newest receives can be ungranted: they are posted in order.
        if let Some((memory, op, granted, _)) =
            posted.iter_mut().find(|(memory, _, granted, _)| *granted < memory.len())
        {
            *granted = memory.len().min(*granted + step);
            link.granted(*op, *granted as u64);
            return true;
        }
        let Some((memory, op, granted, come)) = posted.front_mut() else { return false };
        let count = channel.len().min(step).min(*granted - *come);
        if count == 0 {
            return false;
        }
        let bytes: Vec<u8> = channel.drain(..count).collect();
        memory.write(*come, &bytes);
        *come += count;
        if *come == memory.len() {
            assert!(link.landed(*op));
            posted.pop_front();
        }
        true
    }

    /// Looks for outcomes.
    pub(super) fn collect(&mut self, side: usize) -> bool {
        let End { link, sends, recvs, .. } = &mut self.ends[side];
        let mut any = false;
        for send in sends.iter_mut() {
            let Some(op) = send.op else { continue };
            let mut lent = if send.lent { Lent::Source(op, &send.bytes) } else { Lent::Nothing };
            if let Poll::Ready(outcome) = link.poll(op, &mut lent) {
                (send.op, send.outcome, any) = (None, Some(outcome), true);
            }
        }
        for recv in recvs.iter_mut() {
            let Some(op) = recv.op else { continue };
            let mut lent = if recv.memory.is_none() { Lent::Target(op, &mut recv.bytes) } else { Lent::Nothing };
            if let Poll::Ready(outcome) = link.poll(op, &mut lent) {
                (recv.op, recv.outcome, any) = (None, Some(outcome), true);
                if let Some(memory) = &recv.memory {
                    memory.read(0, &mut recv.bytes);
                }
            }
        }
        any | self.ends[side].collect_remote()
    }

    fn cancel(&mut self, side: usize) {
        if self.one_sided > 0 && self.dice.below(2) == 0 {
            return self.cancel_remote(side);
        }
        let pick = self.dice.below(8);
        let End { link, sends, recvs, .. } = &mut self.ends[side];
        if pick < 4 {
            let Some(recv) = recvs.iter_mut().filter(|recv| recv.op.is_some() && !recv.cancelled).nth(pick) else {
                return;
            };
            match link.cancel(recv.op.unwrap()) {
                Cancel::Released => {
                    (recv.op, recv.cancelled) = (None, true);
                    // Nothing may write it from now on.
                    if let Some(memory) = &recv.memory {
                        memory.fill(0..recv.room, CANARY);
                    }
                }
                Cancel::Finished | Cancel::Busy => {}
                Cancel::Copying => panic!("no copy is under way"),
            }
        } else {
            let found = sends.iter_mut().filter(|send| send.op.is_some() && !send.cancelled).nth(pick - 4);
            let Some(send) = found else { return };
            match link.cancel(send.op.unwrap()) {
                Cancel::Released => (send.op, send.cancelled) = (None, true),
                Cancel::Busy => send.cancelled = true,
                Cancel::Finished => {}
                Cancel::Copying => panic!("sends do not copy"),
            }
        }
    }

    pub(super) fn step(&mut self) {
        let side = self.dice.below(2);
        if self.one_sided > 0 && self.dice.below(self.one_sided) == 0 {
            return self.start_remote(side);
        }
        if self.ends[side].link.config().rendezvous == Rendezvous::Matched && self.dice.below(2000) == 0 {
            return self.give_up_moves(side);
        }
        let tag = self.dice.below(3) as u64;
        match self.dice.below(20) {
            0 => self.start_send(side, tag),
            1 => {
                let room = if self.dice.below(4) == 0 { self.length() } else { 6000 };
                self.start_recv(side, tag, room);
            }
            2 if self.may_cancel => self.cancel(side),
            2..=6 => drop(self.collect(side)),
            7..=11 => drop(self.transmit(side)),
            12..=16 => drop(self.receive(side)),
            _ => drop(self.carry(side)),
        }
    }

    /// Runs until nothing moves any more.
    pub(super) fn settle(&mut self) {
        let mut idle = 0;
        // When a device is done is left to chance, and even more whose memory is lent.
        while idle < 60 || (idle < 1000 && self.lends()) {
            let mut moved = false;
            for side in 0..2 {
                moved |= self.transmit(side);
                moved |= self.receive(side);
                moved |= self.carry(side);
                moved |= self.collect(side);
            }
            idle = if moved { 0 } else { idle + 1 };
        }
        for side in 0..2 {
            let (one, other) = (&self.ends[side].link, &self.ends[1 - side].link);
            assert_eq!(one.credits + other.owed + other.withheld, one.config().credits, "credits come back, each once");
        }
    }

    /// Asks for whatever was sent and not asked for.
    pub(super) fn receive_the_rest(&mut self) {
        for side in 0..2 {
            for tag in 0..3 {
                let sent = self.ends[1 - side].sends.iter().filter(|send| send.tag == tag).count();
                let asked = self.ends[side].recvs.iter().filter(|recv| recv.tag == tag && !recv.cancelled).count();
                for _ in asked..sent {
                    self.start_recv(side, tag, 6000);
                }
            }
        }
    }

    /// Compares what was received with what was sent, message by message.
    pub(super) fn check_all(&self) {
        for side in 0..2 {
            for tag in 0..3 {
                let sent: Vec<_> = self.ends[1 - side].sends.iter().filter(|send| send.tag == tag).collect();
                let received: Vec<_> = self.ends[side].recvs.iter().filter(|recv| recv.tag == tag).collect();
                for (send, recv) in sent.iter().zip(&received) {
                    let (len, room) = (send.bytes.len() as u64, recv.room as u64);
                    if len <= room {
                        assert_eq!(recv.outcome, Some(Ok(len)));
                        assert_eq!(send.outcome, Some(Ok(len)));
                        assert_eq!(recv.bytes[..send.bytes.len()], send.bytes[..]);
                        assert!(recv.bytes[send.bytes.len()..].iter().all(|byte| *byte == CANARY));
                    } else {
                        assert_eq!(recv.outcome, Some(Err(OpError::Truncated { len, room })));
                        assert!(
                            matches!(send.outcome, Some(Ok(_) | Err(OpError::Refused { .. }))),
                            "{:?}",
                            send.outcome
                        );
                        assert!(recv.bytes.iter().all(|byte| *byte == CANARY), "a refused message was written");
                    }
                }
                assert!(received.iter().skip(sent.len()).all(|recv| recv.outcome.is_none()));
                assert!(received.len() >= sent.len());
            }
        }
    }

    /// With cancellations: whatever was received is a message that was sent, in order, and nothing else was written.
    pub(super) fn check_received(&self) {
        for side in 0..2 {
            for tag in 0..3 {
                let mut sent = self.ends[1 - side].sends.iter().filter(|send| send.tag == tag);
                for recv in self.ends[side].recvs.iter().filter(|recv| recv.tag == tag) {
                    if let Some(Ok(len)) = recv.outcome {
                        let bytes = &recv.bytes[..len as usize];
                        assert!(sent.any(|send| send.bytes == bytes), "a message out of nowhere, or out of order");
                    }
                    if recv.cancelled
                        && let Some(memory) = &recv.memory
                    {
                        let mut bytes = vec![0; recv.room];
                        memory.read(0, &mut bytes);
                        assert!(bytes.iter().all(|byte| *byte == CANARY), "written after its release");
                    }
                }
            }
        }
    }
}

fn cases() -> u32 {
    super::cases(2000, 150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn each_message_meets_its_receive(seed in any::<u64>(), rendezvous in kinds(), steps in 50usize..1500) {
        let mut world = World::new(seed, rendezvous, false, 0);
        (0..steps).for_each(|_| world.step());
        world.receive_the_rest();
        world.settle();
        world.check_all();
        for end in &world.ends {
            prop_assert_eq!(end.link.kept, 0);
            prop_assert_eq!(end.link.withheld, 0);
            prop_assert_eq!(end.link.unfinished(), end.link.posted.len());
        }
        // No credit was lost: all are here, or owed by the other side, which may have a few more frames to give them back.
        let [one, other] = &world.ends;
        prop_assert_eq!(one.link.credits + other.link.owed, 16);
        prop_assert_eq!(other.link.credits + one.link.owed, 16);
    }

    #[test]
    fn cancelled_operations_release_their_memory(seed in any::<u64>(), rendezvous in kinds(), steps in 50usize..1500) {
        let mut world = World::new(seed, rendezvous, true, 0);
        (0..steps).for_each(|_| world.step());
        world.settle();
        world.check_received();
        // Whatever is left ends with the link, and no memory stays with it.
        for side in 0..2 {
            world.ends[side].link.sever();
            world.collect(side);
            prop_assert!(world.ends[side].sends.iter().all(|send| send.op.is_none()));
            prop_assert!(world.ends[side].recvs.iter().all(|recv| recv.op.is_none()));
        }
        world.check_received();
    }

    #[test]
    fn a_link_that_is_severed_at_any_time_ends_everything(seed in any::<u64>(), rendezvous in kinds(), steps in 0usize..600) {
        let mut world = World::new(seed, rendezvous, false, 0);
        (0..steps).for_each(|_| world.step());
        world.ends[0].link.sever();
        world.collect(0);
        prop_assert!(world.ends[0].sends.iter().all(|send| send.outcome.is_some()));
        for recv in &world.ends[0].recvs {
            prop_assert!(recv.outcome.is_some());
        }
        prop_assert!(!world.transmit(0));
        world.check_received();
    }
}
