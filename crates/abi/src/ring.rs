//! Streams through a buffer.

use core::ops::Range;

use crate::buffer::Buffer;
use crate::error::AbiError;

/// A buffer that a stream goes through: the byte with the number `n` lies at `n` modulo the buffer's length. One side
/// counts what it has written in all, the other what it has read in all; neither counter ever goes back, and the first
/// is never ahead by more than the buffer's length. Each stores its counter with *release* after its bytes.
///
/// Keep your own counter in memory of your own: the other side's word is all that has to be believed, and is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    len: u64,
}

/// Bytes of a ring, in their order: the second part is not empty where they go on at the ring's beginning. Offsets are
/// those in the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// The first bytes.
    pub first: Range<u64>,
    /// Those that follow them.
    pub second: Range<u64>,
}

impl Ring {
    /// The stream through this buffer.
    #[must_use]
    pub fn new(buffer: &Buffer) -> Ring {
        Ring { len: buffer.len }
    }

    /// What can be read.
    ///
    /// # Errors
    /// [`AbiError::Counters`] if the counters are impossible.
    pub fn filled(&self, written: u64, read: u64) -> Result<Pieces, AbiError> {
        let count = self.count(written, read)?;
        Ok(self.pieces(read, count))
    }

    /// Where more can be written.
    ///
    /// # Errors
    /// [`AbiError::Counters`] if the counters are impossible.
    pub fn free(&self, written: u64, read: u64) -> Result<Pieces, AbiError> {
        let count = self.len - self.count(written, read)?;
        Ok(self.pieces(written, count))
    }

    /// Bytes that were written and not yet read.
    fn count(&self, written: u64, read: u64) -> Result<u64, AbiError> {
        let count = written.checked_sub(read).filter(|count| *count <= self.len);
        count.ok_or(AbiError::Counters { written, read, len: self.len })
    }

    fn pieces(&self, from: u64, count: u64) -> Pieces {
        // A ring without bytes has nothing to divide by.
        let start = from.checked_rem(self.len).unwrap_or(0);
        let first = count.min(self.len - start);
        Pieces { first: start..start + first, second: 0..count - first }
    }
}

impl Pieces {
    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.first.end - self.first.start) + (self.second.end - self.second.start)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
