//! Handing memory to an agent.

use fulmen_abi::{AbiError, ShareRequest, SpawnRequest};

#[test]
fn records_lie_in_the_region_or_are_refused() {
    let record = size_of::<SpawnRequest>() as u64;
    let good = ShareRequest::new(64 + 3 * record, 64, 3).unwrap();
    assert_eq!(ShareRequest::from_bytes(good.as_bytes()).unwrap(), good);
    let outside =
        |len, offset, count| matches!(ShareRequest::new(len, offset, count), Err(AbiError::OutOfBounds { .. }));
    assert!(outside(64 + 3 * record - 1, 64, 3) && outside(0, 0, 1) && outside(u64::MAX, u64::MAX - 63, 1));
    assert!(matches!(ShareRequest::new(1 << 20, 8, 1), Err(AbiError::Malformed { .. })));
    assert!(matches!(ShareRequest::new(1 << 20, 0, 0), Err(AbiError::Missing { .. })));
    assert!(matches!(ShareRequest::new(1 << 40, 0, 1025), Err(AbiError::TooLarge { .. })));
    assert!(matches!(ShareRequest { magic: 0, ..good }.check(), Err(AbiError::Magic { .. })));
    assert!(matches!(ShareRequest { version: 2, ..good }.check(), Err(AbiError::Version { .. })));
    assert!(matches!(ShareRequest { reserved: 1, ..good }.check(), Err(AbiError::NotZero { .. })));
}
