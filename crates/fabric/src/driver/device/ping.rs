//! A few bytes that go over one rail and come back: they prove that it carries, and measure how long it takes.
//!
//! They go over the queue pair of frames, and are shorter than any seal, which tells them from frames. Little-endian: the
//! CRC-32C of the link's generation and of the rest, 0 for a call or 1 for its answer, and the number of the call.

use crate::engine::{Reliable, checksum};

/// How many bytes.
pub(super) const LEN: usize = 12;
const _: () = assert!(LEN < Reliable::OVERHEAD);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ping {
    pub answer: bool,
    pub number: u32,
}

impl Ping {
    pub(super) fn to_bytes(self, generation: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[4..8].copy_from_slice(&u32::from(self.answer).to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        let crc = crc(&bytes, generation);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// None if it was damaged, or belongs to another link.
    pub(super) fn read(bytes: &[u8; LEN], generation: u64) -> Option<Ping> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let answer = match word(4) {
            0 => false,
            1 => true,
            _ => return None,
        };
        (word(0) == crc(bytes, generation)).then_some(Ping { answer, number: word(8) })
    }
}

fn crc(bytes: &[u8; LEN], generation: u64) -> u32 {
    let seed = checksum::append(0, generation.to_le_bytes().as_slice(), 0);
    checksum::append(seed, &bytes[4..], 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sent_on_this_link_is_taken() {
        for answer in [false, true] {
            let ping = Ping { answer, number: 0xfeed };
            let bytes = ping.to_bytes(7);
            assert_eq!(Ping::read(&bytes, 7), Some(ping));
            assert_eq!(Ping::read(&bytes, 8), None);
            for bit in 0..8 * LEN {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Ping::read(&bad, 7), None);
            }
        }
    }
}
