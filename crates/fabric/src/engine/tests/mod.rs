//! Two engines against each other.

mod hostile;
mod network;
mod rules;

use super::*;

pub(super) fn config(rendezvous: Rendezvous) -> Config {
    Config {
        frame: 256,
        credits: 16,
        unexpected: 2000,
        rendezvous,
        verify: false,
        #[cfg(feature = "planted-bugs")]
        planted: None,
    }
}

/// Small numbers from a seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
