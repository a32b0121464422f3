//! Which queue pairs may be left alone.
//!
//! Whoever polls a completion queue drives the queue pairs that complete into it. A rank has one or two to each other rank,
//! and those whose peer is on another host rest most of the time: nothing is under way that this side could move on, and
//! their connection has told of nothing since. A poll leaves them out until somebody touches them or the connection does.

use std::sync::atomic::{AtomicBool, Ordering};

/// Of one queue pair. It begins under the queue pair's lock and ends from anywhere.
#[derive(Default)]
pub(crate) struct Rest(AtomicBool);

impl Rest {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// There is nothing to be done, unless `told` says that there is by now. What is told after it was asked ends the rest.
    pub(crate) fn begin(&self, told: impl FnOnce() -> bool) {
        self.0.swap(true, Ordering::SeqCst);
        if told() {
            self.end();
        }
    }

    /// There may be something to be done. Whoever calls this has noted what before, in sequential order.
    #[inline]
    pub(crate) fn end(&self) {
        // Most often it has not begun, and the line is not this thread's to write.
        if self.0.load(Ordering::SeqCst) {
            self.0.store(false, Ordering::SeqCst);
        }
    }
}
