//! What carries a fabric: memory that ranks share, or devices.

pub(crate) mod reach;

use std::time::Duration;

/// Where the threads of a rank park.
pub(crate) trait Parker: Send + Sync {
    /// Parks until this rank is rung, at most for `timeout`; may return early. From before the call of `awake` on no ring
    /// is missed; if it returns true, the thread does not park.
    fn park(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool);

    /// Wakes all threads of this rank that are parked.
    fn wake(&self);
}
