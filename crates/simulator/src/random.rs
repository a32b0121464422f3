//! Random numbers that are the same on every machine and for all time.
//!
//! SplitMix64, written out here: a run is replayed years later by its seed, so that the numbers must not change when some
//! dependency does. Each decision draws from dice of its own, which are made from the seed and the decision's place in
//! the schedule: leaving one decision out leaves all others as they were, without which no schedule could be shortened.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes two numbers into one that looks random.
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    let mut mixed = one.rotate_left(23) ^ other.wrapping_mul(STEP).wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The dice of the decision that these numbers name.
    pub(crate) fn new(seed: u64, place: &[u64]) -> Dice {
        Dice(place.iter().fold(mix(seed, 0), |state, part| mix(state, *part)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0, 1)
    }

    /// A number from 0 up to, and without, `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The highest bits of a product: as even as a simulation needs.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }
}

/// A hash of everything that happens in a run. Equal runs have equal digests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn add(&mut self, numbers: &[u64]) {
        self.0 = numbers.iter().fold(self.0, |state, number| mix(state, *number));
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// Fills bytes with what the message or put of this number carries.
pub(crate) fn pattern(number: u64, into: &mut [u8]) {
    for (at, word) in into.chunks_mut(8).enumerate() {
        let bytes = mix(number, at as u64).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_never_change() {
        let mut dice = Dice::new(7, &[1, 2]);
        let drawn: Vec<u64> = (0..4).map(|_| dice.below(1000)).collect();
        assert_eq!(drawn, [28, 997, 888, 661]);
    }

    #[test]
    fn chances_are_as_asked() {
        let mut dice = Dice::new(1, &[]);
        let hits = (0..100_000).filter(|_| dice.chance(0.02)).count();
        assert!((1800..2200).contains(&hits), "{hits}");
        assert!(!dice.chance(0.0) && dice.chance(1.0));
    }
}
