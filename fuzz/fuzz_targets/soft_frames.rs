//! What a hostile peer on another host says to a connected queue pair, while its program works.
#![no_main]

use fulmen_fuzz::Input;
use fulmen_soft::fuzzing::{HostileStream, Said, Transport};
use libfuzzer_sys::fuzz_target;

/// Each input takes two devices, whose threads start and end with it: a few hundred steps are enough.
const MOST: usize = 256;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let Some(first) = input.byte() else { return };
    let mut hostile = HostileStream::new(Transport::ALL[usize::from(first) % Transport::ALL.len()]);
    for _ in 0..MOST {
        let Some(action) = input.byte() else { break };
        match action {
            0..96 => hostile.act(action),
            96..128 => hostile.bytes(input.piece()),
            _ => hostile.say(said(action, &mut input)),
        }
    }
    hostile.finish();
});

fn said(action: u8, input: &mut Input<'_>) -> Said {
    let kind = action & 15;
    let mut number =
        |bytes: usize| input.bytes(bytes).iter().rev().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    let len = number(2);
    // Mostly a message in one frame.
    let (total, offset) = if action & 16 == 0 { (len, 0) } else { (number(4), number(2)) };
    let (key, addr, acked, granted) = (number(1) as u8, number(2) as u16, number(1) as u8, number(1) as u8);
    let behind = if action & 32 == 0 { len.min(8192) as u16 } else { number(1) as u16 };
    let flags = if action & 64 == 0 { 0 } else { number(1) as u8 };
    Said { kind, flags, len, total, offset, key, addr, acked, granted, behind }
}
