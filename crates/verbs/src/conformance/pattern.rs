//! Bytes that are known by a seed, to be found again on the other side.

use fulmen_memory::Exposed;

use super::bed::Outcome;
use super::bed::ensure;

/// A small generator of numbers, the same for the same seed (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// One below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The bytes of a seed.
pub(super) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut numbers = Numbers::new(seed);
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    while bytes.len() < len {
        bytes.extend_from_slice(&numbers.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes the bytes of a seed.
pub(super) fn write(memory: &Exposed, seed: u64) {
    memory.write(0, &bytes(seed, memory.len()));
}

/// Fails unless memory holds the bytes of a seed.
pub(super) fn check(memory: &Exposed, seed: u64, what: &str) -> Outcome {
    check_bytes(memory, &bytes(seed, memory.len()), what)
}

/// Fails unless memory holds these bytes.
pub(super) fn check_bytes(memory: &Exposed, wanted: &[u8], what: &str) -> Outcome {
    let mut found = vec![0; wanted.len()];
    memory.read(0, &mut found);
    if found == wanted {
        return Ok(());
    }
    let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted).unwrap_or(0);
    let (len, found, wanted) = (found.len(), found[at], wanted[at]);
    ensure!(false, "{what}: byte {at} of {len} is {found:#04x}, and not {wanted:#04x}");
    Ok(())
}

/// Fails unless every byte of memory is `byte`.
pub(super) fn check_all(memory: &Exposed, byte: u8, what: &str) -> Outcome {
    check_bytes(memory, &vec![byte; memory.len()], what)
}
