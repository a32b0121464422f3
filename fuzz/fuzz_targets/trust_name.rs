//! The name in a certificate: any bytes, and a line of text if anything.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(name) = fulmen_trust::fuzzing::name(data) {
        assert!(!name.chars().any(char::is_control) && name.len() <= data.len());
    }
});
