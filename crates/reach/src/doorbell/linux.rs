use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// Parks while the word is `seen`, at most for `timeout`. May return early for no reason.
///
/// No `PRIVATE` flag: the word is shared between processes, and the system finds it by its page.
pub(super) fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    let timeout = Timespec::try_from(timeout).expect("a wait is shorter than a year");
    // Woken, changed meanwhile, interrupted or timed out: the caller looks at the word and the clock in any case.
    let _ = futex::wait(word, Flags::empty(), seen, Some(&timeout));
}

pub(super) fn wake_all(word: &AtomicU32) {
    // It can only fail for an address that is not mapped.
    let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
}
