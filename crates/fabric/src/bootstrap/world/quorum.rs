//! Which ranks go on when some do not reach each other.

use std::collections::{BTreeMap, BTreeSet};

/// Up to so many ranks with broken connections, the largest set is found for certain.
const EXACT: usize = 16;

/// The largest set of `live` ranks without a cut between them; of several, the one that has the lowest ranks. `live` is sorted,
/// and so is the result. Ranks without a cut are always in it.
///
/// Exact where at most 16 ranks have cuts. Beyond that, the rank with the most cuts goes until none is left, the highest of
/// several; that is exact where few ranks are cut off from all others, as it mostly is.
pub fn largest(live: &[u32], cuts: &BTreeSet<(u32, u32)>) -> Vec<u32> {
    let there = |rank: &u32| live.binary_search(rank).is_ok();
    let cuts: Vec<(u32, u32)> = cuts.iter().copied().filter(|(one, two)| there(one) && there(two)).collect();
    let torn: BTreeSet<u32> = cuts.iter().flat_map(|&(one, two)| [one, two]).collect();
    let torn: Vec<u32> = torn.into_iter().collect();
    let kept = if torn.len() <= EXACT { exact(&torn, &cuts) } else { greedy(&torn, &cuts) };
    live.iter().copied().filter(|rank| torn.binary_search(rank).is_err() || kept.contains(rank)).collect()
}

fn exact(torn: &[u32], cuts: &[(u32, u32)]) -> BTreeSet<u32> {
    let bit = |rank: u32| 1u32 << torn.partition_point(|&other| other < rank);
    let cuts: Vec<u32> = cuts.iter().map(|&(one, two)| bit(one) | bit(two)).collect();
    let whole = |set: &u32| cuts.iter().all(|cut| set & cut != *cut);
    // Of two sets of one size, the one with the lower ranks is the greater number when bits are read from the lowest.
    let best = (0..1u32 << torn.len()).filter(whole).max_by_key(|set| (set.count_ones(), set.reverse_bits()));
    torn.iter().copied().filter(|&rank| best.is_some_and(|best| best & bit(rank) != 0)).collect()
}

fn greedy(torn: &[u32], cuts: &[(u32, u32)]) -> BTreeSet<u32> {
    let mut broken: BTreeMap<u32, BTreeSet<u32>> = torn.iter().map(|&rank| (rank, BTreeSet::new())).collect();
    for &(one, two) in cuts {
        for (rank, other) in [(one, two), (two, one)] {
            broken.entry(rank).or_default().insert(other);
        }
    }
    while let Some((count, worst)) = broken.iter().map(|(&rank, others)| (others.len(), rank)).max()
        && count > 0
    {
        for other in broken.remove(&worst).unwrap_or_default() {
            if let Some(others) = broken.get_mut(&other) {
                others.remove(&worst);
            }
        }
    }
    broken.into_keys().collect()
}

/// Whether `side` may go on although the ranks `elsewhere` may live: it has more than half of both, or just half and the
/// lowest rank.
pub fn may_go_on(side: &[u32], elsewhere: &[u32]) -> bool {
    match side.len().cmp(&elsewhere.len()) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => side.iter().min() < elsewhere.iter().min(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all_cut(one: &[u32], two: &[u32]) -> BTreeSet<(u32, u32)> {
        one.iter().flat_map(|&a| two.iter().map(move |&b| (a.min(b), a.max(b)))).collect()
    }

    #[test]
    fn the_larger_side_goes_on_and_a_tie_goes_to_the_lowest_rank() {
        let five = [0, 1, 2, 3, 4];
        assert_eq!(largest(&five, &all_cut(&[0, 1], &[2, 3, 4])), [2, 3, 4]);
        assert_eq!(largest(&five[1..], &all_cut(&[1, 4], &[2, 3])), [1, 4]);
        assert_eq!(largest(&five, &BTreeSet::from([(1, 3)])), [0, 1, 2, 4]);
        assert_eq!(largest(&five, &BTreeSet::new()), five);
        // A cut with a rank that is gone is none.
        assert_eq!(largest(&[0, 2], &BTreeSet::from([(0, 1), (1, 2)])), [0, 2]);
        assert!(may_go_on(&[3, 4], &[1]) && !may_go_on(&[0], &[1, 2]));
        assert!(may_go_on(&[0, 3], &[1, 2]) && !may_go_on(&[1, 2], &[0, 3]));
        assert!(may_go_on(&[7], &[]) && !may_go_on(&[], &[]));
    }

    #[test]
    fn many_ranks_are_split_in_a_short_time() {
        let (few, many): (Vec<u32>, Vec<u32>) = (0..1000).partition(|rank| rank % 10 == 3);
        let live: Vec<u32> = (0..1000).collect();
        assert_eq!(largest(&live, &all_cut(&few, &many)), many);
    }

    proptest! {
        #[test]
        fn no_larger_set_is_whole(pairs in prop::collection::btree_set((0u32..8, 0u32..8), 0..20)) {
            let cuts: BTreeSet<(u32, u32)> = pairs.into_iter().filter(|(a, b)| a < b).collect();
            let live: Vec<u32> = (0..8).collect();
            let whole = |set: &[u32]| cuts.iter().all(|(a, b)| !(set.contains(a) && set.contains(b)));
            let found = largest(&live, &cuts);
            prop_assert!(whole(&found));
            for bits in 0u32..256 {
                let set: Vec<u32> = (0..8).filter(|rank| bits >> rank & 1 == 1).collect();
                if whole(&set) {
                    prop_assert!(set.len() < found.len() || (set.len() == found.len() && set >= found));
                }
            }
            let list: Vec<_> = cuts.iter().copied().collect();
            let kept: Vec<u32> = greedy(&live, &list).into_iter().collect();
            prop_assert!(whole(&kept));
        }
    }
}
