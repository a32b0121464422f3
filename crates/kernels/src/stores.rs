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
}

/// Writes one line past the caches.
///
/// # Safety
/// `to` is aligned to [`Stores::LINE`] and may be written for a line; `from` may be read for one. The stores are ordered
/// before later ones only by [`fence`].
#[inline(always)]
pub(crate) unsafe fn stream_line(to: *mut u8, from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for quarter in 0..4 {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        // SAFETY: both lie inside the caller's line, `to` at a multiple of 16; SSE2 belongs to x86-64.
        unsafe {
            _mm_stream_si128(to.cast::<__m128i>().add(quarter), _mm_loadu_si128(from.cast::<__m128i>().add(quarter)));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise; a stack buffer or another mapping never overlaps the output's line.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, Stores::LINE);
    }
}

/// Orders streaming stores before whatever this thread stores next.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE belongs to x86-64; a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Asks for the line at `from` to be brought into the caches. Any address will do: a wrong one has no effect.
#[inline(always)]
pub(crate) fn prefetch(from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE belongs to x86-64; a prefetch never faults and changes no memory.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
}

/// Copies `len` bytes out of memory that others write.
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn copy_out(from: *const u8, to: *mut u8, len: usize, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe {
        match stores {
            Stores::Cached => fulmen_memory::copy_out(from, to, len),
            Stores::Streaming => copy(from, to, len, stores),
        }
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes, and they do not overlap.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize, stores: Stores) {
    let head = to.addr().wrapping_neg() % Stores::LINE;
    if stores == Stores::Cached || cfg!(not(target_arch = "x86_64")) || len < head + Stores::LINE {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        return;
    }
    let lines = (len - head) / Stores::LINE;
    let tail = head + lines * Stores::LINE;
    // SAFETY: head <= tail <= len split the range; the lines between begin aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for at in (head..tail).step_by(Stores::LINE) {
            stream_line(to.add(at), from.add(at));
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
    fence();
}
