//! One end of a link, as a driver keeps it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fulmen_fabric::engine::{Body, Lent, Link, OpId, Posting, Reliable, ReliableConfig};
use fulmen_memory::Exposed;

use crate::network::Time;

/// How frames get from one end to the other.
pub(crate) enum Wire {
    /// As they are.
    Plain,
    /// Numbered, acknowledged and sent again: each frame is kept in a slot until the peer has it.
    Sealed { reliable: Box<Reliable>, slots: Vec<Vec<u8>> },
}

/// What an operation is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The message of this number, with this tag.
    Send {
        tag: u64,
        number: u64,
    },
    Recv {
        tag: u64,
        number: u64,
    },
    /// The one-sided operation of this number.
    Remote {
        number: u64,
    },
}

/// An operation that is under way.
#[derive(Debug)]
pub(crate) struct Live {
    pub op: OpId,
    pub what: What,
    /// Its memory.
    pub memory: Option<Exposed>,
    /// Under which key the peer finds it.
    pub key: Option<u64>,
}

/// A receive that a device was given.
#[derive(Debug)]
struct Posted {
    op: OpId,
    memory: Exposed,
    granted: usize,
    come: usize,
}

/// One end of a link.
pub(crate) struct End {
    pub link: Link,
    pub wire: Wire,
    pub live: Vec<Live>,
    /// Memory that the peer can map, by key.
    pub places: BTreeMap<u64, Exposed>,
    /// When it is to be moved on, if that is planned.
    pub pump_at: Option<Time>,
    /// Frames of the peer's that have not come yet.
    pub unread: usize,
    /// When the last frame and the last chunk for this end come.
    pub last_frame: Time,
    pub last_chunk: Time,
    posted: VecDeque<Posted>,
    flying: VecDeque<(OpId, u64)>,
    ended: u32,
}

/// What a device is to do for a link.
pub(crate) enum Work {
    /// Send these bytes to the peer's.
    Chunk(Vec<u8>),
}

impl End {
    pub(crate) fn new(link: Link, reliable: Option<ReliableConfig>) -> End {
        let wire = match reliable {
            Some(config) => {
                let slots = vec![Vec::new(); config.window as usize];
                Wire::Sealed { reliable: Box::new(Reliable::new(config)), slots }
            }
            None => Wire::Plain,
        };
        let ended = link.ended();
        End {
            link,
            wire,
            live: Vec::new(),
            places: BTreeMap::new(),
            pump_at: None,
            unread: 0,
            last_frame: 0,
            last_chunk: 0,
            posted: VecDeque::new(),
            flying: VecDeque::new(),
            ended,
        }
    }

    /// The next frame, as it goes over the wire.
    pub(crate) fn next_frame(&mut self, now: Duration) -> Option<Vec<u8>> {
        if let Wire::Sealed { reliable, slots } = &mut self.wire {
            if let Some(slot) = reliable.due(now) {
                let frame = &slots[slot as usize];
                return Some(sealed(&reliable.seal(slot, frame.as_slice()), frame));
            }
            if !reliable.can_send() {
                return None;
            }
        }
        let outgoing = self.link.transmit(&Lent::Nothing)?;
        let mut frame = outgoing.header.as_bytes().to_vec();
        match &outgoing.body {
            Body::Empty => {}
            Body::Memory(op, range) => {
                let header = frame.len();
                frame.resize(header + range.len(), 0);
                self.link.memory(*op).read(range.start, &mut frame[header..]);
            }
            Body::Packed => frame.extend_from_slice(self.link.packed()),
            Body::Lent(..) => unreachable!("nobody lends memory here"),
        }
        self.link.transmitted(&outgoing);
        match &mut self.wire {
            Wire::Plain => Some(frame),
            Wire::Sealed { reliable, slots } => {
                let slot = reliable.begin(now);
                let bytes = sealed(&reliable.seal(slot, frame.as_slice()), &frame);
                slots[slot as usize] = frame;
                Some(bytes)
            }
        }
    }

    /// An acknowledgement that is to go alone.
    pub(crate) fn acknowledgement(&mut self, now: Duration) -> Option<Vec<u8>> {
        match &mut self.wire {
            Wire::Sealed { reliable, .. } if reliable.ack_due(now) => Some(reliable.acknowledgement().to_vec()),
            _ => None,
        }
    }

    /// Gives the device what the link wants moved. `grant`: how many bytes it posts receives for at once; also tells whether
    /// it has.
    pub(crate) fn post(&mut self, grant: usize) -> (Vec<Work>, bool) {
        let mut work = Vec::new();
        let mut granted = false;
        while let Some(posting) = self.link.next_posting() {
            match posting {
                Posting::Receive { op, memory } => self.posted.push_back(Posted { op, memory, granted: 0, come: 0 }),
                Posting::Send { op, memory, range } => {
                    let mut bytes = vec![0; (range.end - range.start) as usize];
                    memory.read(range.start as usize, &mut bytes);
                    self.flying.push_back((op, range.end));
                    work.push(Work::Chunk(bytes));
                }
                Posting::Part { .. } => unreachable!("no link of a simulation has several channels"),
            }
        }
        // In the order in which they are posted, so that each chunk meets its own.
        if let Some(posted) = self.posted.iter_mut().find(|posted| posted.granted < posted.memory.len()) {
            posted.granted = posted.memory.len().min(posted.granted + grant);
            self.link.granted(posted.op, posted.granted as u64);
            granted = true;
        }
        (work, granted)
    }

    /// Whether the device has receives to post.
    pub(crate) fn has_ungranted(&self) -> bool {
        self.posted.iter().any(|posted| posted.granted < posted.memory.len())
    }

    /// The device of the peer has sent bytes. False if they meet no receive, or are wrong.
    pub(crate) fn chunk(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some(posted) = self.posted.front_mut() else { return false };
            let count = bytes.len().min(posted.granted - posted.come);
            if count == 0 {
                return false;
            }
            posted.memory.write(posted.come, &bytes[..count]);
            posted.come += count;
            bytes = &bytes[count..];
            if posted.come == posted.memory.len() {
                let op = posted.op;
                self.posted.pop_front();
                if !self.link.landed(op) {
                    return false;
                }
            }
        }
        true
    }

    /// The device has sent the oldest chunk.
    pub(crate) fn chunk_sent(&mut self) {
        if let Some((op, upto)) = self.flying.pop_front() {
            self.link.sent(op, upto);
        }
    }

    /// The device lets go of all memory.
    pub(crate) fn sever(&mut self) {
        self.link.sever();
        self.posted.clear();
        self.flying.clear();
    }

    /// Whether operations may have ended since this was last asked.
    pub(crate) fn has_ended(&mut self) -> bool {
        std::mem::replace(&mut self.ended, self.link.ended()) != self.link.ended()
    }
}

fn sealed(seal: &[u8], frame: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(seal.len() + frame.len());
    bytes.extend_from_slice(seal);
    bytes.extend_from_slice(frame);
    bytes
}
