use std::ops::Range;

/// How a device limits one registration.
///
/// Apple's RDMA over Thunderbolt keeps 32 bits of an address, so that a registration across a 4 GiB boundary of the
/// address space sends data to a place exactly 4 GiB too low. A region of any size is registered in several pieces
/// then, and a pool that obeys the same rule never cuts a block across two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ChunkRule {
    /// No registration crosses an address that is a multiple of this (a power of two), in bytes.
    pub boundary: Option<u64>,
    /// No registration is longer than this, in bytes.
    pub max_len: Option<u64>,
}

impl ChunkRule {
    /// A device that registers a region of any size in one piece.
    pub const NONE: ChunkRule = ChunkRule { boundary: None, max_len: None };

    /// The pieces, as offsets from `addr`, into which memory at `addr` of `len` bytes is cut: in order, without gaps.
    ///
    /// # Panics
    /// If the boundary is no power of two, or the longest registration is zero bytes.
    #[must_use]
    pub fn pieces(&self, addr: usize, len: usize) -> Vec<Range<usize>> {
        if let Some(boundary) = self.boundary {
            assert!(boundary.is_power_of_two(), "a boundary of {boundary} bytes is no power of two");
        }
        assert_ne!(self.max_len, Some(0), "a registration must hold at least one byte");
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < len {
            let mut end = len as u128;
            if let Some(boundary) = self.boundary {
                let here = addr as u128 + at as u128;
                let next = (here / u128::from(boundary) + 1) * u128::from(boundary);
                end = end.min(next - addr as u128);
            }
            if let Some(max_len) = self.max_len {
                end = end.min(at as u128 + u128::from(max_len));
            }
            // `end` is at most `len`, so it fits.
            let end = end as usize;
            pieces.push(at..end);
            at = end;
        }
        pieces
    }
}
