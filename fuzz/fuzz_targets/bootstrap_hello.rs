//! What a stranger says to a coordinator before the seal: as much as a hello is heard, and never more.
#![no_main]

use fulmen_fabric::bootstrap::fuzzing::from_stranger;
use fulmen_fuzz::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let cut = usize::from(input.byte().unwrap_or(0));
    let bytes = input.bytes(usize::MAX);
    // However it is cut, the same is heard: what is refused is refused at its first byte that is wrong.
    let whole = from_stranger(bytes, bytes.len());
    let pieces = from_stranger(bytes, cut);
    assert_eq!(whole == 40, pieces == 40, "cut into pieces of {cut} bytes");
});
