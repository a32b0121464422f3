//! Ranks that disagree, do not come, or go.

use std::sync::Barrier;
use std::time::Duration;

use fulmen_collectives::{CollectiveError, Complex64, Group, ReduceOp};
use fulmen_fabric::{FabricError, Providers};
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::{FaultPlan, Faulty, Odds};

use crate::ranks::{start, start_with};
use crate::world::{Random, rounds, run, run_by_messages, run_group, run_over, run_over_hosts};

/// Ranks that wait for one another in vain do so for this long.
const SHORT: Duration = Duration::from_secs(3);

type Call = fn(&Group, usize) -> Result<(), CollectiveError>;

fn sum_f32(group: &Group, count: usize) -> Result<(), CollectiveError> {
    group.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
}

fn sum_registered(group: &Group, count: usize) -> Result<(), CollectiveError> {
    group.all_reduce(&mut group.alloc::<f32>(count).unwrap(), ReduceOp::Sum)
}

/// Calls that differ from a sum of f32 in one thing each.
const OTHERS: [(&str, Call); 16] = [
    ("longer", |group, count| sum_f32(group, count + 1)),
    ("much longer", |group, count| sum_f32(group, count + 300_000)),
    ("shorter", |group, count| sum_f32(group, count - 1)),
    ("of another type", |group, count| group.all_reduce(&mut vec![1i32; count], ReduceOp::Sum)),
    ("another reduction", |group, count| group.all_reduce(&mut vec![1f32; count], ReduceOp::Max)),
    ("another operation", |group, count| group.broadcast(&mut vec![1f32; count], 0)),
    ("a gathering", |group, count| {
        group.all_gather(&vec![1f32; count], &mut vec![0f32; count * group.size() as usize])
    }),
    ("a reduction at one rank", |group, count| group.reduce(&mut vec![1f32; count], ReduceOp::Sum, 0)),
    ("a scan", |group, count| group.scan(&mut vec![1f32; count], ReduceOp::Sum)),
    ("parts by counts", |group, count| {
        let counts = vec![count; group.size() as usize];
        group.all_gather_v(&vec![1f32; count], &mut vec![0f32; count * counts.len()], &counts)
    }),
    ("a barrier", |group, _| group.barrier()),
    ("with a tag", |group, count| sum_f32(&group.with_tag(9), count)),
    ("a scattering of a reduction", |group, count| {
        group.reduce_scatter(&vec![1f32; count * group.size() as usize], &mut vec![0f32; count], ReduceOp::Sum)
    }),
    ("parts for each", |group, count| {
        let len = count * group.size() as usize;
        group.all_to_all(&vec![1f32; len], &mut vec![0f32; len])
    }),
    ("a list", |group, count| group.all_reduce_list(&mut [vec![1f32; count]], ReduceOp::Sum)),
    ("a split", |group, _| group.split(Some(0), 0).map(drop)),
];

/// Pairs of calls of which one begins by telling all ranks just as many numbers as the other one gathers.
const ALIKE: [(&str, Call, Call); 4] = [
    (
        "the counts of an all_to_all_v",
        |group, _| {
            let one = vec![1; group.size() as usize];
            group.all_to_all_v(&vec![5u64; one.len()], &one, &mut vec![0u64; one.len()], &one)
        },
        |group, _| gather_u64(group, 2 * group.size() as usize),
    ),
    ("what a split tells", |group, _| group.split(Some(1), 0).map(drop), |group, _| gather_u64(group, 4)),
    ("the list of from_ranks", |group, _| group.from_ranks(&[0]).map(drop), |group, _| gather_u64(group, 1)),
    ("a split and from_ranks", |group, _| group.from_ranks(&[0]).map(drop), |group, _| group.split(None, 0).map(drop)),
];

fn gather_u64(group: &Group, count: usize) -> Result<(), CollectiveError> {
    group.all_gather(&vec![1u64; count], &mut vec![0u64; count * group.size() as usize])
}

/// What ranks tell one another is nobody's data.
#[test]
fn what_begins_with_as_many_numbers_is_told_apart() {
    let body = |group: &Group| {
        ALIKE.map(|(_, one, other)| {
            let group = Group::clone(&group.split(Some(0), 0).unwrap().unwrap()).with_deadline(SHORT);
            (if group.rank() == 1 { one(&group, 0) } else { other(&group, 0) }).unwrap_err()
        })
    };
    for all in [run_group(2, body), run_by_messages(2, body), run_over_hosts(Profile::Infiniband, 3, body)] {
        for (turn, (what, ..)) in ALIKE.iter().enumerate() {
            check_mismatch(what, &all.iter().map(|errors| errors[turn].clone()).collect::<Vec<_>>());
        }
    }
}

/// Two calls of one shape, in another order on one rank.
#[test]
fn calls_with_tags_are_told_apart() {
    let body = |group: &Group| {
        let first_layer = |tag| group.with_tag(tag).all_reduce(&mut [1f32; 100], ReduceOp::Sum);
        for tag in [1, u16::MAX, 0] {
            first_layer(tag).unwrap();
        }
        let group = group.with_deadline(SHORT);
        let order = if group.rank() == 0 { [1, 2] } else { [2, 1] };
        order.into_iter().find_map(|tag| group.with_tag(tag).all_reduce(&mut [1f32; 100], ReduceOp::Sum).err()).unwrap()
    };
    for errors in [run_group(3, body), run_by_messages(3, body), run_over_hosts(Profile::Infiniband, 3, body)] {
        check_mismatch("another order", &errors);
        let named = |error: &CollectiveError| error.to_string().contains("with the tag 2");
        assert!(errors.iter().any(named), "{errors:?}");
    }
}

/// How a rank hears of a call that others did not make alike: by its error, or, if it had no need of others, by that of the next one.
fn told(group: &Group, result: Result<(), CollectiveError>) -> CollectiveError {
    result.and_then(|()| group.barrier()).unwrap_err()
}

fn check_mismatch(what: &str, results: &[CollectiveError]) {
    let mut mismatches = 0;
    for error in results {
        match error {
            CollectiveError::Mismatch { mine, theirs, .. } => {
                assert_ne!(mine, theirs, "{what}");
                mismatches += 1;
            }
            CollectiveError::Poisoned { cause } => assert!(cause.contains("call it alike"), "{what}: {cause}"),
            other => panic!("{what}: {other}"),
        }
    }
    assert!(mismatches > 0, "{what}: {results:?}");
}

#[test]
fn ranks_that_call_different_things_all_fail() {
    // In the announcement, in the slot, staged.
    for count in [4, 1_000, 100_000] {
        let all = run(3, |fabric| {
            let mut errors = Vec::new();
            for (turn, (_, call)) in OTHERS.iter().enumerate() {
                let group = Group::new(fabric.clone()).unwrap().with_deadline(SHORT);
                group.barrier().unwrap();
                let differs = group.rank() as usize == turn % 3;
                let result = if differs { call(&group, count) } else { sum_f32(&group, count) };
                errors.push(told(&group, result));
                // From now on nothing goes, at once, on any rank.
                let later = group.barrier().unwrap_err();
                assert!(matches!(later, CollectiveError::Poisoned { .. }), "{later}");
            }
            errors
        });
        for (turn, (what, _)) in OTHERS.iter().enumerate() {
            let errors: Vec<_> = all.iter().map(|errors| errors[turn].clone()).collect();
            check_mismatch(&format!("{what}, {count}"), &errors);
        }
    }
}

#[test]
fn ranks_with_registered_memory_that_disagree_all_fail() {
    let all = run(2, |fabric| {
        let mut errors = Vec::new();
        for (_, call) in OTHERS {
            let group = Group::new(fabric.clone()).unwrap().with_deadline(SHORT);
            let result = if group.rank() == 1 { call(&group, 100_000) } else { sum_registered(&group, 100_000) };
            errors.push(told(&group, result));
        }
        errors
    });
    for (turn, (what, _)) in OTHERS.iter().enumerate() {
        check_mismatch(what, &[all[0][turn].clone(), all[1][turn].clone()]);
    }
}

#[test]
fn ranks_that_call_different_things_by_messages_all_fail() {
    for count in [4, 100_000] {
        for (turn, (what, call)) in OTHERS.into_iter().enumerate() {
            let body = |group: &Group| {
                let group = group.with_deadline(SHORT);
                let result = if group.rank() == 1 { call(&group, count) } else { sum_f32(&group, count) };
                let later = group.barrier().unwrap_err();
                assert!(matches!(later, CollectiveError::Poisoned { .. }), "{later}");
                result.unwrap_err()
            };
            let errors = match turn % 4 {
                0 => run_by_messages(3, body),
                1 => run_over(Profile::Infiniband, 3, body),
                2 => run_over_hosts(Profile::Infiniband, 3, body),
                _ => run_over(Profile::Thunderbolt, 3, body),
            };
            check_mismatch(&format!("{what}, {count}"), &errors);
        }
    }
}

/// So many ranks on hosts pass on what is short.
const MANY: u32 = 6;

#[test]
fn many_ranks_that_call_different_things_all_fail() {
    // What is passed on whole, and in shares.
    for (count, (what, call)) in [4, 5_000].into_iter().flat_map(|count| OTHERS.map(|other| (count, other))) {
        let errors = run_over_hosts(Profile::Infiniband, MANY, |group| {
            let group = group.with_deadline(SHORT);
            group.barrier().unwrap();
            let result = if group.rank() == 4 { call(&group, count) } else { sum_f32(&group, count) };
            let later = group.barrier().unwrap_err();
            assert!(matches!(later, CollectiveError::Poisoned { .. }), "{later}");
            result.unwrap_err()
        });
        check_mismatch(&format!("{what}, {count}"), &errors);
        for error in (0..).zip(&errors).filter(|(rank, _)| *rank != 4).map(|(_, error)| error) {
            assert!(!matches!(error, CollectiveError::Mismatch { rank, .. } if *rank != 4), "{what}: {errors:?}");
        }
    }
}

/// Ranks that fail in a call have done their part in the one before it.
#[test]
fn who_is_still_in_a_call_when_others_fail_in_the_next_one_ends_it() {
    // As many as have room in a world.
    const TURNS: u32 = 12;
    for _ in 0..rounds(3) {
        run_over_hosts(Profile::Infiniband, MANY, |world| {
            for turn in 0..TURNS {
                let group = Group::new(world.fabric().clone()).unwrap();
                group.barrier().unwrap_or_else(|error| panic!("turn {turn}: {error}"));
                let result = if group.rank() == 4 { group.barrier() } else { sum_f32(&group, 4) };
                result.unwrap_err();
            }
        });
    }
}

#[test]
fn one_of_many_ranks_that_does_not_come_is_named() {
    one_does_not_come(Group::barrier);
    one_does_not_come(|group| sum_f32(group, 5_000));
}

fn one_does_not_come(call: fn(&Group) -> Result<(), CollectiveError>) {
    let together = Barrier::new(MANY as usize);
    let errors = run_over_hosts(Profile::Infiniband, MANY, |group| {
        group.barrier().unwrap();
        // Who leaves that barrier late does not come either, as far as the others can tell.
        together.wait();
        let result = if group.rank() == 3 { Ok(()) } else { call(&group.with_deadline(SHORT)) };
        together.wait();
        result.err()
    });
    let mut timed_out = 0;
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 3) {
        match error.as_ref().unwrap() {
            // What was to come through the one before it came from it alone.
            CollectiveError::Fabric(FabricError::TimedOut { missing, .. }) => {
                timed_out += 1;
                assert!(missing.contains(&3) && (rank != 2 || *missing == [3]), "{rank}: {missing:?}");
            }
            CollectiveError::Poisoned { cause } => assert!(cause.contains('3'), "{rank}: {cause}"),
            other => panic!("{rank}: {other}"),
        }
    }
    assert!(timed_out > 0, "{errors:?}");
}

#[test]
fn a_rank_that_does_not_come_by_messages_is_named() {
    let over = Barrier::new(2);
    run_by_messages(2, |group| {
        if group.rank() == 1 {
            over.wait();
            let late = group.barrier().unwrap_err();
            assert!(matches!(&late, CollectiveError::Poisoned { cause } if cause.contains("rank 0")), "{late}");
            return;
        }
        let error = group.with_deadline(Duration::from_millis(100)).barrier().unwrap_err();
        let timed_out =
            matches!(&error, CollectiveError::Fabric(FabricError::TimedOut { missing, .. }) if *missing == [1]);
        assert!(timed_out, "{error}");
        over.wait();
    });
}

#[test]
fn groups_on_one_fabric_do_not_disturb_one_another() {
    for profile in [None, Some(Profile::Infiniband), Some(Profile::Thunderbolt)] {
        start(2, profile, |fabric| {
            let form = |turn: u32| match turn {
                // By messages even where there are windows.
                0 => Group::by_messages(fabric.clone()).unwrap(),
                _ => Group::new(fabric.clone()).unwrap(),
            };
            for turn in 0..4 {
                let (one, other) = (form(turn % 2), form(turn / 2));
                for group in [&one, &other, &one] {
                    let mut data = vec![1u32; 10_000];
                    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    assert!(data.iter().all(|sum| *sum == 2));
                }
                // One fails; the other does not hear of it, also if it was formed before.
                let root = u32::from(turn % 2 == 1 && one.rank() == 1);
                let failed = other.with_deadline(SHORT).broadcast(&mut [0u8; 3], root);
                if turn % 2 == 1 {
                    told(&other, failed);
                    assert!(matches!(other.barrier().unwrap_err(), CollectiveError::Poisoned { .. }));
                }
                one.barrier().unwrap();
                drop(other);
                one.barrier().unwrap();
            }
        });
    }
}

#[test]
fn a_rank_whose_pool_is_full_tells_the_others() {
    let errors = start(2, Some(Profile::Infiniband), |fabric| {
        let full = (fabric.rank() == 1).then(|| fabric.alloc(fabric.pool().stats().largest).unwrap());
        let error = Group::new(fabric.clone()).unwrap_err();
        drop(full);
        // They can try again.
        Group::new(fabric).unwrap().barrier().unwrap();
        error
    });
    assert!(matches!(errors[1], CollectiveError::Fabric(FabricError::Pool { .. })), "{}", errors[1]);
    let told = matches!(&errors[0], CollectiveError::Fabric(FabricError::PeerFailed { rank: 1, problem, .. })
        if problem.contains("FULMEN_POOL"));
    assert!(told, "{}", errors[0]);
}

#[test]
fn ranks_that_name_different_roots_all_fail() {
    for count in [1, 2_000, 200_000] {
        let errors = run_group(3, |group| {
            let group = group.with_deadline(SHORT);
            told(&group, group.broadcast(&mut vec![0u8; count], group.rank() % 2))
        });
        check_mismatch("root", &errors);
        // Each of two ranks gives, and has no need of the other one.
        for error in run_group(2, |group| told(group, group.broadcast(&mut vec![0u8; count], group.rank()))) {
            let named = matches!(&error, CollectiveError::Mismatch { sequence: 1, .. });
            assert!(named || matches!(error, CollectiveError::Poisoned { .. }), "{error}");
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_and_the_buffer_stays_usable() {
    let over = Barrier::new(2);
    run_group(2, |group| {
        if group.rank() == 1 {
            over.wait();
            // As if it had been stopped: it finds everything that it waits for, and memory that is used for other things.
            let mut data = group.alloc::<f64>(10_000).unwrap();
            let late = group.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
            assert!(matches!(&late, CollectiveError::Poisoned { cause } if cause.contains("rank 0")), "{late}");
            return;
        }
        let mut data = group.alloc::<f64>(10_000).unwrap();
        data.fill(1.0);
        let error = group.with_deadline(Duration::from_millis(100)).all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
        let timed_out =
            matches!(&error, CollectiveError::Fabric(FabricError::TimedOut { missing, .. }) if *missing == [1]);
        assert!(timed_out, "{error}");
        // Peers may write to the memory that it had, so it has other memory.
        assert_eq!(data.to_vec(), vec![0.0; 10_000]);
        data.fill(2.0);
        let again = group.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
        assert!(matches!(&again, CollectiveError::Poisoned { cause } if cause.contains("waited")), "{again}");
        over.wait();
    });
}

#[test]
fn a_rank_that_leaves_ends_the_others() {
    run_group(3, |group| {
        group.barrier().unwrap();
        if group.rank() == 2 {
            return;
        }
        let error = loop {
            if let Err(error) = group.barrier() {
                break error;
            }
        };
        match error {
            CollectiveError::Fabric(FabricError::PeerLost { rank: 2, .. }) => {}
            CollectiveError::Poisoned { cause } if cause.contains("rank 2 was lost") => {}
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_rank_may_leave_as_soon_as_its_last_operation_is_over() {
    let body = |group: &Group| {
        let mut data = vec![1u64; 50_000];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert!(data.iter().all(|sum| *sum == 3));
        let mut registered = group.alloc::<u64>(50_000).unwrap();
        registered.fill(1);
        group.all_reduce(&mut registered, ReduceOp::Sum).unwrap();
        assert!(registered.iter().all(|sum| *sum == 3));
        group.broadcast(&mut data, 0).unwrap();
    };
    for _ in 0..10 {
        run_group(3, body);
        run_by_messages(3, body);
        run_over(Profile::Thunderbolt, 3, body);
    }
}

#[test]
fn of_two_ranks_one_may_ask_for_the_next_group_as_soon_as_its_last_operation_is_over() {
    let body = |group: &Group| {
        let mut group = group.clone();
        for cycle in 0..rounds(5) {
            let mut data = vec![1u64; 500];
            for call in 1..=3 {
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap_or_else(|error| panic!("cycle {cycle}: {error}"));
                assert!(data.iter().all(|sum| *sum == 1 << call));
            }
            group = group.rejoin().unwrap();
        }
    };
    run_group(2, body);
    run_by_messages(2, body);
    for profile in [Profile::Infiniband, Profile::Thunderbolt] {
        run_over(profile, 2, body);
        run_over_hosts(profile, 2, body);
    }
    // The other one may have got all, and not hear any more that what it sent has arrived.
    let devices = |rank, node| {
        let plan = FaultPlan { drop: Odds::one_in(3), ..FaultPlan::quiet(rank) };
        let device = SoftDevice::open(&node, Profile::Thunderbolt).unwrap();
        Providers { devices: vec![Faulty::new(device, plan)], ..Providers::default() }
    };
    start_with(2, false, |rank, node| devices(rank.into(), node), |fabric| body(&Group::new(fabric).unwrap()));
}

#[test]
fn what_makes_no_sense_is_refused_and_harms_nobody() {
    run_group(2, |group| {
        let mut complex = [Complex64::new(1.0, 2.0); 3];
        for op in [ReduceOp::Min, ReduceOp::Max] {
            for error in [
                group.all_reduce(&mut complex, op).unwrap_err(),
                group.all_reduce_into(&complex.clone(), &mut complex, op).unwrap_err(),
                group.reduce_scatter(&[Complex64::default(); 6], &mut complex, op).unwrap_err(),
                group.reduce_scatter_in_place(&mut complex, op).unwrap_err(),
            ] {
                assert!(matches!(error, CollectiveError::Unsupported(_)), "{error}");
            }
        }
        let sum = ReduceOp::Sum;
        for error in [
            group.all_reduce_into(&[1f32; 3], &mut [0f32; 4], sum).unwrap_err(),
            group.all_gather(&[1f32; 3], &mut [0f32; 7]).unwrap_err(),
            group.all_gather_in_place(&mut [0f32; 7]).unwrap_err(),
            group.reduce_scatter(&[1f32; 5], &mut [0f32; 3], sum).unwrap_err(),
            group.reduce_scatter_in_place(&mut [0f32; 5], sum).unwrap_err(),
            group.broadcast(&mut [0f32; 5], 2).unwrap_err(),
            group.alloc::<u64>(usize::MAX).unwrap_err(),
        ] {
            assert!(matches!(error, CollectiveError::Invalid { .. }), "{error}");
            assert!(!error.to_string().contains('\n'));
        }
        assert!(matches!(group.alloc::<u8>(1 << 40).unwrap_err(), CollectiveError::Fabric(FabricError::Pool { .. })));
        group.all_reduce(&mut complex, sum).unwrap();
        assert_eq!(complex[2], Complex64::new(2.0, 4.0));
    });
}

/// Ranks that do nothing together but come and go: none of them may need one that has gone already.
#[test]
fn ranks_that_start_and_leave_at_once_all_succeed() {
    for round in 0..rounds(20) {
        run(4, |fabric| {
            let mut random = Random::new(round << 2 | u64::from(fabric.rank()));
            // They go through the steps out of step; the outcome is the same whatever the delays.
            std::thread::sleep(Duration::from_micros(random.below(3000)));
            drop(Group::new(fabric).unwrap());
        });
    }
}

#[test]
fn a_rank_that_does_not_come_can_come_later() {
    let come = Barrier::new(3);
    let go_on = |group: Group| {
        if group.rank() != 2 {
            let short = group.with_deadline(Duration::from_millis(300));
            let error = short.barrier().unwrap_err();
            let late = matches!(&error, CollectiveError::Fabric(FabricError::TimedOut { missing, .. }) if missing.contains(&2));
            assert!(late || matches!(error, CollectiveError::Poisoned { .. }), "{error}");
            let error = short.shrink().unwrap_err();
            assert!(matches!(error, CollectiveError::Recovery { operation: "shrink", .. }), "{error}");
        }
        come.wait();
        let (clone, mut buffer) = (group.clone(), group.alloc::<u32>(100_000).unwrap());
        let next = group.shrink().unwrap();
        assert_eq!((next.members(), next.failed()), (&[0, 1, 2][..], &[][..]));
        for old in [&group, &clone] {
            let error = old.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::Poisoned { .. }), "{error}");
            let error = old.send(&[1u8], (old.rank() + 1) % 3, 1).unwrap_err();
            assert!(matches!(error, CollectiveError::Fabric(_)), "{error}");
        }
        // Buffers of the old group.
        buffer.fill(next.rank() + 1);
        next.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert!(buffer.iter().all(|sum| *sum == 6));
        let error = group.shrink().unwrap_err();
        assert!(matches!(error, CollectiveError::Recovery { .. }), "{error}");
    };
    run(3, |fabric| go_on(Group::new(fabric).unwrap()));
    run(3, |fabric| go_on(Group::by_messages(fabric).unwrap()));
    for profile in [Profile::Infiniband, Profile::Thunderbolt] {
        start(3, Some(profile), |fabric| go_on(Group::new(fabric).unwrap()));
    }
}

#[test]
fn a_thread_in_the_middle_of_an_operation_is_waited_for() {
    run(2, |fabric| {
        let group = Group::new(fabric).unwrap();
        std::thread::scope(|scope| {
            // Calls of another group, over and over, until the fabric ends beneath it.
            let other = Group::new(group.fabric().clone()).unwrap();
            let working = scope.spawn(move || {
                let mut data = other.alloc::<f32>(50_000).unwrap();
                loop {
                    if let Err(error) = other.all_reduce(&mut data, ReduceOp::Max) {
                        break error;
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(30));
            let next = group.shrink().unwrap();
            let error = working.join().unwrap();
            assert!(matches!(error, CollectiveError::Poisoned { .. } | CollectiveError::Fabric(_)), "{error}");
            next.barrier().unwrap();
        });
    });
}
