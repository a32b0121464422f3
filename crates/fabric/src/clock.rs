//! Deadlines.

use std::time::{Duration, Instant};

/// The moment when `timeout` has passed. A year from now where the clock cannot count as far as the caller would wait.
pub(crate) fn after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + Duration::from_secs(365 * 24 * 3600))
}

/// What is left until `deadline`.
pub(crate) fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timeout_is_too_long() {
        assert!(until(after(Duration::MAX)) > Duration::from_secs(300 * 24 * 3600));
        assert_eq!(until(after(Duration::ZERO)), Duration::ZERO);
    }
}
