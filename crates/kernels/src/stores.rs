//! Stores that leave the caches alone.

/// How results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stores {
    /// Through the caches: right whenever somebody reads the result soon, or the result fits into the caches.
    #[default]
    Cached,
    /// Past the caches, line by line, where the machine can (x86-64) and the output's alignment is that of its elements;
    /// cached stores elsewhere. A line that is written whole need not be read first, which saves a third of the traffic
    /// of a sum of two sources; it pays for outputs larger than the last-level cache that nobody reads soon. The stores
    /// are complete, as seen by other processors, when the function returns and its caller publishes them as usual.
    Streaming,
}

impl Stores {
    /// Bytes of a cache line.
    pub(crate) const LINE: usize = 64;

    /// How many of so many outputs are written past the caches.
    pub(crate) fn past(self, outputs: usize) -> usize {
        if self == Stores::Streaming { outputs } else { 0 }
    }
}

/// Orders streaming stores before whatever this thread stores next.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: SSE belongs to x86-64; a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies `len` bytes out of memory that others write.
///
/// # Safety
/// As [`copy_in`].
pub(crate) unsafe fn copy_out(from: *const u8, to: *mut u8, len: usize, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe {
        match stores {
            Stores::Cached => fulmen_memory::copy_out(from, to, len),
            Stores::Streaming => fulmen_memory::copy_past(from, to, len),
        }
    }
}

/// Copies `len` bytes into memory that others read.
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes, and they do not overlap.
pub(crate) unsafe fn copy_in(from: *const u8, to: *mut u8, len: usize, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe {
        match stores {
            Stores::Cached => fulmen_memory::copy_in(from, to, len),
            Stores::Streaming => fulmen_memory::copy_past(from, to, len),
        }
    }
}
