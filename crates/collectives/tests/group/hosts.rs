//! Ranks of several hosts, of which those of one map one another's memory.

use std::sync::Barrier;
use std::time::Duration;

use fulmen_collectives::{Algorithm, CollectiveError, Group, ReduceOp};
use fulmen_fabric::{FabricError, LinkKind};
use fulmen_soft::Profile;

use crate::planned::{Plan, random_operations, random_operations_by};
use crate::world::{Comes, Random, run_on_hosts, start_on_hosts};

/// Ranks that wait for one another in vain do so for this long.
const SHORT: Duration = Duration::from_secs(1);

#[test]
fn random_operations_of_hosts_of_any_sizes() {
    for (profile, hosts, few) in [
        (Profile::Infiniband, &[2, 2][..], 60),
        (Profile::Thunderbolt, &[1, 3], 40),
        (Profile::Infiniband, &[2, 1, 2], 30),
        (Profile::Infiniband, &[3, 3], 20),
        (Profile::Infiniband, &[2, 2, 1, 2], 10),
    ] {
        run_on_hosts(profile, hosts, |group| {
            random_operations(group, few);
            let algorithm = Some(Algorithm::Hosts);
            random_operations_by(group, few, |plan| Plan { algorithm, ..plan });
        });
    }
}

/// The order of additions shows: of all ranks' f32, one after the other, whatever hosts they are on.
#[test]
fn sums_of_any_length_have_the_bits_of_one_rank_after_the_other() {
    for hosts in [&[2, 2][..], &[3, 1, 2], &[1, 1, 1, 2]] {
        run_on_hosts(Profile::Infiniband, hosts, |group| {
            let by = group.with_algorithm(Some(Algorithm::Hosts));
            let numbers = |rank: u32, count: usize| -> Vec<f32> {
                let mut random = Random::new(u64::from(rank) + 7);
                (0..count).map(|_| random.below(1 << 40) as f32 / 1e4).collect()
            };
            for count in [1, 10, 11, 1000, 1025, 4096, 4097, 20_000, 100_003, 1_200_001] {
                let mut expected = vec![0_f32; count];
                for rank in 0..group.size() {
                    let add = |(sum, number): (&mut f32, f32)| *sum = if rank == 0 { number } else { *sum + number };
                    expected.iter_mut().zip(numbers(rank, count)).for_each(add);
                }
                let bits = |data: &[f32]| data.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
                let mut data = numbers(group.rank(), count);
                by.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(bits(&data), bits(&expected), "{count} on {hosts:?}");
                let mut buffer = group.alloc::<f32>(count).unwrap();
                by.all_reduce_into(&numbers(group.rank(), count), &mut buffer, ReduceOp::Sum).unwrap();
                assert_eq!(bits(&buffer), bits(&expected), "{count} on {hosts:?}");
            }
        });
    }
}

#[test]
fn ranks_of_a_host_talk_over_shared_memory() {
    run_on_hosts(Profile::Infiniband, &[2, 2], |group| {
        let fabric = group.fabric();
        for peer in (0..4).filter(|peer| *peer != group.rank()) {
            let near = peer / 2 == group.rank() / 2;
            assert_eq!(fabric.link_to(peer), if near { LinkKind::SharedMemory } else { LinkKind::Device });
        }
        assert_eq!(fabric.link_kind(), LinkKind::Device);
        // A group of one host's ranks does not go by messages: there, this algorithm is refused for sums of f32.
        let host = group.split(Some(group.rank() / 2), 0).unwrap().unwrap();
        let sum = |group: &Group| {
            group.with_algorithm(Some(Algorithm::Ring)).all_reduce(&mut vec![1_f32; 5000], ReduceOp::Sum)
        };
        sum(&host).unwrap();
        let both = group.split(Some(0), 0).unwrap().unwrap();
        assert!(matches!(sum(&both), Err(CollectiveError::Invalid { .. })));
        for group in [&host, &both, group] {
            random_operations(group, 5);
        }
    });
}

/// Ranks in another order: those of a host do not lie side by side.
#[test]
fn hosts_whose_ranks_are_mixed_go_by_messages() {
    run_on_hosts(Profile::Infiniband, &[2, 2], |group| {
        let mixed = group.from_ranks(&[0, 2, 1, 3]).unwrap().unwrap();
        random_operations(&mixed, 10);
        let by_hosts = mixed.with_algorithm(Some(Algorithm::Hosts));
        let refused = by_hosts.all_reduce(&mut [1_i32; 10], ReduceOp::Sum).unwrap_err();
        assert!(refused.to_string().contains("hosts"), "{refused}");
    });
}

/// What a rank calls, by its number.
fn call(group: &Group, which: usize) -> Result<(), CollectiveError> {
    let mut data = vec![group.rank() as i32; 50_000];
    let by = |algorithm| group.with_algorithm(Some(algorithm));
    match which {
        0 => by(Algorithm::Hosts).all_reduce(&mut data, ReduceOp::Sum),
        1 => by(Algorithm::Hosts).all_reduce(&mut data, ReduceOp::Max),
        2 => by(Algorithm::Hosts).all_reduce(&mut data[..100], ReduceOp::Sum),
        3 => by(Algorithm::Chain).all_reduce(&mut data, ReduceOp::Sum),
        4 => by(Algorithm::Whole).all_reduce(&mut data[..100], ReduceOp::Sum),
        5 => by(Algorithm::Tree).broadcast(&mut data, 1),
        6 => by(Algorithm::Chain).reduce(&mut data, ReduceOp::Sum, 0),
        _ => by(Algorithm::Hosts).barrier(),
    }
}

/// Whatever ranks call, on one host or on both, nobody waits until the deadline.
#[test]
fn ranks_that_call_different_things_are_told() {
    for (one, other) in (0..8).flat_map(|one| (0..one).map(move |other| (one, other))) {
        // A rank inside its host, one beside the other host, and a whole host.
        for differ in [&[0][..], &[2], &[0, 1, 2]] {
            run_on_hosts(Profile::Infiniband, &[3, 2], |group| {
                let which = if differ.contains(&group.rank()) { one } else { other };
                // Some have no more to do with those that differ: a next call tells them.
                let outcome = call(group, which).and_then(|()| group.barrier()).and_then(|()| group.barrier());
                let told = matches!(outcome, Err(CollectiveError::Mismatch { .. } | CollectiveError::Poisoned { .. }));
                assert!(told, "{one} at {differ:?} and {other}: rank {} has {outcome:?}", group.rank());
            });
        }
    }
}

#[test]
fn a_rank_that_calls_something_else_is_named() {
    let errors = run_on_hosts(Profile::Infiniband, &[2, 2], |group| {
        call(group, if group.rank() == 3 { 1 } else { 0 }).unwrap_err()
    });
    // Who compares with it finds it, be it in the windows or by a message, if nobody else has told it before.
    let found = |error: &CollectiveError| matches!(error, CollectiveError::Mismatch { .. });
    assert!(errors.iter().any(found), "{errors:?}");
    for (rank, error) in errors.iter().enumerate() {
        let named = rank == 3 || !found(error) || matches!(error, CollectiveError::Mismatch { rank: 3, .. });
        let text = error.to_string();
        assert!(named, "rank {rank}: {text}");
        assert!(text.contains("call it alike") && text.contains("max") && text.contains("sum"), "{text}");
    }
}

/// Rank 3 does not come.
#[test]
fn ranks_that_wait_in_vain_name_who_may_be_missing() {
    for which in [0, 2, 7] {
        let meet = Barrier::new(4);
        run_on_hosts(Profile::Infiniband, &[2, 2], |group| {
            let _until_all_have_given_up = Comes(&meet);
            if group.rank() < 3 {
                let error = call(&group.with_deadline(SHORT), which).unwrap_err();
                let expected: &[u32] = if group.rank() == 2 { &[3] } else { &[2, 3] };
                let named = match &error {
                    CollectiveError::Fabric(FabricError::TimedOut { missing, .. }) => missing == expected,
                    CollectiveError::Poisoned { cause } => cause.contains("timed out") || cause.contains("waited"),
                    _ => false,
                };
                assert!(named, "{which}: rank {} has {error:?}", group.rank());
            }
        });
    }
}

/// Rank 3 leaves without a call.
#[test]
fn a_rank_that_leaves_ends_calls_of_all_hosts() {
    for which in [0, 2, 7] {
        start_on_hosts(Profile::Thunderbolt, &[2, 2], |fabric| {
            let group = Group::new(fabric).unwrap();
            group.barrier().unwrap();
            if group.rank() == 3 {
                return;
            }
            let error = call(&group, which).unwrap_err();
            let lost = matches!(
                error,
                CollectiveError::Fabric(FabricError::PeerLost { rank: 3, .. }) | CollectiveError::Poisoned { .. }
            );
            assert!(lost, "{which}: rank {} has {error:?}", group.rank());
        });
    }
}
