//! Checksums of frames on carriers that are trusted to keep them, for programs that verify all the same.

use fulmen_memory::Exposed;

use super::Broken;
use crate::engine::{Incoming, checksum};

/// Bytes of a checksum, which goes behind its frame.
pub(super) const TRAILER: usize = size_of::<u32>();

/// The frame without its checksum.
///
/// # Errors
/// It is another one than the frame's.
pub(super) fn strip<F: Incoming + ?Sized>(frame: &F) -> Result<Stripped<'_, F>, Broken> {
    let corrupted = || Broken("a corrupted frame: its checksum is wrong".into());
    let stripped = Stripped { frame, len: frame.len().checked_sub(TRAILER).ok_or_else(corrupted)? };
    let mut trailer = [0; TRAILER];
    frame.read(stripped.len, &mut trailer);
    if checksum::append(0, &stripped, 0) != u32::from_le_bytes(trailer) {
        return Err(corrupted());
    }
    Ok(stripped)
}

/// See [`strip`].
pub(super) struct Stripped<'a, F: ?Sized> {
    frame: &'a F,
    len: usize,
}

impl<F: Incoming + ?Sized> Incoming for Stripped<'_, F> {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.frame.read(at, into);
    }

    fn read_past(&self, at: usize, into: &mut [u8]) {
        self.frame.read_past(at, into);
    }

    fn copy_to(&self, at: usize, to: &Exposed, to_at: usize, len: usize) {
        self.frame.copy_to(at, to, to_at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_behind_its_frame() {
        let frame = b"some frame".as_slice();
        let trailed = [frame, &checksum::append(0, frame, 0).to_le_bytes()].concat();
        let stripped = strip(trailed.as_slice()).ok().unwrap();
        let mut bytes = vec![0; stripped.len()];
        stripped.read(0, &mut bytes);
        assert_eq!(bytes, frame);
        for at in 0..trailed.len() {
            let mut bad = trailed.clone();
            bad[at] ^= 1;
            assert!(strip(bad.as_slice()).is_err() && strip(&trailed[..at]).is_err());
        }
    }
}
