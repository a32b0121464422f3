//! The virtual clock, and what is under way on it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Nanoseconds since the beginning of a run.
pub(crate) type Time = u64;

pub(crate) const MICRO: Time = 1_000;
pub(crate) const MILLI: Time = 1_000_000;

/// How the frames of a link travel. Chosen for each pair of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// In order and whole, as through rings in shared memory; large messages are copied out of the peer's memory.
    Mapped,
    /// In order and whole, as over RC; large messages land in receives that were posted for them.
    Matched,
    /// Nothing is promised, as over UC: frames are lost, doubled, held up and garbled.
    Unreliable,
}

/// One end of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndId {
    /// The pair of nodes.
    pub pair: usize,
    /// 0 for the lower node, 1 for the higher one.
    pub side: usize,
}

impl EndId {
    pub(crate) fn peer(self) -> EndId {
        EndId { pair: self.pair, side: 1 - self.side }
    }
}

/// What is to happen at some time.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A frame comes to an end.
    Frame { to: EndId, generation: u32, bytes: Vec<u8> },
    /// Bytes of a large message come to a device.
    Chunk { to: EndId, generation: u32, bytes: Vec<u8> },
    /// A device has sent this part of an operation's memory.
    ChunkSent { end: EndId, generation: u32 },
    /// An end is to be moved on.
    Pump { end: EndId, generation: u32 },
    /// An end learns that its peer is lost.
    Lost { end: EndId, generation: u32 },
    /// A pair of nodes connects.
    Connect { pair: usize },
    /// A node goes on.
    Wake { node: usize },
    /// Nodes that were cut off are so no longer.
    Heal { partition: u64 },
}

#[derive(Debug)]
struct Entry {
    at: Time,
    order: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.order == other.order
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest; of two at one time, the one that was planned first.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// Everything that is to happen.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    pub now: Time,
    planned: BinaryHeap<Entry>,
    order: u64,
}

impl Clock {
    pub(crate) fn plan(&mut self, at: Time, what: Happening) {
        self.order += 1;
        self.planned.push(Entry { at: at.max(self.now), order: self.order, what });
    }

    /// The next thing that happens no later than `until`. Time goes on to it.
    pub(crate) fn next(&mut self, until: Time) -> Option<Happening> {
        if self.planned.peek().is_none_or(|entry| entry.at > until) {
            return None;
        }
        let entry = self.planned.pop()?;
        self.now = entry.at;
        Some(entry.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_the_order_of_time_and_then_of_planning() {
        let mut clock = Clock::default();
        for (at, node) in [(20, 0), (10, 1), (20, 2), (5, 3)] {
            clock.plan(at, Happening::Wake { node });
        }
        let mut order = Vec::new();
        while let Some(Happening::Wake { node }) = clock.next(15) {
            order.push((clock.now, node));
        }
        clock.now = 15;
        clock.plan(3, Happening::Wake { node: 4 });
        while let Some(Happening::Wake { node }) = clock.next(100) {
            order.push((clock.now, node));
        }
        assert_eq!(order, [(5, 3), (10, 1), (15, 4), (20, 0), (20, 2)]);
    }
}
