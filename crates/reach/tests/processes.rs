//! Nodes in real processes: this binary starts itself again in a role, and kills what it started in any case.
#![cfg(target_os = "linux")]

#[path = "processes/child.rs"]
mod child;
#[path = "processes/hostile.rs"]
mod hostile;
#[path = "processes/lives.rs"]
mod lives;
#[path = "processes/memory.rs"]
mod memory;

use std::time::{Duration, Instant};

/// Reached by no test that succeeds.
const LONG: Duration = Duration::from_secs(60);

/// Waits for what another thread or process does by and by.
#[track_caller]
fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
