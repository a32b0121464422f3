//! Sealed frames over a carrier that promises nothing: the other end's, changed, lost and repeated in any way, and bytes
//! that were never sealed.
//!
//! What is delivered is what was sealed, once and in its order; nothing else ever is.
#![no_main]

use std::time::Duration;

use fulmen_fabric::engine::{Reliable, ReliableConfig, Verdict};
use fulmen_fuzz::Input;
use libfuzzer_sys::fuzz_target;

const WINDOW: u32 = 8;

/// One end, with the bytes of its slots.
struct End {
    reliable: Reliable,
    slots: Vec<Vec<u8>>,
    /// Frames that were begun here, and frames of the other end that were delivered.
    begun: u64,
    delivered: u64,
}

impl End {
    fn new() -> End {
        let reliable = Reliable::new(ReliableConfig::new(WINDOW, 77, Duration::from_secs(5)));
        End { reliable, slots: vec![Vec::new(); WINDOW as usize], begun: 0, delivered: 0 }
    }

    /// A frame and its seal.
    fn sealed(&mut self, slot: u32) -> Vec<u8> {
        let frame = self.slots[slot as usize].clone();
        let mut bytes = self.reliable.seal(slot, frame.as_slice()).to_vec();
        bytes.extend(frame);
        bytes
    }

    fn take(&mut self, now: Duration, bytes: &[u8], from: u64, forged: bool) {
        if self.reliable.receive(now, bytes) == Verdict::Deliver {
            // A checksum is no seal against forgers, who are trusted with the cable; chance does not get past it.
            assert!(!forged, "bytes that nobody sealed were delivered");
            let number = u64::from_le_bytes(bytes[Reliable::OVERHEAD..][..8].try_into().expect("8 bytes"));
            assert_eq!(number, self.delivered, "a frame out of order, or twice");
            assert!(number < from, "a frame that was never sent");
            self.delivered += 1;
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mut ends = [End::new(), End::new()];
    let mut wire: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut now = Duration::ZERO;
    while let Some(action) = input.byte() {
        let side = usize::from(action & 1);
        match action >> 1 & 7 {
            0 | 1 if ends[side].reliable.can_send() && !ends[side].reliable.is_dead() => {
                let end = &mut ends[side];
                let slot = end.reliable.begin(now);
                let mut frame = end.begun.to_le_bytes().to_vec();
                frame.extend(vec![action; usize::from(action >> 4)]);
                end.slots[slot as usize] = frame;
                end.begun += 1;
                let bytes = end.sealed(slot);
                wire.push((side, bytes));
            }
            // One of the frames on the way arrives; it may stay, to arrive again.
            2 | 3 if !wire.is_empty() => {
                let at = usize::from(action >> 4) % wire.len();
                let (from, bytes) = if action >> 1 & 1 == 0 { wire.remove(at) } else { wire[at].clone() };
                let begun = ends[from].begun;
                ends[1 - from].take(now, &bytes, begun, false);
            }
            // It is lost.
            4 if !wire.is_empty() => drop(wire.remove(usize::from(action >> 4) % wire.len())),
            // Time passes, and frames go again.
            5 => {
                now += Duration::from_micros(1 << (action >> 4));
                for (side, end) in ends.iter_mut().enumerate() {
                    if end.reliable.is_dead() {
                        continue;
                    }
                    while let Some(slot) = end.reliable.due(now) {
                        let bytes = end.sealed(slot);
                        wire.push((side, bytes));
                    }
                    if end.reliable.ack_due(now) {
                        wire.push((side, end.reliable.acknowledgement().to_vec()));
                    }
                }
                wire.truncate(64);
            }
            // One is damaged: a bit of it.
            6 if !wire.is_empty() => {
                let (from, mut bytes) = wire[usize::from(action >> 4) % wire.len()].clone();
                let at = usize::from(input.byte().unwrap_or(0)) % bytes.len();
                bytes[at] ^= 1 << (action >> 4 & 7);
                ends[1 - from].take(now, &bytes, u64::MAX, true);
            }
            _ => {
                let bytes = input.piece();
                // With nothing but chance, these are none of the other end's.
                if bytes.len() < Reliable::OVERHEAD {
                    let _ = ends[side].reliable.receive(now, bytes);
                }
            }
        }
    }
});
