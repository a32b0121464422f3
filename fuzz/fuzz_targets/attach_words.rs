//! What programs, owners of devices and trunks bring.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fulmen_attach::fuzzing::read_words(bytes);
    if let Some((header, rest)) = bytes.split_first_chunk() {
        fulmen_attach::fuzzing::read_header(header, 64 + rest.len());
    }
});
