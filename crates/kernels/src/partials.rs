//! Reductions of which no one place sees all sources: partial results, which go from rank to rank.
//!
//! A partial result of `f16` or `bf16` is an `f32`, so that it is rounded once, when it is finished; a mean is a sum until then. So
//! sources that are combined in the same order give the same bits, in one place or step by step.

use crate::halves::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
use crate::level::{Baseline, Choice, Level};
use crate::{DType, ReduceOp, ValuesMut};

/// Elements that are converted at once.
const BLOCK: usize = 64;

impl ReduceOp {
    /// The type of partial results, and how two of them are combined.
    #[must_use]
    pub const fn partial(self, dtype: DType) -> (ReduceOp, DType) {
        match (self, dtype) {
            (ReduceOp::Mean, DType::F16 | DType::BF16) => (ReduceOp::Sum, DType::F32),
            (ReduceOp::Sum | ReduceOp::Product, DType::F16 | DType::BF16) => (self, DType::F32),
            (ReduceOp::Mean, _) => (ReduceOp::Sum, dtype),
            _ => (self, dtype),
        }
    }

    /// Whether sources may be combined in any order, with the same bits in the end.
    #[must_use]
    pub const fn is_exact(self, dtype: DType) -> bool {
        !dtype.is_float() || matches!(self, ReduceOp::Min | ReduceOp::Max)
    }
}

/// Widens `f16` or `bf16` to `f32`.
///
/// # Panics
/// If `dtype` is another one, or `to` has not room for as many elements as `from` has.
pub fn widen(dtype: DType, from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len() * 2, to.len(), "an f32 has twice the bytes of a half");
    // SAFETY: the lengths were compared, and the level is one that the machine has.
    unsafe {
        match Choice::best() {
            Choice::Baseline => widen_with::<Baseline>(dtype, from, to),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 | Choice::Avx512 => widen_avx2(dtype, from, to),
            #[cfg(target_arch = "aarch64")]
            Choice::Neon => widen_with::<crate::neon::Neon>(dtype, from, to),
        }
    }
}

/// Makes the result of so many sources from the partial result in `partials`.
///
/// # Panics
/// If the types have no partial results of another type, or the lengths differ.
pub fn finish(op: ReduceOp, dtype: DType, sources: usize, partials: &mut [u8], to: &mut ValuesMut<'_>) {
    if op == ReduceOp::Mean {
        divide::<f32, 4>(partials, sources as f32);
    }
    let to = to.bytes_mut().expect("halves are no bools");
    assert_eq!(to.len() * 2, partials.len(), "an f32 has twice the bytes of a half");
    // SAFETY: the lengths were compared, and the level is one that the machine has.
    unsafe {
        match Choice::best() {
            Choice::Baseline => narrow_with::<Baseline>(dtype, partials, to),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 | Choice::Avx512 => narrow_avx2(dtype, partials, to),
            #[cfg(target_arch = "aarch64")]
            Choice::Neon => narrow_with::<crate::neon::Neon>(dtype, partials, to),
        }
    }
}

/// The same where partial results have the type of the result, in place.
pub fn finish_in_place(op: ReduceOp, dtype: DType, sources: usize, values: &mut ValuesMut<'_>) {
    if let (ReduceOp::Mean, Some(bytes)) = (op, values.bytes_mut()) {
        match dtype {
            DType::F64 => divide::<f64, 8>(bytes, sources as f64),
            // A complex number is divided part by part.
            _ => divide::<f32, 4>(bytes, sources as f32),
        }
    }
}

/// Floats, as they lie in memory.
trait Float<const N: usize>: Copy + std::ops::Div<Output = Self> {
    fn read(bytes: [u8; N]) -> Self;
    /// With one NaN.
    fn write(self) -> [u8; N];
}

macro_rules! float {
    ($float:ty, $size:literal, $nan:expr) => {
        impl Float<$size> for $float {
            fn read(bytes: [u8; $size]) -> $float {
                <$float>::from_ne_bytes(bytes)
            }

            fn write(self) -> [u8; $size] {
                (if self.is_nan() { <$float>::from_bits($nan) } else { self }).to_ne_bytes()
            }
        }
    };
}
float!(f32, 4, crate::lane::F32_NAN);
float!(f64, 8, crate::lane::F64_NAN);

fn divide<F: Float<N>, const N: usize>(bytes: &mut [u8], by: F) {
    for value in bytes.as_chunks_mut::<N>().0 {
        *value = (F::read(*value) / by).write();
    }
}

/// # Safety
/// As [`widen_with`], and the machine has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen_avx2(dtype: DType, from: &[u8], to: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { widen_with::<crate::avx2::Avx2>(dtype, from, to) }
}

/// # Safety
/// As [`narrow_with`], and the machine has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn narrow_avx2(dtype: DType, from: &[u8], to: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { narrow_with::<crate::avx2::Avx2>(dtype, from, to) }
}

/// # Safety
/// `to` has room, and the machine has the level's instructions.
#[inline(always)]
unsafe fn widen_with<L: Level>(dtype: DType, from: &[u8], to: &mut [u8]) {
    let ((blocks, rest), (to_blocks, to_rest)) =
        (from.as_chunks::<{ 2 * BLOCK }>(), to.as_chunks_mut::<{ 4 * BLOCK }>());
    for (from, to) in blocks.iter().zip(to_blocks) {
        let (from, to) = (from.as_ptr().cast::<u16>(), to.as_mut_ptr().cast::<f32>());
        // SAFETY: both are blocks of as many elements; the level's methods take any alignment.
        unsafe {
            match dtype {
                DType::F16 => L::widen_f16::<BLOCK>(from, to),
                _ => L::widen_bf16::<BLOCK>(from, to),
            }
        }
    }
    let one = if dtype == DType::F16 { f16_to_f32 } else { bf16_to_f32 };
    for (from, to) in rest.as_chunks::<2>().0.iter().zip(to_rest.as_chunks_mut::<4>().0) {
        *to = one(u16::from_ne_bytes(*from)).to_ne_bytes();
    }
}

/// # Safety
/// `to` has room, and the machine has the level's instructions.
#[inline(always)]
unsafe fn narrow_with<L: Level>(dtype: DType, from: &[u8], to: &mut [u8]) {
    let ((blocks, rest), (to_blocks, to_rest)) =
        (from.as_chunks::<{ 4 * BLOCK }>(), to.as_chunks_mut::<{ 2 * BLOCK }>());
    for (from, to) in blocks.iter().zip(to_blocks) {
        let (from, to) = (from.as_ptr().cast::<f32>(), to.as_mut_ptr().cast::<u16>());
        // SAFETY: both are blocks of as many elements; the level's methods take any alignment.
        unsafe {
            match dtype {
                DType::F16 => L::narrow_f16::<BLOCK>(from, to),
                _ => L::narrow_bf16::<BLOCK>(from, to),
            }
        }
    }
    let one = if dtype == DType::F16 { f16_from_f32 } else { bf16_from_f32 };
    for (from, to) in rest.as_chunks::<4>().0.iter().zip(to_rest.as_chunks_mut::<2>().0) {
        *to = one(f32::from_ne_bytes(*from)).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::halves::where_rounding_turns;
    use crate::{Element, Source, Stores, as_bytes, reduce_into, reduce_to_plain};
    use half::{bf16, f16};

    /// Sources combined step by step, as ranks of a chain do it.
    fn step_by_step<T: Element + Default>(op: ReduceOp, sources: &[&[T]]) -> Vec<T> {
        let dtype = T::DTYPE;
        let (combine, partial) = op.partial(dtype);
        let wide = |source: &[T]| {
            let bytes = as_bytes(source);
            if partial == dtype {
                return bytes.to_vec();
            }
            let mut wide = vec![0; bytes.len() * 2];
            widen(dtype, bytes, &mut wide);
            wide
        };
        let mut partials = wide(sources[0]);
        for source in &sources[1..] {
            let mut target = ValuesMut::new(&mut partials);
            let sources = [Source::Target, Source::Plain(&wide(source))];
            reduce_to_plain(combine, partial, &mut target, sources, Stores::Cached).unwrap();
        }
        let mut result = vec![T::default(); sources[0].len()];
        let mut to = ValuesMut::new(&mut result);
        if partial == dtype {
            to.copy_from(&partials, Stores::Cached);
            finish_in_place(op, dtype, sources.len(), &mut to);
        } else {
            finish(op, dtype, sources.len(), &mut partials, &mut to);
        }
        result
    }

    fn check<T: Element + Default>(value: impl Fn(u64) -> T) {
        for &op in ReduceOp::all() {
            if op.supports(T::DTYPE).is_err() {
                continue;
            }
            let mut state = 1_u64;
            let mut sources = vec![Vec::new(); 5];
            for source in &mut sources {
                for _ in 0..331 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    source.push(value(state >> 20));
                }
            }
            let sources: Vec<&[T]> = sources.iter().map(Vec::as_slice).collect();
            let mut whole = vec![T::default(); 331];
            reduce_into(op, &mut whole, &sources).unwrap();
            assert_eq!(as_bytes(&whole), as_bytes(&step_by_step(op, &sources)), "{op} of {}", T::DTYPE);
            if op.is_exact(T::DTYPE) {
                let backwards: Vec<&[T]> = sources.iter().copied().rev().collect();
                assert_eq!(as_bytes(&whole), as_bytes(&step_by_step(op, &backwards)), "{op} of {}", T::DTYPE);
            }
        }
    }

    /// Whatever instructions the machine has for it.
    #[test]
    fn blocks_are_converted_as_single_values_are() {
        type Ways = (DType, fn(u16) -> f32, fn(f32) -> u16);
        let ways: [Ways; 2] = [(DType::F16, f16_to_f32, f16_from_f32), (DType::BF16, bf16_to_f32, bf16_from_f32)];
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let floats: Vec<f32> = where_rounding_turns().map(f32::from_bits).collect();
        for (dtype, widen_one, narrow_one) in ways {
            let mut wide = vec![0f32; halves.len()];
            widen(dtype, as_bytes(&halves), ValuesMut::new(&mut wide).bytes_mut().unwrap());
            for (half, wide) in halves.iter().zip(wide) {
                let one = widen_one(*half);
                assert!(one.to_bits() == wide.to_bits() || one.is_nan() && wide.is_nan(), "{dtype} {half:#06x}");
            }
            let mut narrow = vec![0u16; floats.len()];
            let mut partials = as_bytes(&floats).to_vec();
            finish(ReduceOp::Sum, dtype, 1, &mut partials, &mut ValuesMut::new(&mut narrow));
            for (float, narrow) in floats.iter().zip(narrow) {
                assert_eq!(narrow, narrow_one(*float), "{dtype} from {:#010x}", float.to_bits());
            }
        }
    }

    #[test]
    fn step_by_step_gives_the_bits_of_one_pass() {
        // Every bit pattern there is: NaNs, infinities, subnormal numbers and both zeros among them.
        check(|bits| f16::from_bits(bits as u16));
        check(|bits| bf16::from_bits(bits as u16));
        check(|bits| f32::from_bits(bits as u32));
        check(|bits| f64::from_bits(bits << 20 ^ bits));
        check(|bits| crate::Complex64::new(f32::from_bits(bits as u32), (bits >> 32) as f32));
        check(|bits| bits as i8);
        check(|bits| bits as u32 & 3);
        check(|bits| bits.is_multiple_of(3));
    }
}
