//! Moving links on, as a driver would: frames out and in, large moves, outcomes.

use std::task::Poll;
use std::time::Duration;

use fulmen_fabric::engine::{Into, Lent, OpError, Verdict};

use crate::end::{What, Wire, Work};
use crate::network::{Carrier, EndId, Happening, MICRO, Time};
use crate::random::mix;
use crate::report::Broken;
use crate::schedule::Choice;
use crate::share::PLACE;
use crate::world::{Checked, Draw, World};

/// How long a frame needs at least, and how much longer it may need.
const LATENCY: Time = MICRO;
const JITTER: Time = 8 * MICRO;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Dropped,
    /// Comes twice, the second time so much later.
    Doubled(Time),
    HeldUp(Time),
    /// Comes with this bit wrong.
    Corrupt(u64),
}

impl World<'_> {
    /// Plans to move an end on, `within` some time. What is to go meanwhile goes together.
    pub(crate) fn pump_soon(&mut self, end: EndId, within: Time) {
        let now = self.clock.now;
        let id = (end.pair * 2 + end.side) as u64;
        let delay = mix(self.options.seed ^ Draw::Pump as u64, mix(now, id)) % (within + 1);
        self.pump_at(end, now + delay);
    }

    fn pump_at(&mut self, end: EndId, at: Time) {
        let generation = self.pairs[end.pair].generation;
        let at = at.max(self.clock.now);
        let Some(own) = self.end(end) else { return };
        if own.pump_at.is_none_or(|planned| at < planned) {
            own.pump_at = Some(at);
            self.clock.plan(at, Happening::Pump { end, generation });
        }
    }

    /// Moves an end on for as long as it has something to do now.
    pub(crate) fn pump(&mut self, end: EndId) -> Checked {
        let now = self.virtual_time();
        let at = self.clock.now;
        match self.end(end) {
            Some(own) if own.pump_at.is_some_and(|planned| planned <= at) => own.pump_at = None,
            // Planned anew for an earlier time, which has been.
            _ => return Ok(()),
        }
        loop {
            let mut worked = false;
            while let Some(frame) = self.end(end).and_then(|own| own.next_frame(now)) {
                self.transmit(end, frame)?;
                worked = true;
            }
            worked |= self.copy(end)?;
            let grant = 1 + self.dice(Draw::Chunk, &[self.step, self.clock.now]).index(600);
            let Some(own) = self.end(end) else { return Ok(()) };
            let (work, granted) = own.post(grant);
            worked |= granted || !work.is_empty();
            for work in work {
                self.work(end, work);
            }
            if !worked {
                break;
            }
        }
        let Some(own) = self.end(end) else { return Ok(()) };
        let ungranted = own.has_ungranted();
        if let Some(bytes) = own.acknowledgement(now) {
            self.transmit(end, bytes)?;
        }
        self.collect(end)?;
        if ungranted {
            self.pump_soon(end, 5 * MICRO);
        }
        self.set_timer(end)
    }

    /// Plans to come back when a timer runs out; severs a link that is dead.
    fn set_timer(&mut self, end: EndId) -> Checked {
        let Some(own) = self.end(end) else { return Ok(()) };
        let Wire::Sealed { reliable, .. } = &own.wire else { return Ok(()) };
        if reliable.is_dead() {
            if !self.may_be_dead(end.pair) {
                let (own, peer) = (self.node(end), self.node(end.peer()));
                let what = format!("rank {own} gave the link to rank {peer} up though frames come through");
                return Err(self.failure(Broken::Hang, what));
            }
            return self.sever(end);
        }
        if let Some(deadline) = reliable.deadline() {
            self.pump_at(end, deadline.as_nanos() as Time);
        }
        Ok(())
    }

    /// Gives a frame to the network.
    fn transmit(&mut self, from: EndId, mut bytes: Vec<u8>) -> Checked {
        let to = from.peer();
        let (sender, receiver) = (self.node(from), self.node(to));
        let (generation, carrier) = (self.pairs[from.pair].generation, self.pairs[from.pair].carrier);
        let count = &mut self.sent[sender * self.nodes.len() + receiver];
        let nth = *count;
        *count += 1;
        self.counts.frames += 1;
        let mut dice = self.dice(Draw::Frame, &[self.step, sender as u64, receiver as u64, nth.into()]);
        let latency = LATENCY + dice.below(JITTER);
        self.digest.add(&[5, self.clock.now, from.pair as u64 * 2 + from.side as u64, bytes.len() as u64]);
        let apart = self.apart(sender, receiver);
        let now = self.clock.now;
        if carrier != Carrier::Unreliable {
            // Held until the nodes reach one another again, and in order.
            let sent = apart.map_or(now, |partition| partition.until);
            let Some(other) = self.end(to) else { return Ok(()) };
            other.last_frame = other.last_frame.max(sent + latency);
            other.unread += 1;
            let (at, unread, room) = (other.last_frame, other.unread, other.link.config().receive_buffers());
            if unread > room {
                let what = format!(
                    "rank {sender} has {unread} frames under way to rank {receiver}, which has room for {room}"
                );
                return Err(self.failure(Broken::Protocol, what));
            }
            self.clock.plan(at, Happening::Frame { to, generation, bytes });
            return Ok(());
        }
        if apart.is_some() {
            return Ok(());
        }
        let choice = Choice::Frame { step: self.step, from: sender as u32, to: receiver as u32, nth };
        let fate = self.fate(choice, &mut dice);
        let mut at = now + latency;
        match fate {
            Fate::Arrives => {}
            Fate::Dropped => {
                self.counts.drop += 1;
                self.tell(choice, &[sender, receiver], || {
                    format!("a frame from rank {sender} to rank {receiver} is lost")
                });
                return Ok(());
            }
            Fate::Doubled(later) => {
                self.counts.dup += 1;
                self.tell(choice, &[sender, receiver], || {
                    let later = Duration::from_nanos(later);
                    format!("a frame from rank {sender} to rank {receiver} comes twice, {later:?} apart")
                });
                self.clock.plan(at + later, Happening::Frame { to, generation, bytes: bytes.clone() });
            }
            Fate::HeldUp(later) => {
                self.counts.reorder += 1;
                self.tell(choice, &[sender, receiver], || {
                    let later = Duration::from_nanos(later);
                    format!("a frame from rank {sender} to rank {receiver} is held up for {later:?}")
                });
                at += later;
            }
            Fate::Corrupt(bit) => {
                self.counts.corrupt += 1;
                let bit = bit as usize % (bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                self.tell(choice, &[sender, receiver], || {
                    format!("a frame from rank {sender} to rank {receiver} has bit {bit} wrong")
                });
            }
        }
        self.clock.plan(at, Happening::Frame { to, generation, bytes });
        Ok(())
    }

    fn fate(&self, choice: Choice, dice: &mut crate::random::Dice) -> Fate {
        let faults = &self.options.faults;
        if self.calm {
            return Fate::Arrives;
        }
        let roll = dice.next() as f64 / u64::MAX as f64;
        let later = dice.below(faults.delay.as_nanos().max(1) as Time);
        let bit = dice.next();
        let mut upto = 0.0;
        let fates = [
            (faults.drop, Fate::Dropped),
            (faults.dup, Fate::Doubled(later)),
            (faults.reorder, Fate::HeldUp(later)),
            (faults.corrupt, Fate::Corrupt(bit)),
        ];
        let fate = fates.iter().find(|(share, _)| {
            upto += share;
            roll < upto
        });
        match fate {
            Some((_, fate)) if self.keeps(choice) => *fate,
            _ => Fate::Arrives,
        }
    }

    /// A frame has come.
    pub(crate) fn frame_arrives(&mut self, to: EndId, generation: u32, bytes: Vec<u8>) -> Checked {
        let now = self.virtual_time();
        let current = self.pairs[to.pair].generation;
        let id = to.pair as u64 * 2 + to.side as u64;
        let Some(own) = self.end(to) else { return Ok(()) };
        let (result, verdict) = match &mut own.wire {
            // What is left of an old link has nowhere to go.
            Wire::Plain if generation != current => return Ok(()),
            Wire::Plain => {
                own.unread -= 1;
                (own.link.receive(bytes.as_slice(), &mut Lent::Nothing), Verdict::Deliver)
            }
            Wire::Sealed { reliable, .. } => match reliable.receive(now, bytes.as_slice()) {
                Verdict::Deliver => (
                    own.link.receive(&bytes[fulmen_fabric::engine::Reliable::OVERHEAD..], &mut Lent::Nothing),
                    Verdict::Deliver,
                ),
                verdict => (Ok(()), verdict),
            },
        };
        self.digest.add(&[6, self.clock.now, id, bytes.len() as u64, verdict as u64]);
        let (own, peer) = (self.node(to), self.node(to.peer()));
        let fresh = matches!(verdict, Verdict::Deliver | Verdict::Acknowledgement | Verdict::Duplicate | Verdict::Gap);
        if generation != current && fresh {
            let what =
                format!("rank {own} took a frame of rank {peer}'s generation {generation} in generation {current}");
            return Err(self.failure(Broken::Generation, what));
        }
        if let Err(error) = result {
            return Err(self.failure(Broken::Protocol, format!("rank {own} refused a frame of rank {peer}: {error}")));
        }
        if verdict == Verdict::Deliver {
            self.inspect(to)?;
        }
        self.pump_soon(to, 2 * MICRO);
        Ok(())
    }

    /// Copies out of the peer's memory.
    fn copy(&mut self, end: EndId) -> Checked<bool> {
        let mut any = false;
        while let Some(copy) = self.end(end).and_then(|own| own.link.next_copy(&mut Lent::Nothing)) {
            any = true;
            let Some(other) = self.end(end.peer()) else {
                // Its memory is not what was offered any more.
                let op = copy.op;
                drop(copy);
                let own = self.end(end).expect("it has given the copy out");
                own.link.sever();
                own.link.copied(op, Err(OpError::Unreachable));
                self.sever(end)?;
                return Ok(false);
            };
            let place = other.places.get(&copy.from.key).cloned();
            let share = || self.nodes[self.node(end.peer())].share.as_ref().map(|share| share.memory.clone());
            let Some(from) = (if copy.from.key == PLACE { share() } else { place }) else {
                let what = format!("rank {} copies from memory that is released", self.node(end));
                return Err(self.failure(Broken::Release, what));
            };
            let Into::Memory(into) = copy.into else { unreachable!("nobody lends memory here") };
            from.copy_to(copy.from.offset as usize, &into, 0, copy.len as usize);
            drop(into);
            self.end(end).expect("it has given the copy out").link.copied(copy.op, Ok(()));
            self.inspect(end)?;
        }
        Ok(any)
    }

    /// What a device does.
    fn work(&mut self, end: EndId, work: Work) {
        let Work::Chunk(bytes) = work;
        let generation = self.pairs[end.pair].generation;
        let (sender, receiver) = (self.node(end), self.node(end.peer()));
        let sent = self.apart(sender, receiver).map_or(self.clock.now, |partition| partition.until);
        let mut dice = self.dice(Draw::Chunk, &[self.step, sender as u64, receiver as u64, self.clock.now]);
        let latency = LATENCY + dice.below(2 * JITTER);
        let Some(other) = self.end(end.peer()) else { return };
        other.last_chunk = other.last_chunk.max(sent + latency);
        let at = other.last_chunk;
        self.clock.plan(at, Happening::Chunk { to: end.peer(), generation, bytes });
        // The word that it has gone comes after it has come.
        self.clock.plan(at + LATENCY, Happening::ChunkSent { end, generation });
    }

    /// Bytes of a large message have come to a device.
    pub(crate) fn chunk_arrives(&mut self, to: EndId, bytes: &[u8]) -> Checked {
        let Some(own) = self.end(to) else { return Ok(()) };
        if !own.chunk(bytes) {
            let (own, peer) = (self.node(to), self.node(to.peer()));
            let what =
                format!("rank {peer} sent {} bytes to rank {own} that meet no receive, or are wrong", bytes.len());
            return Err(self.failure(Broken::Protocol, what));
        }
        self.inspect(to)?;
        self.digest.add(&[7, self.clock.now, to.pair as u64 * 2 + to.side as u64, bytes.len() as u64]);
        self.pump_soon(to, 2 * MICRO);
        Ok(())
    }

    /// Looks for outcomes, and holds them against the model.
    pub(crate) fn collect(&mut self, end: EndId) -> Checked {
        let node = self.node(end);
        let Some(own) = self.end(end) else { return Ok(()) };
        if !own.has_ended() {
            return Ok(());
        }
        let over = own.link.is_severed() || own.link.peer_left();
        let mut at = 0;
        while let Some(own) = self.end(end)
            && at < own.live.len()
        {
            let Poll::Ready(outcome) = own.link.poll(own.live[at].op, &mut Lent::Nothing) else {
                at += 1;
                continue;
            };
            let live = own.live.remove(at);
            if let Some(key) = live.key {
                own.places.remove(&key);
            }
            let ended = match outcome {
                Ok(_) => &mut self.counts.succeeded,
                Err(_) => &mut self.counts.failed,
            };
            *ended += 1;
            self.digest.add(&[8, self.clock.now, node as u64, outcome.map_or(u64::MAX, |value| value)]);
            match live.what {
                What::Send { tag, number } => {
                    let checked = self.pairs[end.pair].lanes[end.side][tag as usize].sent(number, outcome, over);
                    checked.map_err(|wrong| self.wrong(end, tag, wrong))?;
                    if let Some(memory) = live.memory {
                        self.release(node, memory)?;
                    }
                }
                What::Recv { tag, number } => {
                    let memory = live.memory.expect("a receive has memory");
                    let mut bytes = std::mem::take(&mut self.scratch);
                    bytes.resize(memory.len(), 0);
                    memory.read(0, &mut bytes);
                    let from = end.peer();
                    let lane = &mut self.pairs[from.pair].lanes[from.side][tag as usize];
                    let checked = lane.received(number, outcome, &bytes, over);
                    self.scratch = bytes;
                    checked.map_err(|wrong| self.wrong(from, tag, wrong))?;
                    self.watch(node, memory)?;
                }
                What::Remote { number } => self.remote_ended(end, number, outcome, over, live.memory)?,
            }
        }
        Ok(())
    }
}
