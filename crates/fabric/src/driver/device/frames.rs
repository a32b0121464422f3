//! Frames of a link, in memory that is registered for them.

use std::sync::Arc;

use fulmen_memory::Exposed;
use fulmen_verbs::{Piece, PostError, QueuePair, RecvRequest, SendRequest};

use super::hub::Work;
use super::memory::Registered;
use crate::engine::{Body, Incoming, Lent, Link, Outgoing, PREFIX};

/// Frames posted to the send queue at a time. The last of them completes visibly; those before it are done too then.
const BATCH: usize = 16;

/// A frame that came, in the memory in which it arrived.
pub(super) struct Arrived<'a> {
    memory: &'a Exposed,
    len: usize,
}

impl Incoming for Arrived<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.memory.read(at, into);
    }

    fn copy_to(&self, at: usize, to: &Exposed, to_at: usize, len: usize) {
        self.memory.copy_to(at, to, to_at, len);
    }
}

/// The frames of one link.
///
/// Requests complete in the order in which they were posted. So places are used in a circle, and what is posted anew are
/// neighbours, whose requests are kept ready.
pub(super) struct Frames {
    recvs: Vec<RecvRequest>,
    /// The place whose RECV completes next, of all that were ever posted.
    received: u64,
    /// Places whose RECVs were posted.
    posted: u64,
    sends: Vec<Piece>,
    /// Frames that were sent.
    sent: u64,
    /// Of them, those that have completed.
    done: u64,
    batch: Vec<SendRequest>,
    peer: u32,
    /// The places' registration lasts as long as this.
    _registered: Arc<Registered>,
}

impl Frames {
    /// The frames of the link with rank `peer`, in these places.
    pub(super) fn new(peer: u32, recvs: Vec<Piece>, sends: Vec<Piece>, registered: Arc<Registered>) -> Frames {
        let recv = |(index, piece)| RecvRequest::new(Work::FrameIn.number(peer, index), [piece]);
        let recvs = (0..).zip(recvs).map(recv).collect();
        let batch = Vec::with_capacity(BATCH);
        Frames { recvs, received: 0, posted: 0, sends, sent: 0, done: 0, batch, peer, _registered: registered }
    }

    /// Posts all RECVs that are not.
    pub(super) fn post(&mut self, pair: &dyn QueuePair) -> Result<(), PostError> {
        let places = self.recvs.len() as u64;
        let mut left = places - (self.posted - self.received);
        while left > 0 {
            let start = (self.posted % places) as usize;
            let count = left.min(places - start as u64);
            pair.post_recv(&self.recvs[start..start + count as usize])?;
            self.posted += count;
            left -= count;
        }
        Ok(())
    }

    /// The frame whose RECV has completed: `None` if it is not the next one, or has more bytes than there is room.
    pub(super) fn arrived(&mut self, index: u32, len: u32) -> Option<Arrived<'_>> {
        let next = (self.received % self.recvs.len() as u64) as u32;
        let memory = &self.recvs[next as usize].pieces[0].memory;
        if index != next || len as usize > memory.len() || self.received == self.posted {
            return None;
        }
        self.received += 1;
        Some(Arrived { memory, len: len as usize })
    }

    /// A SEND has completed, and with it all before it: false if there is no such one.
    pub(super) fn sent(&mut self, index: u32) -> bool {
        let places = self.sends.len() as u64;
        let first = self.done % places;
        let count = (u64::from(index) + places - first) % places + 1;
        let known = u64::from(index) < places && self.done + count <= self.sent;
        if known {
            self.done += count;
        }
        known
    }

    /// Whether every frame that went out has completed.
    pub(super) fn is_idle(&self) -> bool {
        self.sent == self.done
    }

    /// Sends frames as long as the link has some and there is memory: whether there were any.
    pub(super) fn transmit(
        &mut self,
        pair: &dyn QueuePair,
        link: &mut Link,
        lent: &Lent<'_>,
    ) -> Result<bool, PostError> {
        let before = self.sent;
        while self.sent - self.done < self.sends.len() as u64 {
            let Some(frame) = link.transmit(lent) else { break };
            let len = fill(&self.next().memory, &frame, link, lent);
            link.transmitted(&frame);
            self.queue(len);
            if self.batch.len() == BATCH {
                self.flush(pair)?;
            }
        }
        self.flush(pair)?;
        Ok(self.sent > before)
    }

    /// Sends one short frame: false if there is no memory.
    pub(super) fn push(
        &mut self,
        pair: &dyn QueuePair,
        header: &[u8; PREFIX],
        payload: &[u8],
    ) -> Result<bool, PostError> {
        if self.sent - self.done == self.sends.len() as u64 {
            return Ok(false);
        }
        let place = &self.next().memory;
        place.write(0, header);
        place.write(PREFIX, payload);
        self.queue(PREFIX + payload.len());
        self.flush(pair)?;
        Ok(true)
    }

    /// The place of the next frame.
    fn next(&self) -> &Piece {
        &self.sends[(self.sent % self.sends.len() as u64) as usize]
    }

    /// The next frame is written.
    fn queue(&mut self, len: usize) {
        let index = self.sent % self.sends.len() as u64;
        let place = self.next();
        let piece = Piece { memory: place.memory.slice(0..len), lkey: place.lkey };
        let mut request = SendRequest::send(Work::FrameOut.number(self.peer, index as u32), [piece]);
        request.signaled = false;
        self.batch.push(request);
        self.sent += 1;
    }

    fn flush(&mut self, pair: &dyn QueuePair) -> Result<(), PostError> {
        let Some(last) = self.batch.last_mut() else { return Ok(()) };
        last.signaled = true;
        let result = pair.post_send(&self.batch);
        self.batch.clear();
        result
    }
}

/// Writes a frame: its length.
fn fill(place: &Exposed, frame: &Outgoing, link: &Link, lent: &Lent<'_>) -> usize {
    let header = frame.header.as_bytes();
    place.write(0, header);
    match &frame.body {
        Body::Empty => header.len(),
        Body::Packed => {
            place.write(header.len(), link.packed());
            header.len() + link.packed().len()
        }
        Body::Memory(op, range) => {
            link.memory(*op).copy_to(range.start, place, header.len(), range.len());
            header.len() + range.len()
        }
        Body::Lent(op, range) => {
            let bytes = lent.source(*op).expect("frames of lent memory are given to its lender only");
            place.write(header.len(), &bytes[range.clone()]);
            header.len() + range.len()
        }
    }
}
