use std::cell::Cell;

use fulmen_memory::Exposed;

use super::algorithm::{Place, Reader};
use super::mapped::Mapped;
use super::{Layout, RingError, Spot};

/// How often a reader looks at most whether more has come of a frame that it found: some times longer than the write of a cell takes.
const LOOKS: u32 = 2048;

/// The side of a ring that reads frames. There is one for a ring, and it is made while the ring's memory is zeroed or
/// holds nothing but the first frames of its producer.
#[derive(Debug)]
pub struct Consumer {
    reader: Reader<Mapped>,
}

impl Consumer {
    /// Attaches to a ring of [`Layout::size`] bytes, without its cells.
    ///
    /// # Errors
    /// [`RingError::Misfit`] if the memory has another size, does not start at a multiple of 64, or cannot be written.
    pub fn new(memory: Exposed, layout: Layout) -> Result<Consumer, RingError> {
        let layout = Layout { cells: 0, ..layout };
        Ok(Consumer { reader: Reader::new(Mapped::new(memory, layout)?, layout) })
    }

    /// The same with cells, in the same order as for the [producer](super::Producer::with_cells).
    ///
    /// # Errors
    /// As [`Consumer::new`].
    pub fn with_cells(memory: Exposed, cells: [Exposed; 2], layout: Layout) -> Result<Consumer, RingError> {
        Ok(Consumer { reader: Reader::new(Mapped::with_cells(memory, cells, layout)?, layout) })
    }

    /// The next frame, if there is one. It stays in the ring until [`Frame::release`].
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the producer announced an impossible frame.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, RingError> {
        let found = self.reader.peek(false)?;
        Ok(found.map(|(len, place)| Frame { reader: &mut self.reader, place, len, looks: Cell::new(LOOKS) }))
    }

    /// The same, also while it is [still written](super::Reservation::open): then only what [has come](Frame::come) of it is to be read.
    ///
    /// # Errors
    /// As [`Consumer::peek`].
    #[inline(always)]
    pub fn peek_open(&mut self) -> Result<Option<Frame<'_>>, RingError> {
        let found = self.reader.peek(true)?;
        Ok(found.map(|(len, place)| Frame { reader: &mut self.reader, place, len, looks: Cell::new(LOOKS) }))
    }

    /// Hands the next frame, if there is one, to `take`, and then frees its room. If `take` panics, the frame stays.
    ///
    /// # Errors
    /// As [`Consumer::peek`].
    #[inline(always)]
    pub fn try_pop<R>(&mut self, take: impl FnOnce(&Frame<'_>) -> R) -> Result<Option<R>, RingError> {
        let Some(frame) = self.peek()? else { return Ok(None) };
        let result = take(&frame);
        frame.release();
        Ok(Some(result))
    }
}

/// A frame in the ring. Its bytes are the producer's to change, so that they are copied out and never referred to;
/// what one has checked is the copy.
#[derive(Debug)]
pub struct Frame<'a> {
    reader: &'a mut Reader<Mapped>,
    place: Place,
    len: usize,
    /// How often it is still looked at for more.
    looks: Cell<u32>,
}

impl Frame<'_> {
    /// Its bytes.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is for this end itself and no frame of the caller's: [`Cells::take_back`](super::Cells::take_back) takes it.
    #[inline(always)]
    #[must_use]
    pub fn is_aside(&self) -> bool {
        self.place.aside
    }

    /// Where it lies, if in a cell.
    pub(super) fn spot(&self) -> Option<Spot> {
        self.place.spot
    }

    /// How many of its bytes have come.
    #[inline(always)]
    #[must_use]
    pub fn has_come(&self) -> usize {
        self.reader.has_come(self.place, self.len)
    }

    /// How many of its bytes have come, if that is more than `before`; waits some microseconds for that if its writer is still at it.
    #[inline(always)]
    #[must_use]
    pub fn come(&self, before: usize) -> usize {
        loop {
            let (come, looks) = (self.has_come(), self.looks.get());
            if come > before {
                return come;
            }
            if looks == 0 {
                return before;
            }
            self.looks.set(looks - 1);
            std::hint::spin_loop();
        }
    }

    /// Copies bytes out, from offset `at` of the frame.
    ///
    /// # Panics
    /// If they do not lie inside.
    #[inline(always)]
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        self.reader.read(self.place, at, into);
    }

    /// [`Frame::read`] past the caches of what is read into, where it is long.
    ///
    /// # Panics
    /// As [`Frame::read`].
    pub fn read_past(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        let (from, first) = self.place.run(at, into.len());
        let (one, other) = into.split_at_mut(first);
        for (at, into) in [(from, one), (self.place.rest, other)] {
            let (memory, at) = self.reader.words.bytes(at);
            memory.read_past(at, into);
        }
    }

    /// Copies `len` bytes from offset `at` of the frame to offset `to_at` of exposed memory, with one copy.
    ///
    /// # Panics
    /// If they do not lie inside, here or there.
    pub fn copy_to(&self, at: usize, to: &Exposed, to_at: usize, len: usize) {
        self.check(at, len);
        let (from, first) = self.place.run(at, len);
        for (at, to_at, len) in [(from, to_at, first), (self.place.rest, to_at + first, len - first)] {
            let (memory, at) = self.reader.words.bytes(at);
            memory.copy_to(at, to, to_at, len);
        }
    }

    /// All of its bytes, in a new vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes);
        bytes
    }

    /// Frees its room in the ring for the producer. Of a ring with cells, [`Cells::release`](super::Cells::release) does that.
    #[inline(always)]
    pub fn release(self) {
        self.reader.advance(self.place);
    }

    #[inline(always)]
    fn check(&self, at: usize, len: usize) {
        let inside = at <= self.len && len <= self.len - at;
        assert!(inside, "{len} bytes at {at} do not lie in a frame of {} bytes", self.len);
    }
}
