//! Which queue pairs may be left alone.
//!
//! Whoever polls a completion queue drives the queue pairs that complete into it. A rank has one or two to each other rank,
//! and those whose peer is on another host rest most of the time: nothing is under way that this side could move on, and
//! their connection has told of nothing since. A poll leaves them out until somebody touches them or the connection does. The
//! device's thread, which looks at the clock, too, leaves those out that sleep: time brings them nothing.

use std::sync::atomic::{AtomicU8, Ordering};

/// Of one queue pair. It begins under the queue pair's lock and ends from anywhere.
#[derive(Default)]
pub(crate) struct Rest(AtomicU8);

const AWAKE: u8 = 0;
const RESTS: u8 = 1;
const SLEEPS: u8 = 2;

impl Rest {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire) != AWAKE
    }

    /// Whether nothing is to be done for it as time passes, either.
    #[inline]
    pub(crate) fn is_sleep(&self) -> bool {
        self.0.load(Ordering::Acquire) == SLEEPS
    }

    /// There is nothing to be done, unless `told` says that there is by now, nor will there be as time passes if it `sleeps`. What is
    /// told after it was asked ends the rest.
    pub(crate) fn begin(&self, sleeps: bool, told: impl FnOnce() -> bool) {
        self.0.swap(if sleeps { SLEEPS } else { RESTS }, Ordering::SeqCst);
        if told() {
            self.end();
        }
    }

    /// There may be something to be done. Whoever calls this has noted what before, in sequential order.
    #[inline]
    pub(crate) fn end(&self) {
        // Most often it has not begun, and the line is not this thread's to write.
        if self.0.load(Ordering::SeqCst) != AWAKE {
            self.0.store(AWAKE, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    #[test]
    fn it_ends_and_does_not_begin_where_something_was_told() {
        let rest = Rest::default();
        assert!(!rest.is_on());
        for sleeps in [false, true] {
            rest.begin(sleeps, || true);
            assert!(!rest.is_on() && !rest.is_sleep());
            rest.begin(sleeps, || false);
            assert!(rest.is_on() && rest.is_sleep() == sleeps);
            rest.end();
            assert!(!rest.is_on() && !rest.is_sleep());
        }
    }

    /// One thread tells of something and ends the rest, the other takes it and rests.
    #[test]
    fn nothing_that_is_told_is_slept_through() {
        const TIMES: u32 = if cfg!(miri) { 50 } else { 2000 };
        let (rest, told) = (Rest::default(), AtomicU32::new(0));
        let taken = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..=TIMES {
                    told.store(turn, Ordering::SeqCst);
                    rest.end();
                    while taken.load(Ordering::SeqCst) < turn {
                        std::hint::spin_loop();
                        thread::yield_now();
                    }
                }
            });
            let mut seen = 0;
            while seen < TIMES {
                if rest.is_on() {
                    thread::yield_now();
                    continue;
                }
                seen = told.load(Ordering::SeqCst);
                taken.store(seen, Ordering::SeqCst);
                rest.begin(seen % 2 == 0, || told.load(Ordering::SeqCst) != seen);
            }
        });
    }
}
