//! What the machine has for ranks: processors and memory.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::{available_memory, bind, cores};

#[cfg(not(target_os = "linux"))]
mod macos;
#[cfg(not(target_os = "linux"))]
pub use macos::{available_memory, bind, cores};

/// The limit of this process's address space, which its children inherit, if there is one.
pub fn address_space() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::As).current
}

/// The processors that this thread may use, each core's first one before the second of any.
pub fn processors() -> Vec<usize> {
    let cores = cores();
    let most = cores.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|at| cores.iter().filter_map(move |core| core.get(at))).copied().collect()
}

/// The processors of one of so many ranks: as many neighbouring cores for each, or processors if there are fewer cores than ranks. With
/// fewer processors than ranks it is one, and ranks get them in turn: neighbours, who wait for one another, are at work at the same time.
pub fn part(cores: &[Vec<usize>], rank: usize, ranks: usize) -> Vec<usize> {
    let all = cores.iter().flatten().count();
    if all == 0 {
        return Vec::new();
    }
    let cut = |count: usize| rank * count / ranks..(rank + 1) * count / ranks;
    match ranks {
        _ if ranks <= cores.len() => cores[cut(cores.len())].concat(),
        _ if ranks <= all => cores.concat()[cut(all)].to_vec(),
        _ => vec![cores.concat()[rank % all]],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranks_get_whole_cores_while_there_are_enough() {
        let cores = [vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]];
        let parts = |ranks| (0..ranks).map(|rank| part(&cores, rank, ranks)).collect::<Vec<_>>();
        assert_eq!(parts(1), [[0, 4, 1, 5, 2, 6, 3, 7]]);
        assert_eq!(parts(2), [[0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(parts(3), [vec![0, 4], vec![1, 5], vec![2, 6, 3, 7]]);
        assert_eq!(parts(4), cores);
        assert_eq!(
            parts(5),
            [vec![0], vec![4, 1], vec![5], vec![2, 6], vec![3, 7]],
            "two of them have half a core each"
        );
    }

    proptest! {
        #[test]
        fn each_rank_gets_a_part_and_no_processor_is_left(
            sizes in prop::collection::vec(1usize..4, 1..9), ranks in 1usize..40,
        ) {
            let mut next = 0..;
            let cores: Vec<Vec<usize>> = sizes.iter().map(|size| next.by_ref().take(*size).collect()).collect();
            let all = cores.concat();
            let parts: Vec<Vec<usize>> = (0..ranks).map(|rank| part(&cores, rank, ranks)).collect();
            prop_assert!(parts.iter().all(|part| !part.is_empty()));
            if ranks <= all.len() {
                prop_assert_eq!(parts.concat(), all);
            } else {
                // No processor has more than one rank more than another.
                let ranks_of = |cpu: &usize| parts.iter().filter(|part| part.contains(cpu)).count();
                let counts: Vec<usize> = all.iter().map(ranks_of).collect();
                prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            }
        }
    }
}
