use std::sync::atomic::AtomicU64;

use fulmen_memory::Exposed;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Exposed memory whose address is at hand, for the paths where each nanosecond counts: [`Exposed`] finds its address
/// anew on each access.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    base: *mut u8,
    memory: Exposed,
}

// SAFETY: the address stays mapped as long as `memory` is held, in whichever thread, and the bytes are reached by
// atomics and raw copies only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Panics
    /// If the memory is not aligned to `align`, or cannot be written.
    #[track_caller]
    pub(crate) fn new(memory: Exposed, align: usize) -> Shared {
        let addr = memory.addr();
        assert!(addr.is_multiple_of(align), "shared words at {addr:#x} are not aligned to {align} bytes");
        assert!(memory.is_writable(), "shared words cannot live in a region that is mapped read-only");
        Shared { base: memory.as_ptr(), memory }
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// The word at offset `at`.
    ///
    /// # Safety
    /// `at` is a multiple of 8, the base is aligned to at least 8, and `at + 8 <= len`.
    #[inline(always)]
    pub(crate) unsafe fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.len());
        // SAFETY: inside a writable mapping that `self` keeps, aligned (the caller says), reached by no references but
        // atomics; every bit pattern is a value.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// Copies bytes out. A racing writer can tear them.
    ///
    /// # Safety
    /// `at + into.len() <= len`.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, at: usize, into: &mut [u8]) {
        debug_assert!(at + into.len() <= self.len());
        // SAFETY: the source lies inside a mapping that `self` keeps, the target is the caller's own slice, and shared
        // memory has no references, so the two do not overlap. Each byte is valid whatever its value.
        unsafe { fulmen_memory::copy_out(self.base.add(at), into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in; past the caches if that is asked for.
    ///
    /// # Safety
    /// `at + from.len() <= len`.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, at: usize, from: &[u8], past: bool) {
        debug_assert!(at + from.len() <= self.len());
        // SAFETY: as in `read`, with the roles exchanged; the mapping is writable (checked by `new`).
        unsafe {
            let (from, to, len) = (from.as_ptr(), self.base.add(at), from.len());
            if past { fulmen_memory::copy_past(from, to, len) } else { fulmen_memory::copy_in(from, to, len) }
        }
    }

    /// The same bytes, for copies between exposed memories.
    pub(crate) fn memory(&self) -> &Exposed {
        &self.memory
    }
}
