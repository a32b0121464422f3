//! Every operation against a sequential reference, bit by bit.

use fulmen_collectives::{Algorithm, DType, Data, Group, ReduceOp};
use fulmen_soft::Profile;
use half::f16;

use crate::planned::{Operation, Plan, random_operations, run_plan};
use crate::world::{run_busy, run_by_messages, run_group, run_over, run_over_cables, run_over_chain, run_over_hosts};

#[test]
fn random_operations_of_one_rank() {
    run_group(1, |group| random_operations(group, 150));
}

#[test]
fn random_operations_of_two_ranks() {
    run_group(2, |group| random_operations(group, 150));
}

#[test]
fn random_operations_of_three_ranks() {
    run_group(3, |group| random_operations(group, 100));
}

#[test]
fn random_operations_of_four_ranks() {
    run_group(4, |group| random_operations(group, 80));
}

#[test]
fn random_operations_of_five_ranks() {
    run_group(5, |group| random_operations(group, 60));
}

#[test]
fn random_operations_of_many_ranks() {
    run_group(7, |group| random_operations(group, 8));
}

/// As on machines with so many processors, where calls go other ways.
#[test]
fn random_operations_of_ranks_with_a_processor_each() {
    for (size, few) in [(3, 60), (5, 30), (8, 10), (17, 3)] {
        run_busy(size, |group| random_operations(group, few));
    }
}

#[test]
fn random_operations_by_messages() {
    for (size, few) in [(1, 10), (2, 100), (3, 60), (5, 30)] {
        run_by_messages(size, |group| random_operations(group, few));
    }
}

#[test]
fn random_operations_over_an_infiniband_device() {
    for (size, few) in [(2, 40), (4, 10)] {
        run_over(Profile::Infiniband, size, |group| random_operations(group, few));
    }
}

#[test]
fn random_operations_over_a_thunderbolt_device() {
    for (size, few) in [(2, 40), (4, 10)] {
        run_over(Profile::Thunderbolt, size, |group| random_operations(group, few));
    }
}

#[test]
fn random_operations_between_hosts() {
    for (profile, size, few) in
        [(Profile::Infiniband, 2, 40), (Profile::Infiniband, 4, 10), (Profile::Thunderbolt, 3, 20)]
    {
        run_over_hosts(profile, size, |group| random_operations(group, few));
    }
}

/// What is short is passed on.
#[test]
fn random_operations_of_many_ranks_by_messages() {
    for (size, few) in [(17, 3), (20, 3)] {
        run_by_messages(size, |group| random_operations(group, few));
    }
    for (size, few) in [(5, 20), (6, 20), (8, 10)] {
        run_over_hosts(Profile::Infiniband, size, |group| random_operations(group, few));
    }
}

/// Where the shares of an all-reduce are passed on, some of them shorter than others or empty.
#[test]
fn all_reduces_of_middle_length_of_many_ranks() {
    for size in [4, 5, 7, 8] {
        run_over_hosts(Profile::Infiniband, size, |group| {
            let lengths = (0..).zip([4_098, 4_224, 4_300, 30_000, 65_534, 65_536, 65_538]);
            for ((seed, bytes), (dtype, op)) in lengths
                .flat_map(|length| [(DType::F16, ReduceOp::Sum), (DType::U8, ReduceOp::Max)].map(|of| (length, of)))
            {
                let registered = vec![(seed % 2 == 0, seed % 3 == 0); size as usize];
                let (operation, count) = (Operation::AllReduce, bytes / dtype.size());
                let in_place = seed % 2 == 0;
                let (root, by_counts, algorithm) = (0, false, Some(Algorithm::PassedShares));
                run_plan(
                    group,
                    &Plan { seed, operation, dtype, op, count, root, in_place, by_counts, registered, algorithm },
                );
            }
        });
    }
}

/// Every type and reduction once on each path, so that none depends on the dice.
#[test]
fn every_type_and_reduction_on_every_path() {
    run_group(2, every_type_and_reduction);
    run_by_messages(2, every_type_and_reduction);
}

fn every_type_and_reduction(group: &Group) {
    for (seed, &dtype) in (0..).zip(DType::all()) {
        for &op in ReduceOp::all().iter().filter(|op| op.supports(dtype).is_ok()) {
            for (count, registered) in [(3, false), (700, false), (17_000, true), (17_000, false)] {
                let registered = vec![(registered, registered); 2];
                for operation in [Operation::AllReduce, Operation::ReduceScatter] {
                    let registered = registered.clone();
                    let (root, in_place, by_counts, algorithm) = (0, true, false, None);
                    let plan =
                        Plan { seed, operation, dtype, op, count, root, in_place, by_counts, registered, algorithm };
                    run_plan(group, &plan);
                }
            }
        }
    }
}

/// Every operation by every kind of memory, short and long, with equal parts and others, so that none depends on the dice.
#[test]
fn every_operation_on_every_path() {
    run_group(3, every_operation);
    run_busy(3, every_operation);
    run_by_messages(3, every_operation);
    run_over_hosts(Profile::Infiniband, 5, every_operation);
}

fn every_operation(group: &Group) {
    let ranks = group.size() as usize;
    let lengths = [0, 1, 7, 1_000, 5_000, 40_000, 200_000];
    for (seed, count) in (0..).zip(lengths) {
        for operation in Operation::ALL {
            for flags in 0..8 {
                let [registered, in_place, by_counts] = [1, 2, 4].map(|flag| flags & flag != 0);
                let registered = vec![(registered, registered); ranks];
                let (dtype, op, root, algorithm) = (DType::I16, ReduceOp::Sum, group.size() - 1, None);
                run_plan(
                    group,
                    &Plan { seed, operation, dtype, op, count, root, in_place, by_counts, registered, algorithm },
                );
            }
        }
    }
}

/// The result of f16 sums must be rounded once, after the last rank: that differs from rounding at each rank.
#[test]
fn halves_are_rounded_once() {
    for count in [4, 5_000, 50_000] {
        run_group(3, |group| {
            let term = [2048.0, 1.0, 1.0][group.rank() as usize];
            let mut data = group.alloc::<f16>(count).unwrap();
            data.fill(f16::from_f32(term));
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            // 2048 + 1 is 2048 in f16, which has 11 bits.
            assert!(data.iter().all(|sum| sum.to_f32() == 2050.0));
        });
    }
}

#[test]
fn all_kinds_of_plain_memory_are_data() {
    fn sum<D: Data<Element = i32> + ?Sized>(group: &Group, data: &mut D) {
        group.all_reduce(data, ReduceOp::Sum).unwrap();
    }
    run_group(2, |group| {
        let (mut array, mut vector) = ([1, 2], vec![1, 2]);
        sum(group, &mut array);
        sum(group, &mut vector);
        sum(group, &mut vector[..1]);
        sum(group, &mut &mut array[1..]);
        assert_eq!((array, vector), ([2, 8], vec![4, 4]));
    });
}

#[test]
fn random_operations_over_a_chain() {
    for (size, profile) in [(3, Profile::Thunderbolt), (4, Profile::Infiniband)] {
        run_over_chain(profile, size, |group| random_operations(group, 10));
    }
}

#[test]
fn random_operations_over_a_device_for_each_pair() {
    for (size, few) in [(3, 10), (4, 10)] {
        run_over_cables(Profile::Thunderbolt, size, |group| random_operations(group, few));
    }
}
