//! Messages between two ranks of a group.

use fulmen_collectives::CollectiveError;
use fulmen_fabric::FabricError;

use crate::world::run_group;

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
