//! The level of AVX2 and F16C: every x86-64 processor since 2013 that Fulmen is likely to meet.
//!
//! There is no level for AVX-512: with AVX2, sums already run at the speed of `memcpy` in every cache.

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
    fn widen_f16<const N: usize>(raw: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(LANES)) };
        let mut wide = [0.0; N];
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N, the length of both arrays; the level's rule says that the machine has F16C.
            unsafe {
                let halves = _mm_loadu_si128(raw.as_ptr().add(at).cast());
                _mm256_storeu_ps(wide.as_mut_ptr().add(at), _mm256_cvtph_ps(halves));
            }
        }
        wide
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(partial: [f32; N]) -> [u16; N] {
        const { assert!(N.is_multiple_of(LANES)) };
        let mut halves = [0; N];
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N, the length of both arrays; the level's rule says that the machine has F16C.
            unsafe {
                let wide = _mm256_loadu_ps(partial.as_ptr().add(at));
                // The conversion keeps a quiet NaN's sign and upper bits, so the canonical NaN gives the canonical one.
                let canonical = _mm256_set1_ps(f32::from_bits(F32_NAN));
                let clean = _mm256_blendv_ps(wide, canonical, _mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide));
                let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(clean);
                _mm_storeu_si128(halves.as_mut_ptr().add(at).cast(), narrow);
            }
        }
        halves
    }

    #[inline(always)]
    fn widen_bf16<const N: usize>(raw: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(LANES)) };
        let mut wide = [0.0; N];
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N, the length of both arrays; the level's rule says that the machine has AVX2.
            unsafe {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(raw.as_ptr().add(at).cast()));
                _mm256_storeu_si256(wide.as_mut_ptr().add(at).cast(), _mm256_slli_epi32::<16>(halves));
            }
        }
        wide
    }

    #[inline(always)]
    fn narrow_bf16<const N: usize>(partial: [f32; N]) -> [u16; N] {
        const { assert!(N.is_multiple_of(LANES)) };
        let mut halves = [0; N];
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N, the length of both arrays; the level's rule says that the machine has AVX2.
            unsafe {
                let wide = _mm256_loadu_ps(partial.as_ptr().add(at));
                let bits = _mm256_castps_si256(wide);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let number = _mm256_srli_epi32::<16>(rounded);
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide));
                let result = _mm256_blendv_epi8(number, _mm256_set1_epi32(BF16_NAN as i32), nan);
                // No result exceeds 16 bits, so packing saturates none.
                let packed = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256::<1>(result));
                _mm_storeu_si128(halves.as_mut_ptr().add(at).cast(), packed);
            }
        }
        halves
    }

    #[inline(always)]
    fn multiply_complex<const N: usize>(a: [[f32; 2]; N], b: [[f32; 2]; N]) -> [[f32; 2]; N] {
        const { assert!((2 * N).is_multiple_of(LANES)) };
        let mut products = [[0.0; 2]; N];
        for at in (0..N).step_by(LANES / 2) {
            // SAFETY: at + LANES / 2 <= N, the length of the arrays of pairs; the level's rule says that the machine has
            // AVX.
            unsafe {
                let a = _mm256_loadu_ps(a.as_ptr().add(at).cast());
                let b = _mm256_loadu_ps(b.as_ptr().add(at).cast());
                let by_real = _mm256_mul_ps(a, _mm256_moveldup_ps(b));
                let by_imaginary = _mm256_mul_ps(_mm256_permute_ps::<0b10_11_00_01>(a), _mm256_movehdup_ps(b));
                let product = _mm256_addsub_ps(by_real, by_imaginary);
                _mm256_storeu_ps(products.as_mut_ptr().add(at).cast(), product);
            }
        }
        products
    }
}
