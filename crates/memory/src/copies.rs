//! Copies between memory that processes share and their own.

/// From so many bytes on, instructions of one's own.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 2 << 10;

/// From so many bytes on, what others wrote is read by the processor's instruction for strings (`rep movsb`), where that is
/// [fast](string_copies_are_fast), and else by vectors: it takes long to begin. (Measured of messages, near: by vectors, 3 and 4 KiB take 0.9 of the
/// time, 5 to 8 KiB the same and 64 KiB, in pieces of 8 KiB and more, 1.06.)
#[cfg(target_arch = "x86_64")]
const LONGER: usize = 8 << 10;

/// Copies `len` bytes to where somebody else reads them next, or may have read what was there before.
///
/// What is long goes by the processor's instruction for strings (`rep movsb`), where that is fast: it writes whole lines, which
/// need not be fetched from where they were read last. (Measured of messages to and fro between two processors of an AMD EPYC of family 1Ah, by
/// hand: beside vectors, where they share a cache, 4 KiB take as long and 8 KiB to 256 KiB 0.6 to 0.95 of the time; where they do not, 4 KiB 0.65 of
/// it, 8 KiB 0.5 and 16 KiB to 256 KiB 0.3 to 0.4.)
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes, and they do not overlap. Somebody else may write what is read meanwhile: then it is
/// torn.
#[inline(always)]
pub unsafe fn copy_in(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= LONG {
        // SAFETY: the caller's promise.
        return unsafe { copy_long(from, to, len, LONG) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies `len` bytes of what somebody else wrote to where nobody else looks.
///
/// # Safety
/// As [`copy_in`].
#[inline(always)]
pub unsafe fn copy_out(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= LONG {
        // SAFETY: the caller's promise.
        return unsafe { copy_long(from, to, len, LONGER) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies past the caches of what is written, where the machine can: for what has no room in them, or nobody reads soon. A line that is
/// written whole need not be read first. The stores are complete, as seen by other processors, when the function returns and its caller
/// publishes them as usual.
///
/// # Safety
/// As [`copy_in`].
pub unsafe fn copy_past(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= LONG && is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise, and the processor has these instructions.
        return unsafe { stream_by_lines(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_in(from, to, len) }
}

/// # Safety
/// As [`copy_in`], with two lines at least; the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_by_lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const LINE: usize = 64;
    let head = to.addr().wrapping_neg() % LINE;
    let tail = head + (len - head) / LINE * LINE;
    // SAFETY: head <= tail <= len split the range; each line between begins at a multiple of its size.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for at in (head..tail).step_by(LINE) {
            let (from, to) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            _mm256_stream_si256(to, _mm256_loadu_si256(from));
            _mm256_stream_si256(to.add(1), _mm256_loadu_si256(from.add(1)));
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
    _mm_sfence();
}

/// Whether the processor's instruction for strings copies as fast as any other, wherever source and target begin: it says so (FSRM), and is
/// none of AMD's family 19h (Zen 3 and Zen 4), which says so too and is up to twenty times as slow with some targets (glibc, bug 30994). What
/// is written so need not be read first. (Measured of messages of plain memory between two ranks, beside vectors: with an AMD EPYC of family
/// 1Ah, near, 16 KiB take 0.9 of the time, 64 KiB and 256 KiB 0.81 and 1 MiB 0.95; with an Intel Xeon of 16 processors, 16 KiB 0.9, 64 KiB to
/// 1 MiB 0.75 to 0.8.)
#[cfg(target_arch = "x86_64")]
fn string_copies_are_fast() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;
    static FAST: OnceLock<bool> = OnceLock::new();
    const LEAF: u32 = 7;
    const FSRM: u32 = 1 << 4;
    // The first four letters of "AuthenticAMD".
    const AMD: u32 = u32::from_le_bytes(*b"Auth");
    // What interprets programs has no instructions of its own.
    !cfg!(miri)
        && *FAST.get_or_init(|| {
            let (leaves, version) = (__cpuid(0), __cpuid(1).eax);
            let family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
            let says_so = leaves.eax >= LEAF && __cpuid_count(LEAF, 0).edx & FSRM != 0;
            says_so && !(leaves.ebx == AMD && family == 0x19)
        })
}

/// # Safety
/// As [`copy_in`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: it reads and writes what the caller promises. The direction flag is clear wherever Rust runs.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Apart, so that what is short is not held up. From `strings` bytes on, by the instruction for strings.
///
/// # Safety
/// As [`copy_in`].
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize, strings: usize) {
    if len >= strings && string_copies_are_fast() {
        // SAFETY: the caller's promise.
        return unsafe { copy_string(from, to, len) };
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise, and the processor has these instructions.
        return unsafe { copy_by_lines(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// As [`copy_in`], with a line at least; the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_by_lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    const LINE: usize = 64;
    // SAFETY: the line at `at` lies inside, as each caller below sees to.
    let line = |at: usize| unsafe {
        let (from, to) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
        let halves = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
        _mm256_storeu_si256(to, halves.0);
        _mm256_storeu_si256(to.add(1), halves.1);
    };
    // The first and the last line overlap what is copied line by line of the target.
    line(0);
    let mut at = LINE - to.addr() % LINE;
    while at + LINE <= len {
        line(at);
        at += LINE;
    }
    line(len - LINE);
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..proptest::prelude::ProptestConfig::default()
        })]
        #[test]
        fn every_byte_is_copied_and_no_other(from in 0..130usize, to in 0..130usize, len in 0..20_000usize) {
            let source: Vec<u8> = (0..from + len).map(|at| (at * 7 + at / 251) as u8 | 1).collect();
            let mut target = vec![0; to + len + 130];
            let ways: Vec<unsafe fn(*const u8, *mut u8, usize)> = vec![copy_in, copy_out, copy_past];
            // Of which this processor may take but one.
            #[cfg(target_arch = "x86_64")]
            let ways = {
                let mut ways = ways;
                if !cfg!(miri) {
                    ways.push(copy_string);
                }
                if len >= LONG && is_x86_feature_detected!("avx2") {
                    ways.push(copy_by_lines);
                }
                ways
            };
            for way in ways {
                target.fill(0);
                // SAFETY: both vectors are that long, and the processor has what each way needs.
                unsafe { way(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
                proptest::prop_assert_eq!(&target[to..to + len], &source[from..]);
                proptest::prop_assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0));
            }
        }
    }
}
