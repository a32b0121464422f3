//! What happens to one element: how it is read, combined and stored. `sweep` makes loops of it.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::halves::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
use crate::level::{Level, multiply_complex};

/// One operation on one type.
pub(crate) trait Lane {
    /// The element as it lies in memory: a type for which every bit pattern is a value.
    type Raw: Copy;
    /// A partial result.
    type Partial: Copy;
    /// Whether vectors of 512 bits pay, where there are any: where more is done for an element than to load, to add and to store it. Measured
    /// in the caches, sums of binary32 and operations on bytes are slower with them.
    const WIDE: bool = false;

    fn load(raw: Self::Raw) -> Self::Partial;
    fn combine(earlier: Self::Partial, later: Self::Partial) -> Self::Partial;
    fn store(partial: Self::Partial) -> Self::Raw;

    // The three steps over a block. They work in place on partial results in the caller's frame and contain neither closures
    // nor arrays by value: so the loops vectorise, for the instructions of the function that they are inlined into.

    /// Reads `N` elements.
    ///
    /// # Safety
    /// `from` has `N` elements, at any alignment; the machine has the instructions of `L`.
    #[inline(always)]
    unsafe fn load_block<L: Level, const N: usize>(from: *const Self::Raw, partial: &mut Block<Self::Partial, N>) {
        for (lane, slot) in partial.iter_mut().enumerate() {
            // SAFETY: `from` has an element `lane`.
            slot.write(Self::load(unsafe { from.add(lane).read_unaligned() }));
        }
    }

    /// Combines `N` partial results with as many elements.
    ///
    /// # Safety
    /// As [`Lane::load_block`], which has filled `partial`.
    #[inline(always)]
    unsafe fn combine_block<L: Level, const N: usize>(partial: &mut Block<Self::Partial, N>, from: *const Self::Raw) {
        for (lane, slot) in partial.iter_mut().enumerate() {
            // SAFETY: `from` has an element `lane`, and `partial` is filled.
            unsafe {
                let later = Self::load(from.add(lane).read_unaligned());
                slot.write(Self::combine(slot.assume_init(), later));
            }
        }
    }

    /// Combines `N` partial results with as many others.
    ///
    /// # Safety
    /// Both are filled.
    #[inline(always)]
    unsafe fn combine_blocks<const N: usize>(partial: &mut Block<Self::Partial, N>, later: &Block<Self::Partial, N>) {
        for (slot, later) in partial.iter_mut().zip(later) {
            // SAFETY: both blocks are filled.
            unsafe { slot.write(Self::combine(slot.assume_init(), later.assume_init())) };
        }
    }

    /// What is done when all of so many sources are combined.
    ///
    /// # Safety
    /// [`Lane::load_block`] has filled `partial`.
    #[inline(always)]
    unsafe fn finish_block<const N: usize>(_partial: &mut Block<Self::Partial, N>, _sources: usize) {}

    /// Writes `N` elements.
    ///
    /// # Safety
    /// As [`Lane::load_block`], which has filled `partial`; `to` may be written for `N` elements, at any alignment.
    #[inline(always)]
    unsafe fn store_block<L: Level, const N: usize>(partial: &Block<Self::Partial, N>, to: *mut Self::Raw) {
        for (lane, slot) in partial.iter().enumerate() {
            // SAFETY: `to` has room for an element `lane`, and `partial` is filled.
            unsafe { to.add(lane).write_unaligned(Self::store(slot.assume_init())) };
        }
    }
}

/// Partial results of a block, not yet filled at first.
pub(crate) type Block<P, const N: usize> = [MaybeUninit<P>; N];

/// Sum of `T`.
pub(crate) struct Sum<T>(PhantomData<T>);
/// Product of `T`.
pub(crate) struct Product<T>(PhantomData<T>);
/// Minimum of `T`.
pub(crate) struct Min<T>(PhantomData<T>);
/// Maximum of `T`.
pub(crate) struct Max<T>(PhantomData<T>);
/// Mean of `T`.
pub(crate) struct Mean<T>(PhantomData<T>);
/// Bits of both `T`.
pub(crate) struct BitAnd<T>(PhantomData<T>);
/// Bits of either.
pub(crate) struct BitOr<T>(PhantomData<T>);
/// Bits of one alone.
pub(crate) struct BitXor<T>(PhantomData<T>);
/// The truth of both `T`, as 0 or 1.
pub(crate) struct LogicalAnd<T>(PhantomData<T>);
/// The truth of either.
pub(crate) struct LogicalOr<T>(PhantomData<T>);
/// The truth of one alone.
pub(crate) struct LogicalXor<T>(PhantomData<T>);

macro_rules! integer_lane {
    ($lane:ident, $int:ty, $earlier:ident, $later:ident => $combine:expr) => {
        integer_lane!($lane, $int, raw => raw, $earlier, $later => $combine);
    };
    ($lane:ident, $int:ty, $raw:ident => $load:expr, $earlier:ident, $later:ident => $combine:expr) => {
        impl Lane for $lane<$int> {
            type Raw = $int;
            type Partial = $int;

            #[inline(always)]
            fn load($raw: $int) -> $int {
                $load
            }

            #[inline(always)]
            fn combine($earlier: $int, $later: $int) -> $int {
                $combine
            }

            #[inline(always)]
            fn store(partial: $int) -> $int {
                partial
            }
        }
    };
}

macro_rules! integer_lanes {
    ($($unsigned:ty, $signed:ty;)*) => {$(
        // Wrapping sums and products of signed and unsigned integers have the same bits, as has what is done to their bits: the
        // signed ones use these.
        integer_lane!(Sum, $unsigned, a, b => a.wrapping_add(b));
        integer_lane!(Product, $unsigned, a, b => a.wrapping_mul(b));
        integer_lane!(Min, $unsigned, a, b => if b < a { b } else { a });
        integer_lane!(Min, $signed, a, b => if b < a { b } else { a });
        integer_lane!(Max, $unsigned, a, b => if b > a { b } else { a });
        integer_lane!(Max, $signed, a, b => if b > a { b } else { a });
        integer_lane!(BitAnd, $unsigned, a, b => a & b);
        integer_lane!(BitOr, $unsigned, a, b => a | b);
        integer_lane!(BitXor, $unsigned, a, b => a ^ b);
        integer_lane!(LogicalAnd, $unsigned, raw => <$unsigned>::from(raw != 0), a, b => a & b);
        integer_lane!(LogicalOr, $unsigned, raw => <$unsigned>::from(raw != 0), a, b => a | b);
        integer_lane!(LogicalXor, $unsigned, raw => <$unsigned>::from(raw != 0), a, b => a ^ b);
    )*};
}

integer_lanes! {
    u8, i8;
    u16, i16;
    u32, i32;
    u64, i64;
}

macro_rules! float_lane {
    ($lane:ident, $float:ty, $canonical:expr, $a:ident, $b:ident => $combine:expr) => {
        impl Lane for $lane<$float> {
            type Raw = $float;
            type Partial = $float;

            #[inline(always)]
            fn load(raw: $float) -> $float {
                raw
            }

            #[inline(always)]
            fn combine($a: $float, $b: $float) -> $float {
                $combine
            }

            #[inline(always)]
            fn store(partial: $float) -> $float {
                if partial.is_nan() { <$float>::from_bits($canonical) } else { partial }
            }
        }
    };
}

/// The canonical quiet NaN of binary32.
pub(crate) const F32_NAN: u32 = 0x7fc0_0000;
/// The canonical quiet NaN of binary64.
pub(crate) const F64_NAN: u64 = 0x7ff8_0000_0000_0000;

float_lane!(Sum, f32, F32_NAN, a, b => a + b);
float_lane!(Product, f32, F32_NAN, a, b => a * b);
float_lane!(Sum, f64, F64_NAN, a, b => a + b);
float_lane!(Product, f64, F64_NAN, a, b => a * b);

macro_rules! half_lane {
    ($lane:ident, $half:ty, $load:ident, $store:ident, $load_all:ident, $store_all:ident) => {
        impl Lane for $lane<$half> {
            type Raw = u16;
            type Partial = f32;
            const WIDE: bool = true;

            #[inline(always)]
            fn load(raw: u16) -> f32 {
                $load(raw)
            }

            #[inline(always)]
            fn combine(earlier: f32, later: f32) -> f32 {
                $lane::<f32>::combine(earlier, later)
            }

            #[inline(always)]
            fn store(partial: f32) -> u16 {
                $store(partial)
            }

            #[inline(always)]
            unsafe fn load_block<L: Level, const N: usize>(from: *const u16, partial: &mut Block<f32, N>) {
                // SAFETY: the caller's promise.
                unsafe { L::$load_all::<N>(from, partial.as_mut_ptr().cast()) };
            }

            #[inline(always)]
            unsafe fn combine_block<L: Level, const N: usize>(partial: &mut Block<f32, N>, from: *const u16) {
                let mut later = [MaybeUninit::uninit(); N];
                // SAFETY: the caller's promise.
                unsafe { Self::load_block::<L, N>(from, &mut later) };
                // SAFETY: both blocks are filled.
                unsafe { $lane::<f32>::combine_blocks(partial, &later) };
            }

            #[inline(always)]
            unsafe fn store_block<L: Level, const N: usize>(partial: &Block<f32, N>, to: *mut u16) {
                // SAFETY: the caller's promise.
                unsafe { L::$store_all::<N>(partial.as_ptr().cast(), to) };
            }
        }
    };
}

macro_rules! half_lanes {
    ($($lane:ident),*) => {$(
        half_lane!($lane, half::f16, f16_to_f32, f16_from_f32, widen_f16, narrow_f16);
        half_lane!($lane, half::bf16, bf16_to_f32, bf16_from_f32, widen_bf16, narrow_bf16);
    )*};
}
half_lanes!(Sum, Product);
// Others are ordered as they are (`order`), where binary32 has no instruction for it.
#[cfg(target_arch = "aarch64")]
half_lanes!(Min, Max);

/// What a mean divides.
pub(crate) trait Shared: Copy {
    fn share(self, sources: usize) -> Self;
}

macro_rules! shared {
    ($($float:ty),*) => {$(
        impl Shared for $float {
            #[inline(always)]
            fn share(self, sources: usize) -> $float {
                self / sources as $float
            }
        }
    )*};
}
shared!(f32, f64);

/// A sum that is divided in the end. (Means of complex numbers are means of their parts.)
impl<T> Lane for Mean<T>
where
    Sum<T>: Lane<Partial: Shared>,
{
    type Raw = <Sum<T> as Lane>::Raw;
    type Partial = <Sum<T> as Lane>::Partial;
    const WIDE: bool = <Sum<T> as Lane>::WIDE;

    #[inline(always)]
    fn load(raw: Self::Raw) -> Self::Partial {
        Sum::<T>::load(raw)
    }

    #[inline(always)]
    fn combine(earlier: Self::Partial, later: Self::Partial) -> Self::Partial {
        Sum::<T>::combine(earlier, later)
    }

    #[inline(always)]
    fn store(partial: Self::Partial) -> Self::Raw {
        Sum::<T>::store(partial)
    }

    #[inline(always)]
    unsafe fn load_block<L: Level, const N: usize>(from: *const Self::Raw, partial: &mut Block<Self::Partial, N>) {
        // SAFETY: the caller's promise.
        unsafe { Sum::<T>::load_block::<L, N>(from, partial) };
    }

    #[inline(always)]
    unsafe fn combine_block<L: Level, const N: usize>(partial: &mut Block<Self::Partial, N>, from: *const Self::Raw) {
        // SAFETY: the caller's promise.
        unsafe { Sum::<T>::combine_block::<L, N>(partial, from) };
    }

    #[inline(always)]
    unsafe fn finish_block<const N: usize>(partial: &mut Block<Self::Partial, N>, sources: usize) {
        for slot in partial {
            // SAFETY: `partial` is filled.
            slot.write(unsafe { slot.assume_init() }.share(sources));
        }
    }

    #[inline(always)]
    unsafe fn store_block<L: Level, const N: usize>(partial: &Block<Self::Partial, N>, to: *mut Self::Raw) {
        // SAFETY: the caller's promise.
        unsafe { Sum::<T>::store_block::<L, N>(partial, to) };
    }
}

/// Sums of complex numbers are sums of their parts and use the lane of `f32`.
impl Lane for Product<crate::Complex64> {
    type Raw = [f32; 2];
    type Partial = [f32; 2];
    const WIDE: bool = true;

    #[inline(always)]
    fn load(raw: [f32; 2]) -> [f32; 2] {
        raw
    }

    #[inline(always)]
    fn combine(earlier: [f32; 2], later: [f32; 2]) -> [f32; 2] {
        multiply_complex(earlier, later)
    }

    // As floats, so that whole vectors are written, which the products then read.

    #[inline(always)]
    unsafe fn load_block<L: Level, const N: usize>(from: *const [f32; 2], partial: &mut Block<[f32; 2], N>) {
        // SAFETY: both have `N` elements; these are apart, and bytes need no alignment.
        unsafe { partial.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from.cast(), N * size_of::<[f32; 2]>()) };
    }

    #[inline(always)]
    unsafe fn store_block<L: Level, const N: usize>(partial: &Block<[f32; 2], N>, to: *mut [f32; 2]) {
        let (from, to) = (partial.as_ptr().cast::<f32>(), to.cast::<f32>());
        for part in 0..2 * N {
            // SAFETY: `partial` is filled, and `to` has room for as many.
            unsafe { to.add(part).write_unaligned(Sum::<f32>::store(from.add(part).read())) };
        }
    }

    #[inline(always)]
    unsafe fn combine_block<L: Level, const N: usize>(partial: &mut Block<[f32; 2], N>, from: *const [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { L::multiply_complex::<N>(partial.as_mut_ptr().cast(), from) };
    }

    #[inline(always)]
    fn store(partial: [f32; 2]) -> [f32; 2] {
        partial.map(Sum::<f32>::store)
    }
}
