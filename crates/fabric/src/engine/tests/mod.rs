//! Two engines against each other.

mod carried;
mod fallback;
mod hostile;
mod network;
mod onesided;
mod remote;
mod rules;
mod striped;

use std::task::Poll;

use fulmen_memory::{Exposed, Region};
use proptest::prelude::*;

use super::*;

pub(super) fn config(rendezvous: Rendezvous) -> Config {
    Config {
        frame: 256,
        // Only where drivers have it.
        long: (rendezvous == Rendezvous::Mapped).then_some(Long { beyond: 300, whole: 400, frame: 500 }),
        credits: 16,
        unexpected: 2000,
        rendezvous,
        verify: false,
        #[cfg(feature = "planted-bugs")]
        planted: None,
    }
}

/// What lies in memory that must not be written.
const CANARY: u8 = 0xee;

fn kinds() -> impl Strategy<Value = Rendezvous> {
    prop_oneof![Just(Rendezvous::Mapped), Just(Rendezvous::Matched)]
}

/// Rounds of a property, at most and at least.
fn cases(most: u32, least: u32) -> u32 {
    fulmen_testbed::by_tier(least, most / 3, most)
}

/// Small numbers from a seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

pub(super) fn memory(len: usize) -> Exposed {
    Region::alloc(len.max(1)).unwrap().expose().unwrap().slice(0..len)
}

pub(super) fn pair(rendezvous: Rendezvous) -> (Link, Link) {
    (Link::new(config(rendezvous)), Link::new(config(rendezvous)))
}

/// The next frame of a link.
pub(super) fn frame(link: &mut Link, lent: &Lent<'_>) -> Option<Vec<u8>> {
    let frame = link.transmit(lent)?;
    let mut bytes = frame.header.as_bytes().to_vec();
    match &frame.body {
        Body::Empty => {}
        Body::Packed => bytes.extend(link.packed()),
        Body::Memory(op, range) => {
            let at = bytes.len();
            bytes.resize(at + range.len(), 0);
            link.memory(*op).read(range.start, &mut bytes[at..]);
        }
        Body::Lent(op, range) => bytes.extend(&lent.source(*op).unwrap()[range.clone()]),
    }
    link.transmitted(&frame);
    Some(bytes)
}

/// Moves frames from one link to the other until none is left.
pub(super) fn carry(from: &mut Link, to: &mut Link) -> usize {
    let mut count = 0;
    while let Some(frame) = frame(from, &Lent::Nothing) {
        to.receive(frame.as_slice(), &mut Lent::Nothing).unwrap();
        count += 1;
    }
    count
}

pub(super) fn outcome(link: &mut Link, op: OpId) -> Option<Result<u64, OpError>> {
    match link.poll(op, &mut Lent::Nothing) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}
