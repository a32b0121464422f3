//! Links over memory that ranks share.
//!
//! Each rank has one *control region*, which all others map. It begins with the rank's doorbell; then come one word for
//! each rank, which its owner sets when it *gives up* its link to that rank, and a [ring and cells](rings) for each other
//! rank. The rings have room for all frames that credits allow. Last comes its area for one-sided operations.
//!
//! A receiver copies out of memory that its sender offered and keeps until it hears of the end. A sender that does not
//! wait any longer (it takes the receiver for lost, since it has been stopped for long) sets the word before the memory
//! serves for anything else; a receiver looks at the word after its copy, so that it never takes other bytes for the
//! message. The word also tells a rank that was stopped that nobody reads its ring any more.

mod rings;
mod ways;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::Poll;
use std::time::Duration;

use fulmen_memory::{Exposed, page_size};
use fulmen_reach::Doorbell;
use fulmen_reach::ring::{Frame, Reservation, RingError};
use rings::{End, Rings};

use super::check::{self, TRAILER};
use super::{Broken, Parker, Payload, Takes, Wire};
use crate::FabricOptions;
use crate::engine::{
    self, Body, Config, FRAGMENT_HEADER, Landing, Lent, Link, PREFIX, Place, Rendezvous, Source, Target, checksum,
};
use crate::map::Neighbours;
use crate::onesided;
use crate::options::Flow;

/// Where the doorbell is in a control region.
const DOORBELL: usize = 0;
/// Where the words for given-up links begin: two cache lines on, since processors fetch them in pairs.
const GIVEN_UP: usize = 128;

/// How a link over shared memory between two of so many ranks is set up.
pub(crate) fn config(size: u32, flow: &Flow, verify: bool) -> Config {
    let config = basics(flow, verify);
    Config { long: link(size, flow).long(), ..config }
}

/// The same without what depends on the rings.
fn basics(flow: &Flow, verify: bool) -> Config {
    let Flow { frame, credits, unexpected, .. } = *flow;
    let trailer = if verify { TRAILER } else { 0 };
    Config {
        frame: frame as usize - trailer,
        long: None,
        credits,
        unexpected,
        rendezvous: Rendezvous::Mapped,
        verify,
        #[cfg(feature = "planted-bugs")]
        planted: None,
    }
}

/// What the region of one of so many ranks has for its link to another one.
fn link(size: u32, flow: &Flow) -> Rings {
    let config = basics(flow, false);
    // Credit frames need no credit, and are short.
    Rings::new(size, flow, config.receive_buffers() - usize::from(config.credits))
}

/// Where the rings of so many ranks begin.
fn rings(size: u32) -> usize {
    (GIVEN_UP + size as usize * size_of::<u32>()).next_multiple_of(128)
}

/// Where the area for one-sided operations begins.
fn onesided(size: u32, flow: &Flow) -> usize {
    rings(size) + size as usize * link(size, flow).size()
}

/// Bytes of a control region.
pub(crate) fn control_len(size: u32, flow: &Flow) -> usize {
    (onesided(size, flow) + onesided::AREA).next_multiple_of(page_size())
}

/// The area of a control region for one-sided operations.
pub(crate) fn onesided_area(control: &Exposed, size: u32, flow: &Flow) -> Exposed {
    let at = onesided(size, flow);
    control.slice(at..at + onesided::AREA)
}

/// The word of a control region for the link to `rank`.
fn given_up(control: &Exposed, rank: u32) -> Exposed {
    let at = GIVEN_UP + rank as usize * size_of::<u32>();
    control.slice(at..at + size_of::<u32>())
}

/// The doorbell of a control region.
pub(crate) fn doorbell(control: &Exposed) -> Doorbell {
    Doorbell::at(control, DOORBELL)
}

impl Parker for Doorbell {
    fn park(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool) {
        let listener = self.listen();
        if !awake() {
            listener.wait(timeout);
        }
    }

    fn wake(&self) {
        self.notify();
    }
}

/// The rings of both directions and the peer's doorbell.
pub(crate) struct ReachWire {
    end: End,
    bell: Doorbell,
    /// This rank has given the link up.
    given_up: Exposed,
    /// The peer has.
    peer_gave_up: Exposed,
    neighbours: Arc<Neighbours>,
    rendezvous: usize,
    /// Frames are left in the rings.
    left: bool,
    /// Bytes of the next frame that were taken as they came.
    taken: usize,
    /// Whether frames carry checksums.
    verify: bool,
}

impl ReachWire {
    /// The wire between `rank`, whose control region is `own`, and `peer`, whose is `theirs`, of `size` ranks.
    pub(crate) fn new(
        size: u32,
        (rank, own): (u32, &Exposed),
        (peer, theirs): (u32, &Exposed),
        options: &FabricOptions,
        neighbours: Arc<Neighbours>,
    ) -> Result<ReachWire, RingError> {
        let flow = &options.flow;
        let (first, link) = (rings(size), link(size, flow));
        let memory = |control: &Exposed, other: u32| {
            let at = first + other as usize * link.size();
            control.slice(at..at + link.size())
        };
        Ok(ReachWire {
            end: link.end(&memory(own, peer), &memory(theirs, rank), rank > peer)?,
            bell: doorbell(theirs),
            given_up: given_up(own, peer),
            peer_gave_up: given_up(theirs, rank),
            neighbours,
            rendezvous: usize::try_from(flow.rendezvous).unwrap_or(usize::MAX),
            left: false,
            taken: 0,
            verify: options.verify_data,
        })
    }
}

impl Wire for ReachWire {
    #[inline]
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>, takes: Takes) -> Result<bool, Broken> {
        let mut moved = false;
        // Looked at before the frames, so that all that came before are taken.
        let over = self.is_given_up();
        let has_enough = |link: &Link| match takes {
            Takes::For(op) => !over && link.has_ended(op),
            Takes::Nothing => !over,
            Takes::All => false,
        };
        self.left = false;
        while let Some(frame) = if self.verify { self.end.incoming.peek()? } else { self.end.incoming.peek_open()? } {
            if frame.is_aside() {
                self.end.cells.take_back(frame)?;
                continue;
            }
            if has_enough(link) {
                self.left = true;
                break;
            }
            let come = frame.has_come();
            let whole = come == frame.len();
            if self.verify {
                link.receive(&check::strip(&frame)?, lent)?;
            } else if whole && self.taken == 0 {
                link.receive(&frame, lent)?;
            } else if come > self.taken.max(FRAGMENT_HEADER) && comes_in_parts(&frame) {
                link.receive_part(&frame, self.taken..come, lent)?;
                self.taken = come;
            } else {
                break;
            }
            moved = true;
            if whole {
                self.taken = 0;
                self.end.cells.release(frame)?;
            }
        }
        if over && !link.peer_left() {
            return Err(given_up_by_peer());
        }
        let mut sent = self.end.give_back()?;
        while let Some(frame) = link.transmit(lent) {
            let header = frame.header.as_bytes();
            let (body, message) = match &frame.body {
                Body::Empty => (0, 0),
                Body::Packed => (link.packed().len(), 0),
                Body::Memory(op, range) => (range.len(), link.memory(*op).len()),
                Body::Lent(op, range) => (range.len(), lent.source(*op).map_or(0, <[u8]>::len)),
            };
            let trailer = if self.verify { TRAILER } else { 0 };
            let len = header.len() + body + trailer;
            let room = self.end.reserve(len, header.len(), message, link.all_taken())?;
            let Some(mut room) = room else { break };
            let mut content = Content { room: &mut room, crc: self.verify.then_some(0) };
            content.write(header);
            content.open();
            match &frame.body {
                Body::Empty => {}
                Body::Packed => content.write(link.packed()),
                Body::Memory(op, range) => content.copy_from(&link.memory(*op).slice(range.clone())),
                Body::Lent(op, range) => content.write(&lent.source(*op).expect("the lender is here")[range.clone()]),
            }
            content.end();
            room.publish();
            self.end.published();
            link.transmitted(&frame);
            // At once, so that a peer that waits takes the first frames while the next are made.
            self.bell.hint();
            sent = true;
        }
        if sent {
            // It may have begun to wait since. Not for each frame: the fence holds up the writes that follow.
            self.bell.notify();
        }
        Ok(moved || sent)
    }

    #[inline]
    fn take(&mut self, link: &mut Link, tag: u64, into: &mut Landing<'_>) -> Result<Poll<Option<usize>>, Broken> {
        if self.taken > 0 {
            // It is in the middle of a message.
            return Ok(Poll::Ready(None));
        }
        let taken = loop {
            // A checksum is that of all.
            let frame = if self.verify { self.end.incoming.peek()? } else { self.end.incoming.peek_open()? };
            let Some(frame) = frame else { return Ok(Poll::Pending) };
            if frame.is_aside() {
                self.end.cells.take_back(frame)?;
                continue;
            }
            let taken =
                if self.verify { link.take(tag, &check::strip(&frame)?, into)? } else { link.take(tag, &frame, into)? };
            if taken.is_some() {
                self.end.cells.release(frame)?;
            }
            break taken;
        };
        if self.end.give_back()? {
            self.bell.notify();
        }
        self.left = taken.is_none() || self.end.incoming.peek()?.is_some();
        Ok(Poll::Ready(taken))
    }

    #[inline]
    fn has_left(&self) -> bool {
        self.left
    }

    #[inline]
    fn push(&mut self, link: &Link, header: &[u8; PREFIX], payload: Payload<'_>) -> Result<bool, Broken> {
        if self.is_given_up() {
            return Err(given_up_by_peer());
        }
        if self.end.is_short_of_cells(payload.len())? {
            return Ok(false);
        }
        let all_taken = link.all_taken();
        let pushed = match payload {
            Payload::Bytes(bytes) if self.verify => {
                let crc = checksum::append(checksum::append(0, header.as_slice(), 0), bytes, 0);
                self.end.try_push(&[header, bytes, &crc.to_le_bytes()], bytes.len(), all_taken, false)?
            }
            Payload::Bytes(bytes) => self.end.try_push(&[header, bytes], bytes.len(), all_taken, true)?,
            Payload::Memory(memory) => {
                let trailer = if self.verify { TRAILER } else { 0 };
                let len = PREFIX + memory.len() + trailer;
                let room = self.end.reserve(len, PREFIX, memory.len(), all_taken)?;
                let Some(mut room) = room else { return Ok(false) };
                let mut content = Content { room: &mut room, crc: self.verify.then_some(0) };
                content.write(header);
                content.open();
                content.copy_from(memory);
                content.end();
                room.publish();
                self.end.published();
                true
            }
        };
        if pushed {
            self.bell.notify();
        }
        Ok(pushed)
    }

    fn source(&self, memory: Exposed) -> Source {
        let place = (memory.len() >= self.rendezvous).then(|| self.neighbours.reference(&memory)).flatten();
        match place {
            Some(at) => Source::Offered { memory, place: Place { key: at.key, offset: at.offset, ..Place::default() } },
            None => Source::Memory(memory),
        }
    }

    fn target(&self, memory: Exposed) -> Target {
        Target::Memory { memory, direct: false }
    }

    #[inline]
    fn is_given_up(&self) -> bool {
        // Pairs with the fence of `sever`: whoever copied bytes that were written after it sees the word.
        fence(Ordering::Acquire);
        self.peer_gave_up.atomic_u32(0).load(Ordering::Acquire) != 0
    }

    fn sever(&mut self) {
        self.given_up.atomic_u32(0).store(1, Ordering::SeqCst);
        // Nothing that is written later, into memory that was offered before, is seen before the word.
        fence(Ordering::SeqCst);
        self.bell.notify();
    }
}

/// What is written of a frame, and its checksum if it carries one.
struct Content<'a, 'b> {
    /// Moved nowhere: to move what was just written waits until all writes before it are through, those of the last frame.
    room: &'a mut Reservation<'b>,
    crc: Option<u32>,
}

impl Content<'_, '_> {
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        self.room.write(bytes);
        if let Some(crc) = &mut self.crc {
            *crc = checksum::append(*crc, bytes, 0);
        }
    }

    #[inline(always)]
    fn copy_from(&mut self, memory: &Exposed) {
        match &mut self.crc {
            // Others may write it meanwhile: the checksum is that of what goes out.
            Some(crc) => *crc = checksum::append_and(*crc, memory, 0, |piece| self.room.write(piece)),
            None => self.room.copy_from(memory),
        }
    }

    /// Shows what is written before all of it is, if nothing comes behind the bytes.
    #[inline(always)]
    fn open(&mut self) {
        if self.crc.is_none() {
            self.room.open();
        }
    }

    #[inline(always)]
    fn end(self) {
        if let Some(crc) = self.crc {
            self.room.write(&crc.to_le_bytes());
        }
    }
}

/// Whether a frame whose header has come may be taken in parts.
fn comes_in_parts(frame: &Frame<'_>) -> bool {
    let mut kind = [0];
    frame.read(0, &mut kind);
    engine::comes_in_parts(kind[0])
}

fn given_up_by_peer() -> Broken {
    Broken("the peer has given it up".into())
}
