//! Calls that go on while the program does other things.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fulmen_collectives::{CollectiveError, Group, Handle, ReduceOp};
use fulmen_fabric::FabricError;
use fulmen_soft::Profile;

use crate::world::{run_by_messages, run_group, run_over_hosts};

fn on_every_path(size: u32, body: fn(&Group)) {
    run_group(size, body);
    run_by_messages(size, body);
    run_over_hosts(Profile::Infiniband, size, body);
}

fn sum(group: &Group, value: u64, count: usize) -> Handle<Vec<u64>> {
    group.start(vec![value; count], |group, data| group.all_reduce(data, ReduceOp::Sum))
}

#[test]
fn many_are_under_way_and_end_in_their_order() {
    on_every_path(3, |group| {
        let rank = u64::from(group.rank());
        let lengths = |turn: u64| [1, 700, 20_000][turn as usize % 3];
        let handles: Vec<_> = (0..30).map(|turn| sum(group, rank + turn, lengths(turn))).collect();
        // A direct call comes after them, on all ranks.
        let mut direct = [rank];
        group.all_reduce(&mut direct, ReduceOp::Max).unwrap();
        assert_eq!(direct, [2]);
        for (turn, handle) in (0..).zip(handles) {
            let (data, outcome) = handle.wait();
            outcome.unwrap();
            assert_eq!(data, vec![3 + 3 * turn; lengths(turn)]);
        }
    });
}

/// One starts what the other ones call.
#[test]
fn ranks_may_differ_in_what_they_start() {
    on_every_path(3, |group| {
        for turn in 0..20 {
            if turn % 3 == group.rank() {
                let (data, outcome) = sum(group, 1, 5_000).wait();
                outcome.unwrap();
                assert_eq!(data, vec![3; 5_000]);
            } else {
                let mut data = vec![1_u64; 5_000];
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, vec![3; 5_000]);
            }
        }
    });
}

#[test]
fn buffers_come_back_and_several_calls_are_one() {
    run_group(2, |group| {
        let mut data = group.alloc::<f32>(50_000).unwrap();
        data.fill(1.0);
        let mut handle = group.start(data, |group, data| {
            group.all_reduce(data, ReduceOp::Sum)?;
            group.barrier()?;
            group.all_reduce(data, ReduceOp::Mean)
        });
        let (data, outcome) = loop {
            match handle.test() {
                Ok(ended) => break ended,
                Err(again) => handle = again,
            }
            std::thread::yield_now();
        };
        outcome.unwrap();
        assert!(data.len() == 50_000 && data.iter().all(|value| *value == 2.0));
    });
}

/// What a call returns comes with its data: which elements, how many, another group.
#[test]
fn what_a_call_returns_is_told() {
    on_every_path(2, |group| {
        let scattered = group.start(vec![1u32; 8], |group, data| group.reduce_scatter_in_place(data, ReduceOp::Sum));
        let split = group.start((), |group, ()| group.split(Some(7), 0));
        let (data, range) = scattered.wait();
        let range = range.unwrap();
        assert_eq!((range.len(), &data[range]), (4, &[2; 4][..]));
        let ((), pair) = split.wait();
        pair.unwrap().expect("it has a colour").barrier().unwrap();
    });
}

#[test]
fn what_is_started_within_another_one_is_a_part_of_it() {
    on_every_path(2, |group| {
        let outer = group.start(vec![1_u64], |group, data| {
            let (inner, outcome) = sum(group, 2, 1).wait();
            outcome?;
            data.extend(inner);
            group.all_reduce(data, ReduceOp::Sum)
        });
        let after = sum(group, 5, 1);
        let (data, outcome) = outer.wait();
        outcome.unwrap();
        assert_eq!((data, after.wait().0), (vec![2, 8], vec![10]));
    });
}

#[test]
fn what_is_forgotten_goes_on() {
    on_every_path(2, |group| {
        for _ in 0..10 {
            drop(sum(group, 1, 10_000));
            std::mem::forget(sum(group, 1, 10));
        }
        let mut data = [1_u64];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [2]);
    });
}

/// Each group's call waits for what comes after the other one's.
#[test]
fn calls_that_wait_for_one_another_end() {
    on_every_path(2, |group| {
        let other = group.split(Some(0), 0).unwrap().unwrap();
        let patience = Duration::from_millis(300);
        let both_begun = std::sync::Arc::new(std::sync::Barrier::new(2));
        let cross = |here: &Group, there: &Group| {
            let (there, both_begun) = (there.with_deadline(patience), both_begun.clone());
            here.start((), move |_, ()| {
                both_begun.wait();
                there.barrier()
            })
        };
        let (one, two) = (cross(group, &other), cross(&other, group));
        let outcomes = [one.wait().1, two.wait().1];
        let behind = |outcome: &Result<(), CollectiveError>| matches!(outcome, Err(CollectiveError::Behind { .. }));
        assert!(outcomes.iter().any(behind), "{outcomes:?}");
    });
}

/// A call comes after all that was started, however long that takes, as long as it goes on.
#[test]
fn a_call_waits_for_many_that_go_on() {
    run_group(2, |group| {
        // Each waits so long for what nobody sends.
        let each = Duration::from_millis(200);
        let many: Vec<_> = (0..12)
            .map(|_| {
                group.start([0_u8], move |group, data| {
                    let missing = group.with_deadline(each).recv(data, 1 - group.rank(), 1).unwrap_err();
                    assert!(matches!(missing, CollectiveError::Fabric(FabricError::TimedOut { .. })), "{missing}");
                    group.barrier()
                })
            })
            .collect();
        group.with_deadline(Duration::from_secs(2)).barrier().unwrap();
        many.into_iter().for_each(|call| call.wait().1.unwrap());
    });
}

#[test]
fn what_fails_gives_its_data_back_and_says_why() {
    on_every_path(2, |group| {
        let group = group.with_deadline(Duration::from_secs(5));
        let first = sum(&group, 1, 3 + group.rank() as usize);
        let second = sum(&group, 1, 3);
        let (data, outcome) = first.wait();
        assert_eq!(data.len(), 3 + group.rank() as usize);
        assert!(matches!(outcome.unwrap_err(), CollectiveError::Mismatch { .. } | CollectiveError::Poisoned { .. }));
        let (_, outcome) = second.wait();
        assert!(matches!(outcome.unwrap_err(), CollectiveError::Poisoned { .. }));
        assert!(matches!(group.barrier().unwrap_err(), CollectiveError::Poisoned { .. }));
    });
}

/// As in a thread that is joined. The group is as it was: the panic was not in a call of its.
#[test]
fn a_panic_goes_to_whoever_waits() {
    run_group(2, |group| {
        let handle: Handle<()> = group.start((), |_, ()| panic!("as planned"));
        let panic = catch_unwind(AssertUnwindSafe(|| handle.wait())).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"as planned"));
        let (data, outcome) = sum(group, 1, 1).wait();
        outcome.unwrap();
        assert_eq!(data, [2]);
    });
}
