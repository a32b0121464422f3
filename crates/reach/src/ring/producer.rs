use fulmen_memory::Exposed;

use super::algorithm::{Place, Writer};
use super::mapped::Mapped;
use super::{COME_AT, HEAD, LONGEST_STEP, Layout, RingError, STEP, Spot};

/// The side of a ring that writes frames. There is one for a ring, and it is made while the ring's memory is zeroed.
#[derive(Debug)]
pub struct Producer {
    writer: Writer<Mapped>,
}

impl Producer {
    /// Attaches to a ring of [`Layout::size`] zeroed bytes, without its cells.
    ///
    /// # Errors
    /// [`RingError::Misfit`] if the memory has another size, does not start at a multiple of 64, or cannot be written.
    pub fn new(memory: Exposed, layout: Layout) -> Result<Producer, RingError> {
        let layout = Layout { cells: 0, ..layout };
        Ok(Producer { writer: Writer::new(Mapped::new(memory, layout)?, layout) })
    }

    /// The same with cells, [`Layout::cells_size`] bytes for those that either side has at first.
    ///
    /// # Errors
    /// As [`Producer::new`].
    pub fn with_cells(memory: Exposed, cells: [Exposed; 2], layout: Layout) -> Result<Producer, RingError> {
        Ok(Producer { writer: Writer::new(Mapped::with_cells(memory, cells, layout)?, layout) })
    }

    /// Bytes of the longest frame.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        self.writer.max_frame()
    }

    /// Writes one frame made of several pieces, one after the other; false if there is no room for it now.
    ///
    /// # Errors
    /// [`RingError::TooLong`], and [`RingError::Corrupt`] if the consumer's position is impossible.
    #[inline(always)]
    pub fn try_push(&mut self, pieces: &[&[u8]]) -> Result<bool, RingError> {
        self.push(pieces, false)
    }

    /// The same with a frame [for the other end itself](crate::ring::Frame::is_aside).
    pub(super) fn try_push_aside(&mut self, bytes: &[u8]) -> Result<bool, RingError> {
        self.push(&[bytes], true)
    }

    #[inline(always)]
    fn push(&mut self, pieces: &[&[u8]], aside: bool) -> Result<bool, RingError> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let Some(place) = self.writer.reserve(len, aside)? else { return Ok(false) };
        let mut offset = 0;
        for piece in pieces {
            self.writer.write(place, offset, piece, false);
            offset += piece.len();
        }
        self.writer.publish(place, len);
        Ok(true)
    }

    /// Makes room for a frame of `len` bytes that the caller fills by and by; `None` if there is no room for it now.
    /// The consumer sees nothing before [`Reservation::publish`]; without it, nothing happened.
    ///
    /// # Errors
    /// As [`Producer::try_push`].
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<Option<Reservation<'_>>, RingError> {
        let place = self.writer.reserve(len, false)?;
        Ok(place.map(|place| Reservation::new(&mut self.writer, place, len)))
    }

    /// Makes room in a cell instead, for all but the first `inline` bytes, if the ring has a slot for these. It has to be
    /// [this end's](super::Cells::next), and is the other's once the frame is [published](super::Cells::gone).
    ///
    /// # Errors
    /// As [`Producer::try_push`].
    ///
    /// # Panics
    /// If there is no such cell, or more than [`INLINE`](super::INLINE) bytes are to be in the slot.
    #[inline(always)]
    pub fn reserve_in(&mut self, spot: Spot, len: usize, inline: usize) -> Result<Option<Reservation<'_>>, RingError> {
        let place = self.writer.reserve_in(spot, len, inline)?;
        Ok(place.map(|place| Reservation::new(&mut self.writer, place, len)))
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
    /// It may be shown before all is written, and it is.
    opens: bool,
    open: bool,
}

impl<'a> Reservation<'a> {
    #[inline(always)]
    fn new(writer: &'a mut Writer<Mapped>, place: Place, len: usize) -> Reservation<'a> {
        Reservation { writer, place, len, filled: 0, past: false, opens: false, open: false }
    }
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

    /// Has [`Reservation::open`] show the frame, if that pays: not where its reader has other things to read, since each word about what has come
    /// goes to and fro between the processors.
    #[inline(always)]
    pub fn may_open(&mut self, opens: bool) {
        self.opens = opens;
    }

    /// Shows the frame to the consumer now, which then reads what follows as it [comes](super::Frame::come), if it [may](Reservation::may_open), lies in a
    /// cell and is long, and if what was written so far is what lies in its slot, and leaves room for a word.
    #[inline(always)]
    pub fn open(&mut self) {
        let header = self.place.header();
        if self.opens && header == Some(self.filled) && self.filled <= COME_AT - HEAD && self.left() > STEP {
            self.writer.open(self.place, self.len);
            self.open = true;
        }
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If they are more than are left.
    #[inline(always)]
    pub fn write(&mut self, from: &[u8]) {
        assert!(from.len() <= self.left(), "{} bytes do not fit in the {} left of a frame", from.len(), self.left());
        let mut from = from;
        while !from.is_empty() {
            let (next, others) = from.split_at(self.step().min(from.len()));
            self.writer.write(self.place, self.filled, next, self.past);
            self.note(next.len());
            from = others;
        }
    }

    /// Bytes that are written at once.
    #[inline(always)]
    fn step(&self) -> usize {
        if self.open { step(self.filled, self.left()) } else { usize::MAX }
    }

    /// So many more were written.
    #[inline(always)]
    fn note(&mut self, len: usize) {
        self.filled += len;
        if self.open {
            self.writer.has_come(self.place, self.filled);
        }
    }

    /// Appends all bytes of exposed memory, with one copy.
    ///
    /// # Panics
    /// If they are more than are left.
    pub fn copy_from(&mut self, from: &Exposed) {
        let all = from.len();
        assert!(all <= self.left(), "{all} bytes do not fit in the {} left of a frame", self.left());
        let mut begin = 0;
        while begin < all {
            let len = self.step().min(all - begin);
            let (at, first) = self.place.run(self.filled, len);
            for (from_at, at, len) in [(begin, at, first), (begin + first, self.place.rest, len - first)] {
                let (memory, at) = self.writer.words.bytes(at);
                match self.past {
                    true => from.copy_past_to(from_at, memory, at, len),
                    false => from.copy_to(from_at, memory, at, len),
                }
            }
            self.note(len);
            begin += len;
        }
    }

    /// Shows the frame to the consumer.
    ///
    /// # Panics
    /// If it is not filled: what lay in the ring before would go out with it.
    #[inline(always)]
    pub fn publish(self) {
        assert!(self.left() == 0, "a frame is published with {} bytes unwritten", self.left());
        if !self.open {
            self.writer.publish(self.place, self.len);
        }
    }
}

/// Bytes that are written at once of a frame that is shown, of which so many are written and left: as many as were before, since each word about
/// them takes its way between the processors, and the reader is that much behind. The last are fewer: they are left to be read when all
/// is written.
#[inline(always)]
fn step(filled: usize, left: usize) -> usize {
    filled.min(left / 2).clamp(STEP, LONGEST_STEP) / STEP * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_and_shrink() {
        let steps = |len: usize| {
            let mut filled = 16;
            std::iter::from_fn(|| {
                let next = step(filled, 16 + len - filled).min(16 + len - filled);
                filled += next;
                (next > 0).then(|| next.div_ceil(STEP))
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(steps(STEP + 1), [1, 1]);
        assert_eq!(steps(8 * STEP), [1, 1, 2, 2, 1, 1]);
        assert_eq!(steps(32 * STEP), [1, 1, 2, 4, 8, 8, 4, 2, 1, 1]);
    }
}
