//! A ring of frames in shared memory, from one producer to one consumer, usually in two processes.
//!
//! The ring is made of slots of 64 bytes: a head word of eight bytes and 56 bytes of payload. A frame of up to
//! [`INLINE`] bytes takes one slot, so that its payload and the word that announces it arrive in one cache line. A
//! longer frame goes on through the slots that follow, whose head words it overwrites, so that its payload is at most
//! two runs of bytes (the ring's end lies between them).
//!
//! Two rings, one in each direction, may share [*cells*](Cells) for the bytes of longer frames, each of which then takes one slot of its ring.
//! A cell goes with the frame: whoever has read it may write it next. What a processor has just read is in its caches, so that an answer
//! in the same lines is written at once, whereas lines of one's own that the other side has read have to be got back from it. A frame in a cell
//! may be shown while it [is still written](Reservation::open), so that its reader follows its writer.
//!
//! Every shared word has one writer at a time: heads and payload belong to the producer, cells to whoever has them; the `read` position, in a
//! cache line of its own, belongs to the consumer, and the producer reads it only when the ring seems full. Zeroed memory is an empty
//! ring. Neither side trusts the other: each word is read once, checked, and then used, so that a hostile process can
//! send nonsense or nothing, and no more.
//!
//! The ring never blocks. Who wants to park puts a [`Doorbell`](crate::Doorbell) beside it.

mod algorithm;
mod cells;
mod consumer;
mod mapped;
mod producer;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use cells::{Cells, Spot};
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
    /// The frame is longer than half of the ring, or than a cell.
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
    /// Cells that either side has at first.
    cells: usize,
    /// Bytes of a cell.
    cell: usize,
}

/// Bytes between a cell and the next one: processors fetch ahead beyond what is read, and the other side may write there.
const BETWEEN_CELLS: usize = 1 << 10;

/// The most cells that either side may have at first, and the most bytes of one.
const MOST_CELLS: usize = 1 << 6;
const LONGEST_CELL: usize = 512 << 10;

/// Where in a slot its writer says how much of the frame has come, if it shows it before all has.
const COME_AT: usize = LINE - size_of::<u64>();

/// Bytes of a frame that is shown while it is written, from one word about it to the next, at least and at most.
const STEP: usize = 8 << 10;
const LONGEST_STEP: usize = 64 << 10;

impl Layout {
    /// A ring of at least `capacity` bytes of slots, rounded up to a power of two (at least 256 bytes).
    ///
    /// # Panics
    /// If the capacity exceeds 2 GiB.
    #[must_use]
    pub const fn new(capacity: usize) -> Layout {
        assert!(capacity <= 1 << 31, "a ring has at most 2 GiB");
        let slots = capacity.div_ceil(LINE).next_power_of_two();
        Layout { slots: if slots < 4 { 4 } else { slots }, cells: 0, cell: 0 }
    }

    /// The same with cells for up to `bytes` bytes: as many as `room` bytes take, and 64 at most, are either side's at first.
    ///
    /// # Panics
    /// If they have more than 512 KiB each.
    #[must_use]
    pub const fn with_cells(self, bytes: usize, room: usize) -> Layout {
        assert!(bytes <= LONGEST_CELL, "cells have at most 512 KiB");
        let layout = Layout { cells: 0, cell: bytes.next_multiple_of(LINE), ..self };
        let cells = room / layout.stride();
        Layout { cells: if cells < MOST_CELLS { cells } else { MOST_CELLS }, ..layout }
    }

    /// How many cells either side has at first.
    #[must_use]
    pub const fn cells(self) -> usize {
        self.cells
    }

    /// Bytes of shared memory that the ring takes, without cells.
    #[must_use]
    pub const fn size(self) -> usize {
        SLOTS_AT + self.capacity()
    }

    /// Bytes of the cells that either side has at first.
    #[must_use]
    pub const fn cells_size(self) -> usize {
        self.cells * self.stride()
    }

    /// Bytes from a cell to the next one.
    const fn stride(self) -> usize {
        self.cell + BETWEEN_CELLS
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
