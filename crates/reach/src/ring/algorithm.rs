//! Both sides of the ring over any words, so that loom can put its own beneath them.

use super::{COME_AT, HEAD, INLINE, LONGEST_CELL, Layout, RingError, Spot};
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
    /// Reads (acquire) and writes (release) how many bytes of the frame in this slot have come.
    fn come(&self, position: u64) -> u64;
    fn set_come(&self, position: u64, bytes: u64);
    /// Copies bytes in, at a byte offset from the first slot; past the caches if that is asked for. Behind the slots are the cells.
    fn write(&self, at: usize, from: &[u8], past: bool);
    /// Copies bytes out, from such an offset.
    fn read(&self, at: usize, into: &mut [u8]);
}

/// The bits of a head, whose lowest say how many bytes the frame has. No frame that takes slots alone has more than these.
const LENGTH: u64 = (1 << 30) - 1;
/// The frame is [for the other end itself](super::Frame::is_aside).
const ASIDE: u64 = 1 << 30;
/// The frame lies in a cell. Then its length has fewer bits, and others say [where](Spot).
const IN_CELL: u64 = 1 << 31;
const LENGTH_IN_CELL: u64 = (1 << 24) - 1;
const SPOT: Field = Field { at: 32, bits: Spot::BITS };
/// The lap in which it was written.
const LAP: Field = Field { at: 52, bits: 4 };
/// The frame is shown before all of it has come.
const OPEN: u64 = 1 << 56;
/// How many bytes of a frame in a cell are in its slot.
const INLINED: Field = Field { at: 57, bits: 6 };
/// Zero is no head.
const WRITTEN: u64 = 1 << 63;
/// What tells the head of this lap from that of the lap before.
const TAG: u64 = WRITTEN | LAP.of(u64::MAX);

const _: () = assert!(INLINE + LONGEST_CELL <= LENGTH_IN_CELL as usize && INLINE < 1 << INLINED.bits);

/// Some bits of a head.
struct Field {
    at: u32,
    bits: u32,
}

impl Field {
    /// With this value, of which it has the lowest bits.
    const fn of(self, value: u64) -> u64 {
        (value & ((1 << self.bits) - 1)) << self.at
    }

    const fn value(self, head: u64) -> usize {
        (head >> self.at & ((1 << self.bits) - 1)) as usize
    }
}

/// Sizes that both sides derive from the layout, never from shared bytes.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    slots: u64,
    shift: u32,
    /// In bytes, as the next one.
    max_frame: u32,
    /// Of a cell, and from one to the next.
    cell: u32,
    stride: u32,
    /// Cells of both sides.
    cells: u32,
}

/// Where the bytes of a frame lie, as offsets from the first slot: those before `turn` from `at` on, and all others from `rest` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    at: usize,
    turn: usize,
    pub(super) rest: usize,
    slots: u64,
    position: u64,
    pub(super) spot: Option<Spot>,
    pub(super) aside: bool,
    open: bool,
}

impl Place {
    /// How many bytes of a frame in a cell are in its slot.
    #[inline(always)]
    pub(super) fn header(&self) -> Option<usize> {
        self.spot.map(|_| self.turn)
    }

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
        // No ring is longer than 2 GiB, and no cell than 256 KiB.
        let [max_frame, cell, stride, cells] =
            [layout.max_frame(), layout.cell, layout.stride(), 2 * layout.cells].map(|size| size as u32);
        Geometry { slots, shift: slots.trailing_zeros(), max_frame, cell, stride, cells }
    }

    /// What the head of a frame at `position` has in the bits of [`TAG`]. The slot holds zero or a head of the lap before until the frame
    /// is there.
    #[inline(always)]
    fn tag(&self, position: u64) -> u64 {
        WRITTEN | LAP.of(position >> self.shift)
    }

    #[inline(always)]
    fn capacity(&self) -> usize {
        self.slots as usize * LINE
    }

    /// The place of a frame of `len` bytes in the slots from `position` on: behind the ring's end, it goes on in the first slot.
    #[inline(always)]
    fn place(&self, position: u64, len: usize, aside: bool) -> Place {
        let at = (position & (self.slots - 1)) as usize * LINE + HEAD;
        Place {
            at,
            turn: self.capacity() - at,
            rest: 0,
            slots: slots_of(len),
            position,
            spot: None,
            aside,
            open: false,
        }
    }

    /// The place of a frame of which so many bytes are in the slot at `position`, and all others in a cell.
    #[inline(always)]
    fn place_in(&self, position: u64, spot: Spot, inline: usize) -> Place {
        let at = (position & (self.slots - 1)) as usize * LINE + HEAD;
        let rest = self.capacity() + spot.cell() * self.stride as usize + spot.at();
        Place { at, turn: inline, rest, slots: 1, position, spot: Some(spot), aside: false, open: false }
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

    /// Where a frame of `len` bytes may be written, if it may now.
    ///
    /// It may fill the ring. The slot after it is then the oldest unread frame's, whose head is not stale, so that
    /// [`Writer::publish`] leaves it alone.
    #[inline(always)]
    pub(super) fn reserve(&mut self, len: usize, aside: bool) -> Result<Option<Place>, RingError> {
        let max = self.max_frame();
        if len > max {
            return Err(RingError::TooLong { len, max });
        }
        let place = self.geometry.place(self.position, len, aside);
        if !self.has_room(place.slots)? {
            return Ok(None);
        }
        if place.slots > 1 {
            self.mark(place.slots - 1);
        }
        Ok(Some(place))
    }

    /// The same with all but the first `inline` bytes in a cell.
    ///
    /// # Panics
    /// If there is no such cell, or these bytes do not fit in a slot.
    #[inline(always)]
    pub(super) fn reserve_in(&mut self, spot: Spot, len: usize, inline: usize) -> Result<Option<Place>, RingError> {
        assert!(spot.cell() < self.geometry.cells as usize && inline <= INLINE, "{spot:?}, {inline} bytes before it");
        let max = inline + (self.geometry.cell as usize).saturating_sub(spot.at());
        if len > max {
            return Err(RingError::TooLong { len, max });
        }
        let has_room = self.has_room(1)?;
        Ok(has_room.then(|| self.geometry.place_in(self.position, spot, inline)))
    }

    #[inline(always)]
    fn has_room(&mut self, slots: u64) -> Result<bool, RingError> {
        Ok(self.position - self.read + slots <= self.geometry.slots || self.refresh(slots)?)
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

    /// Shows the reserved frame, which lies in a cell, before it is written but for the bytes in its slot; then it
    /// [comes](Writer::has_come) by and by.
    ///
    /// # Panics
    /// If the slot has no room to say how much has come.
    pub(super) fn open(&mut self, place: Place, len: usize) {
        assert!(
            place.spot.is_some() && HEAD + place.turn <= COME_AT,
            "a frame in a cell, and a word beside its header"
        );
        self.has_come(place, place.turn.min(len));
        self.publish(Place { open: true, ..place }, len);
    }

    /// So many bytes of a frame that is shown already have been written.
    #[inline(always)]
    pub(super) fn has_come(&self, place: Place, bytes: usize) {
        self.words.set_come(place.position, bytes as u64);
    }

    /// Shows the reserved frame of `len` bytes to the consumer.
    #[inline(always)]
    pub(super) fn publish(&mut self, place: Place, len: usize) {
        let next = self.position + place.slots;
        let stale = &mut self.stale[(next & (self.geometry.slots - 1)) as usize];
        if *stale {
            *stale = false;
            self.words.clear_head(next);
        }
        let what = match place.spot {
            Some(spot) => {
                IN_CELL
                    | SPOT.of(spot.bits().into())
                    | INLINED.of(place.turn as u64)
                    | if place.open { OPEN } else { 0 }
            }
            None if place.aside => ASIDE,
            None => 0,
        };
        self.words.set_head(self.position, self.geometry.tag(self.position) | what | len as u64);
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

    /// The length of the next frame and its place, if it is there: all of it, or, `open`, as much as has come.
    #[inline(always)]
    pub(super) fn peek(&self, open: bool) -> Result<Option<(usize, Place)>, RingError> {
        let head = self.words.head(self.position);
        if head & TAG != self.geometry.tag(self.position) {
            return Ok(None);
        }
        if head & IN_CELL != 0 {
            let (len, place) = self.in_cell(head)?;
            let is_there = open || !place.open || self.has_come(place, len) == len;
            return Ok(is_there.then_some((len, place)));
        }
        let len = (head & LENGTH) as usize;
        if len > self.geometry.max_frame as usize {
            return Err(RingError::Corrupt { what: "a frame is longer than half of the ring" });
        }
        Ok(Some((len, self.geometry.place(self.position, len, head & ASIDE != 0))))
    }

    #[inline(always)]
    fn in_cell(&self, head: u64) -> Result<(usize, Place), RingError> {
        let spot = Spot::from_bits(SPOT.value(head) as u32);
        let (inline, len) = (INLINED.value(head), (head & LENGTH_IN_CELL) as usize);
        if spot.cell() >= self.geometry.cells as usize || inline > INLINE {
            return Err(RingError::Corrupt { what: "a frame is in a cell that does not exist" });
        }
        if len.saturating_sub(inline) + spot.at() > self.geometry.cell as usize {
            return Err(RingError::Corrupt { what: "a frame is longer than the cell in which it is said to be" });
        }
        Ok((len, Place { open: head & OPEN != 0, ..self.geometry.place_in(self.position, spot, inline) }))
    }

    /// How many bytes of a frame of `len` bytes have come.
    #[inline(always)]
    pub(super) fn has_come(&self, place: Place, len: usize) -> usize {
        if !place.open {
            return len;
        }
        usize::try_from(self.words.come(place.position)).map_or(len, |come| come.min(len))
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

    /// Frees the slots of the next frame, which lies there.
    #[inline(always)]
    pub(super) fn advance(&mut self, place: Place) {
        self.position += place.slots;
        self.words.set_read_position(self.position);
    }
}
