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

    /// The rule whose pieces both devices register.
    #[must_use]
    pub fn and(self, other: ChunkRule) -> ChunkRule {
        // Of two powers of two the smaller divides the other.
        let least = |one: Option<u64>, other| one.into_iter().chain(other).min();
        ChunkRule { boundary: least(self.boundary, other.boundary), max_len: least(self.max_len, other.max_len) }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn config() -> ProptestConfig {
        let cases = if cfg!(miri) { 4 } else { 512 * fulmen_testbed::by_tier(1, 10, 50) };
        ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
    }

    /// A rule and a length that it cuts into at most about a thousand pieces.
    fn rules() -> impl Strategy<Value = (ChunkRule, usize)> {
        (prop::option::of(0_u32..50), prop::option::of(1_u64..1 << 40), 0_u64..500, any::<u64>()).prop_map(
            |(boundary, max_len, pieces, odd)| {
                let boundary = boundary.map(|bits| 1 << bits);
                let finest = boundary.unwrap_or(1 << 50).min(max_len.unwrap_or(1 << 50));
                (ChunkRule { boundary, max_len }, (finest * pieces + odd % finest) as usize)
            },
        )
    }

    fn addresses() -> impl Strategy<Value = usize> {
        prop_oneof![any::<usize>(), 0_usize..1 << 20, (0_usize..1 << 20).prop_map(|below| usize::MAX - below)]
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn pieces_cover_everything_once_and_obey_the_rule((rule, len) in rules(), addr in addresses()) {
            let pieces = rule.pieces(addr, len);
            let mut at = 0;
            for piece in &pieces {
                prop_assert_eq!(piece.start, at, "in order, no gap, no overlap");
                prop_assert!(piece.end > piece.start, "no empty piece");
                let (first, last) = (addr as u128 + piece.start as u128, addr as u128 + piece.end as u128 - 1);
                if let Some(boundary) = rule.boundary {
                    prop_assert_eq!(first / u128::from(boundary), last / u128::from(boundary), "crosses a boundary");
                }
                if let Some(max_len) = rule.max_len {
                    prop_assert!(piece.len() as u64 <= max_len);
                }
                at = piece.end;
            }
            prop_assert_eq!(at, len);
            // No cut without a reason: the next piece could not have been part of the one before it.
            for pair in pieces.windows(2) {
                let cut = addr as u128 + pair[0].end as u128;
                let at_boundary = rule.boundary.is_some_and(|boundary| cut.is_multiple_of(u128::from(boundary)));
                prop_assert!(at_boundary || rule.max_len == Some(pair[0].len() as u64), "a cut without a reason");
            }
        }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn pieces_of_two_rules_obey_both((one, _) in rules(), (other, len) in rules(), addr in addresses()) {
            let both = one.and(other);
            prop_assert_eq!(both, other.and(one));
            let finest = both.boundary.unwrap_or(1 << 50).min(both.max_len.unwrap_or(1 << 50));
            let len = len.min((finest as usize).saturating_mul(1000));
            for piece in both.pieces(addr, len) {
                for rule in [one, other] {
                    prop_assert_eq!(rule.pieces(addr.wrapping_add(piece.start), piece.len()).len(), 1);
                }
            }
        }
    }

    #[test]
    fn without_a_rule_there_is_one_piece() {
        assert_eq!(ChunkRule::NONE.pieces(4096, 0), []);
        let pieces = ChunkRule::NONE.pieces(4096, usize::MAX);
        assert_eq!(pieces, std::slice::from_ref(&(0..usize::MAX)));
        assert_eq!(ChunkRule::default(), ChunkRule::NONE);
    }

    #[test]
    fn memory_across_four_gibibytes_is_cut_there() {
        let rule = ChunkRule { boundary: Some(1 << 32), max_len: None };
        let pieces = rule.pieces((1 << 32) - 4096, (1 << 32) + 8192);
        assert_eq!(pieces, [0..4096, 4096..(1 << 32) + 4096, (1 << 32) + 4096..(1 << 32) + 8192]);
    }

    #[test]
    fn the_largest_boundary_and_the_last_address_do_not_overflow() {
        let rule = ChunkRule { boundary: Some(1 << 63), max_len: Some(u64::MAX) };
        let half = 1_usize << 63;
        assert_eq!(rule.pieces(usize::MAX, 1), std::slice::from_ref(&(0..1)));
        assert_eq!(rule.pieces(half - 1, half + 1), [0..1, 1..half + 1]);
        assert_eq!(rule.pieces(0, usize::MAX), [0..half, half..usize::MAX]);
    }

    #[test]
    #[should_panic(expected = "a boundary of 3 bytes is no power of two")]
    fn a_boundary_that_is_no_power_of_two_is_refused() {
        let _ = ChunkRule { boundary: Some(3), max_len: None }.pieces(0, 1);
    }

    #[test]
    #[should_panic(expected = "at least one byte")]
    fn registrations_of_nothing_are_refused() {
        let _ = ChunkRule { boundary: None, max_len: Some(0) }.pieces(0, 1);
    }
}
