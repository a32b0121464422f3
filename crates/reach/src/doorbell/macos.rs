use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

const SHARED: u32 = 1;
const CLOCK_MACH_ABSOLUTE_TIME: u32 = 32;

unsafe extern "C" {
    // Since macOS 14.4.
    fn os_sync_wait_on_address_with_timeout(
        addr: *mut c_void,
        value: u64,
        size: usize,
        flags: u32,
        clock: u32,
        timeout_ns: u64,
    ) -> c_int;
    fn os_sync_wake_by_address_all(addr: *mut c_void, size: usize, flags: u32) -> c_int;
}

/// Parks while the word is `seen`, at most for `timeout`. May return early for no reason.
pub(super) fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(1);
    // Woken, changed meanwhile, interrupted or timed out: the caller looks at the word and the clock in any case.
    // SAFETY: the word is mapped and aligned, and outlives the call.
    let _ = unsafe {
        os_sync_wait_on_address_with_timeout(
            word.as_ptr().cast(),
            u64::from(seen),
            size_of::<u32>(),
            SHARED,
            CLOCK_MACH_ABSOLUTE_TIME,
            nanoseconds,
        )
    };
}

pub(super) fn wake_all(word: &AtomicU32) {
    // It fails when nobody waits, which is no error here.
    // SAFETY: the word is mapped and aligned, and outlives the call.
    let _ = unsafe { os_sync_wake_by_address_all(word.as_ptr().cast(), size_of::<u32>(), SHARED) };
}
