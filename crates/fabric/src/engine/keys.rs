//! Keys that nobody guesses, and that never come twice.

use std::sync::OnceLock;

/// Gives out 64-bit keys: the numbers from 0 on, in an order that a random secret decides. Without the secret, no key tells
/// another one. None is given out again before all have been, and 0 is never one.
#[derive(Debug, Default)]
pub(super) struct Keys {
    secret: OnceLock<[u8; 32]>,
    given: u64,
}

impl Keys {
    /// Enough that each bit of a key depends on each bit of its number.
    const ROUNDS: u8 = 8;

    /// The next key.
    ///
    /// # Errors
    /// If the operating system gives no random bits for the secret.
    pub(super) fn next(&mut self) -> Result<u64, getrandom::Error> {
        let secret = match self.secret.get() {
            Some(secret) => *secret,
            None => {
                let mut secret = [0; 32];
                getrandom::fill(&mut secret)?;
                *self.secret.get_or_init(|| secret)
            }
        };
        loop {
            let key = Keys::shuffle(&secret, self.given);
            self.given = self.given.wrapping_add(1);
            if key != 0 {
                return Ok(key);
            }
        }
    }

    /// A Feistel network: whatever its rounds do, different numbers have different keys.
    fn shuffle(secret: &[u8; 32], number: u64) -> u64 {
        let (mut left, mut right) = ((number >> 32) as u32, number as u32);
        for round in 0..Keys::ROUNDS {
            let [a, b, c, d] = right.to_le_bytes();
            let hash = blake3::keyed_hash(secret, &[round, a, b, c, d]);
            let [a, b, c, d, ..] = *hash.as_bytes();
            (left, right) = (right, left ^ u32::from_le_bytes([a, b, c, d]));
        }
        u64::from(left) << 32 | u64::from(right)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_all_different_and_not_those_of_another_table() {
        let (mut one, mut two) = (Keys::default(), Keys::default());
        let keys: HashSet<u64> = (0..10_000).map(|_| one.next().unwrap()).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(!keys.contains(&0));
        assert!((0..10_000).all(|_| !keys.contains(&two.next().unwrap())));
    }

    #[test]
    fn neighbours_differ_in_about_half_of_their_bits() {
        let mut keys = Keys::default();
        let differing: u32 = (0..1000).map(|_| (keys.next().unwrap() ^ keys.next().unwrap()).count_ones()).sum();
        assert!((28_000..36_000).contains(&differing), "{differing} of 64,000");
    }
}
