//! The level of AVX2 and F16C: every x86-64 processor since 2013 that Fulmen is likely to meet.

use std::arch::x86_64::*;

use crate::halves::BF16_NAN;
use crate::lane::F32_NAN;
use crate::level::Level;

/// AVX2 and F16C.
pub(crate) struct Avx2;

/// Lanes of a 256-bit vector of binary32.
const LANES: usize = 8;

impl Level for Avx2 {
    #[inline(always)]
    unsafe fn stream_line(to: *mut u8, from: *const u8) {
        let (to, from) = (to.cast::<__m256i>(), from.cast::<__m256i>());
        // SAFETY: both are a line, and `to` is aligned to one; the caller's promise covers AVX2.
        unsafe {
            _mm256_stream_si256(to, _mm256_loadu_si256(from));
            _mm256_stream_si256(to.add(1), _mm256_loadu_si256(from.add(1)));
        }
    }

    #[inline(always)]
    unsafe fn widen_f16<const N: usize>(from: *const u16, to: *mut f32) {
        const { assert!(N.is_multiple_of(LANES)) };
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N; the caller's promise covers the elements and F16C.
            unsafe {
                let halves = _mm_loadu_si128(from.add(at).cast());
                _mm256_storeu_ps(to.add(at), _mm256_cvtph_ps(halves));
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16<const N: usize>(from: *const f32, to: *mut u16) {
        const { assert!(N.is_multiple_of(LANES)) };
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N; the caller's promise covers the elements and F16C.
            unsafe {
                let wide = _mm256_loadu_ps(from.add(at));
                // The conversion keeps a quiet NaN's sign and upper bits, so the canonical NaN gives the canonical one.
                let canonical = _mm256_set1_ps(f32::from_bits(F32_NAN));
                let clean = _mm256_blendv_ps(wide, canonical, _mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide));
                let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(clean);
                _mm_storeu_si128(to.add(at).cast(), narrow);
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_bf16<const N: usize>(from: *const u16, to: *mut f32) {
        const { assert!(N.is_multiple_of(LANES)) };
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N; the caller's promise covers the elements and AVX2.
            unsafe {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at).cast()));
                _mm256_storeu_si256(to.add(at).cast(), _mm256_slli_epi32::<16>(halves));
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_bf16<const N: usize>(from: *const f32, to: *mut u16) {
        const { assert!(N.is_multiple_of(LANES)) };
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N; the caller's promise covers the elements and AVX2.
            unsafe {
                let wide = _mm256_loadu_ps(from.add(at));
                let bits = _mm256_castps_si256(wide);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let number = _mm256_srli_epi32::<16>(rounded);
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide));
                let result = _mm256_blendv_epi8(number, _mm256_set1_epi32(BF16_NAN as i32), nan);
                // No result exceeds 16 bits, so packing saturates none.
                let packed = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256::<1>(result));
                _mm_storeu_si128(to.add(at).cast(), packed);
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_complex<const N: usize>(to: *mut [f32; 2], by: *const [f32; 2]) {
        const { assert!((2 * N).is_multiple_of(LANES)) };
        for at in (0..N).step_by(LANES / 2) {
            // SAFETY: at + LANES / 2 <= N; the caller's promise covers the elements and AVX.
            unsafe {
                let a = _mm256_loadu_ps(to.add(at).cast());
                let b = _mm256_loadu_ps(by.add(at).cast());
                let by_real = _mm256_mul_ps(a, _mm256_moveldup_ps(b));
                let by_imaginary = _mm256_mul_ps(_mm256_permute_ps::<0b10_11_00_01>(a), _mm256_movehdup_ps(b));
                let product = _mm256_addsub_ps(by_real, by_imaginary);
                _mm256_storeu_ps(to.add(at).cast(), product);
            }
        }
    }
}
