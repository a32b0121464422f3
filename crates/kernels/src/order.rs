//! Minimum and maximum of floats, on integers that are ordered as the numbers are. (AArch64 has instructions instead: `neon`.)
//!
//! Flipping the magnitude's bits of negative numbers gives an order with -0 below +0 and NaNs at the two ends. Every NaN
//! is read as the end that wins, so it wins over all numbers; no number has that key.

use crate::halves::{BF16_NAN, F16_NAN};
use crate::lane::{F32_NAN, F64_NAN, Lane, Max, Min};

macro_rules! float_order_lane {
    ($lane:ident, $float:ty, $bits:ty, $key:ty, $canonical:expr, $infinity:expr, $nan:expr, $a:ident, $b:ident => $first:expr) => {
        impl Lane for $lane<$float> {
            type Raw = $bits;
            type Partial = $key;
            const WIDE: bool = true;

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
