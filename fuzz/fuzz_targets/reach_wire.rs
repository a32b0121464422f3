//! Frames of a node's socket, and addresses.
#![no_main]

use fulmen_reach::NodeAddress;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = data.first_chunk() {
        fulmen_reach::fuzzing::read_frame(bytes);
    }
    if let Some(bytes) = data.first_chunk::<{ NodeAddress::SIZE }>()
        && let Ok(address) = NodeAddress::from_bytes(bytes)
    {
        assert_eq!(address.to_bytes(), *bytes);
    }
});
