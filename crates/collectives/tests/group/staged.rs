//! Plain memory of all lengths, in turn: what goes over the stages in pieces of either length, once around them and more.

use fulmen_kernels::ReduceOp;

use crate::world::run_group;

/// Elements: some less than a piece, some that are no whole pieces, some longer than all stages.
const COUNTS: [usize; 8] = [5_000, 40_000, 9_001, 300_000, 16_384, 1_300_000, 70_000, 5_000];

fn element(rank: usize, turn: usize, at: usize) -> u32 {
    (at as u32).wrapping_mul(0x9e37_79b9).wrapping_add((rank * 1009 + turn * 31) as u32)
}

fn vector(rank: usize, turn: usize, count: usize) -> Vec<u32> {
    (0..count).map(|at| element(rank, turn, at)).collect()
}

#[test]
fn plain_memory_passes_whole_whatever_came_before() {
    for size in [2, 3, 5] {
        run_group(size, |group| {
            let (rank, size) = (group.rank() as usize, size as usize);
            for (turn, count) in COUNTS.into_iter().enumerate() {
                let root = turn % size;
                // The root may be the last to come, or long gone when others take what it gave.
                let mut data = vector(rank, turn, count);
                group.broadcast(&mut data, root as u32).unwrap();
                assert_eq!(data, vector(root, turn, count), "broadcast {turn} of {size}");

                let mut data = vector(rank, turn, count);
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                let sum = |at| (0..size).map(|rank| element(rank, turn, at)).fold(0, u32::wrapping_add);
                assert!((0..count).all(|at| data[at] == sum(at)), "all_reduce {turn} of {size}");

                let part = count / size;
                let (from, mut to) = (vector(rank, turn, part * size), vec![0; part * size]);
                group.all_to_all(&from, &mut to).unwrap();
                let given = |at| element(at / part, turn, rank * part + at % part);
                assert!((0..to.len()).all(|at| to[at] == given(at)), "all_to_all {turn} of {size}");

                let mut to = vec![0; part];
                group.reduce_scatter(&from, &mut to, ReduceOp::Sum).unwrap();
                assert!((0..part).all(|at| to[at] == sum(rank * part + at)), "reduce_scatter {turn} of {size}");

                // Some only give, and some only take.
                let mut data = vector(rank, turn, count);
                group.scan(&mut data, ReduceOp::Sum).unwrap();
                let before = |at| (0..=rank).map(|rank| element(rank, turn, at)).fold(0, u32::wrapping_add);
                assert!((0..count).all(|at| data[at] == before(at)), "scan {turn} of {size}");

                let mut data = vector(rank, turn, count);
                group.reduce(&mut data, ReduceOp::Sum, root as u32).unwrap();
                assert!(rank != root || (0..count).all(|at| data[at] == sum(at)), "reduce {turn} of {size}");

                let given = vector(rank, turn, count);
                let mut all = vec![0; if rank == root { count * size } else { 0 }];
                group.gather(&given, &mut all, root as u32).unwrap();
                assert!(
                    (0..all.len()).all(|at| all[at] == element(at / count, turn, at % count)),
                    "gather {turn} of {size}"
                );

                let mut mine = vec![0; count];
                group.scatter(&all, &mut mine, root as u32).unwrap();
                assert_eq!(mine, given, "scatter {turn} of {size}");
            }
        });
    }
}
