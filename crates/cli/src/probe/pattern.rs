//! Bytes that are known by a seed.

use fulmen::parts::memory::Exposed;

/// The bytes of a seed: different at every place and for every seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    while bytes.len() < len {
        // Xorshift: the sequence of a seed meets that of another one nowhere near.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes the bytes of a seed.
pub fn write(memory: &Exposed, seed: u64) {
    memory.write(0, &bytes(seed, memory.len()));
}

/// What is wrong, unless memory holds the bytes of a seed.
pub fn check(memory: &Exposed, seed: u64, what: &str) -> Result<(), String> {
    let wanted = bytes(seed, memory.len());
    let mut found = vec![0; wanted.len()];
    memory.read(0, &mut found);
    let wrong = found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count();
    let Some(at) = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted) else { return Ok(()) };
    Err(format!(
        "{what}: {wrong} of {} bytes are wrong, the first at {at} ({:#04x} instead of {:#04x})",
        wanted.len(),
        found[at],
        wanted[at]
    ))
}
