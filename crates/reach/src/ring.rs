//! A ring of frames in shared memory, from one producer to one consumer, usually in two processes.
//!
//! The ring is made of slots of 64 bytes: a head word of eight bytes and 56 bytes of payload. A frame of up to
//! [`INLINE`] bytes takes one slot, so that its payload and the word that announces it arrive in one cache line. A
//! longer frame goes on through the slots that follow, whose head words it overwrites, so that its payload is at most
//! two runs of bytes (the ring's end lies between them).
//!
//! Beside its slots, a ring may have a *cell* for the bytes of one frame beyond the first [`INLINE`], which then takes one
//! slot as well. What is written again and again at one place lies in the caches of both sides, whereas the slots of a
//! long frame were used so long ago that neither has them: whoever knows that the cell is free, because the consumer
//! answered, puts a frame there.
//!
//! The producer may leave a *gap* behind a frame, of slots that stay as they are. Processors fetch ahead beyond what is read: without a gap,
//! the lines that the producer writes next, which it then has to get back.
//!
//! Every shared word has one writer: heads and payload belong to the producer; the `read` position, in a cache line of
//! its own, belongs to the consumer, and the producer reads it only when the ring seems full. Zeroed memory is an empty
//! ring. Neither side trusts the other: each word is read once, checked, and then used, so that a hostile process can
//! send nonsense or nothing, and no more.
//!
//! The ring never blocks. Who wants to park puts a [`Doorbell`](crate::Doorbell) beside it.

mod algorithm;
mod consumer;
mod mapped;
mod producer;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use consumer::{Consumer, Frame};
pub use producer::{Producer, Reservation};

use crate::shared::LINE;

/// Bytes of a slot's head word.
const HEAD: usize = 8;

/// Bytes of payload up to which a frame is one cache line.
pub const INLINE: usize = LINE - HEAD;

/// Where the slots begin: the consumer's `read` word has the first line, and the line after it stays empty, since
/// processors fetch lines in pairs.
const SLOTS_AT: usize = 2 * LINE;

/// What is wrong with a ring or a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The memory's length or alignment is not that of this ring, or it cannot be written.
    #[error("{len} bytes at {addr:#x} are not this ring: take {size} writable bytes that start at a multiple of 64")]
    Misfit {
        /// Its first address.
        addr: usize,
        /// Its length in bytes.
        len: usize,
        /// [`Layout::size`].
        size: usize,
    },
    /// The frame is longer than half of the ring, or than its cell.
    #[error("a frame of {len} bytes is longer than the {max} bytes that fit there: send it in parts")]
    TooLong {
        /// Bytes of the frame.
        len: usize,
        /// Bytes of the longest frame.
        max: usize,
    },
    /// The other side wrote what no correct process writes.
    #[error("the other side corrupted the shared ring ({what}): end the connection with it")]
    Corrupt {
        /// What was found.
        what: &'static str,
    },
}

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: usize,
    cell: usize,
    /// In slots.
    gap: usize,
}

impl Layout {
    /// A ring of at least `capacity` bytes of slots, rounded up to a power of two (at least 256 bytes).
    ///
    /// # Panics
    /// If the capacity exceeds 2 GiB.
    #[must_use]
    pub const fn new(capacity: usize) -> Layout {
        assert!(capacity <= 1 << 31, "a ring has at most 2 GiB");
        let slots = capacity.div_ceil(LINE).next_power_of_two();
        Layout { slots: if slots < 4 { 4 } else { slots }, cell: 0, gap: 0 }
    }

    /// The same with a cell that takes a frame of up to `frame` bytes.
    ///
    /// # Panics
    /// If it exceeds what the ring's slots take.
    #[must_use]
    pub const fn with_cell(self, frame: usize) -> Layout {
        assert!(frame <= self.max_frame(), "a ring's cell takes no longer frames than its slots");
        Layout { cell: frame.saturating_sub(INLINE).next_multiple_of(LINE), ..self }
    }

    /// The same with gaps of so many bytes, rounded up to whole slots.
    ///
    /// # Panics
    /// If they exceed half of the slots.
    #[must_use]
    pub const fn with_gap(self, bytes: usize) -> Layout {
        assert!(bytes <= self.capacity() / 2, "a ring has room for a frame beside a gap");
        Layout { gap: bytes.div_ceil(LINE), ..self }
    }

    /// Bytes of shared memory that the ring takes.
    #[must_use]
    pub const fn size(self) -> usize {
        SLOTS_AT + self.capacity() + self.cell
    }

    /// Bytes of all slots.
    #[must_use]
    pub const fn capacity(self) -> usize {
        self.slots * LINE
    }

    /// Bytes of the longest frame: half of the ring. An empty ring takes it always.
    #[must_use]
    pub const fn max_frame(self) -> usize {
        self.capacity() / 2 - HEAD
    }
}
