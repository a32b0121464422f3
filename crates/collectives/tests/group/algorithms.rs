//! Every algorithm by which calls go by messages.

use fulmen_collectives::{Algorithm, CollectiveError, Element, Group, Order, ReduceOp};
use fulmen_kernels::{as_bytes, reduce_into};
use fulmen_soft::Profile;
use half::{bf16, f16};

use crate::world::{Random, run_by_messages, run_group, run_on_hosts, run_over, run_over_chain, run_over_hosts};

/// Of all that can do an all-reduce of so many bytes among so many ranks, on one host or on several of several ranks.
fn algorithms(ranks: u32, bytes: usize, hosts: bool) -> Vec<Algorithm> {
    let can = |algorithm: &Algorithm| match algorithm {
        Algorithm::Rounds => ranks > 2 && bytes <= 4096,
        Algorithm::PassedShares => ranks > 2 && bytes <= 64 << 10,
        Algorithm::Hosts => hosts,
        _ => true,
    };
    Algorithm::ALL.into_iter().filter(can).collect()
}

/// Numbers of which the order of additions shows in the last bits.
fn numbers(rank: u32, count: usize) -> Vec<f64> {
    let mut random = Random::new(u64::from(rank) + 1);
    (0..count).map(|_| random.below(1 << 40) as f64 / (1u64 << 20) as f64 - 5e5).collect()
}

fn check<T: Element + Default + PartialEq>(group: &Group, op: ReduceOp, of: impl Fn(f64) -> T, count: usize) {
    let inputs: Vec<Vec<T>> =
        (0..group.size()).map(|rank| numbers(rank, count).into_iter().map(&of).collect()).collect();
    let mut expected = vec![T::default(); count];
    reduce_into(op, &mut expected, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    let mine = &inputs[group.rank() as usize];
    let root = group.size() / 2;
    let fabric = group.fabric();
    let hosts = !fabric.has_windows() && fabric.has_windows_among(&[fabric.rank()]);
    for algorithm in algorithms(group.size(), count * size_of::<T>(), hosts) {
        let group = group.with_algorithm(Some(algorithm));
        let mut data = mine.clone();
        if !algorithm.is_in_rank_order() && !op.is_exact(T::DTYPE) {
            let error = group.all_reduce(&mut data, op).unwrap_err();
            assert!(matches!(error, CollectiveError::Invalid { .. }), "{error}");
        }
        let any = group.with_order(Order::Any);
        any.all_reduce(&mut data, op).unwrap();
        let what = format!("{op} of {count} {} by {algorithm}", T::DTYPE);
        if algorithm.is_in_rank_order() || op.is_exact(T::DTYPE) {
            assert_eq!(as_bytes(&data), as_bytes(&expected), "{what}");
        }
        // All ranks have the same, and had it before.
        let mut again = vec![T::default(); count];
        any.all_reduce_into(mine, &mut again, op).unwrap();
        assert_eq!(as_bytes(&data), as_bytes(&again), "{what}");
        let mut theirs = again;
        group.broadcast(&mut theirs, 0).unwrap();
        assert_eq!(as_bytes(&data), as_bytes(&theirs), "{what}");
        // One rank's result has the same bits if it goes the same way: in rank order, or up the same tree.
        let mut reduced = vec![T::default(); count];
        any.reduce_into(mine, &mut reduced, op, root).unwrap();
        if group.rank() != root {
            assert_eq!(as_bytes(&reduced), as_bytes(&vec![T::default(); count]), "{what}");
        } else if op.is_exact(T::DTYPE) {
            assert_eq!(as_bytes(&reduced), as_bytes(&expected), "{what}");
        }
        // What cannot go by it goes as the planner has it.
        let (rank, size) = (group.rank() as usize, group.size() as usize);
        let mut up_to = vec![T::default(); count];
        reduce_into(op, &mut up_to, &inputs[..=rank].iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        let (mut scanned, mut in_place) = (vec![T::default(); count], mine.clone());
        group.scan_into(mine, &mut scanned, op).unwrap();
        group.scan(&mut in_place, op).unwrap();
        assert!(as_bytes(&scanned) == as_bytes(&up_to) && scanned == in_place, "scan, {what}");
        let all = inputs.concat();
        let (mut gathered, mut in_place) = (vec![T::default(); count * size], vec![T::default(); count * size]);
        in_place[rank * count..(rank + 1) * count].copy_from_slice(mine);
        group.all_gather(mine, &mut gathered).unwrap();
        group.all_gather_in_place(&mut in_place).unwrap();
        assert!(as_bytes(&gathered) == as_bytes(&all) && gathered == in_place, "all_gather, {what}");
        for root in [0, group.size() - 1] {
            let mut theirs = inputs[group.rank() as usize].clone();
            group.broadcast(&mut theirs, root).unwrap();
            assert_eq!(as_bytes(&theirs), as_bytes(&inputs[root as usize]), "{what}");
        }
    }
}

fn check_all(group: &Group) {
    for count in [1, 3, 700, 40_000] {
        check(group, ReduceOp::Sum, |number| number as i32, count);
        check(group, ReduceOp::Max, |number| number as f32, count);
        check(group, ReduceOp::Sum, |number| number as f32, count);
        check(group, ReduceOp::Mean, |number| number, count);
        check(group, ReduceOp::Mean, |number| f16::from_f64(number / 1e4), count);
        check(group, ReduceOp::Sum, bf16::from_f64, count);
        check(group, ReduceOp::BitXor, |number| number as i64, count);
        check(group, ReduceOp::LogicalXor, |number| number > 0.0, count);
    }
}

#[test]
fn every_algorithm_by_messages() {
    for size in [2, 3, 5, 8] {
        run_by_messages(size, check_all);
    }
}

#[test]
fn every_algorithm_over_devices_and_between_hosts() {
    run_over(Profile::Thunderbolt, 3, check_all);
    run_over(Profile::Infiniband, 4, check_all);
    run_over_hosts(Profile::Infiniband, 5, check_all);
    run_over_hosts(Profile::Thunderbolt, 4, check_all);
}

#[test]
fn every_algorithm_where_hosts_have_several_ranks() {
    run_on_hosts(Profile::Thunderbolt, &[2, 1], check_all);
    run_on_hosts(Profile::Infiniband, &[3, 2], check_all);
    run_on_hosts(Profile::Infiniband, &[1, 2, 2], check_all);
}

/// Cables join neighbours alone; others are reached over these.
#[test]
fn every_algorithm_where_ranks_pass_messages_on() {
    run_over_chain(Profile::Thunderbolt, 4, |group| {
        for count in [3, 40_000] {
            check(group, ReduceOp::Sum, |number| number as i32, count);
            check(group, ReduceOp::Mean, |number| f16::from_f64(number / 1e4), count);
        }
    });
}

/// More than is under way at a time, in several pieces, of lengths that do not divide.
#[test]
fn long_vectors_by_every_algorithm() {
    let body = |group: &Group| {
        check(group, ReduceOp::Sum, |number| number as i32, 300_001);
        check(group, ReduceOp::Mean, |number| f16::from_f64(number / 1e4), 1_500_007);
    };
    run_by_messages(3, body);
    run_over(Profile::Infiniband, 2, body);
    run_over_hosts(Profile::Infiniband, 4, body);
    run_on_hosts(Profile::Infiniband, &[2, 2], body);
    run_on_hosts(Profile::Infiniband, &[1, 2, 1], body);
}

/// Whatever ranks call, nobody gets wrong data, and nobody waits until the deadline.
#[test]
fn ranks_that_call_different_things_are_told() {
    let call = |group: &Group, which: usize| -> (Result<(), CollectiveError>, Vec<i32>) {
        let mut data = vec![group.rank() as i32; 50_000];
        let by = |algorithm| group.with_algorithm(Some(algorithm));
        let outcome = match which {
            0 => by(Algorithm::Ring).all_reduce(&mut data, ReduceOp::Sum),
            1 => by(Algorithm::Ring).all_reduce(&mut data, ReduceOp::Max),
            2 => by(Algorithm::Halving).all_reduce(&mut data, ReduceOp::Sum),
            3 => by(Algorithm::Tree).all_reduce(&mut data, ReduceOp::Sum),
            4 => by(Algorithm::Shares).all_reduce(&mut data, ReduceOp::Sum),
            BROADCAST => by(Algorithm::Tree).broadcast(&mut data, 1),
            REDUCE => by(Algorithm::Chain).reduce(&mut data, ReduceOp::Sum, 0),
            7 => by(Algorithm::Rounds).all_reduce(&mut data[..100], ReduceOp::Sum),
            8 => by(Algorithm::Chain).all_reduce(&mut data[1..], ReduceOp::Sum),
            _ => group.barrier(),
        };
        (outcome, data)
    };
    const BROADCAST: usize = 5;
    const REDUCE: usize = 6;
    for (one, other) in (0..10).flat_map(|one| (0..one).map(move |other| (one, other))) {
        for alone in [0, 3] {
            run_by_messages(6, |group| {
                let which = if group.rank() == alone { one } else { other };
                let (mut outcome, data) = call(group, which);
                let expected = if which == BROADCAST { 1 } else { group.rank() as i32 };
                // Some ranks have no more to do with those that differ: the next call tells them.
                if outcome.is_ok() && [BROADCAST, REDUCE].contains(&which) {
                    assert!(data.iter().all(|value| *value == expected));
                    outcome = group.barrier();
                }
                let told = matches!(outcome, Err(CollectiveError::Mismatch { .. } | CollectiveError::Poisoned { .. }));
                assert!(told, "{one} at rank {alone} and {other}: rank {} has {outcome:?}", group.rank());
            });
        }
    }
}

#[test]
fn where_memory_is_mapped_there_is_nothing_to_choose() {
    run_group(2, |group| {
        let group = group.with_algorithm(Some(Algorithm::Ring)).with_order(Order::Any);
        let mut data = vec![0.5_f32; 10_000];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, vec![1.0; 10_000]);
    });
}
