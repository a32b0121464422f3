//! Stores that leave the caches alone.

use crate::level::{Baseline, Choice, Level};

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

/// Orders streaming stores before whatever this thread stores next.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE belongs to x86-64; a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
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
    // SAFETY: head <= tail <= len split the range; the lines between begin aligned; the level is one that the machine has.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        match Choice::best() {
            Choice::Baseline => copy_lines::<Baseline>(from.add(head), to.add(head), lines),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 => avx2(from.add(head), to.add(head), lines),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512 => avx512(from.add(head), to.add(head), lines),
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
    fence();
}

/// # Safety
/// As [`copy_lines`], and the machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: the caller's promise is the callee's.
    unsafe { copy_lines::<crate::avx2::Avx2>(from, to, lines) }
}

/// # Safety
/// As [`copy_lines`], and the machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: the caller's promise is the callee's.
    unsafe { copy_lines::<crate::avx512::Avx512>(from, to, lines) }
}

/// Copies whole lines past the caches.
///
/// # Safety
/// `from` may be read and `to`, which is aligned to a line, written for so many lines; the machine has the instructions of `L`.
#[inline(always)]
unsafe fn copy_lines<L: Level>(from: *const u8, to: *mut u8, lines: usize) {
    for at in (0..lines * Stores::LINE).step_by(Stores::LINE) {
        // SAFETY: the line at `at` is one of them.
        unsafe { L::stream_line(to.add(at), from.add(at)) };
    }
}
