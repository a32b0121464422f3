//! Both sides of the ring over any words, so that loom can put its own beneath them.

use super::{HEAD, INLINE, Layout, RingError, SLOTS_AT};
use crate::shared::LINE;

/// The ring's shared words and bytes. Slots are named by positions, which count on for ever and are reduced to the
/// ring's size here.
pub(super) trait Words {
    /// Reads a slot's head (acquire).
    fn head(&self, position: u64) -> u64;
    /// Writes a slot's head (release).
    fn set_head(&self, position: u64, head: u64);
    /// Zeroes a slot's head (relaxed: a release on an earlier head makes it visible in time).
    fn clear_head(&self, position: u64);
    /// Reads the consumer's position (acquire).
    fn read_position(&self) -> u64;
    /// Writes the consumer's position (release).
    fn set_read_position(&self, position: u64);
    /// Copies bytes in, at a byte offset from the first slot; past the caches if that is asked for.
    fn write(&self, at: usize, from: &[u8], past: bool);
    /// Copies bytes out, from a byte offset from the first slot.
    fn read(&self, at: usize, into: &mut [u8]);
}

/// The bits of a head's length that say that the frame lies in the cell, and that there is a gap behind it. No frame has so many bytes.
const CELL: u32 = 1 << 31;
const GAP: u32 = 1 << 30;

/// Sizes that both sides derive from the layout, never from shared bytes.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    slots: u64,
    shift: u32,
    /// In bytes, as the next one.
    max_frame: u32,
    /// Of the longest frame that lies in the cell.
    max_in_cell: u32,
    /// Slots of a gap.
    gap: u32,
}

/// Where the bytes of a frame lie, as offsets from the first slot: those before `turn` from `at` on, and all others from `rest` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    at: usize,
    turn: usize,
    pub(super) rest: usize,
    slots: u64,
    in_cell: bool,
}

impl Place {
    /// The run of bytes at `offset` of the frame: where it starts, and how many of `len` bytes it has. Those after them
    /// start at `rest`.
    #[inline(always)]
    pub(super) fn run(&self, offset: usize, len: usize) -> (usize, usize) {
        match offset < self.turn {
            true => (self.at + offset, len.min(self.turn - offset)),
            false => (self.rest + (offset - self.turn), len),
        }
    }
}

impl Geometry {
    fn new(layout: Layout) -> Geometry {
        let slots = layout.slots as u64;
        // No ring is longer than 2 GiB.
        let [max_frame, max_in_cell, gap] =
            [layout.max_frame(), INLINE + layout.cell, layout.gap].map(|size| size as u32);
        Geometry { slots, shift: slots.trailing_zeros(), max_frame, max_in_cell, gap }
    }

    /// The upper half of a frame's head: the lap in which it was written. (The lower half is its length, with the bits for the
    /// cell and the gap.) The top bit is always set, so that zero is no head; the slot of this lap holds zero or a head of an earlier lap
    /// until the frame is there.
    #[inline(always)]
    fn tag(&self, position: u64) -> u32 {
        (position >> self.shift) as u32 | 1 << 31
    }

    #[inline(always)]
    fn capacity(&self) -> usize {
        self.slots as usize * LINE
    }

    /// The place of a frame of `len` bytes in the slots from `position` on, or in the cell: behind the ring's end, it goes
    /// on in the first slot.
    #[inline(always)]
    fn place(&self, position: u64, len: usize, in_cell: bool) -> Place {
        let at = (position & (self.slots - 1)) as usize * LINE + HEAD;
        match in_cell {
            true => Place { at, turn: INLINE, rest: self.capacity(), slots: 1, in_cell },
            false => Place { at, turn: self.capacity() - at, rest: 0, slots: slots_of(len), in_cell },
        }
    }
}

#[inline(always)]
fn slots_of(len: usize) -> u64 {
    (len + HEAD).div_ceil(LINE).max(1) as u64
}

#[derive(Debug)]
pub(super) struct Writer<W> {
    pub(super) words: W,
    geometry: Geometry,
    /// Where the next frame goes.
    position: u64,
    /// The consumer's position as it was last read.
    read: u64,
    /// Slots whose head a long frame overwrote with payload. Such a head could look like a frame of the next lap, so
    /// it is zeroed before the consumer is led to it.
    stale: Box<[bool]>,
}

impl<W: Words> Writer<W> {
    pub(super) fn new(words: W, layout: Layout) -> Writer<W> {
        let stale = vec![false; layout.slots].into_boxed_slice();
        Writer { words, geometry: Geometry::new(layout), position: 0, read: 0, stale }
    }

    pub(super) fn max_frame(&self) -> usize {
        self.geometry.max_frame as usize
    }

    /// How far the memory of the ring's slots has been used once a frame of `len` bytes more is written.
    pub(super) fn extent(&self, len: usize) -> usize {
        SLOTS_AT + (self.position + slots_of(len)).min(self.geometry.slots) as usize * LINE
    }

    /// Where a frame of `len` bytes may be written, if it may now.
    ///
    /// It may fill the ring. The slot after it is then the oldest unread frame's, whose head is not stale, so that
    /// [`Writer::publish`] leaves it alone.
    #[inline(always)]
    pub(super) fn reserve(&mut self, len: usize) -> Result<Option<Place>, RingError> {
        self.reserve_in(len, self.max_frame(), false)
    }

    /// The same in the cell, which no unread frame has: the caller knows.
    #[inline(always)]
    pub(super) fn reserve_cell(&mut self, len: usize) -> Result<Option<Place>, RingError> {
        self.reserve_in(len, self.geometry.max_in_cell as usize, true)
    }

    #[inline(always)]
    fn reserve_in(&mut self, len: usize, max: usize, in_cell: bool) -> Result<Option<Place>, RingError> {
        if len > max {
            return Err(RingError::TooLong { len, max });
        }
        let place = self.geometry.place(self.position, len, in_cell);
        let slots = place.slots;
        if self.position - self.read + slots > self.geometry.slots && !self.refresh(slots)? {
            return Ok(None);
        }
        if slots > 1 {
            self.mark(slots - 1);
        }
        Ok(Some(place))
    }

    #[cold]
    fn refresh(&mut self, slots: u64) -> Result<bool, RingError> {
        let read = self.words.read_position();
        let used = self.position.wrapping_sub(read);
        if used > self.position - self.read {
            return Err(RingError::Corrupt { what: "its read position left the frames in flight" });
        }
        self.read = read;
        Ok(used + slots <= self.geometry.slots)
    }

    /// Remembers that the next `count` slots after the current one lose their heads to payload.
    fn mark(&mut self, count: u64) {
        let first = ((self.position + 1) & (self.geometry.slots - 1)) as usize;
        let count = count as usize;
        let before_end = count.min(self.stale.len() - first);
        self.stale[first..first + before_end].fill(true);
        self.stale[..count - before_end].fill(true);
    }

    /// Writes payload of the frame that was reserved. The caller keeps to the length that it reserved.
    #[inline(always)]
    pub(super) fn write(&self, place: Place, offset: usize, from: &[u8], past: bool) {
        let (at, len) = place.run(offset, from.len());
        let (first, rest) = from.split_at(len);
        self.words.write(at, first, past);
        if !rest.is_empty() {
            self.words.write(place.rest, rest, past);
        }
    }

    /// Shows the reserved frame of `len` bytes to the consumer; with a gap behind it, if that is asked for and there is room for one.
    #[inline(always)]
    pub(super) fn publish(&mut self, place: Place, len: usize, gap: bool) {
        let mut next = self.position + place.slots;
        let gap = gap && next + u64::from(self.geometry.gap) - self.read <= self.geometry.slots;
        if gap {
            next += u64::from(self.geometry.gap);
        }
        let stale = &mut self.stale[(next & (self.geometry.slots - 1)) as usize];
        if *stale {
            *stale = false;
            self.words.clear_head(next);
        }
        let len = len as u32 | if place.in_cell { CELL } else { 0 } | if gap { GAP } else { 0 };
        let head = u64::from(self.geometry.tag(self.position)) << 32 | u64::from(len);
        self.words.set_head(self.position, head);
        self.position = next;
    }
}

#[derive(Debug)]
pub(super) struct Reader<W> {
    pub(super) words: W,
    geometry: Geometry,
    position: u64,
}

impl<W: Words> Reader<W> {
    pub(super) fn new(words: W, layout: Layout) -> Reader<W> {
        Reader { words, geometry: Geometry::new(layout), position: 0 }
    }

    /// The length of the next frame and its place, if it is there.
    #[inline(always)]
    pub(super) fn peek(&self) -> Result<Option<(usize, Place)>, RingError> {
        let head = self.words.head(self.position);
        if (head >> 32) as u32 != self.geometry.tag(self.position) {
            return Ok(None);
        }
        let (in_cell, gap) = (head as u32 & CELL != 0, head as u32 & GAP != 0);
        let len = (head as u32 & !(CELL | GAP)) as usize;
        if in_cell && len > self.geometry.max_in_cell as usize {
            return Err(RingError::Corrupt { what: "a frame is longer than the cell in which it is said to be" });
        }
        if !in_cell && len > self.geometry.max_frame as usize {
            return Err(RingError::Corrupt { what: "a frame is longer than half of the ring" });
        }
        let mut place = self.geometry.place(self.position, len, in_cell);
        if gap {
            place.slots += u64::from(self.geometry.gap);
        }
        Ok(Some((len, place)))
    }

    /// Reads payload of the next frame. The caller keeps to the length that it peeked.
    #[inline(always)]
    pub(super) fn read(&self, place: Place, offset: usize, into: &mut [u8]) {
        let (at, len) = place.run(offset, into.len());
        let (first, rest) = into.split_at_mut(len);
        self.words.read(at, first);
        if !rest.is_empty() {
            self.words.read(place.rest, rest);
        }
    }

    /// Frees the slots of the next frame, which lies there, and of the gap behind it.
    #[inline(always)]
    pub(super) fn advance(&mut self, place: Place) {
        self.position += place.slots;
        self.words.set_read_position(self.position);
    }
}
