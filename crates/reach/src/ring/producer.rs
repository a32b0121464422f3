use fulmen_memory::Exposed;

use super::algorithm::{Place, Writer};
use super::mapped::Mapped;
use super::{Layout, RingError};

/// The side of a ring that writes frames. There is one for a ring, and it is made while the ring's memory is zeroed.
#[derive(Debug)]
pub struct Producer {
    writer: Writer<Mapped>,
}

impl Producer {
    /// Attaches to a ring of [`Layout::size`] zeroed bytes.
    ///
    /// # Errors
    /// [`RingError::Misfit`] if the memory has another size, does not start at a multiple of 64, or cannot be written.
    pub fn new(memory: Exposed, layout: Layout) -> Result<Producer, RingError> {
        Ok(Producer { writer: Writer::new(Mapped::new(memory, layout)?, layout) })
    }

    /// Bytes of the longest frame.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        self.writer.max_frame()
    }

    /// How many bytes of the memory before the cell, from its start on, have ever been used once another frame of `len` bytes is written.
    #[inline]
    #[must_use]
    pub fn extent(&self, len: usize) -> usize {
        self.writer.extent(len)
    }

    /// Writes one frame made of several pieces, one after the other; false if there is no room for it now.
    ///
    /// # Errors
    /// [`RingError::TooLong`], and [`RingError::Corrupt`] if the consumer's position is impossible.
    #[inline]
    pub fn try_push(&mut self, pieces: &[&[u8]]) -> Result<bool, RingError> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let Some(place) = self.writer.reserve(len)? else { return Ok(false) };
        let mut offset = 0;
        for piece in pieces {
            self.writer.write(place, offset, piece, false);
            offset += piece.len();
        }
        self.writer.publish(place, len, false);
        Ok(true)
    }

    /// Makes room for a frame of `len` bytes that the caller fills by and by; `None` if there is no room for it now.
    /// The consumer sees nothing before [`Reservation::publish`]; without it, nothing happened.
    ///
    /// # Errors
    /// As [`Producer::try_push`].
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<Option<Reservation<'_>>, RingError> {
        let place = self.writer.reserve(len)?;
        Ok(place.map(|place| Reservation { writer: &mut self.writer, place, len, filled: 0, past: false, gap: false }))
    }

    /// Makes room in the ring's cell instead, if its slots have room for what announces the frame. No frame that lies
    /// there may be unread: the consumer has said, in whatever way, that it has released all of them. Otherwise it
    /// reads this frame's bytes in place of the other's.
    ///
    /// # Errors
    /// As [`Producer::try_push`].
    #[inline(always)]
    pub fn reserve_cell(&mut self, len: usize) -> Result<Option<Reservation<'_>>, RingError> {
        let place = self.writer.reserve_cell(len)?;
        Ok(place.map(|place| Reservation { writer: &mut self.writer, place, len, filled: 0, past: false, gap: false }))
    }
}

/// Room for one frame. See [`Producer::reserve`].
#[derive(Debug)]
pub struct Reservation<'a> {
    writer: &'a mut Writer<Mapped>,
    place: Place,
    len: usize,
    filled: usize,
    past: bool,
    gap: bool,
}

impl Reservation<'_> {
    /// Bytes that are still to be written.
    #[must_use]
    pub fn left(&self) -> usize {
        self.len - self.filled
    }

    /// Whether bytes are written past the caches where they are long: faster where the consumer's processor is far from this one, and its
    /// cache still has what lay there before.
    #[inline(always)]
    pub fn past_caches(&mut self, past: bool) {
        self.past = past;
    }

    /// Leaves a [gap](super) behind the frame, if the ring has room for it: faster where the consumer's processor is near, and reads the frame
    /// before the next one is written.
    #[inline(always)]
    pub fn leave_gap(&mut self) {
        self.gap = true;
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If they are more than are left.
    #[inline]
    pub fn write(&mut self, from: &[u8]) {
        assert!(from.len() <= self.left(), "{} bytes do not fit in the {} left of a frame", from.len(), self.left());
        self.writer.write(self.place, self.filled, from, self.past);
        self.filled += from.len();
    }

    /// Appends all bytes of exposed memory, with one copy.
    ///
    /// # Panics
    /// If they are more than are left.
    pub fn copy_from(&mut self, from: &Exposed) {
        let len = from.len();
        assert!(len <= self.left(), "{len} bytes do not fit in the {} left of a frame", self.left());
        let (at, first) = self.place.run(self.filled, len);
        for (from_at, at, len) in [(0, at, first), (first, self.place.rest, len - first)] {
            let (memory, at) = self.writer.words.bytes(at);
            match self.past {
                true => from.copy_past_to(from_at, memory, at, len),
                false => from.copy_to(from_at, memory, at, len),
            }
        }
        self.filled += len;
    }

    /// Shows the frame to the consumer.
    ///
    /// # Panics
    /// If it is not filled: what lay in the ring before would go out with it.
    #[inline]
    pub fn publish(self) {
        assert!(self.left() == 0, "a frame is published with {} bytes unwritten", self.left());
        self.writer.publish(self.place, self.len, self.gap);
    }
}
