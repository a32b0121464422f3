//! The instruction sets that loops are compiled for, chosen once at run time.
//!
//! All of them give the same bits. Rust never contracts a multiplication and an addition into one, so a level that has
//! fused instructions does not change results.

use std::sync::OnceLock;

use crate::halves::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};

/// What compilers do not vectorise well by themselves, over `N` elements, as the level does it best.
///
/// # Safety
/// Of every method: the pointers are valid for `N` elements (or a line), at any alignment but where it says otherwise; the machine has the level's instructions. The
/// methods are to be inlined into functions that are compiled for them.
pub(crate) trait Level {
    #[inline(always)]
    unsafe fn widen_f16<const N: usize>(from: *const u16, to: *mut f32) {
        for lane in 0..N {
            // SAFETY: lane < N.
            unsafe { to.add(lane).write_unaligned(f16_to_f32(from.add(lane).read_unaligned())) };
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16<const N: usize>(from: *const f32, to: *mut u16) {
        for lane in 0..N {
            // SAFETY: lane < N.
            unsafe { to.add(lane).write_unaligned(f16_from_f32(from.add(lane).read_unaligned())) };
        }
    }

    #[inline(always)]
    unsafe fn widen_bf16<const N: usize>(from: *const u16, to: *mut f32) {
        for lane in 0..N {
            // SAFETY: lane < N.
            unsafe { to.add(lane).write_unaligned(bf16_to_f32(from.add(lane).read_unaligned())) };
        }
    }

    #[inline(always)]
    unsafe fn narrow_bf16<const N: usize>(from: *const f32, to: *mut u16) {
        for lane in 0..N {
            // SAFETY: lane < N.
            unsafe { to.add(lane).write_unaligned(bf16_from_f32(from.add(lane).read_unaligned())) };
        }
    }

    /// Writes the line at `from` past the caches to one at `to` that is aligned to its size. The stores are ordered before
    /// later ones only by a [fence](crate::stores::fence). The fewer they are, the better: written by quarters, 16 MiB from two sources take
    /// 1.2 of the time.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn stream_line(to: *mut u8, from: *const u8) {
        for quarter in 0..4 {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
            // SAFETY: both lie inside the caller's line, `to` at a multiple of 16; SSE2 belongs to x86-64.
            unsafe {
                let part = _mm_loadu_si128(from.cast::<__m128i>().add(quarter));
                _mm_stream_si128(to.cast::<__m128i>().add(quarter), part);
            }
        }
    }

    /// Multiplies the numbers at `to` by those at `by`.
    #[inline(always)]
    unsafe fn multiply_complex<const N: usize>(to: *mut [f32; 2], by: *const [f32; 2]) {
        for lane in 0..N {
            // SAFETY: lane < N.
            unsafe {
                let product = multiply_complex(to.add(lane).read_unaligned(), by.add(lane).read_unaligned());
                to.add(lane).write_unaligned(product);
            }
        }
    }
}

/// What compilers make of the loops with what the target guarantees: SSE2 on x86-64, NEON on AArch64.
pub(crate) struct Baseline;
impl Level for Baseline {}

/// Two products and a difference, two products and a sum, each rounded.
#[inline(always)]
pub(crate) fn multiply_complex([a, b]: [f32; 2], [c, d]: [f32; 2]) -> [f32; 2] {
    [a * c - b * d, a * d + b * c]
}

/// A level, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Choice {
    /// The best level of this machine.
    #[inline]
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Choice> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().expect("the baseline is always there"))
    }

    /// The same, or the one below if its vectors are of 512 bits.
    pub(crate) fn narrow(self) -> Self {
        match self {
            // Whoever has AVX-512 has AVX2.
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512 => Choice::Avx2,
            other => other,
        }
    }

    /// The levels that this machine can run, the best one last.
    pub(crate) fn available() -> Vec<Choice> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let best = if wide { &[Choice::Avx2, Choice::Avx512][..] } else { &[Choice::Avx2] };
            return [&[Choice::Baseline], best].concat();
        }
        vec![
            Choice::Baseline,
            #[cfg(target_arch = "aarch64")]
            Choice::Neon,
        ]
    }
}
