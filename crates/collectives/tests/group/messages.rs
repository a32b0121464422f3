//! Messages between two ranks of a group.

use std::time::Duration;

use fulmen_collectives::{CollectiveError, Group, Handle};
use fulmen_fabric::FabricError;
use fulmen_soft::Profile;

use crate::world::{run_group, run_over, run_over_hosts};

#[test]
fn elements_arrive_in_any_memory() {
    run_group(2, |group| {
        for count in [0, 1, 1000, 100_000] {
            if group.rank() == 0 {
                let mut buffer = group.alloc::<u64>(count).unwrap();
                buffer.fill(7);
                group.send(&buffer, 1, 1).unwrap();
                group.send(&vec![8u64; count], 1, 2).unwrap();
                group.send(&vec![true; count], 1, 3).unwrap();
            } else {
                let mut plain = vec![0u64; count + 1];
                assert_eq!(group.recv(&mut plain, 0, 1).unwrap(), count);
                assert_eq!(plain[..count], vec![7; count]);
                let mut buffer = group.alloc::<u64>(count).unwrap();
                assert_eq!(group.recv(&mut buffer, 0, 2).unwrap(), count);
                assert_eq!(buffer.to_vec(), vec![8; count]);
                let mut flags = vec![false; count];
                assert_eq!(group.recv(&mut flags, 0, 3).unwrap(), count);
                assert!(flags.iter().all(|flag| *flag));
            }
        }
    });
}

/// Each waits for what the one before it sends: far more than goes under way unasked.
#[test]
fn ranks_pass_on_in_a_circle() {
    let body = |group: &Group| {
        let (rank, size) = (group.rank(), group.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        for count in [0, 1, 1000, 300_000] {
            let mut into = vec![0; count];
            assert_eq!(group.send_recv(&vec![rank; count], next, &mut into, before, 1).unwrap(), count);
            assert_eq!(into, vec![before; count]);
            let (mut own, mut theirs) = (group.alloc::<u32>(count).unwrap(), group.alloc::<u32>(count + 1).unwrap());
            own.fill(rank);
            assert_eq!(group.send_recv(&mut own, next, &mut theirs, before, 2).unwrap(), count);
            assert!(own.iter().all(|value| *value == rank) && own.len() == count);
            assert!(theirs[..count].iter().all(|value| *value == before));
        }
        let wrong = group.send_recv(&[rank], next, &mut [0_u32; 0], before, 3).unwrap_err();
        assert!(matches!(wrong, CollectiveError::Fabric(FabricError::Truncated { .. })), "{wrong:?}");
        group.barrier().unwrap();
    };
    for size in [2, 3] {
        run_group(size, body);
        run_over(Profile::Thunderbolt, size, body);
        run_over_hosts(Profile::Infiniband, size, body);
    }
}

#[test]
fn registered_memory_is_lent_and_comes_back() {
    let body = |group: &Group| {
        for count in [0, 1, 64, 65, 1000, 5_000, 300_000] {
            let mut buffer = group.alloc::<u32>(count + 7).unwrap();
            if group.rank() == 0 {
                let mut values = group.alloc::<u32>(count).unwrap();
                values.iter_mut().zip(0..).for_each(|(value, index)| *value = index);
                group.send(&mut values, 1, 4).unwrap();
                group.send(&values, 1, 4).unwrap();
                assert!((0..count as u32).eq(values.iter().copied()), "{count}");
                assert_eq!(group.recv(&mut buffer, 1, 4).unwrap(), count);
            } else {
                for _ in 0..2 {
                    buffer.fill(9);
                    assert_eq!(group.recv(&mut buffer, 0, 4).unwrap(), count);
                    assert!((0..count as u32).chain([9; 7]).eq(buffer.iter().copied()), "{count}");
                }
                group.send(&buffer[..count], 0, 4).unwrap();
            }
        }
    };
    run_group(2, body);
    run_over(Profile::Infiniband, 2, body);
    run_over(Profile::Thunderbolt, 2, body);
    run_over_hosts(Profile::Infiniband, 2, body);
}

#[test]
fn a_lent_buffer_goes_by_rendezvous() {
    let body = |group: &Group| {
        let mut buffer = group.alloc::<u8>(512 << 10).unwrap();
        if group.rank() == 0 {
            buffer.fill(1);
            // It ends with the receive, which does not come.
            let error = group.with_deadline(Duration::from_millis(50)).send(&mut buffer, 1, 1).unwrap_err();
            assert!(matches!(error, CollectiveError::Fabric(FabricError::TimedOut { .. })), "{error}");
            assert!(buffer.iter().all(|byte| *byte == 1));
            // In frames, it need not wait for one.
            group.send(&buffer, 1, 2).unwrap();
            buffer.fill(2);
            group.send(&mut buffer, 1, 1).unwrap();
        } else {
            group.recv(&mut buffer, 0, 2).unwrap();
            assert!(buffer.iter().all(|byte| *byte == 1));
            group.recv(&mut buffer, 0, 1).unwrap();
            assert!(buffer.iter().all(|byte| *byte == 2), "the first was taken back");
        }
    };
    run_group(2, body);
    run_over(Profile::Infiniband, 2, body);
    run_over_hosts(Profile::Infiniband, 2, body);
}

#[test]
fn elements_of_another_type_are_refused_with_nothing_written() {
    // In one frame, in several; the next message of the tag is not held up.
    for count in [4, 100_000] {
        run_group(2, |group| {
            if group.rank() == 0 {
                match group.send(&vec![1f32; count], 1, 3) {
                    Ok(()) => {}
                    Err(CollectiveError::Fabric(FabricError::Refused { .. })) => assert!(count > 4),
                    Err(other) => panic!("{other}"),
                }
                group.send(&[7i32], 1, 3).unwrap();
                return;
            }
            let mut integers = vec![5i32; count];
            let error = group.recv(&mut integers, 0, 3).unwrap_err();
            assert!(matches!(error, CollectiveError::Mistyped { rank: 0, tag: 3, .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("f32") && text.contains("i32") && !text.contains('\n'), "{text}");
            assert!(integers.iter().all(|value| *value == 5));
            assert_eq!(group.recv(&mut integers, 0, 3).unwrap(), 1);
            assert_eq!(integers[..2], [7, 5]);
        });
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    run_group(2, |group| {
        let other = 1 - group.rank();
        for error in
            [group.send(&[1u8], other, 1 << 48).unwrap_err(), group.recv(&mut [1u8], other, u64::MAX).unwrap_err()]
        {
            assert!(matches!(error, CollectiveError::Invalid { .. }), "{error}");
        }
        let error = group.send(&[1u8], 2, 0).unwrap_err();
        assert!(matches!(error, CollectiveError::Fabric(FabricError::NoSuchRank { .. })), "{error}");
        group.send(&[1u8; 6], other, 6).unwrap();
        let error = group.recv(&mut [0u8; 5], other, 6).unwrap_err();
        assert!(matches!(error, CollectiveError::Fabric(FabricError::Truncated { .. })), "{error}");
        // None of it poisons the group.
        group.barrier().unwrap();
    });
}

fn on_every_path(size: u32, body: fn(&Group)) {
    run_group(size, body);
    run_over(Profile::Thunderbolt, size, body);
    run_over_hosts(Profile::Infiniband, size, body);
}

/// In a group of one, too.
#[test]
fn a_rank_sends_to_itself() {
    let body = |group: &Group| {
        let own = group.rank();
        for count in [0, 1, 1000, 300_000] {
            let mut buffer = group.alloc::<u32>(count).unwrap();
            buffer.fill(own + 1);
            group.send(&mut buffer, own, 1).unwrap();
            group.send(&vec![own + 2; count], own, 1).unwrap();
            buffer.fill(0);
            let mut plain = vec![0; count + 1];
            assert_eq!(group.recv(&mut plain, own, 1).unwrap(), count);
            assert!(plain[..count].iter().all(|value| *value == own + 1) && plain[count] == 0);
            assert_eq!(group.recv(&mut buffer, own, 1).unwrap(), count);
            assert!(buffer.iter().all(|value| *value == own + 2));
            // A shift by none.
            assert_eq!(group.send_recv(&vec![7; count], own, &mut buffer, own, 2).unwrap(), count);
            assert!(buffer.iter().all(|value| *value == 7));
        }
        group.send(&[1f32], own, 3).unwrap();
        let error = group.recv(&mut [0i32], own, 3).unwrap_err();
        assert!(matches!(error, CollectiveError::Mistyped { rank, tag: 3, .. } if rank == own), "{error}");
        group.send(&[true, false], own, 4).unwrap();
        let mut flags = [false; 2];
        assert_eq!(group.recv(&mut flags, own, 4).unwrap(), 2);
        assert_eq!(flags, [true, false]);
        let error = group.with_deadline(Duration::from_millis(20)).recv(&mut [0i32], own, 3).unwrap_err();
        assert!(matches!(error, CollectiveError::Fabric(FabricError::TimedOut { .. })), "{error}");
        group.barrier().unwrap();
    };
    for size in [1, 2] {
        on_every_path(size, body);
    }
}

/// Asks again and again until it has ended.
fn ask<D, R>(mut handle: Handle<D, R>) -> (D, Result<R, CollectiveError>) {
    loop {
        match handle.test() {
            Ok(ended) => return ended,
            Err(again) => handle = again,
        }
        std::thread::yield_now();
    }
}

/// Each first receives, then sends, and waits last: with more under way than goes unasked, and with itself as well.
#[test]
fn messages_that_are_started_need_nobody_to_be_first() {
    on_every_path(3, |group| {
        let (rank, size) = (group.rank(), group.size());
        for count in [0, 1, 1000, 300_000] {
            let came: Vec<_> = (0..size)
                .flat_map(|from| (0..4_u32).map(move |turn| (from, turn)))
                .map(|(from, turn)| {
                    let plain = group.start_recv(vec![9; count + 1], from, 1);
                    let buffer = group.start_recv(group.alloc::<u32>(count).unwrap(), from, 2);
                    (from * 10 + turn, plain, buffer)
                })
                .collect();
            let sent: Vec<_> = (0..size)
                .flat_map(|to| (0..4).map(move |turn| (to, turn)))
                .map(|(to, turn)| {
                    let mut buffer = group.alloc::<u32>(count).unwrap();
                    buffer.fill(rank * 10 + turn);
                    (
                        rank * 10 + turn,
                        group.start_send(buffer, to, 1),
                        group.start_send(vec![rank * 10 + turn; count], to, 2),
                    )
                })
                .collect();
            for (value, plain, buffer) in came {
                let (plain, outcome) = plain.wait();
                assert_eq!(outcome.unwrap(), count);
                assert!(plain[..count].iter().all(|found| *found == value) && plain[count] == 9, "{value}: {count}");
                let (buffer, outcome) = buffer.wait();
                assert_eq!(outcome.unwrap(), count);
                assert!(buffer.len() == count && buffer.iter().all(|found| *found == value), "{value}: {count}");
            }
            for (value, buffer, plain) in sent {
                let (buffer, outcome) = ask(buffer);
                outcome.unwrap();
                assert!(buffer.len() == count && buffer.iter().all(|found| *found == value));
                let (plain, outcome) = plain.wait();
                outcome.unwrap();
                assert_eq!(plain, vec![value; count]);
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_started_message_that_fails_gives_its_data_back() {
    on_every_path(2, |group| {
        let other = 1 - group.rank();
        let group = &group.with_deadline(Duration::from_millis(50));
        let mut buffer = group.alloc::<u32>(100_000).unwrap();
        buffer.fill(5);
        // Nobody sends, or there is nobody, or no such tag.
        let came = group.start_recv(buffer, other, 1);
        let (buffer, outcome) = came.wait();
        assert!(matches!(outcome.unwrap_err(), CollectiveError::Fabric(FabricError::TimedOut { .. })));
        assert!(buffer.len() == 100_000 && buffer.iter().all(|value| *value == 5));
        let (buffer, outcome) = group.start_send(buffer, 2, 1).wait();
        assert!(matches!(outcome.unwrap_err(), CollectiveError::Fabric(FabricError::NoSuchRank { rank: 2, .. })));
        let (buffer, outcome) = group.start_recv(buffer, other, 1 << 48).wait();
        assert!(matches!(outcome.unwrap_err(), CollectiveError::Invalid { .. }));
        assert!(buffer.len() == 100_000 && buffer.iter().all(|value| *value == 5));
        // One that is asked again and again ends by its deadline, too.
        let (data, outcome) = ask(group.start_recv([5; 4], other, 2));
        assert_eq!(data, [5; 4]);
        assert!(matches!(outcome.unwrap_err(), CollectiveError::Fabric(FabricError::TimedOut { .. })));
        let group = &group.with_deadline(Duration::from_secs(60));
        group.barrier().unwrap();
        group.send(&[1f32; 2], other, 3).unwrap();
        let (data, outcome) = group.start_recv([5i32; 2], other, 3).wait();
        assert!(matches!(outcome.unwrap_err(), CollectiveError::Mistyped { tag: 3, .. }));
        assert_eq!(data, [5; 2]);
        // Let go, they end all the same, in their turn.
        drop(group.start_recv(vec![0u8; 10], other, 4));
        drop(group.start_send(vec![6u8; 10], other, 4));
        drop(group.start_send(vec![7u8; 3], other, 4));
        let mut second = [0u8; 3];
        assert_eq!(group.recv(&mut second, other, 4).unwrap(), 3);
        assert_eq!(second, [7; 3]);
        group.barrier().unwrap();
    });
}
