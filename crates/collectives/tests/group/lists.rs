//! Lists of blocks.

use fulmen_collectives::{CollectiveError, Group, ReduceOp};
use fulmen_soft::Profile;

use crate::world::{Random, rounds, run_by_messages, run_group, run_over_hosts};

fn on_every_path(size: u32, body: fn(&Group)) {
    run_group(size, body);
    run_by_messages(size, body);
    run_over_hosts(Profile::Infiniband, size, body);
}

fn lengths(random: &mut Random) -> Vec<usize> {
    let count = random.below(40);
    (0..count)
        .map(|_| match random.below(6) {
            0 => 0,
            1 => random.below(200_000) as usize,
            _ => random.below(3_000) as usize,
        })
        .collect()
}

fn values(rank: u32, block: usize, len: usize) -> Vec<i32> {
    (0..len).map(|at| (rank as i32 + 1) * (at as i32 + 7 * block as i32)).collect()
}

#[test]
fn lists_of_any_lengths_are_as_each_block_by_itself() {
    on_every_path(3, |group| {
        let mut random = Random::new(5);
        for _ in 0..rounds(6) {
            let lens = lengths(&mut random);
            let own = |rank| lens.iter().enumerate().map(move |(block, len)| values(rank, block, *len));
            let expected: Vec<Vec<i32>> = own(5).collect();
            let mut plain: Vec<Vec<i32>> = own(group.rank()).collect();
            group.all_reduce_list(&mut plain, ReduceOp::Sum).unwrap();
            assert_eq!(plain, expected);
            let mut registered: Vec<_> = own(group.rank())
                .map(|values| {
                    let mut buffer = group.alloc::<i32>(values.len()).unwrap();
                    buffer.copy_from_slice(&values);
                    buffer
                })
                .collect();
            group.all_reduce_list(&mut registered, ReduceOp::Sum).unwrap();
            assert!(registered.iter().zip(&expected).all(|(got, expected)| got.to_vec() == *expected));
            let mut given: Vec<Vec<i32>> = own(group.rank()).collect();
            group.broadcast_list(&mut given, 2).unwrap();
            assert!(own(2).eq(given));
        }
    });
}

#[test]
fn what_lies_between_the_blocks_stays() {
    run_group(2, |group| {
        let mut flags = [false; 100];
        flags.chunks_mut(10).for_each(|row| row[group.rank() as usize] = true);
        let mut rows: Vec<_> = flags.chunks_mut(10).map(|row| &mut row[..1]).collect();
        group.all_reduce_list(&mut rows, ReduceOp::Max).unwrap();
        for row in flags.chunks(10) {
            assert_eq!((row[0], row[1]), (true, group.rank() == 1));
        }
    });
}

/// As many elements in all, in blocks of other lengths.
#[test]
fn ranks_with_other_lists_all_fail() {
    on_every_path(2, |group| {
        let mut blocks = [vec![1_u8; 3], vec![1; 5]];
        blocks.rotate_left(group.rank() as usize);
        let error = group.all_reduce_list(&mut blocks, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, CollectiveError::Mismatch { .. } | CollectiveError::Poisoned { .. }), "{error}");
    });
    on_every_path(2, |group| {
        let mut blocks = vec![vec![1_u8; 3]; group.rank() as usize];
        let error = group.all_reduce_list(&mut blocks, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, CollectiveError::Mismatch { .. } | CollectiveError::Poisoned { .. }), "{error}");
    });
}
