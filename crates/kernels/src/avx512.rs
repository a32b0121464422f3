//! The level of AVX-512 (F, BW, DQ and VL) with F16C: x86-64 servers since 2017, and AMD's processors since Zen 4.

use std::arch::x86_64::*;

use crate::avx2::Avx2;
use crate::lane::F32_NAN;
use crate::level::Level;

/// AVX-512, with AVX2 for what is too short or has no wider instruction that pays.
pub(crate) struct Avx512;

/// Lanes of a 512-bit vector of binary32.
const LANES: usize = 16;

impl Level for Avx512 {
    #[inline(always)]
    unsafe fn stream_line(to: *mut u8, from: *const u8) {
        // SAFETY: both are a line, and `to` is aligned to one; the caller's promise covers AVX-512.
        unsafe { _mm512_stream_si512(to.cast(), _mm512_loadu_si512(from.cast())) };
    }

    #[inline(always)]
    unsafe fn widen_f16<const N: usize>(from: *const u16, to: *mut f32) {
        if !N.is_multiple_of(LANES) {
            // SAFETY: the caller's promise; whoever has AVX-512 has AVX2.
            return unsafe { Avx2::widen_f16::<N>(from, to) };
        }
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N; the caller's promise covers the elements and AVX-512.
            unsafe {
                let halves = _mm256_loadu_si256(from.add(at).cast());
                _mm512_storeu_ps(to.add(at), _mm512_cvtph_ps(halves));
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16<const N: usize>(from: *const f32, to: *mut u16) {
        if !N.is_multiple_of(LANES) {
            // SAFETY: as above.
            return unsafe { Avx2::narrow_f16::<N>(from, to) };
        }
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N; the caller's promise covers the elements and AVX-512.
            unsafe {
                let wide = _mm512_loadu_ps(from.add(at));
                // The conversion keeps a quiet NaN's sign and upper bits, so the canonical NaN gives the canonical one.
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(wide, wide);
                let clean = _mm512_mask_mov_ps(wide, nan, _mm512_set1_ps(f32::from_bits(F32_NAN)));
                _mm256_storeu_si256(to.add(at).cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(clean));
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_bf16<const N: usize>(from: *const u16, to: *mut f32) {
        if !N.is_multiple_of(LANES) {
            // SAFETY: as above.
            return unsafe { Avx2::widen_bf16::<N>(from, to) };
        }
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N; the caller's promise covers the elements and AVX-512.
            unsafe {
                let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.add(at).cast()));
                _mm512_storeu_si512(to.add(at).cast(), _mm512_slli_epi32::<16>(halves));
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_bf16<const N: usize>(from: *const f32, to: *mut u16) {
        if !N.is_multiple_of(LANES) {
            // SAFETY: as above.
            return unsafe { Avx2::narrow_bf16::<N>(from, to) };
        }
        for at in (0..N).step_by(LANES) {
            // SAFETY: at + LANES <= N; the caller's promise covers the elements and AVX-512.
            unsafe {
                let wide = _mm512_loadu_ps(from.add(at));
                let bits = _mm512_castps_si512(wide);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                let number = _mm512_srli_epi32::<16>(rounded);
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(wide, wide);
                let result = _mm512_mask_mov_epi32(number, nan, _mm512_set1_epi32(crate::halves::BF16_NAN as i32));
                _mm256_storeu_si256(to.add(at).cast(), _mm512_cvtepi32_epi16(result));
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_complex<const N: usize>(to: *mut [f32; 2], by: *const [f32; 2]) {
        if !(2 * N).is_multiple_of(LANES) {
            // SAFETY: as above.
            return unsafe { Avx2::multiply_complex::<N>(to, by) };
        }
        for at in (0..N).step_by(LANES / 2) {
            // SAFETY: at + LANES / 2 <= N; the caller's promise covers the elements and AVX-512.
            unsafe {
                let a = _mm512_loadu_ps(to.add(at).cast());
                let b = _mm512_loadu_ps(by.add(at).cast());
                let by_real = _mm512_mul_ps(a, _mm512_moveldup_ps(b));
                let by_imaginary = _mm512_mul_ps(_mm512_permute_ps::<0b10_11_00_01>(a), _mm512_movehdup_ps(b));
                // A difference is the sum with the negative, bit by bit.
                let signs = _mm512_castsi512_ps(_mm512_set1_epi64(0x8000_0000));
                let product = _mm512_add_ps(by_real, _mm512_xor_ps(by_imaginary, signs));
                _mm512_storeu_ps(to.add(at).cast(), product);
            }
        }
    }
}
