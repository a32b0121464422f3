//! Names of shared memory, and streams through it.

use fulmen_abi::{AbiError, BUFFER_MAGIC, Buffer, Field, NODE_MAX, RdmaBuffer, Rights, Ring};
use proptest::prelude::*;

use crate::samples::{any_buffer, buffer};

fn field(name: &'static str) -> Field {
    Field { of: "RdmaBuffer", name }
}

#[test]
fn each_refusal_names_the_field() {
    let good = RdmaBuffer::encode(&buffer(5, Rights::READ)).unwrap();
    assert_eq!(good.decode(), Ok(buffer(5, Rights::READ)));
    let refused = |change: &dyn Fn(&mut RdmaBuffer)| {
        let mut bad = good;
        change(&mut bad);
        bad.decode().expect_err("it is wrong")
    };
    assert_eq!(refused(&|bad| bad.magic = 0), AbiError::Magic { record: "RdmaBuffer", found: 0 });
    assert_eq!(refused(&|bad| bad.magic = BUFFER_MAGIC.swap_bytes()).to_string().split(' ').next_back(), Some("right"));
    assert_eq!(refused(&|bad| bad.version = 2), AbiError::Version { record: "RdmaBuffer", found: 2 });
    assert_eq!(refused(&|bad| bad.reserved = 1), AbiError::NotZero { field: field("reserved") });
    let node = NODE_MAX + 1;
    assert_eq!(refused(&|bad| bad.node = node), AbiError::Unknown { field: field("node"), value: node.into() });
    assert_eq!(refused(&|bad| bad.rights = 9), AbiError::Unknown { field: field("rights"), value: 8 });
    assert_eq!(refused(&|bad| bad.rights = 0), AbiError::Missing { field: field("rights") });
    assert_eq!(refused(&|bad| bad.len = 0), AbiError::Missing { field: field("len") });
    let beyond = AbiError::OutOfBounds { field: field("len"), region_len: 1 << 20 };
    assert_eq!(refused(&|bad| bad.len = (1 << 20) - 4095), beyond);
    assert_eq!(refused(&|bad| bad.offset = 1 << 20), beyond);
    assert_eq!(refused(&|bad| bad.offset = u64::MAX), beyond);
    assert_eq!(RdmaBuffer::ZERO.decode(), Err(AbiError::Magic { record: "RdmaBuffer", found: 0 }));
    assert_eq!(RdmaBuffer::from_bytes(&[0; 63]), Err(AbiError::Size { record: "RdmaBuffer", given: 63, needed: 64 }));
    let end = Buffer { len: (1 << 20) - 4096, ..buffer(5, Rights::READ) };
    assert!(RdmaBuffer::encode(&end).is_ok(), "up to the last byte");
}

#[test]
fn the_tag_stays_a_secret() {
    let secret = buffer(123_456_789, Rights::all());
    let record = RdmaBuffer::encode(&secret).unwrap();
    assert!(!format!("{secret:?} {record:?}").contains("123456789"));
}

#[test]
fn a_ring_goes_round() {
    let ring = Ring::new(&Buffer { len: 10, ..buffer(1, Rights::READ) });
    let filled = ring.filled(13, 7).unwrap();
    assert_eq!((filled.first.clone(), filled.second.clone(), filled.len()), (7..10, 0..3, 6));
    let free = ring.free(13, 7).unwrap();
    assert_eq!((free.first, free.second), (3..7, 0..0));
    assert!(ring.filled(7, 7).unwrap().is_empty() && ring.free(17, 7).unwrap().is_empty());
    for (written, read) in [(6, 7), (18, 7), (0, u64::MAX), (u64::MAX, 0)] {
        assert_eq!(ring.filled(written, read), Err(AbiError::Counters { written, read, len: 10 }));
        assert!(ring.free(written, read).is_err());
    }
    let none = Ring::new(&Buffer { len: 0, ..buffer(1, Rights::READ) });
    assert!(none.filled(5, 5).unwrap().is_empty() && none.free(5, 5).unwrap().is_empty());
}

proptest! {
    #[test]
    fn bytes_give_the_buffer_back(buffer in any_buffer(Rights::READ)) {
        let record = RdmaBuffer::encode(&buffer).unwrap();
        prop_assert_eq!(RdmaBuffer::from_bytes(record.as_bytes()).unwrap().decode(), Ok(buffer));
    }

    #[test]
    fn a_ring_gives_what_a_queue_would(len in 1_u64..20, steps in prop::collection::vec(any::<(bool, u8)>(), 0..60)) {
        let ring = Ring::new(&Buffer { len, ..buffer(1, Rights::READ) });
        let mut memory = vec![0_u8; len as usize];
        let mut queue = std::collections::VecDeque::new();
        let (mut written, mut read, mut next) = (0, 0, 0_u8);
        for (write, most) in steps {
            let pieces = if write { ring.free(written, read) } else { ring.filled(written, read) }.unwrap();
            prop_assert_eq!(pieces.len(), if write { len - queue.len() as u64 } else { queue.len() as u64 });
            for at in pieces.first.chain(pieces.second).take(most.into()) {
                if write {
                    memory[at as usize] = next;
                    queue.push_back(next);
                    (written, next) = (written + 1, next.wrapping_add(1));
                } else {
                    prop_assert_eq!(Some(memory[at as usize]), queue.pop_front());
                    read += 1;
                }
            }
        }
    }

    #[test]
    fn no_counters_panic(len in any::<u64>(), written in any::<u64>(), read in any::<u64>()) {
        let ring = Ring::new(&Buffer { len, ..buffer(1, Rights::READ) });
        for pieces in [ring.filled(written, read), ring.free(written, read)].into_iter().flatten() {
            prop_assert!(pieces.first.end <= len && pieces.second.end <= len && pieces.len() <= len);
        }
    }
}
