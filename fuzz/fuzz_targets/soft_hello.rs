//! What two devices of different hosts say to one another first: its parsers.
//!
//! Whatever they take has one form only, the one that a correct device says.
#![no_main]

use fulmen_soft::fuzzing::network::hear;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = hear(data);
});
