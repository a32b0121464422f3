use std::sync::atomic::Ordering;

use fulmen_memory::Exposed;

use super::algorithm::Words;
use super::{Layout, RingError, SLOTS_AT};
use crate::shared::{LINE, Shared};

/// The ring's words in shared memory: the consumer's position at 0, the slots from [`SLOTS_AT`] on, and behind them the cell.
#[derive(Debug)]
pub(super) struct Mapped {
    shared: Shared,
    mask: u64,
}

impl Mapped {
    pub(super) fn new(memory: Exposed, layout: Layout) -> Result<Mapped, RingError> {
        let fits = memory.len() == layout.size() && memory.addr().is_multiple_of(LINE);
        if !fits || !memory.is_writable() {
            return Err(RingError::Misfit { addr: memory.addr(), len: memory.len(), size: layout.size() });
        }
        Ok(Mapped { shared: Shared::new(memory, LINE), mask: layout.slots as u64 - 1 })
    }

    #[inline(always)]
    fn head_at(&self, position: u64) -> usize {
        SLOTS_AT + (position & self.mask) as usize * LINE
    }

    #[inline(always)]
    fn check(&self, at: usize, len: usize) {
        let all = self.shared.len() - SLOTS_AT;
        assert!(at <= all && len <= all - at, "a run of bytes lies in the slots, or in the cell behind them");
    }

    /// The memory, for copies between exposed memories, and where in it a byte of the slots or of the cell is.
    #[inline]
    pub(super) fn bytes(&self, at: usize) -> (&Exposed, usize) {
        (self.shared.memory(), SLOTS_AT + at)
    }
}

impl Words for Mapped {
    #[inline(always)]
    fn head(&self, position: u64) -> u64 {
        // SAFETY: a slot's start is a multiple of 64 and lies inside: the memory has 128 bytes and `mask + 1` slots.
        unsafe { self.shared.word(self.head_at(position)) }.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn set_head(&self, position: u64, head: u64) {
        // SAFETY: as in `head`.
        unsafe { self.shared.word(self.head_at(position)) }.store(head, Ordering::Release);
    }

    fn clear_head(&self, position: u64) {
        // SAFETY: as in `head`.
        unsafe { self.shared.word(self.head_at(position)) }.store(0, Ordering::Relaxed);
    }

    fn read_position(&self) -> u64 {
        // SAFETY: the memory has at least 128 bytes and is aligned to 64.
        unsafe { self.shared.word(0) }.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn set_read_position(&self, position: u64) {
        // SAFETY: as in `read_position`.
        unsafe { self.shared.word(0) }.store(position, Ordering::Release);
    }

    #[inline(always)]
    fn write(&self, at: usize, from: &[u8], past: bool) {
        self.check(at, from.len());
        // SAFETY: checked to lie behind the first words, in the memory.
        unsafe { self.shared.write(SLOTS_AT + at, from, past) }
    }

    #[inline(always)]
    fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: checked to lie behind the first words, in the memory.
        unsafe { self.shared.read(SLOTS_AT + at, into) }
    }
}
