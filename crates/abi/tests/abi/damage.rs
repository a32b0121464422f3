//! Bytes that no correct program writes: nothing panics, and what is taken has a meaning that can be written again.

use fulmen_abi::{NetworkRequest, RdmaBuffer, Rights, SpawnRequest, WorkItem};
use proptest::prelude::*;

use crate::samples::{any_network, any_spawn, any_work, buffer, connect, named, spawn, work};

/// Decodes all that there is to decode, and holds it to what it says.
macro_rules! check {
    ($name:ident, $record:ty) => {
        fn $name(record: &$record) -> Result<(), TestCaseError> {
            if let Ok(status) = record.status() {
                let mut again = *record;
                prop_assert_eq!(again.set_status(&status), Ok(()));
                prop_assert_eq!(again.status(), Ok(status));
            }
            if let Ok(asked) = record.decode() {
                let _ = format!("{asked:?}");
                let again = <$record>::encode(&asked).map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert_eq!(again.decode(), Ok(asked));
            }
            Ok(())
        }
    };
}

check!(check_request, SpawnRequest);
check!(check_work, WorkItem);
check!(check_network, NetworkRequest);

fn check_spawn(record: &SpawnRequest) -> Result<(), TestCaseError> {
    let _ = record.control();
    check_request(record)
}

/// Writes these bytes at these places, within `within`.
fn damage(bytes: &mut [u8], changes: &[(prop::sample::Index, u8)]) {
    for (at, byte) in changes {
        let at = at.index(bytes.len());
        bytes[at] = *byte;
    }
}

/// Mostly small bytes, of which words that mean something are made.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    let byte = prop_oneof![3 => 0_u8..10, 1 => any::<u8>()];
    prop::collection::vec((any::<prop::sample::Index>(), byte), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn garbage_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 512), rest in any::<u8>()) {
        let mut large = vec![rest; 4096];
        large[..512].copy_from_slice(&bytes);
        // As it is, and with a right beginning.
        for whole in [false, true] {
            let head = |magic: u32, bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                if whole {
                    bytes[..4].copy_from_slice(&magic.to_le_bytes());
                    bytes[4..8].copy_from_slice(&fulmen_abi::VERSION.to_le_bytes());
                }
                bytes
            };
            check_spawn(&SpawnRequest::from_bytes(&head(fulmen_abi::SPAWN_MAGIC, &large)).unwrap())?;
            check_work(&WorkItem::from_bytes(&head(fulmen_abi::WORK_MAGIC, &bytes)).unwrap())?;
            check_network(&NetworkRequest::from_bytes(&head(fulmen_abi::NETWORK_MAGIC, &bytes)).unwrap())?;
            let _ = RdmaBuffer::from_bytes(&head(fulmen_abi::BUFFER_MAGIC, &bytes[..64])).unwrap().decode();
        }
    }

    #[test]
    fn damaged_spawns_are_refused_or_mean_something(asked in any_spawn(), changes in changes(), early: bool) {
        let mut bytes = asked.with(|spawn| SpawnRequest::encode(spawn).unwrap().as_bytes().to_vec());
        // Most of what is read stands at the beginning.
        damage(&mut bytes[..if early { 128 } else { 700 }], &changes);
        check_spawn(&SpawnRequest::from_bytes(&bytes).unwrap())?;
    }

    #[test]
    fn damaged_work_is_refused_or_means_something((mut asked, inline) in any_work(), changes in changes()) {
        if let Some(inline) = &inline {
            asked.arguments = fulmen_abi::Arguments::Inline(inline);
        }
        let mut bytes = WorkItem::encode(&asked).unwrap().as_bytes().to_vec();
        damage(&mut bytes, &changes);
        check_work(&WorkItem::from_bytes(&bytes).unwrap())?;
    }

    #[test]
    fn damaged_operations_are_refused_or_mean_something((asked, name) in any_network(), changes in changes()) {
        let mut bytes = NetworkRequest::encode(&named(&asked, name.as_deref())).unwrap().as_bytes().to_vec();
        damage(&mut bytes, &changes);
        check_network(&NetworkRequest::from_bytes(&bytes).unwrap())?;
    }
}

/// Every bit of what is checked, one after the other.
#[test]
fn each_bit_that_changes_is_no_panic() {
    let each = |bytes: &[u8], check: &dyn Fn(&[u8]) -> Result<(), TestCaseError>| {
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            check(&bytes).unwrap_or_else(|error| panic!("bit {bit}: {error}"));
        }
    };
    let record = SpawnRequest::encode(&spawn()).unwrap();
    each(&record.as_bytes()[..700], &|bytes| {
        let mut whole = record.as_bytes().to_vec();
        whole[..bytes.len()].copy_from_slice(bytes);
        check_spawn(&SpawnRequest::from_bytes(&whole).unwrap())
    });
    each(WorkItem::encode(&work()).unwrap().as_bytes(), &|bytes| check_work(&WorkItem::from_bytes(bytes).unwrap()));
    each(NetworkRequest::encode(&connect()).unwrap().as_bytes(), &|bytes| {
        check_network(&NetworkRequest::from_bytes(bytes).unwrap())
    });
    each(RdmaBuffer::encode(&buffer(1, Rights::all())).unwrap().as_bytes(), &|bytes| {
        if let Ok(buffer) = RdmaBuffer::from_bytes(bytes).unwrap().decode() {
            assert_eq!(RdmaBuffer::encode(&buffer).unwrap().as_bytes(), bytes, "it has one form");
        }
        Ok(())
    });
}
