//! Both sides of the ring over any words, so that loom can put its own beneath them.

use super::{HEAD, Layout, RingError, SLOTS_AT};
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

/// Sizes that both sides derive from the layout, never from shared bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    slots: u64,
    shift: u32,
    max_frame: usize,
}

impl Geometry {
    pub(super) fn new(layout: Layout) -> Geometry {
        let slots = layout.slots as u64;
        Geometry { slots, shift: slots.trailing_zeros(), max_frame: layout.max_frame() }
    }

    /// The head of a frame: the lap in which it was written, and its length. The top bit is always set, so that zero is
    /// no head; the slot of this lap holds zero or a head of an earlier lap until the frame is there.
    #[inline(always)]
    fn tag(&self, position: u64) -> u32 {
        (position >> self.shift) as u32 | 1 << 31
    }

    #[inline(always)]
    fn capacity(&self) -> usize {
        self.slots as usize * LINE
    }

    /// The run of bytes at `offset` of the frame at `position`: where it starts, and how many of `len` bytes it has
    /// before the ring's end. The rest starts at the first slot.
    #[inline(always)]
    pub(super) fn run(&self, position: u64, offset: usize, len: usize) -> (usize, usize) {
        let slot = (position & (self.slots - 1)) as usize;
        let at = (slot * LINE + HEAD + offset) & (self.capacity() - 1);
        (at, len.min(self.capacity() - at))
    }
}

#[inline(always)]
fn slots_of(len: usize) -> u64 {
    (len + HEAD).div_ceil(LINE).max(1) as u64
}

#[derive(Debug)]
pub(super) struct Writer<W> {
    pub(super) words: W,
    pub(super) geometry: Geometry,
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
        self.geometry.max_frame
    }

    /// How far the ring's memory has been used once a frame of `len` bytes more is written.
    pub(super) fn extent(&self, len: usize) -> usize {
        SLOTS_AT + (self.position + slots_of(len)).min(self.geometry.slots) as usize * LINE
    }

    /// Whether a frame of `len` bytes may be written now.
    ///
    /// It may fill the ring. The slot after it is then the oldest unread frame's, whose head is not stale, so that
    /// [`Writer::publish`] leaves it alone.
    #[inline(always)]
    pub(super) fn reserve(&mut self, len: usize) -> Result<bool, RingError> {
        if len > self.geometry.max_frame {
            return Err(RingError::TooLong { len, max: self.geometry.max_frame });
        }
        let slots = slots_of(len);
        if self.position - self.read + slots > self.geometry.slots && !self.refresh(slots)? {
            return Ok(false);
        }
        if slots > 1 {
            self.mark(slots - 1);
        }
        Ok(true)
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
    pub(super) fn write(&self, offset: usize, from: &[u8], past: bool) {
        let (at, len) = self.geometry.run(self.position, offset, from.len());
        let (first, rest) = from.split_at(len);
        self.words.write(at, first, past);
        if !rest.is_empty() {
            self.words.write(0, rest, past);
        }
    }

    #[inline(always)]
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Shows the reserved frame of `len` bytes to the consumer.
    #[inline(always)]
    pub(super) fn publish(&mut self, len: usize) {
        let next = self.position + slots_of(len);
        let stale = &mut self.stale[(next & (self.geometry.slots - 1)) as usize];
        if *stale {
            *stale = false;
            self.words.clear_head(next);
        }
        let head = u64::from(self.geometry.tag(self.position)) << 32 | len as u64;
        self.words.set_head(self.position, head);
        self.position = next;
    }
}

#[derive(Debug)]
pub(super) struct Reader<W> {
    pub(super) words: W,
    pub(super) geometry: Geometry,
    position: u64,
}

impl<W: Words> Reader<W> {
    pub(super) fn new(words: W, layout: Layout) -> Reader<W> {
        Reader { words, geometry: Geometry::new(layout), position: 0 }
    }

    /// The length of the next frame, if it is there.
    #[inline(always)]
    pub(super) fn peek(&self) -> Result<Option<usize>, RingError> {
        let head = self.words.head(self.position);
        if (head >> 32) as u32 != self.geometry.tag(self.position) {
            return Ok(None);
        }
        let len = head as u32 as usize;
        if len > self.geometry.max_frame {
            return Err(RingError::Corrupt { what: "a frame is longer than half of the ring" });
        }
        Ok(Some(len))
    }

    /// Reads payload of the next frame. The caller keeps to the length that it peeked.
    #[inline(always)]
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        let (at, len) = self.geometry.run(self.position, offset, into.len());
        let (first, rest) = into.split_at_mut(len);
        self.words.read(at, first);
        if !rest.is_empty() {
            self.words.read(0, rest);
        }
    }

    #[inline(always)]
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Frees the slots of the next frame, which has `len` bytes.
    #[inline(always)]
    pub(super) fn advance(&mut self, len: usize) {
        self.position += slots_of(len);
        self.words.set_read_position(self.position);
    }
}
