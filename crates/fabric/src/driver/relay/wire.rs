use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;

use super::{Switch, WINDOW};
use crate::driver::{Broken, Payload, Takes, Wire};
use crate::engine::{
    Body, Carried, Incoming, Lent, Link, Outgoing, PREFIX, Reliable, ReliableConfig, Source, Target, Verdict,
};

/// The shortest time after which a frame is sent again: hops lose nothing, so that frames are late and not lost unless a rank
/// on the way is.
const AGAIN: Duration = Duration::from_secs(1);

/// One end of a link over other ranks.
pub(crate) struct RelayWire {
    peer: u32,
    switch: Arc<Switch>,
    reliable: Reliable,
    /// Frames that are not acknowledged, by the slots of their numbers.
    slots: Vec<Vec<u8>>,
    /// What has come, being looked at.
    come: VecDeque<Carried>,
    /// From which the times of frames are counted.
    start: Instant,
    patience: Duration,
    over: bool,
}

/// A frame without its seal.
struct Unsealed<'a>(&'a [u8]);

impl Incoming for Unsealed<'_> {
    fn len(&self) -> usize {
        self.0.len() - Reliable::OVERHEAD
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.0.read(Reliable::OVERHEAD + at, into);
    }

    fn copy_to(&self, at: usize, to: &Exposed, to_at: usize, len: usize) {
        self.0.copy_to(Reliable::OVERHEAD + at, to, to_at, len);
    }
}

impl RelayWire {
    /// The wire to `peer`, which may acknowledge nothing for as long as `patience`.
    pub(crate) fn new(peer: u32, switch: Arc<Switch>, generation: u64, patience: Duration) -> RelayWire {
        let generation = (generation ^ generation >> 32) as u32;
        let mut config = ReliableConfig::new(WINDOW, generation, patience);
        config.rto = AGAIN.min(patience / 4).max(config.rto);
        config.rto_most = config.rto_most.max(2 * config.rto);
        RelayWire {
            peer,
            switch,
            reliable: Reliable::new(config),
            slots: (0..WINDOW).map(|_| Vec::new()).collect(),
            come: VecDeque::new(),
            start: Instant::now(),
            patience,
            over: false,
        }
    }

    /// Hands the link what has come.
    fn receive(&mut self, now: Duration, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        self.switch.take(self.peer, &mut self.come);
        for frame in &self.come {
            let bytes = frame.bytes.as_slice();
            match self.reliable.receive(now, bytes) {
                Verdict::Deliver if !link.peer_left() => link.receive(&Unsealed(bytes), lent)?,
                Verdict::Deliver | Verdict::Acknowledgement => {}
                verdict => tracing::trace!(peer = self.peer, ?verdict, "dropped a frame"),
            }
        }
        Ok(!self.come.is_empty())
    }

    /// Whether a new frame can go.
    fn has_room(&self) -> bool {
        self.reliable.can_send() && self.switch.room(self.peer) > 0
    }

    /// The frame in the slot goes, for the first time or again.
    fn send(&mut self, slot: u32) {
        let frame = self.slots[slot as usize].as_slice();
        let seal = self.reliable.seal(slot, frame);
        self.switch.send(self.peer, &seal, frame);
    }

    fn answer(&mut self) {
        let seal = self.reliable.acknowledgement();
        self.switch.send(self.peer, &seal, &[]);
    }

    fn send_again(&mut self, now: Duration) {
        // What waits here still is not lost.
        let waits = self.switch.room(self.peer) < super::ROOM;
        while let Some(slot) = self.reliable.due(now) {
            if !waits {
                self.send(slot);
            }
        }
    }
}

impl Wire for RelayWire {
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>, _takes: Takes) -> Result<bool, Broken> {
        if self.over {
            return Ok(false);
        }
        let now = self.start.elapsed();
        let mut moved = self.receive(now, link, lent)?;
        if link.peer_left() {
            // It waits for the word that its goodbye has come; it wants no frames any more.
            if moved {
                self.reliable.give_up();
                self.answer();
            }
            return Ok(moved);
        }
        if let Some(cause) = self.switch.cut_off(self.peer) {
            return Err(Broken(cause));
        }
        // Asked after what has come was taken.
        if self.reliable.is_dead() {
            let over = self.switch.path(self.peer).unwrap_or_default();
            let (peer, patience) = (self.peer, self.patience);
            return Err(Broken(format!("rank {peer} acknowledged nothing over ranks {over:?} for {patience:?}")));
        }
        self.send_again(now);
        while self.has_room() {
            let Some(frame) = link.transmit(lent) else { break };
            let slot = self.reliable.begin(now);
            fill(&mut self.slots[slot as usize], &frame, link, lent);
            self.send(slot);
            link.transmitted(&frame);
            moved = true;
        }
        if self.reliable.ack_due(now) {
            self.answer();
        }
        Ok(moved)
    }

    fn push(&mut self, _link: &Link, header: &[u8; PREFIX], payload: Payload<'_>) -> Result<bool, Broken> {
        if self.over || !self.has_room() {
            return Ok(false);
        }
        let slot = self.reliable.begin(self.start.elapsed());
        let frame = &mut self.slots[slot as usize];
        frame.clear();
        frame.extend_from_slice(header);
        match payload {
            Payload::Bytes(bytes) => frame.extend_from_slice(bytes),
            Payload::Memory(memory) => {
                frame.resize(PREFIX + memory.len(), 0);
                memory.read(0, &mut frame[PREFIX..]);
            }
        }
        self.send(slot);
        Ok(true)
    }

    fn source(&self, memory: Exposed) -> Source {
        Source::Memory(memory)
    }

    fn target(&self, memory: Exposed) -> Target {
        Target::Memory { memory, direct: false }
    }

    fn is_idle(&self) -> bool {
        self.over || self.reliable.in_flight() == 0
    }

    fn deadline(&self) -> Option<Instant> {
        let deadline = self.reliable.deadline().filter(|_| !self.over)?;
        Some(self.start + deadline)
    }

    fn is_demanding(&self) -> bool {
        true
    }

    fn sever(&mut self) {
        self.over = true;
        self.switch.take(self.peer, &mut self.come);
    }
}

/// Writes a frame: its memory keeps its room.
fn fill(slot: &mut Vec<u8>, frame: &Outgoing, link: &Link, lent: &Lent<'_>) {
    slot.clear();
    slot.extend_from_slice(frame.header.as_bytes());
    match &frame.body {
        Body::Empty => {}
        Body::Packed => slot.extend_from_slice(link.packed()),
        Body::Memory(op, range) => {
            let at = slot.len();
            slot.resize(at + range.len(), 0);
            link.memory(*op).read(range.start, &mut slot[at..]);
        }
        Body::Lent(op, range) => {
            let bytes = lent.source(*op).expect("frames of lent memory are given to its lender only");
            slot.extend_from_slice(&bytes[range.clone()]);
        }
    }
}
