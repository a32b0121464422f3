//! The level of NEON, which belongs to AArch64: what compilers do there element by element or by long detours, by the instructions that are
//! made for it.

use std::arch::aarch64::*;

use crate::lane::{Block, F32_NAN, Lane, Max, Min, Sum};
use crate::level::Level;

/// NEON, by hand.
pub(crate) struct Neon;

/// Lanes of a vector of 16-bit floats.
const HALVES: usize = 8;
/// Lanes of a vector of binary32.
const FLOATS: usize = 4;

impl Level for Neon {
    #[inline(always)]
    unsafe fn widen_f16<const N: usize>(from: *const u16, to: *mut f32) {
        const { assert!(N.is_multiple_of(HALVES)) };
        for at in (0..N).step_by(HALVES) {
            // SAFETY: at + HALVES <= N; the caller's promise covers the elements, and these loads and stores take any alignment.
            unsafe {
                let halves = vreinterpretq_f16_u16(vld1q_u16(from.add(at)));
                vst1q_f32(to.add(at), vcvt_f32_f16(vget_low_f16(halves)));
                vst1q_f32(to.add(at + FLOATS), vcvt_high_f32_f16(halves));
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16<const N: usize>(from: *const f32, to: *mut u16) {
        const { assert!(N.is_multiple_of(HALVES)) };
        for at in (0..N).step_by(HALVES) {
            // SAFETY: as above.
            unsafe {
                let low = vcvt_f16_f32(with_one_nan(vld1q_f32(from.add(at))));
                let narrow = vcvt_high_f16_f32(low, with_one_nan(vld1q_f32(from.add(at + FLOATS))));
                vst1q_u16(to.add(at), vreinterpretq_u16_f16(narrow));
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_bf16<const N: usize>(from: *const u16, to: *mut f32) {
        const { assert!(N.is_multiple_of(HALVES)) };
        for at in (0..N).step_by(HALVES) {
            // SAFETY: as above.
            unsafe {
                let halves = vld1q_u16(from.add(at));
                let (low, high) = (vmovl_u16(vget_low_u16(halves)), vmovl_high_u16(halves));
                vst1q_f32(to.add(at), vreinterpretq_f32_u32(vshlq_n_u32::<16>(low)));
                vst1q_f32(to.add(at + FLOATS), vreinterpretq_f32_u32(vshlq_n_u32::<16>(high)));
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_bf16<const N: usize>(from: *const f32, to: *mut u16) {
        const { assert!(N.is_multiple_of(HALVES)) };
        for at in (0..N).step_by(HALVES) {
            // SAFETY: as above.
            unsafe {
                let (low, high) = (rounded(vld1q_f32(from.add(at))), rounded(vld1q_f32(from.add(at + FLOATS))));
                // The upper halves of sums.
                let below_half = vdupq_n_u32(0x7fff);
                vst1q_u16(to.add(at), vaddhn_high_u32(vaddhn_u32(low, below_half), high, below_half));
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_complex<const N: usize>(to: *mut [f32; 2], by: *const [f32; 2]) {
        const { assert!(N.is_multiple_of(FLOATS)) };
        for at in (0..N).step_by(FLOATS) {
            // SAFETY: at + FLOATS <= N; the rest as above.
            unsafe {
                let (to, by) = (to.add(at).cast::<f32>(), by.add(at).cast::<f32>());
                let (a, b) = (pairs(to), pairs(by));
                let real = vsubq_f32(vmulq_f32(a.0, b.0), vmulq_f32(a.1, b.1));
                let imaginary = vaddq_f32(vmulq_f32(a.0, b.1), vmulq_f32(a.1, b.0));
                vst1q_f32(to, vzip1q_f32(real, imaginary));
                vst1q_f32(to.add(FLOATS), vzip2q_f32(real, imaginary));
            }
        }
    }
}

/// The canonical NaN for any NaN: conversions keep a quiet NaN's sign and upper bits, so it gives the canonical one.
#[inline(always)]
fn with_one_nan(wide: float32x4_t) -> float32x4_t {
    // SAFETY: NEON belongs to AArch64, and no memory is touched.
    unsafe { vbslq_f32(vceqq_f32(wide, wide), wide, vdupq_n_f32(f32::from_bits(F32_NAN))) }
}

/// What gives the nearest bfloat16, ties to even, as its upper half when one less than half of the lower is added to it.
#[inline(always)]
fn rounded(wide: float32x4_t) -> uint32x4_t {
    // SAFETY: as above.
    unsafe {
        let bits = vreinterpretq_u32_f32(with_one_nan(wide));
        // Plus the lowest bit that stays.
        vsraq_n_u32::<31>(bits, vshlq_n_u32::<15>(bits))
    }
}

/// The real and the imaginary parts of four numbers.
///
/// # Safety
/// `from` has eight floats, at any alignment.
#[inline(always)]
unsafe fn pairs(from: *const f32) -> (float32x4_t, float32x4_t) {
    // SAFETY: the caller's promise.
    unsafe {
        let (first, second) = (vld1q_f32(from), vld1q_f32(from.add(FLOATS)));
        (vuzp1q_f32(first, second), vuzp2q_f32(first, second))
    }
}

/// Minimum and maximum of floats, for which AArch64 has instructions with the very rule of this crate: a NaN wins, and -0 is below +0.
macro_rules! float_order_lane {
    ($lane:ident, $float:ty, $load:ident, $combine:ident, $store:ident, $a:ident, $b:ident => $first:expr) => {
        impl Lane for $lane<$float> {
            type Raw = $float;
            type Partial = $float;

            #[inline(always)]
            fn load(raw: $float) -> $float {
                raw
            }

            #[inline(always)]
            fn combine($a: $float, $b: $float) -> $float {
                if $a.is_nan() || $first { $a } else { $b }
            }

            #[inline(always)]
            fn store(partial: $float) -> $float {
                Sum::<$float>::store(partial)
            }

            #[inline(always)]
            unsafe fn combine_block<L: Level, const N: usize>(partial: &mut Block<$float, N>, from: *const $float) {
                const LANES: usize = 16 / size_of::<$float>();
                let partial = partial.as_mut_ptr().cast::<$float>();
                let rest = N / LANES * LANES;
                for at in (0..rest).step_by(LANES) {
                    // SAFETY: at + LANES <= N; the caller's promise covers the elements, and these loads and stores take any alignment.
                    unsafe {
                        let partial = partial.add(at);
                        $store(partial, $combine($load(partial), $load(from.add(at))));
                    }
                }
                for at in rest..N {
                    // SAFETY: at < N; the rest as above.
                    unsafe {
                        let later = from.add(at).read_unaligned();
                        partial.add(at).write(Self::combine(partial.add(at).read(), later));
                    }
                }
            }

            #[inline(always)]
            unsafe fn combine_blocks<const N: usize>(partial: &mut Block<$float, N>, later: &Block<$float, N>) {
                // SAFETY: the caller's promise.
                unsafe { Self::combine_block::<Neon, N>(partial, later.as_ptr().cast()) };
            }
        }
    };
}

// Of two zeros that are not alike, the one with the sign that counts; else both are the same.
float_order_lane!(Min, f32, vld1q_f32, vminq_f32, vst1q_f32, a, b => a < b || a == b && a.is_sign_negative());
float_order_lane!(Max, f32, vld1q_f32, vmaxq_f32, vst1q_f32, a, b => a > b || a == b && b.is_sign_negative());
float_order_lane!(Min, f64, vld1q_f64, vminq_f64, vst1q_f64, a, b => a < b || a == b && a.is_sign_negative());
float_order_lane!(Max, f64, vld1q_f64, vmaxq_f64, vst1q_f64, a, b => a > b || a == b && b.is_sign_negative());
