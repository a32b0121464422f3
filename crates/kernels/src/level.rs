//! The instruction sets that loops are compiled for, chosen once at run time.
//!
//! All of them give the same bits. Rust never contracts a multiplication and an addition into one, so a level that has
//! fused instructions does not change results.

use std::array::from_fn;
use std::sync::OnceLock;

use crate::halves::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};

/// What compilers do not vectorise well by themselves, over whole blocks, as the level does it best.
///
/// Implementations for more than the baseline may be called only where the machine has the level's instructions:
/// `sweep` does so from inside functions that are compiled for them.
pub(crate) trait Level {
    #[inline(always)]
    fn widen_f16<const N: usize>(raw: [u16; N]) -> [f32; N] {
        from_fn(|lane| f16_to_f32(raw[lane]))
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(partial: [f32; N]) -> [u16; N] {
        from_fn(|lane| f16_from_f32(partial[lane]))
    }

    #[inline(always)]
    fn widen_bf16<const N: usize>(raw: [u16; N]) -> [f32; N] {
        from_fn(|lane| bf16_to_f32(raw[lane]))
    }

    #[inline(always)]
    fn narrow_bf16<const N: usize>(partial: [f32; N]) -> [u16; N] {
        from_fn(|lane| bf16_from_f32(partial[lane]))
    }

    #[inline(always)]
    fn multiply_complex<const N: usize>(a: [[f32; 2]; N], b: [[f32; 2]; N]) -> [[f32; 2]; N] {
        from_fn(|lane| multiply_complex(a[lane], b[lane]))
    }
}

/// What the compilation target guarantees: SSE2 on x86-64, NEON on AArch64.
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
}

impl Choice {
    /// The best level of this machine.
    #[inline]
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Choice> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().expect("the baseline is always there"))
    }

    /// The levels that this machine can run, the best one last.
    pub(crate) fn available() -> Vec<Choice> {
        let mut levels = vec![Choice::Baseline];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            levels.push(Choice::Avx2);
        }
        levels
    }
}
