//! The end of an operation's waits.

use std::time::{Duration, Instant};

/// How long an operation may still wait. The clock is read first by the first wait that is not over at once: most
/// operations on few bytes never do.
pub(crate) struct Deadline {
    total: Duration,
    end: Option<Instant>,
}

impl Deadline {
    pub(crate) fn new(total: Duration) -> Deadline {
        Deadline { total, end: None }
    }

    pub(crate) fn left(&mut self) -> Duration {
        let now = Instant::now();
        match self.end {
            Some(end) => end.saturating_duration_since(now),
            None => {
                // A deadline beyond what the clock can tell is none that is ever reached.
                self.end = now.checked_add(self.total);
                self.total
            }
        }
    }
}
