//! Numbers for plans that are the same for the same seed.

use std::time::Duration;

/// A small generator of numbers, the same for the same seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len())]
    }

    pub fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(range.start + self.next() % (range.end - range.start))
    }

    /// All of them, in some order.
    pub fn shuffled<T: Copy, const N: usize>(&mut self, mut all: [T; N]) -> [T; N] {
        for last in (1..N).rev() {
            all.swap(last, self.below(last + 1));
        }
        all
    }
}
