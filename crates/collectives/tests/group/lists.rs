//! Lists of blocks.

use fulmen_collectives::{Blocks, CollectiveError, Group, ReduceOp};
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

/// Memory in which a vector lies in blocks of random lengths (some of none), with other elements between them.
struct Scattered {
    memory: Vec<i32>,
    /// Of each block, how many elements, and how many that are not its own come before it.
    cuts: Vec<(usize, usize)>,
}

const BESIDE: i32 = -77;

impl Scattered {
    fn new(values: &[i32], random: &mut Random) -> Scattered {
        let (mut memory, mut cuts, mut rest) = (Vec::new(), Vec::new(), values);
        while !rest.is_empty() {
            let len = (random.below(1 + rest.len() as u64 / 2) as usize + random.below(2) as usize).min(rest.len());
            let before = random.below(5) as usize;
            let (own, behind) = rest.split_at(len);
            memory.extend(vec![BESIDE; before].iter().chain(own));
            cuts.push((before, len));
            rest = behind;
        }
        memory.push(BESIDE);
        Scattered { memory, cuts }
    }

    fn blocks(&mut self) -> Blocks<'_, i32> {
        let mut rest = &mut self.memory[..];
        let mut blocks = Vec::new();
        for (before, len) in &self.cuts {
            let (block, behind) = rest[*before..].split_at_mut(*len);
            blocks.push(block);
            rest = behind;
        }
        blocks.into_iter().collect()
    }

    /// The vector, after a look at what lies beside it.
    fn values(&self) -> Vec<i32> {
        let (mut values, mut rest) = (Vec::new(), &self.memory[..]);
        for (before, len) in &self.cuts {
            let (beside, block) = rest.split_at(*before);
            assert!(beside.iter().all(|value| *value == BESIDE), "{beside:?}");
            values.extend(&block[..*len]);
            rest = &block[*len..];
        }
        assert_eq!(rest, [BESIDE]);
        values
    }
}

type In<D> = fn(&Group, &mut D, &mut D) -> Result<(), CollectiveError>;
type InBlocks = for<'a, 'b> fn(&Group, &mut Blocks<'a, i32>, &mut Blocks<'b, i32>) -> Result<(), CollectiveError>;

/// An operation on `from` and `to`: how many times some length they have, and the same on blocks and on vectors.
macro_rules! operation {
    ($what:literal, $times:expr, |$group:ident, $from:pat_param, $to:pat_param| $body:expr) => {
        ($what, $times, |$group, $from, $to| $body, |$group, $from, $to| $body)
    };
}

type Operation = (&'static str, [usize; 2], InBlocks, In<Vec<i32>>);

const OPERATIONS: [Operation; 14] = [
    operation!("all_reduce", [1, 1], |group, data, _| group.all_reduce(data, ReduceOp::Sum)),
    operation!("all_reduce_into", [1, 1], |group, from, to| group.all_reduce_into(from, to, ReduceOp::Max)),
    operation!("reduce", [1, 1], |group, data, _| group.reduce(data, ReduceOp::Sum, 1)),
    operation!("reduce_into", [1, 1], |group, from, to| group.reduce_into(from, to, ReduceOp::Sum, 2)),
    operation!("scan", [1, 1], |group, data, _| group.scan(data, ReduceOp::Sum)),
    operation!("reduce_scatter", [3, 1], |group, from, to| group.reduce_scatter(from, to, ReduceOp::Sum)),
    operation!("all_gather", [1, 3], |group, from, to| group.all_gather(from, to)),
    operation!("all_gather_in_place", [3, 1], |group, data, _| group.all_gather_in_place(data)),
    operation!("gather", [1, 3], |group, from, to| group.gather(from, to, 0)),
    operation!("scatter", [3, 1], |group, from, to| group.scatter(from, to, 0)),
    operation!("all_to_all", [3, 3], |group, from, to| group.all_to_all(from, to)),
    operation!("broadcast", [1, 1], |group, data, _| group.broadcast(data, 2)),
    operation!("send and recv", [1, 1], |group, from, to| {
        let (next, before) = ((group.rank() + 1) % 3, (group.rank() + 2) % 3);
        // Long ones wait for a receive.
        if group.rank() == 0 {
            group.send(&*from, next, 1)?;
            group.recv(to, before, 1).map(drop)
        } else {
            let received = group.recv(to, before, 1).map(drop);
            group.send(&*from, next, 1).and(received)
        }
    }),
    operation!("send_recv", [1, 1], |group, from, to| {
        group.send_recv(&*from, (group.rank() + 1) % 3, to, (group.rank() + 2) % 3, 2).map(drop)
    }),
];

/// Each rank has other blocks.
#[test]
fn vectors_in_blocks_are_as_those_in_one() {
    on_every_path(3, |group| {
        // What ranks agree on, and what each has for its own.
        let (mut shared, mut own) = (Random::new(8), Random::new(u64::from(group.rank())));
        for turn in 0..rounds(4) {
            for (what, [gives, gets], in_blocks, in_one) in OPERATIONS {
                let count = if shared.below(3) == 0 { shared.below(60_000) } else { shared.below(900) } as usize;
                let from = values(group.rank(), turn as usize, gives * count);
                let to = vec![5; gets * count];
                let (mut from_one, mut to_one) = (from.clone(), to.clone());
                in_one(group, &mut from_one, &mut to_one).unwrap();
                // One rank has it in one, or none has.
                if shared.below(4) as u32 == group.rank() {
                    let (mut from, mut to) = (from, to);
                    in_one(group, &mut from, &mut to).unwrap();
                    assert!(from == from_one && to == to_one, "{what} of {count}, in one");
                    continue;
                }
                let (mut from, mut to) = (Scattered::new(&from, &mut own), Scattered::new(&to, &mut own));
                in_blocks(group, &mut from.blocks(), &mut to.blocks()).unwrap();
                assert!(from.values() == from_one && to.values() == to_one, "{what} of {count}");
            }
        }
    });
}

#[test]
fn blocks_that_do_not_fit_are_refused_and_stay() {
    run_group(2, |group| {
        let mut matrix = [3_i32; 12];
        let error = group.all_gather(&[1; 2], &mut Blocks::strided(&mut matrix, 1, 4)).unwrap_err();
        assert!(matches!(error, CollectiveError::Invalid { .. }), "{error}");
        assert_eq!(matrix, [3; 12]);
        // One that is shorter than what comes; one that is longer keeps its last elements.
        let other = 1 - group.rank();
        group.send(&[7; 4], other, 1).unwrap();
        group.recv(&mut Blocks::strided(&mut matrix, 1, 4), other, 1).unwrap_err();
        assert_eq!(matrix, [3; 12]);
        group.send(&[7; 2], other, 1).unwrap();
        assert_eq!(group.recv(&mut Blocks::strided(&mut matrix, 1, 4), other, 1).unwrap(), 2);
        assert_eq!(matrix, [7, 3, 3, 3, 7, 3, 3, 3, 3, 3, 3, 3]);
        let mut flags = [false; 4];
        group.all_reduce(&mut Blocks::strided(&mut flags, 1, 2), ReduceOp::Min).unwrap();
        flags = [true; 4];
        group.all_reduce(&mut Blocks::strided(&mut flags[1..], 1, 2), ReduceOp::Min).unwrap();
        assert_eq!(flags, [true; 4]);
        group.barrier().unwrap();
    });
}
