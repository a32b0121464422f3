//! 16-bit floats to binary32 and back, without branches, so that loops over them vectorise on any machine.
//!
//! The conversion down rounds to nearest, ties to even, and makes every NaN the canonical one.

/// The canonical quiet NaN of binary16.
pub(crate) const F16_NAN: u16 = 0x7e00;
/// The canonical quiet NaN of bfloat16.
pub(crate) const BF16_NAN: u16 = 0x7fc0;

/// Exact. A signalling NaN may stay one: whoever stores makes it canonical.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    // A subnormal is its integer mantissa times 2^-24; computing it so never touches a subnormal binary32.
    let subnormal = (magnitude as i32 as f32 * f32::from_bits(0x3380_0000)).to_bits();
    let normal = (magnitude << 13) + (112 << 23);
    let special = (magnitude << 13) | 0x7f80_0000;
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

#[inline(always)]
pub(crate) fn f16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Next to 0.5 the spacing of binary32 is 2^-24, that of subnormal halves: the addition rounds as needed.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_add(0xfff + odd).wrapping_sub(112 << 23) >> 13;
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    // 65520 lies half-way between the largest half and the power of two after it: it and all above are infinite.
    let number = sign | if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    (if magnitude > 0x7f80_0000 { u32::from(F16_NAN) } else { number }) as u16
}

/// Exact. A signalling NaN stays one: whoever stores makes it canonical.
#[inline(always)]
pub(crate) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

#[inline(always)]
pub(crate) fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    let number = bits.wrapping_add(0x7fff + odd) >> 16;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { u32::from(BF16_NAN) } else { number }) as u16
}

/// All neighbourhoods where rounding turns, as bits of binary32: each half, the middle between it and the next, and the values beside.
#[cfg(test)]
pub(crate) fn where_rounding_turns() -> impl Iterator<Item = u32> {
    // Half a step of a normal f16, of the subnormal ones, and of a bf16 in binary32's spacing.
    const STEPS: [u32; 6] = [0, 1 << 12, 1 << 13, 1 << 15, 1 << 16, 1 << 22];
    let starts = (0..=u16::MAX).flat_map(|half| [f16_to_f32(half).to_bits(), bf16_to_f32(half).to_bits()]);
    let middles = starts.flat_map(|start| STEPS.map(|step| start.wrapping_add(step)));
    middles.flat_map(|middle| [u32::MAX, 0, 1].map(|beside| middle.wrapping_add(beside)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "f16 {bits:#06x}");
            let (ours, theirs) = (bf16_to_f32(bits), bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "bf16 {bits:#06x}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        let check = |bits: u32| {
            let value = f32::from_bits(bits);
            let (f, b) = (f16_from_f32(value), bf16_from_f32(value));
            if value.is_nan() {
                assert_eq!((f, b), (F16_NAN, BF16_NAN));
            } else {
                assert_eq!(f, f16::from_f32(value).to_bits(), "f16 from {bits:#010x}");
                assert_eq!(b, bf16::from_f32(value).to_bits(), "bf16 from {bits:#010x}");
            }
        };
        where_rounding_turns().for_each(check);
        for step in 0..=u16::MAX {
            check(u32::from(step).wrapping_mul(65_537));
        }
    }
}
