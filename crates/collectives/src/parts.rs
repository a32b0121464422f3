//! The parts of a vector that belong to the ranks, where they are equal and where they are not.

use fulmen_kernels::DType;

/// Who has how much. Lengths and places are in bytes.
pub(crate) enum Parts {
    /// As much as each other one.
    Equal,
    /// Where each rank's part begins in a vector that holds all of them, and the end of the last.
    Each(Vec<usize>),
    /// The vector is one of a list, of so many bytes, of which the call's digest is: each rank has all of it.
    Listed(usize),
    /// What each rank has for each.
    Pairs {
        /// Where each part begins in what its rank gives, with the end of the last, one rank after the other.
        given: Vec<usize>,
        /// Where each rank's part begins in what this one gets, and the end of the last.
        got: Vec<usize>,
    },
}

impl Parts {
    /// Parts of so many elements each; `None` if that is more than there is memory.
    pub(crate) fn each(counts: &[usize], dtype: DType) -> Option<Parts> {
        Some(Parts::Each(places(counts.iter().copied(), dtype)?))
    }

    /// Parts of so many elements, from each rank in order what it has for each, as `rank` sees them.
    pub(crate) fn pairs(counts: &[usize], rank: usize, size: usize, dtype: DType) -> Option<Parts> {
        let mut given = Vec::with_capacity(size * (size + 1));
        for row in counts.chunks_exact(size) {
            given.extend(places(row.iter().copied(), dtype)?);
        }
        let got = places(counts.iter().skip(rank).step_by(size).copied(), dtype)?;
        Some(Parts::Pairs { given, got })
    }
}

fn places(counts: impl Iterator<Item = usize>, dtype: DType) -> Option<Vec<usize>> {
    let mut places = vec![0_usize];
    for count in counts {
        let end = count.checked_mul(dtype.size())?.checked_add(places[places.len() - 1])?;
        places.push(end);
    }
    Some(places)
}

/// What stands for these counts where ranks compare their calls: all but certainly another number for others (FNV-1a).
pub(crate) fn digest(counts: &[usize]) -> u64 {
    let bytes = counts.iter().flat_map(|count| (*count as u64).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_one_behind_the_other() {
        let Some(Parts::Each(places)) = Parts::each(&[3, 0, 2], DType::F32) else { panic!("they fit") };
        assert_eq!(places, [0, 12, 12, 20]);
        // Rank 0 has 1, 2 and 3 for the three, and so on.
        let Some(Parts::Pairs { given, got }) = Parts::pairs(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 1, 3, DType::U16) else {
            panic!("they fit")
        };
        assert_eq!(given, [0, 2, 6, 12, 0, 8, 18, 30, 0, 14, 30, 48]);
        assert_eq!(got, [0, 4, 14, 30]);
    }

    #[test]
    fn more_than_there_is_memory_is_no_vector() {
        assert!(Parts::each(&[usize::MAX, 1], DType::U8).is_none());
        assert!(Parts::each(&[usize::MAX / 2], DType::F32).is_none());
    }

    #[test]
    fn counts_in_another_order_have_another_digest() {
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
        assert_ne!(digest(&[1]), digest(&[1, 0]));
    }
}
