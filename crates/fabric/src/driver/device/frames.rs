//! The frames of a link, in memory that is registered for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fulmen_memory::Exposed;
use fulmen_verbs::{Piece, PostError, QueuePair, RecvRequest, SendRequest};

use super::full::Fullness;
use super::hub::{Berth, Work};
use super::memory::Registered;
use super::plan::{ANSWERS, Plan, SENDS};
use crate::driver::check::{self, TRAILER};
use crate::driver::{Broken, Payload};
use crate::engine::{Body, Incoming, Lent, Link, Outgoing, PREFIX, Reliable, ReliableConfig, Verdict, checksum};

/// Frames posted to the send queue at a time.
const BATCH: usize = 16;
/// Over a device that keeps frames, each so many of them completes visibly, and with it those before it: nobody waits for one of
/// them, and a peer that has to acknowledge each at once has more to do for that than for the frame. Places are enough for
/// several times as many.
const SILENT: usize = SENDS / 4;

/// What guards the frames of a link.
pub(super) enum Guard {
    /// The device.
    Device,
    /// The device; a checksum behind each frame finds it out.
    Checked,
    /// A seal before each frame: they come again until they are acknowledged.
    Reliable(Box<Reliable>),
}

impl Guard {
    pub(super) fn new(plan: &Plan, generation: u64, patience: Duration) -> Guard {
        if plan.sealed {
            let generation = (generation ^ generation >> 32) as u32;
            let config = ReliableConfig::new(SENDS as u32, generation, patience);
            Guard::Reliable(Box::new(Reliable::new(config)))
        } else if plan.verify {
            Guard::Checked
        } else {
            Guard::Device
        }
    }

    /// Bytes before a frame.
    fn before(&self) -> usize {
        if matches!(self, Guard::Reliable(_)) { Reliable::OVERHEAD } else { 0 }
    }
}

/// A frame that came, in the memory in which it arrived.
struct Arrived<'a> {
    memory: &'a Exposed,
    from: usize,
    len: usize,
}

impl Incoming for Arrived<'_> {
    fn len(&self) -> usize {
        self.len - self.from
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.memory.read(self.from + at, into);
    }

    fn copy_to(&self, at: usize, to: &Exposed, to_at: usize, len: usize) {
        self.memory.copy_to(self.from + at, to, to_at, len);
    }
}

/// Why a completed RECV is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a completion out of order")]
    Order,
    #[error("{0}")]
    Protocol(#[from] crate::engine::ProtocolError),
    #[error("{}", .0.0)]
    Corrupted(Broken),
}

/// The frames of one link.
///
/// RECVs complete in the order in which they were posted. So their places are used in a circle, and what is posted anew are
/// neighbours, whose requests are kept ready. The same goes for frames that go; where they may go again, the place of a frame
/// is free when it is acknowledged and the device holds it no longer.
pub(super) struct Frames {
    recvs: Vec<RecvRequest>,
    /// The place whose RECV completes next, of all that were ever posted.
    received: u64,
    /// Places whose RECVs were posted.
    posted: u64,
    /// Places of frames; behind them those of acknowledgements that go alone.
    sends: Vec<Piece>,
    /// Bytes of the frame in each place.
    lens: Vec<usize>,
    /// Whether the device holds the place.
    busy: Vec<bool>,
    /// Places that the device holds, oldest first.
    flying: VecDeque<usize>,
    /// SENDs that were posted, and new frames.
    sent: u64,
    made: u64,
    /// SENDs that are to be posted: all that are not, of the places at the end of `flying`.
    batch: Vec<SendRequest>,
    guard: Guard,
    berth: Berth,
    fullness: Fullness,
    /// The place whose RECV was to complete next when the device had no room for another RECV.
    recvs_full: Option<u64>,
    /// The most SENDs that the device has held, and whether it has had no room for another since one completed.
    held: usize,
    sends_full: bool,
    /// Bytes of all SENDs.
    bytes: u64,
    /// Whether it ever had none: then each SEND completes visibly.
    narrow: bool,
    /// SENDs since the last one that completes visibly, and how many of those the device holds.
    silent: usize,
    visible: usize,
    /// The link ends: it is waited for each frame to be acknowledged.
    ends: bool,
    /// The places' registration lasts as long as this.
    _registered: Arc<Registered>,
}

impl Frames {
    /// The frames of a rail, in these places.
    pub(super) fn new(
        berth: Berth,
        recvs: Vec<Piece>,
        sends: Vec<Piece>,
        guard: Guard,
        registered: Arc<Registered>,
    ) -> Frames {
        let recv = |(index, piece)| RecvRequest::new(Work::FrameIn.number(berth, index), [piece]);
        let count = sends.len();
        Frames {
            recvs: (0..).zip(recvs).map(recv).collect(),
            received: 0,
            posted: 0,
            sends,
            lens: vec![0; count],
            busy: vec![false; count],
            flying: VecDeque::with_capacity(count),
            sent: 0,
            made: 0,
            batch: Vec::with_capacity(BATCH),
            guard,
            berth,
            fullness: Fullness::default(),
            recvs_full: None,
            held: 0,
            sends_full: false,
            bytes: 0,
            narrow: false,
            silent: 0,
            visible: 0,
            ends: false,
            _registered: registered,
        }
    }

    /// Posts all RECVs that are not. Those for which the device has no room come when one has completed: until then frames
    /// wait for them at the peer, or come again.
    pub(super) fn post(&mut self, pair: &dyn QueuePair) -> Result<(), PostError> {
        if self.recvs_full == Some(self.received) {
            return Ok(());
        }
        let places = self.recvs.len() as u64;
        let mut left = places - (self.posted - self.received);
        while left > 0 {
            let start = (self.posted % places) as usize;
            let count = left.min(places - start as u64);
            if let Err(refused) = pair.post_recv(&self.recvs[start..start + count as usize]) {
                self.posted += refused.index as u64;
                if !self.fullness.passes(&refused, self.posted - self.received, self.berth.peer) {
                    return Err(refused);
                }
                self.recvs_full = Some(self.received);
                return Ok(());
            }
            self.posted += count;
            left -= count;
        }
        self.recvs_full = None;
        Ok(())
    }

    /// Hands the link the frame whose RECV has completed, if it is one, and for this link, and the next. An error if it is
    /// not the next RECV, or has more bytes than there is room.
    pub(super) fn arrived(
        &mut self,
        index: u32,
        len: u32,
        now: Duration,
        link: &mut Link,
        lent: &mut Lent<'_>,
    ) -> Result<(), FrameError> {
        let next = (self.received % self.recvs.len() as u64) as u32;
        let memory = &self.recvs[next as usize].pieces[0].memory;
        if index != next || len as usize > memory.len() || self.received == self.posted {
            return Err(FrameError::Order);
        }
        self.received += 1;
        let whole = Arrived { memory, from: 0, len: len as usize };
        match &mut self.guard {
            Guard::Device => link.receive(&whole, lent)?,
            Guard::Checked => link.receive(&check::strip(&whole).map_err(FrameError::Corrupted)?, lent)?,
            Guard::Reliable(reliable) => {
                let verdict = reliable.receive(now, &whole);
                if verdict == Verdict::Deliver {
                    link.receive(&Arrived { from: Reliable::OVERHEAD, ..whole }, lent)?;
                } else if verdict != Verdict::Acknowledgement {
                    tracing::trace!(peer = self.berth.peer, ?verdict, "dropped a frame");
                }
            }
        }
        Ok(())
    }

    /// A SEND has completed, and with it all before it: false if there is no such one.
    pub(super) fn sent(&mut self, index: u32) -> bool {
        let first = (self.sent - self.flying.len() as u64) as u32;
        let count = index.wrapping_sub(first) as usize;
        if count >= self.posted_sends() {
            return false;
        }
        self.sends_full = false;
        self.visible -= 1;
        for place in self.flying.drain(..=count) {
            self.busy[place] = false;
        }
        true
    }

    /// Whether every frame that went out has completed, and is acknowledged where that is not the same.
    pub(super) fn is_idle(&self) -> bool {
        match &self.guard {
            Guard::Reliable(reliable) => reliable.in_flight() == 0,
            _ => self.flying.is_empty(),
        }
    }

    /// From now on, it is waited for each frame to be acknowledged: whether one has to follow those that went.
    pub(super) fn end(&mut self) -> bool {
        self.ends = true;
        self.silent > 0
    }

    /// The frames' reliability, where the device has none.
    pub(super) fn reliable(&self) -> Option<&Reliable> {
        match &self.guard {
            Guard::Reliable(reliable) => Some(reliable),
            _ => None,
        }
    }

    /// When frames are to be sent although nothing comes.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let reliable = self.reliable()?;
        // An acknowledgement without a place waits for the completion that frees one.
        if self.answer_place().is_some() { reliable.deadline() } else { reliable.resend_at() }
    }

    /// The peer wants no more frames. It is told that this was heard, by the last SEND, if there is a place for it.
    pub(super) fn leave(&mut self, pair: &dyn QueuePair) -> Result<(), PostError> {
        if let Guard::Reliable(reliable) = &mut self.guard {
            reliable.give_up();
            self.answer();
        }
        self.flush(pair)
    }

    /// The queue pair is gone, and a new one is to come. What is in the places stays.
    pub(super) fn reset(&mut self) {
        (self.received, self.posted, self.recvs_full) = (0, 0, None);
        (self.sent, self.held, self.sends_full) = (0, 0, false);
        (self.silent, self.visible) = (0, 0);
        self.fullness = Fullness::default();
        self.flying.clear();
        self.batch.clear();
        self.busy.fill(false);
    }

    pub(super) fn set_guard(&mut self, guard: Guard) {
        self.guard = guard;
    }

    /// Guards the frames of another rail instead of these.
    pub(super) fn lend_guard(&mut self, to: &mut Frames) {
        std::mem::swap(&mut self.guard, &mut to.guard);
    }

    /// Takes what is not acknowledged over from another rail of the link.
    pub(super) fn adopt(&mut self, from: &Frames) {
        let Guard::Reliable(reliable) = &self.guard else { return };
        for slot in reliable.slots() {
            let (slot, len) = (slot as usize, from.lens[slot as usize]);
            from.sends[slot].memory.copy_to(0, &self.sends[slot].memory, 0, len);
            self.lens[slot] = len;
        }
    }

    /// Has all go again that is not acknowledged.
    pub(super) fn resend(&mut self) {
        if let Guard::Reliable(reliable) = &mut self.guard {
            reliable.resend();
        }
    }

    /// Acknowledges at once, over this rail.
    pub(super) fn acknowledge(&mut self, pair: &dyn QueuePair, now: Duration) -> Result<(), PostError> {
        if self.reliable().is_some_and(|reliable| reliable.ack_due(now)) {
            self.answer();
        }
        self.flush(pair)
    }

    /// Takes a few bytes that came and are no frame. None if they are not what is due.
    pub(super) fn take_few<const N: usize>(&mut self, index: u32) -> Option<[u8; N]> {
        let next = (self.received % self.recvs.len() as u64) as u32;
        if index != next || self.received == self.posted {
            return None;
        }
        self.received += 1;
        let mut bytes = [0; N];
        self.recvs[next as usize].pieces[0].memory.read(0, &mut bytes);
        Some(bytes)
    }

    /// Sends a few bytes that are no frame: false if there is no place.
    pub(super) fn send_few(&mut self, pair: &dyn QueuePair, bytes: &[u8]) -> Result<bool, PostError> {
        let Some(place) = self.answer_place() else { return Ok(false) };
        self.sends[place].memory.write(0, bytes);
        self.lens[place] = bytes.len();
        self.post_place(place);
        self.flush(pair)?;
        Ok(true)
    }

    /// Bytes that were sent.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the device holds none of the places.
    pub(super) fn has_gone(&self) -> bool {
        self.flying.is_empty()
    }

    /// Sends frames as long as the link has some and there is memory, and those that are to go again: whether there were
    /// any new ones.
    pub(super) fn transmit(
        &mut self,
        pair: &dyn QueuePair,
        now: Duration,
        link: &mut Link,
        lent: &Lent<'_>,
    ) -> Result<bool, PostError> {
        self.flush(pair)?;
        self.send_again(pair, now)?;
        let before = self.made;
        while let Some(place) = self.free_place() {
            let Some(frame) = link.transmit(lent) else { break };
            let len = fill(&self.sends[place].memory, self.guard.before(), &frame, link, lent);
            self.begin(place, len, now);
            // What the device is not known to have room for is posted at once, so that it can be taken back.
            if self.batch.len() >= BATCH || self.flying.len() > self.held {
                if let Err(refused) = self.flush(pair) {
                    if self.reliable().is_some() {
                        // It has its number, and goes over another rail if there is one.
                        link.transmitted(&frame);
                    }
                    return Err(refused);
                }
                if self.take_back() {
                    break;
                }
            }
            link.transmitted(&frame);
        }
        if matches!(&self.guard, Guard::Reliable(reliable) if reliable.ack_due(now)) {
            self.answer();
        }
        self.flush(pair)?;
        Ok(self.made > before)
    }

    /// Sends one short frame: false if there is no memory, or no room in the device's queue.
    pub(super) fn push(
        &mut self,
        pair: &dyn QueuePair,
        now: Duration,
        header: &[u8; PREFIX],
        payload: Payload<'_>,
    ) -> Result<bool, PostError> {
        let Some(place) = self.free_place() else { return Ok(false) };
        let (memory, before) = (&self.sends[place].memory, self.guard.before());
        memory.write(before, header);
        match payload {
            Payload::Bytes(bytes) => memory.write(before + PREFIX, bytes),
            Payload::Memory(from) => from.copy_to(0, memory, before + PREFIX, from.len()),
        }
        self.begin(place, PREFIX + payload.len(), now);
        self.flush(pair)?;
        Ok(!self.take_back())
    }

    /// SENDs that the device has.
    fn posted_sends(&self) -> usize {
        self.flying.len() - self.batch.len()
    }

    /// The place of the next new frame, if it is free and the device may have room for its SEND.
    fn free_place(&self) -> Option<usize> {
        if self.sends_full {
            return None;
        }
        let place = match &self.guard {
            Guard::Reliable(reliable) => reliable.can_send().then(|| reliable.next_slot() as usize)?,
            _ => (self.made % self.sends.len() as u64) as usize,
        };
        (!self.busy[place]).then_some(place)
    }

    fn answer_place(&self) -> Option<usize> {
        (self.sends.len() - ANSWERS..self.sends.len()).find(|place| !self.busy[*place])
    }

    /// A new frame of so many bytes is in its place: it goes.
    fn begin(&mut self, place: usize, len: usize, now: Duration) {
        let memory = &self.sends[place].memory;
        self.lens[place] = match &mut self.guard {
            Guard::Device => len,
            Guard::Checked => {
                let crc = checksum::append(0, &memory.slice(0..len), 0);
                memory.write(len, &crc.to_le_bytes());
                len + TRAILER
            }
            Guard::Reliable(reliable) => {
                reliable.begin(now);
                Reliable::OVERHEAD + len
            }
        };
        self.made += 1;
        self.queue(place);
    }

    /// Makes the last new frame undone if it was not posted: true if it was not. Nobody may come back to post what stays, if
    /// nobody waits. Where frames come again, somebody always does.
    fn take_back(&mut self) -> bool {
        if matches!(self.guard, Guard::Reliable(_)) || self.batch.pop().is_none() {
            return false;
        }
        let place = self.flying.pop_back().expect("the place of a SEND that was not posted");
        self.busy[place] = false;
        self.sent -= 1;
        self.made -= 1;
        true
    }

    /// Sends those frames again that are due and that the device does not hold still.
    fn send_again(&mut self, pair: &dyn QueuePair, now: Duration) -> Result<(), PostError> {
        loop {
            let Guard::Reliable(reliable) = &mut self.guard else { return Ok(()) };
            let Some(slot) = reliable.due(now) else { return Ok(()) };
            if !self.busy[slot as usize] {
                self.queue(slot as usize);
            }
            if self.batch.len() >= BATCH {
                self.flush(pair)?;
            }
        }
    }

    /// Queues an acknowledgement that goes alone, if there is a place.
    fn answer(&mut self) {
        let Some(place) = self.answer_place() else { return };
        let Guard::Reliable(reliable) = &mut self.guard else { return };
        self.sends[place].memory.write(0, &reliable.acknowledgement());
        self.lens[place] = Reliable::OVERHEAD;
        self.post_place(place);
    }

    /// The frame in this place goes, with a new seal where it has one.
    fn queue(&mut self, place: usize) {
        if let Guard::Reliable(reliable) = &mut self.guard {
            let memory = &self.sends[place].memory;
            let seal = reliable.seal(place as u32, &memory.slice(Reliable::OVERHEAD..self.lens[place]));
            memory.write(0, &seal);
        }
        self.post_place(place);
    }

    fn post_place(&mut self, place: usize) {
        let Piece { memory, lkey } = &self.sends[place];
        let piece = Piece { memory: memory.slice(0..self.lens[place]), lkey: *lkey };
        let mut request = SendRequest::send(Work::FrameOut.number(self.berth, self.sent as u32), [piece]);
        request.signaled = false;
        self.batch.push(request);
        self.bytes += self.lens[place] as u64;
        self.busy[place] = true;
        self.flying.push_back(place);
        self.sent += 1;
    }

    /// Posts what is queued, in its order. What the device has no room for stays.
    pub(super) fn flush(&mut self, pair: &dyn QueuePair) -> Result<(), PostError> {
        while !self.batch.is_empty() {
            let count = self.batch.len().min(BATCH);
            // Frames that go again need their places soon, and who leaves waits for the last one. If the queue has room for some of
            // the batch only, the first is what is waited for.
            let each_batch = self.ends || matches!(self.guard, Guard::Reliable(_));
            let mut silent = self.silent;
            let requests = &mut self.batch[..count];
            for (index, request) in requests.iter_mut().enumerate() {
                let of_batch = each_batch && (index == 0 || index == count - 1);
                request.signaled = self.narrow || of_batch || silent + 1 == SILENT;
                silent = if request.signaled { 0 } else { silent + 1 };
            }
            let refused = pair.post_send(requests).err();
            for request in self.batch.drain(..refused.as_ref().map_or(count, |refused| refused.index)) {
                self.visible += usize::from(request.signaled);
                self.silent = if request.signaled { 0 } else { self.silent + 1 };
            }
            let held = self.posted_sends();
            self.held = self.held.max(held);
            if let Some(refused) = refused {
                if !self.fullness.passes(&refused, held as u64, self.berth.peer) {
                    return Err(refused);
                }
                // Without a completion to wait for, the next look tries again.
                (self.sends_full, self.narrow) = (self.visible > 0, true);
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Writes a frame from `at` on: its length.
fn fill(place: &Exposed, at: usize, frame: &Outgoing, link: &Link, lent: &Lent<'_>) -> usize {
    let header = frame.header.as_bytes();
    place.write(at, header);
    match &frame.body {
        Body::Empty => header.len(),
        Body::Packed => {
            place.write(at + header.len(), link.packed());
            header.len() + link.packed().len()
        }
        Body::Memory(op, range) => {
            link.memory(*op).copy_to(range.start, place, at + header.len(), range.len());
            header.len() + range.len()
        }
        Body::Lent(op, range) => {
            let bytes = lent.source(*op).expect("frames of lent memory are given to its lender only");
            place.write(at + header.len(), &bytes[range.clone()]);
            header.len() + range.len()
        }
    }
}
