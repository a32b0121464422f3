//! Groups of some ranks, over the same links.

use std::thread;
use std::time::Duration;

use fulmen_collectives::{CollectiveError, Group, ReduceOp};
use fulmen_fabric::FabricError;
use fulmen_soft::Profile;

use crate::planned::random_operations;
use crate::world::{run_by_messages, run_group, run_on_hosts, run_over, run_over_hosts};

fn on_every_path(size: u32, body: fn(&Group)) {
    run_group(size, body);
    run_by_messages(size, body);
    run_over(Profile::Thunderbolt, size, body);
    run_over_hosts(Profile::Infiniband, size, body);
    run_on_hosts(Profile::Infiniband, &[2, size - 2], body);
}

/// The ranks of `world` that each rank of a group is, as it tells them itself.
fn members(world: &Group, group: &Group) -> Vec<u32> {
    let mut ranks = vec![0; group.size() as usize];
    group.all_gather(&[world.rank()], &mut ranks).unwrap();
    ranks
}

#[test]
fn colours_make_groups_and_keys_their_order() {
    on_every_path(5, |world| {
        let rank = world.rank();
        let group = world.split((rank != 4).then_some(rank % 2), -i64::from(rank)).unwrap();
        match rank {
            4 => assert!(group.is_none()),
            _ => {
                let group = group.unwrap();
                let expected = if rank % 2 == 0 { [2, 0] } else { [3, 1] };
                assert_eq!(members(world, &group), expected);
                assert_eq!((group.members(), group.in_fabric(group.rank())), (&expected[..], rank));
                random_operations(&group, 10);
            }
        }
        // The one of all goes on, and is split again, by another thread than before.
        let again = thread::scope(|scope| scope.spawn(|| world.split(Some(7), 0)).join().unwrap()).unwrap().unwrap();
        assert_eq!(members(world, &again), [0, 1, 2, 3, 4]);
    });
}

#[test]
fn groups_of_groups_are_groups() {
    on_every_path(5, |world| {
        let Some(some) = world.from_ranks(&[4, 2, 0, 1]).unwrap() else { return };
        assert_eq!(members(world, &some), [4, 2, 0, 1]);
        let halves = some.split(Some(some.rank() / 2), 0).unwrap().unwrap();
        assert_eq!(members(world, &halves), if some.rank() < 2 { [4, 2] } else { [0, 1] });
        let alone = halves.split(Some(halves.rank()), 0).unwrap().unwrap();
        assert_eq!((alone.size(), members(world, &alone)), (1, vec![world.rank()]));
        random_operations(&halves, 5);
        random_operations(&some, 5);
    });
}

/// Each rank is in a row and in a column, and calls of both are under way at once, in whatever order.
#[test]
fn calls_of_several_groups_are_under_way_at_once() {
    on_every_path(4, |world| {
        let (row, column) = (world.rank() / 2, world.rank() % 2);
        let rows = world.split(Some(row), 0).unwrap().unwrap();
        let columns = world.split(Some(column), 0).unwrap().unwrap();
        for turn in 0..20_u32 {
            let sum = |group: &Group| {
                let data = vec![world.rank() + turn; 3_000];
                group.start(data, |group, data| group.all_reduce(data, ReduceOp::Sum))
            };
            // Some begin with one, some with the other.
            let (in_row, in_column) = if column == 0 {
                let in_row = sum(&rows);
                (in_row, sum(&columns))
            } else {
                let in_column = sum(&columns);
                (sum(&rows), in_column)
            };
            world.barrier().unwrap();
            for (handle, expected) in [(in_row, 4 * row + 1), (in_column, 2 * column + 2)] {
                let (data, outcome) = handle.wait();
                outcome.unwrap();
                assert_eq!(data, vec![expected + 2 * turn; 3_000]);
            }
        }
    });
}

#[test]
fn messages_go_to_ranks_of_the_group() {
    on_every_path(3, |world| {
        let Some(pair) = world.from_ranks(&[2, 1]).unwrap() else { return };
        let other = 1 - pair.rank();
        let mut theirs = [0];
        assert_eq!(pair.send_recv(&[world.rank()], other, &mut theirs, other, 5).unwrap(), 1);
        assert_eq!(theirs, [3 - world.rank()]);
        let error = pair.send(&[1], 2, 0).unwrap_err();
        assert!(matches!(&error, CollectiveError::Fabric(FabricError::NoSuchRank { rank: 2, size: 2, .. })), "{error}");
    });
}

/// A group fails alone.
#[test]
fn what_fails_in_one_group_does_not_touch_the_others() {
    on_every_path(4, |world| {
        let group = world.split(Some(world.rank() % 2), 0).unwrap().unwrap();
        if world.rank() % 2 == 0 {
            let mut data = vec![1_u8; 4 + world.rank() as usize];
            let error = group.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
            assert!(matches!(error, CollectiveError::Mismatch { .. } | CollectiveError::Poisoned { .. }), "{error}");
        } else {
            random_operations(&group, 3);
        }
        world.barrier().unwrap();
        assert!(world.split(Some(0), 0).unwrap().unwrap().barrier().is_ok());
    });
}

/// One that has left is missed by the groups that it is in, and by no others.
#[test]
fn a_rank_that_leaves_is_missed_in_its_groups_alone() {
    let body = |world: &Group| {
        let pair = world.from_ranks(&[0, 1]).unwrap();
        let with_last = world.split((world.rank() != 0).then_some(0), 0).unwrap();
        world.barrier().unwrap();
        if world.rank() == 2 {
            return;
        }
        if let Some(group) = with_last {
            let group = group.with_deadline(Duration::from_secs(20));
            // What it said before it left may be enough for a barrier or two.
            let error = (0..3).find_map(|_| group.barrier().err()).unwrap();
            assert!(matches!(&error, CollectiveError::Fabric(FabricError::PeerLost { rank: 2, .. })), "{error}");
        }
        random_operations(&pair.unwrap(), 10);
    };
    run_group(3, body);
    run_over_hosts(Profile::Infiniband, 3, body);
}

#[test]
fn lists_that_are_none_are_refused_and_nothing_is_lost() {
    run_group(2, |world| {
        for (list, part) in [(&[][..], "no rank"), (&[0, 2], "no rank 2"), (&[1, 1], "named twice")] {
            let error = world.from_ranks(list).unwrap_err();
            assert!(matches!(error, CollectiveError::Invalid { .. }) && error.to_string().contains(part), "{error}");
        }
        let error = world.from_ranks(&[world.rank()]).unwrap_err().to_string();
        assert!(error.contains("same list"), "{error}");
        world.barrier().unwrap();
    });
}

/// With one tag, between the same two ranks, and received in another order.
#[test]
fn messages_are_received_by_the_group_that_sent_them() {
    on_every_path(3, |world| {
        let pair = world.split(Some(world.rank() / 2), 0).unwrap().unwrap();
        let other = world.split(Some(0), 0).unwrap().unwrap();
        let again = Group::new(world.fabric().clone()).unwrap();
        let groups = [world, &pair, &other, &again];
        match world.rank() {
            0 => {
                let sends = [0, 1, 2, 3].map(|at| groups[at].start_send(vec![at as i32], 1, 7));
                sends.into_iter().for_each(|sent| sent.wait().1.unwrap());
                // And to itself.
                pair.send(&[8_i32], 0, 7).unwrap();
                world.send(&[9_i32], 0, 7).unwrap();
                for (group, value) in [(world, 9), (&pair, 8)] {
                    let mut came = [0_i32];
                    group.recv(&mut came, 0, 7).unwrap();
                    assert_eq!(came[0], value);
                }
            }
            1 => {
                for at in [2, 3, 1, 0] {
                    let mut came = [0_i32];
                    groups[at].recv(&mut came, 0, 7).unwrap();
                    assert_eq!(came[0], at as i32);
                }
            }
            _ => {}
        }
        world.barrier().unwrap();
    });
}
