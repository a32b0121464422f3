//! Data that depends on rank, index and round, and the comparison of results with what they must be.

use std::ops::Range;

use fulmen::parts::kernels::as_bytes;
use fulmen::{Complex64, Element, bf16, f16};

/// Elements that are compared at once.
const CHUNK: usize = 4096;

/// Elements that a benchmark can invent.
pub trait Value: Element + Default {
    /// A finite value out of random bits; sums of many stay finite, and those of floats are rounded, so that a sum in
    /// another order has other bits.
    fn from_hash(hash: u64) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn from_hash(hash: u64) -> Self {
                hash as $type
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Value for bool {
    fn from_hash(hash: u64) -> Self {
        hash & 1 == 1
    }
}

impl Value for f32 {
    fn from_hash(hash: u64) -> Self {
        ((hash >> 40) as f32 - (1 << 23) as f32) / scale(hash) as f32
    }
}

impl Value for f64 {
    fn from_hash(hash: u64) -> Self {
        ((hash >> 11) as f64 - (1u64 << 52) as f64) / (f64::from(scale(hash)) * (1u64 << 30) as f64)
    }
}

impl Value for f16 {
    fn from_hash(hash: u64) -> Self {
        f16::from_f32(((hash >> 53) as f32 - 1024.0) / scale(hash) as f32)
    }
}

impl Value for bf16 {
    fn from_hash(hash: u64) -> Self {
        bf16::from_f32(((hash >> 56) as f32 - 128.0) / scale(hash) as f32)
    }
}

impl Value for Complex64 {
    fn from_hash(hash: u64) -> Self {
        Complex64::new(f32::from_hash(hash), f32::from_hash(hash.rotate_left(32)))
    }
}

/// Values of different scales have sums that are rounded, so that their order shows. From 64 to 8192.
fn scale(hash: u64) -> u32 {
    64 << (hash & 7)
}

/// What `rank` puts in, in a round: the elements from index `first` on.
pub fn fill<T: Value>(rank: usize, round: u64, first: usize, out: &mut [T]) {
    let seed = mix(round.wrapping_mul(1 << 32).wrapping_add(rank as u64));
    for (index, value) in (first as u64..).zip(out) {
        *value = T::from_hash(mix(seed.wrapping_add(index)));
    }
}

/// How many elements of `got` have other bits than they must. `must` gives those of a range.
pub fn wrong<T: Value>(got: &[T], must: impl FnMut(Range<usize>, &mut [T])) -> u64 {
    wrong_bytes(as_bytes(got), must)
}

/// [`wrong`] for elements as bytes.
pub fn wrong_bytes<T: Value>(got: &[u8], mut must: impl FnMut(Range<usize>, &mut [T])) -> u64 {
    let mut expected = vec![T::default(); CHUNK.min(got.len() / size_of::<T>())];
    let mut count = 0;
    for (chunk, got) in got.chunks(CHUNK * size_of::<T>()).enumerate() {
        let expected = &mut expected[..got.len() / size_of::<T>()];
        must(chunk * CHUNK..chunk * CHUNK + expected.len(), expected);
        let expected = as_bytes(expected);
        if got != expected {
            let elements = got.chunks_exact(size_of::<T>()).zip(expected.chunks_exact(size_of::<T>()));
            count += elements.filter(|(got, expected)| got != expected).count() as u64;
        }
    }
    count
}

/// Spreads a number over all bits.
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_depends_on_rank_index_and_round_alone() {
        let data = |rank, round, first| {
            let mut data = [0u64; 100];
            fill(rank, round, first, &mut data);
            data
        };
        assert_eq!(data(1, 2, 3)[1..], data(1, 2, 4)[..99]);
        for other in [data(2, 2, 3), data(1, 3, 3), data(1, 2, 5)] {
            assert!(other.iter().zip(data(1, 2, 3)).all(|(a, b)| *a != b));
        }
    }

    #[test]
    fn each_wrong_element_is_counted_once() {
        let mut got = vec![Complex64::default(); 2 * CHUNK + 5];
        fill(3, 1, 0, &mut got);
        let must = |range: Range<usize>, out: &mut [Complex64]| fill(3, 1, range.start, out);
        assert_eq!(wrong(&got, must), 0);
        got[0].im += 1.0;
        got[CHUNK] = Complex64::new(f32::NAN, f32::NAN);
        got[2 * CHUNK + 4].re = -got[2 * CHUNK + 4].re;
        assert_eq!(wrong(&got, must), 3);
        assert_eq!(wrong(&got[..0], must), 0);
    }

    #[test]
    fn a_sum_in_another_order_has_other_bits() {
        fn differs<T: Value>(sum: impl Fn(T, T) -> T) -> bool {
            let mut parts = [[T::default(); 256]; 3];
            for (rank, part) in parts.iter_mut().enumerate() {
                fill(rank, 0, 0, part);
            }
            let [a, b, c] = parts;
            let forth: Vec<T> = (0..256).map(|at| sum(sum(a[at], b[at]), c[at])).collect();
            let back: Vec<T> = (0..256).map(|at| sum(a[at], sum(b[at], c[at]))).collect();
            as_bytes(&forth) != as_bytes(&back)
        }
        assert!(differs::<f32>(|a, b| a + b) && differs::<f64>(|a, b| a + b) && differs::<bf16>(|a, b| a + b));
    }
}
