//! What happens to one element: how it is read, combined and stored. `sweep` makes loops of it.

use std::marker::PhantomData;

use crate::halves::{BF16_NAN, F16_NAN, bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
use crate::level::{Level, multiply_complex};

/// One operation on one type.
pub(crate) trait Lane {
    /// The element as it lies in memory: a type for which every bit pattern is a value.
    type Raw: Copy;
    /// A partial result.
    type Partial: Copy;

    fn load(raw: Self::Raw) -> Self::Partial;
    fn combine(earlier: Self::Partial, later: Self::Partial) -> Self::Partial;
    fn store(partial: Self::Partial) -> Self::Raw;

    /// `load` over `N` elements; a lane overrides it where the machine has an instruction for it.
    #[inline(always)]
    fn load_all<L: Level, const N: usize>(raw: [Self::Raw; N]) -> [Self::Partial; N] {
        std::array::from_fn(|lane| Self::load(raw[lane]))
    }

    /// `combine` over `N` elements; a lane overrides it where compilers find no vectors in the simple loop.
    #[inline(always)]
    fn combine_all<L: Level, const N: usize>(
        earlier: [Self::Partial; N],
        later: [Self::Partial; N],
    ) -> [Self::Partial; N] {
        std::array::from_fn(|lane| Self::combine(earlier[lane], later[lane]))
    }

    /// `store` over `N` elements; a lane overrides it where the machine has an instruction for it.
    #[inline(always)]
    fn store_all<L: Level, const N: usize>(partial: [Self::Partial; N]) -> [Self::Raw; N] {
        std::array::from_fn(|lane| Self::store(partial[lane]))
    }
}

/// Sum of `T`.
pub(crate) struct Sum<T>(PhantomData<T>);
/// Product of `T`.
pub(crate) struct Product<T>(PhantomData<T>);
/// Minimum of `T`.
pub(crate) struct Min<T>(PhantomData<T>);
/// Maximum of `T`.
pub(crate) struct Max<T>(PhantomData<T>);

macro_rules! integer_lane {
    ($lane:ident, $int:ty, $earlier:ident, $later:ident => $combine:expr) => {
        impl Lane for $lane<$int> {
            type Raw = $int;
            type Partial = $int;

            #[inline(always)]
            fn load(raw: $int) -> $int {
                raw
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
        // Wrapping sums and products of signed and unsigned integers have the same bits: the signed ones use these.
        integer_lane!(Sum, $unsigned, a, b => a.wrapping_add(b));
        integer_lane!(Product, $unsigned, a, b => a.wrapping_mul(b));
        integer_lane!(Min, $unsigned, a, b => if b < a { b } else { a });
        integer_lane!(Min, $signed, a, b => if b < a { b } else { a });
        integer_lane!(Max, $unsigned, a, b => if b > a { b } else { a });
        integer_lane!(Max, $signed, a, b => if b > a { b } else { a });
    )*};
}

integer_lanes! {
    u8, i8;
    u16, i16;
    u32, i32;
    u64, i64;
}

macro_rules! bool_lane {
    ($lane:ident, $a:ident, $b:ident => $combine:expr) => {
        impl Lane for $lane<bool> {
            type Raw = u8;
            type Partial = u8;

            #[inline(always)]
            fn load(raw: u8) -> u8 {
                u8::from(raw != 0)
            }

            #[inline(always)]
            fn combine($a: u8, $b: u8) -> u8 {
                $combine
            }

            #[inline(always)]
            fn store(partial: u8) -> u8 {
                partial
            }
        }
    };
}

// Minimum and maximum of bool are these two as well.
bool_lane!(Sum, a, b => a | b);
bool_lane!(Product, a, b => a & b);

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
    ($lane:ident, $half:ty, $load:ident, $store:ident, $load_all:ident, $store_all:ident, $a:ident, $b:ident => $combine:expr) => {
        impl Lane for $lane<$half> {
            type Raw = u16;
            type Partial = f32;

            #[inline(always)]
            fn load(raw: u16) -> f32 {
                $load(raw)
            }

            #[inline(always)]
            fn combine($a: f32, $b: f32) -> f32 {
                $combine
            }

            #[inline(always)]
            fn store(partial: f32) -> u16 {
                $store(partial)
            }

            #[inline(always)]
            fn load_all<L: Level, const N: usize>(raw: [u16; N]) -> [f32; N] {
                L::$load_all(raw)
            }

            #[inline(always)]
            fn store_all<L: Level, const N: usize>(partial: [f32; N]) -> [u16; N] {
                L::$store_all(partial)
            }
        }
    };
}

half_lane!(Sum, half::f16, f16_to_f32, f16_from_f32, widen_f16, narrow_f16, a, b => a + b);
half_lane!(Product, half::f16, f16_to_f32, f16_from_f32, widen_f16, narrow_f16, a, b => a * b);
half_lane!(Sum, half::bf16, bf16_to_f32, bf16_from_f32, widen_bf16, narrow_bf16, a, b => a + b);
half_lane!(Product, half::bf16, bf16_to_f32, bf16_from_f32, widen_bf16, narrow_bf16, a, b => a * b);

/// Minimum and maximum of floats, on integers that are ordered as the numbers are.
///
/// Flipping the magnitude's bits of negative numbers gives an order with -0 below +0 and NaNs at the two ends. Every NaN
/// is read as the end that wins ($nan), so it wins over all numbers; no number has that key.
macro_rules! float_order_lane {
    ($lane:ident, $float:ty, $bits:ty, $key:ty, $canonical:expr, $infinity:expr, $nan:expr, $a:ident, $b:ident => $first:expr) => {
        impl Lane for $lane<$float> {
            type Raw = $bits;
            type Partial = $key;

            #[inline(always)]
            fn load(raw: $bits) -> $key {
                let key = raw as $key;
                let ordered = key ^ (((key >> (<$key>::BITS - 1)) as $bits) >> 1) as $key;
                if (key & <$key>::MAX) > $infinity { $nan } else { ordered }
            }

            #[inline(always)]
            fn combine($a: $key, $b: $key) -> $key {
                if $first { $a } else { $b }
            }

            #[inline(always)]
            fn store(key: $key) -> $bits {
                let raw = key ^ (((key >> (<$key>::BITS - 1)) as $bits) >> 1) as $key;
                if key == $nan { $canonical } else { raw as $bits }
            }
        }
    };
}

macro_rules! float_order_lanes {
    ($($float:ty, $bits:ty, $key:ty, $canonical:expr, $infinity:expr;)*) => {$(
        float_order_lane!(Min, $float, $bits, $key, $canonical, $infinity, <$key>::MIN, a, b => a < b);
        float_order_lane!(Max, $float, $bits, $key, $canonical, $infinity, <$key>::MAX, a, b => a > b);
    )*};
}

float_order_lanes! {
    half::f16, u16, i16, F16_NAN, 0x7c00;
    half::bf16, u16, i16, BF16_NAN, 0x7f80;
    f32, u32, i32, F32_NAN, 0x7f80_0000;
    f64, u64, i64, F64_NAN, 0x7ff0_0000_0000_0000;
}

/// Sums of complex numbers are sums of their parts and use the lane of `f32`.
impl Lane for Product<crate::Complex64> {
    type Raw = [f32; 2];
    type Partial = [f32; 2];

    #[inline(always)]
    fn load(raw: [f32; 2]) -> [f32; 2] {
        raw
    }

    #[inline(always)]
    fn combine(earlier: [f32; 2], later: [f32; 2]) -> [f32; 2] {
        multiply_complex(earlier, later)
    }

    #[inline(always)]
    fn combine_all<L: Level, const N: usize>(earlier: [[f32; 2]; N], later: [[f32; 2]; N]) -> [[f32; 2]; N] {
        L::multiply_complex(earlier, later)
    }

    #[inline(always)]
    fn store(partial: [f32; 2]) -> [f32; 2] {
        partial.map(Sum::<f32>::store)
    }
}
