//! Bytes that are known by a seed, to be found again on the other side.

use fulmen_memory::Exposed;

use super::case::{Outcome, ensure};

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
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// The bytes of a seed.
pub(super) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut numbers = Numbers::new(seed ^ (len as u64) << 32);
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&numbers.next().to_le_bytes()[..word.len()]);
    }
    bytes
}

/// Writes the bytes of a seed.
pub(super) fn write(memory: &Exposed, seed: u64) {
    memory.write(0, &bytes(seed, memory.len()));
}

/// Fails unless memory holds the bytes of a seed.
pub(super) fn check(memory: &Exposed, seed: u64, what: &str) -> Outcome {
    check_bytes(&read(memory), &bytes(seed, memory.len()), what)
}

/// Fails unless these bytes are those.
pub(super) fn check_bytes(found: &[u8], wanted: &[u8], what: &str) -> Outcome {
    ensure!(found.len() == wanted.len(), "{what}: {} bytes, and not {}", found.len(), wanted.len());
    let different = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    if let Some(at) = different {
        let (len, found, wanted) = (found.len(), found[at], wanted[at]);
        ensure!(false, "{what}: byte {at} of {len} is {found:#04x}, and not {wanted:#04x}");
    }
    Ok(())
}

/// Fails unless every byte of memory is `byte`.
pub(super) fn check_all(memory: &Exposed, byte: u8, what: &str) -> Outcome {
    check_bytes(&read(memory), &vec![byte; memory.len()], what)
}

fn read(memory: &Exposed) -> Vec<u8> {
    let mut found = vec![0; memory.len()];
    memory.read(0, &mut found);
    found
}
