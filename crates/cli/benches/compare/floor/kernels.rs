//! Copies and sums at the machine's speed: vectors as wide as the processor has, and stores that pass the cache by.

use super::shared::{MAX_RANKS, Span};

/// Copies `from` to `to`, of the same length. `stream` stores past the cache, which saves reading the old contents of lines.
pub fn copy(to: Span, from: Span, stream: bool) {
    assert_eq!(to.words(), from.words());
    if stream && streams(&[to]) {
        sum_into(&[to], &[from], true);
        return;
    }
    // SAFETY: both spans hold that many words, and the buffers of a case never overlap.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.words()) }
}

/// Writes the sum of `from`, left to right, to every span of `to`; all are of one length. A target may be a source.
pub fn sum_into(to: &[Span], from: &[Span], stream: bool) {
    let words = from[0].words();
    assert!(to.iter().chain(from).all(|span| span.words() == words));
    let stream = stream && streams(to);
    match (from.len(), to.len()) {
        (2, 1) => fixed::<2, 1>(to, from, words, stream),
        (2, 2) => fixed::<2, 2>(to, from, words, stream),
        (sources, targets) => {
            assert!(sources <= MAX_RANKS && targets <= MAX_RANKS);
            let mut sources = [from[0].as_ptr().cast_const(); MAX_RANKS];
            let mut targets = [to[0].as_ptr(); MAX_RANKS];
            sources.iter_mut().zip(from).for_each(|(pointer, span)| *pointer = span.as_ptr());
            targets.iter_mut().zip(to).for_each(|(pointer, span)| *pointer = span.as_ptr());
            // SAFETY: every span holds `words` words, and `streams` has checked what streaming asks for.
            unsafe { sum(&targets[..to.len()], &sources[..from.len()], words, stream) }
        }
    }
}

/// Streaming stores ask for targets on a vector's boundary and whole vectors.
fn streams(to: &[Span]) -> bool {
    to.iter().all(|span| (span.as_ptr() as usize).is_multiple_of(64) && span.words().is_multiple_of(16))
}

/// The numbers of sources and targets as constants, so that the inner loop is unrolled.
fn fixed<const SOURCES: usize, const TARGETS: usize>(to: &[Span], from: &[Span], words: usize, stream: bool) {
    let sources: [*const f32; SOURCES] = std::array::from_fn(|i| from[i].as_ptr().cast_const());
    let targets: [*mut f32; TARGETS] = std::array::from_fn(|i| to[i].as_ptr());
    // SAFETY: every span holds `words` words, and `streams` has checked what streaming asks for.
    unsafe { sum(&targets, &sources, words, stream) }
}

/// # Safety
/// Every pointer has `words` words that no other rank writes now; with `stream`, targets are 64-byte aligned and `words` is a multiple of 16.
#[inline(always)]
unsafe fn sum(to: &[*mut f32], from: &[*const f32], words: usize, stream: bool) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F; the rest is the caller's promise.
            return unsafe { avx512::sum(to, from, words, stream) };
        }
        if is_x86_feature_detected!("avx") {
            // SAFETY: the processor has AVX; the rest is the caller's promise.
            return unsafe { avx::sum(to, from, words, stream) };
        }
    }
    let _ = stream;
    // SAFETY: the caller's promise.
    unsafe { tail(to, from, 0, words) }
}

/// # Safety
/// As [`sum`] without `stream`, for the words from `start` up to `words`.
#[inline(always)]
unsafe fn tail(to: &[*mut f32], from: &[*const f32], start: usize, words: usize) {
    for i in start..words {
        // SAFETY: `i` is less than `words`, which every pointer has.
        unsafe {
            let mut value = from[0].add(i).read();
            for source in &from[1..] {
                value += source.add(i).read();
            }
            for target in to {
                target.add(i).write(value);
            }
        }
    }
}

/// One module per vector width; the bodies differ in nothing but the instructions' names.
#[cfg(target_arch = "x86_64")]
macro_rules! vectors {
    ($name:ident, $feature:literal, $lanes:literal, $load:ident, $add:ident, $store:ident, $stream:ident) => {
        mod $name {
            use std::arch::x86_64::{_mm_sfence, $add, $load, $store, $stream};

            /// # Safety
            /// As `super::sum`, on a processor that has the feature.
            #[target_feature(enable = $feature)]
            #[inline]
            pub unsafe fn sum(to: &[*mut f32], from: &[*const f32], words: usize, stream: bool) {
                let whole = words - words % $lanes;
                for i in (0..whole).step_by($lanes) {
                    // SAFETY: a whole vector is left at `i`; streaming targets are aligned, as `super::sum` asks.
                    unsafe {
                        let mut value = $load(from[0].add(i));
                        for source in &from[1..] {
                            value = $add(value, $load(source.add(i)));
                        }
                        for target in to {
                            if stream { $stream(target.add(i), value) } else { $store(target.add(i), value) }
                        }
                    }
                }
                if stream {
                    // Streaming stores are ordered before a flag only by a fence.
                    _mm_sfence();
                }
                // SAFETY: the words that are left.
                unsafe { super::tail(to, from, whole, words) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vectors!(avx512, "avx512f", 16, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps, _mm512_stream_ps);
#[cfg(target_arch = "x86_64")]
vectors!(avx, "avx", 8, _mm256_loadu_ps, _mm256_add_ps, _mm256_storeu_ps, _mm256_stream_ps);
