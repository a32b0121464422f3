//! Devices of several processes: this binary starts itself again in a role, and ends what it started in any case.
#![cfg(target_os = "linux")]

#[path = "processes/child.rs"]
mod child;
#[path = "processes/datagrams.rs"]
mod datagrams;
#[path = "processes/endpoint.rs"]
mod endpoint;
#[path = "processes/exchange.rs"]
mod exchange;
#[path = "processes/fork.rs"]
mod fork;
#[path = "processes/idle.rs"]
mod idle;
#[path = "processes/kill.rs"]
mod kill;
#[path = "processes/leaks.rs"]
mod leaks;
#[path = "processes/long.rs"]
mod long;
#[path = "processes/one_core.rs"]
mod one_core;
mod plain;
#[path = "processes/shared.rs"]
mod shared;
#[path = "processes/signals.rs"]
mod signals;

use std::time::{Duration, Instant};

/// Reached by no test that succeeds.
const LONG: Duration = Duration::from_secs(60);

/// Does `step` until it gives something, politely.
#[track_caller]
fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut tries = 0_u32;
    loop {
        if let Some(found) = step() {
            return found;
        }
        tries += 1;
        if tries.is_multiple_of(64) {
            assert!(start.elapsed() < LONG, "waited too long: {what}");
            std::thread::yield_now();
        }
    }
}

/// A number of rounds, at least and at most.
fn rounds(least: u32, most: u32) -> u32 {
    fulmen_testbed::by_tier(least, most / 4, most)
}

/// Small random numbers that come again with the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
