//! Two queue pairs of soft devices, while somebody damages the directories and wires that they share.
#![no_main]

use fulmen_fuzz::Input;
use fulmen_soft::fuzzing::{Area, Hostile, Sort, Step};
use libfuzzer_sys::fuzz_target;

/// Each input takes two devices, whose threads start and end with it: a few hundred steps are enough.
const MOST: usize = 256;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let Some(first) = input.byte() else { return };
    let hostile = Hostile::new(Sort::ALL[usize::from(first) % Sort::ALL.len()]);
    for _ in 0..MOST {
        let Some(action) = input.byte() else { break };
        hostile.step(step(action, &mut input));
    }
    for which in [true, false, true, false] {
        hostile.step(Step::Act(which, 7));
    }
    hostile.check();
});

fn step(action: u8, input: &mut Input<'_>) -> Step {
    let which = action & 1 == 1;
    if action & 0x80 == 0 {
        return Step::Act(which, action >> 1 & 7);
    }
    let area = if action & 2 == 0 { Area::Wire(which) } else { Area::Directory(which) };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    // Mostly the head and the first frames, and sometimes anywhere.
    let word = number(input.bytes(if action & 4 == 0 { 1 } else { 2 })) as usize;
    let value = number(input.bytes(if action & 8 == 0 { 1 } else { 8 }));
    if action & 16 == 0 { Step::Damage { area, word, value } } else { Step::Shift { area, word, by: value } }
}
