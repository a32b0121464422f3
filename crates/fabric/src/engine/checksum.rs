//! Checksums: CRC-32C, for which processors have instructions.

use fulmen_memory::Exposed;

use super::Incoming;

/// Exposed memory is copied out piece by piece: a piece stays in the nearest cache.
const PIECE: usize = 2048;

/// The checksum of what `crc` is the checksum of, followed by these bytes from `from` on.
#[must_use]
pub fn append(crc: u32, bytes: &(impl Incoming + ?Sized), from: usize) -> u32 {
    append_and(crc, bytes, from, |_| ())
}

/// The same, and hands on the very bytes whose checksum it is, piece by piece. Each is read once: they may change meanwhile.
#[must_use]
pub fn append_and(crc: u32, bytes: &(impl Incoming + ?Sized), from: usize, mut then: impl FnMut(&[u8])) -> u32 {
    let mut piece = [0; PIECE];
    let (mut crc, mut at) = (crc, from);
    while at < bytes.len() {
        let len = PIECE.min(bytes.len() - at);
        bytes.read(at, &mut piece[..len]);
        crc = crc32c::crc32c_append(crc, &piece[..len]);
        then(&piece[..len]);
        at += len;
    }
    crc
}

/// The checksum of memory.
#[must_use]
pub fn of(memory: &Exposed) -> u32 {
    append(0, memory, 0)
}

impl Incoming for Exposed {
    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.read(at, into);
    }

    fn copy_to(&self, at: usize, to: &Exposed, to_at: usize, len: usize) {
        self.copy_to(at, to, to_at, len);
    }
}

#[cfg(test)]
mod tests {
    use fulmen_memory::Region;

    use super::*;

    #[test]
    fn it_is_the_crc_32c_of_the_standard() {
        assert_eq!(append(0, b"123456789".as_slice(), 0), 0xe306_9283);
        assert_eq!(append(0, b"xx123456789".as_slice(), 2), 0xe306_9283);
    }

    #[test]
    fn pieces_make_no_difference() {
        let bytes: Vec<u8> = (0..3 * PIECE + 7).map(|at| ((at * at) >> 3) as u8).collect();
        let memory = Region::alloc(bytes.len()).unwrap().expose().unwrap().slice(0..bytes.len());
        memory.write(0, &bytes);
        let (first, rest) = bytes.split_at(5000);
        let split = append(append(0, first, 0), rest, 0);
        assert_eq!([of(&memory), split], [crc32c::crc32c(&bytes); 2]);
        memory.write(PIECE, &[bytes[PIECE] ^ 1]);
        assert_ne!(of(&memory), split);
    }
}
