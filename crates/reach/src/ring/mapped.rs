use std::sync::atomic::Ordering;

use fulmen_memory::Exposed;

use super::algorithm::Words;
use super::{COME_AT, Layout, RingError, SLOTS_AT};
use crate::shared::{LINE, Shared};

/// The ring's words in shared memory: the consumer's position at 0, the slots from [`SLOTS_AT`] on; and the cells that either side had at first.
#[derive(Debug)]
pub(super) struct Mapped {
    shared: Shared,
    mask: u64,
    /// Where the cells begin, in bytes from the first slot.
    slots: usize,
    cells: Option<Box<[Shared; 2]>>,
}

impl Mapped {
    pub(super) fn new(memory: Exposed, layout: Layout) -> Result<Mapped, RingError> {
        let shared = fit(memory, layout.size())?;
        Ok(Mapped { shared, mask: layout.slots as u64 - 1, slots: layout.capacity(), cells: None })
    }

    pub(super) fn with_cells(memory: Exposed, cells: [Exposed; 2], layout: Layout) -> Result<Mapped, RingError> {
        let mapped = Mapped::new(memory, layout)?;
        let [one, other] = cells.map(|cells| fit(cells, layout.cells_size()));
        Ok(Mapped { cells: Some(Box::new([one?, other?])), ..mapped })
    }

    #[inline(always)]
    fn head_at(&self, position: u64) -> usize {
        SLOTS_AT + (position & self.mask) as usize * LINE
    }

    /// Where a run of bytes lies: they are within this memory.
    #[inline(always)]
    fn run(&self, at: usize, len: usize) -> (&Shared, usize) {
        let (memory, at) = self.find(at);
        let all = memory.len();
        assert!(at <= all && len <= all - at, "a run of bytes lies in the slots, or in a cell");
        (memory, at)
    }

    #[inline(always)]
    fn find(&self, at: usize) -> (&Shared, usize) {
        let Some(cells) = self.cells.as_deref().filter(|_| at >= self.slots) else {
            return (&self.shared, SLOTS_AT + at);
        };
        let ([one, other], at) = (cells, at - self.slots);
        if at < one.len() { (one, at) } else { (other, at - one.len()) }
    }

    /// The memory, for copies between exposed memories, and where in it a byte of the slots or of a cell is.
    #[inline]
    pub(super) fn bytes(&self, at: usize) -> (&Exposed, usize) {
        let (memory, at) = self.find(at);
        (memory.memory(), at)
    }
}

fn fit(memory: Exposed, size: usize) -> Result<Shared, RingError> {
    let fits = memory.len() == size && memory.addr().is_multiple_of(LINE);
    if !fits || !memory.is_writable() {
        return Err(RingError::Misfit { addr: memory.addr(), len: memory.len(), size });
    }
    Ok(Shared::new(memory, LINE))
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

    fn come(&self, position: u64) -> u64 {
        // SAFETY: as in `head`: it is in the same slot.
        unsafe { self.shared.word(self.head_at(position) + COME_AT) }.load(Ordering::Acquire)
    }

    fn set_come(&self, position: u64, bytes: u64) {
        // SAFETY: as in `come`.
        unsafe { self.shared.word(self.head_at(position) + COME_AT) }.store(bytes, Ordering::Release);
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
        let (memory, at) = self.run(at, from.len());
        // SAFETY: checked to lie in this memory.
        unsafe { memory.write(at, from, past) }
    }

    #[inline(always)]
    fn read(&self, at: usize, into: &mut [u8]) {
        let (memory, at) = self.run(at, into.len());
        // SAFETY: checked to lie in this memory.
        unsafe { memory.read(at, into) }
    }
}
