//! Keys of shared memory, as they come from peers.
#![no_main]

use fulmen_fabric::RemoteKey;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(key) = RemoteKey::from_bytes(data) {
        let again = RemoteKey::from_bytes(&key.to_bytes()).expect("what was written can be read");
        assert_eq!(again, key);
        let _ = (key.rank(), key.len(), key.rights(), format!("{key:?}"));
    }
});
