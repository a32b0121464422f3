//! Records in shared memory, of whatever kind: what is taken can be written again and then means the same.
//!
//! An input is the kind, and pieces that are written over a record of zeros with a right beginning, each with the place
//! where it goes: so that an input as short as those of other targets reaches all of a record.
#![no_main]

use fulmen_abi::{
    BUFFER_MAGIC, Command, NETWORK_MAGIC, NetworkRequest, RdmaBuffer, SPAWN_MAGIC, SpawnRequest, TextCounts, VERSION,
    WORK_MAGIC, WorkItem,
};
use fulmen_fuzz::Input;
use libfuzzer_sys::fuzz_target;

/// Decodes a record as both sides do, and holds it to what it says.
macro_rules! check {
    ($record:ty, $magic:expr, $input:expr) => {{
        let mut bytes = [0; size_of::<$record>()];
        fill(&mut bytes, $magic, $input);
        let record = <$record>::from_bytes(&bytes).expect("as many as it has");
        assert_eq!(record.as_bytes(), bytes);
        if let Ok(status) = record.status() {
            let mut again = record;
            again.set_status(&status).expect("what was read can be written");
            assert_eq!(again.status(), Ok(status));
        }
        if let Ok(asked) = record.decode() {
            let again = <$record>::encode(&asked).expect("what was read can be written");
            assert_eq!(again.decode(), Ok(asked));
        }
        record
    }};
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.byte().unwrap_or(0) % 5 {
        0 => _ = check!(SpawnRequest, SPAWN_MAGIC, &mut input).control(),
        1 => _ = check!(WorkItem, WORK_MAGIC, &mut input),
        2 => _ = check!(NetworkRequest, NETWORK_MAGIC, &mut input),
        3 => {
            let mut bytes = [0; size_of::<RdmaBuffer>()];
            fill(&mut bytes, BUFFER_MAGIC, &mut input);
            let record = RdmaBuffer::from_bytes(&bytes).expect("as many as it has");
            if let Ok(buffer) = record.decode() {
                assert_eq!(RdmaBuffer::encode(&buffer), Ok(record), "it has one form");
            }
        }
        _ => text(&mut input),
    }
});

/// A right beginning, and then what the input says.
fn fill(bytes: &mut [u8], magic: u32, input: &mut Input<'_>) {
    bytes[..4].copy_from_slice(&magic.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    while let Some(low) = input.byte() {
        let at = usize::from(u16::from_le_bytes([low, input.byte().unwrap_or(0)])) % bytes.len();
        let piece = input.piece();
        let len = piece.len().min(bytes.len() - at);
        bytes[at..at + len].copy_from_slice(&piece[..len]);
    }
}

/// A text that lies elsewhere.
fn text(input: &mut Input<'_>) {
    let mut count = || u32::from(input.byte().unwrap_or(0));
    let counts = TextCounts { args: count(), env: count(), cwd: count() & 1 == 1 };
    let text = input.bytes(usize::MAX);
    if let Ok(command) = Command::parse(text, counts) {
        assert_eq!(command.counts(), Ok(counts));
        let mut again = vec![0xff; text.len()];
        assert_eq!(command.write(&mut again), Ok(text.len()));
        assert_eq!(again, text, "it has one form");
    }
}
