//! The bytes of inline requests, from the call until they are posted.

use std::alloc::{self, Layout};
use std::ffi::c_int;
use std::ptr::NonNull;

use fulmen_memory::{Exposed, Region, page_size};
use fulmen_verbs::{Piece, Pieces};

/// What making a request fails with, as an error number.
pub(super) type Errno = c_int;

/// Room for the inline bytes of requests. The device copies them once more when they are posted.
pub(super) struct InlineRoom {
    /// Bytes that a request carries at most.
    most: usize,
    blocks: Vec<Exposed>,
    used: usize,
}

impl InlineRoom {
    pub(super) fn new(most: usize) -> InlineRoom {
        InlineRoom { most, blocks: Vec::new(), used: 0 }
    }

    fn slots_a_block(&self) -> usize {
        (page_size() / self.most).max(1)
    }

    /// Copies bytes, of `total` in all, into room of their own.
    ///
    /// # Safety
    /// Each run is readable.
    pub(super) unsafe fn keep(
        &mut self,
        total: usize,
        runs: impl Iterator<Item = (*const u8, usize)>,
    ) -> Result<Pieces, Errno> {
        let mut pieces = Pieces::new();
        if total == 0 {
            return Ok(pieces);
        }
        if total > self.most {
            return Err(libc::EINVAL);
        }
        let (block, slot) = (self.used / self.slots_a_block(), self.used % self.slots_a_block());
        if block == self.blocks.len() {
            self.blocks.push(Pages::exposed(self.most)?);
        }
        let memory = &self.blocks[block];
        let mut at = slot * self.most;
        let start = at;
        for (from, len) in runs {
            if len == 0 {
                continue;
            }
            // SAFETY: readable, by the contract of this function.
            memory.write(at, unsafe { std::slice::from_raw_parts(from, len) });
            at += len;
        }
        self.used += 1;
        pieces.push(Piece { memory: memory.slice(start..at), lkey: 0 });
        Ok(pieces)
    }

    /// Forgets the bytes, which were posted.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }
}

/// Whole pages of this process alone.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its bytes, of which it gives no reference.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `len` bytes, as memory of a request.
    fn exposed(len: usize) -> Result<Exposed, Errno> {
        let layout =
            Layout::from_size_align(len.next_multiple_of(page_size()), page_size()).map_err(|_| libc::ENOMEM)?;
        // SAFETY: the layout has at least one page.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or(libc::ENOMEM)?;
        let pages = Pages { start, layout };
        // SAFETY: whole pages of which nobody else knows, until the owner frees them.
        let region = unsafe { Region::adopt(start, layout.size(), Box::new(pages)) }.map_err(|_| libc::ENOMEM)?;
        region.expose().map_err(|_| libc::ENOMEM)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}
