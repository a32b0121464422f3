//! How many descriptors a test may have.

use std::sync::Once;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many are tried, one after the other: macOS has fewer than it says.
const WANTED: [u64; 2] = [65_536, 10_240];

/// Lets this process open as many descriptors as it may ask for, within reason. Systems give a program 1024 at first, or 256: too
/// few for a test that is several ranks at once, or that makes all queue pairs of a device.
pub fn raise_descriptors() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let better = WANTED.into_iter().map(|wanted| maximum.map_or(wanted, |most| wanted.min(most)));
        let better = better.filter(|wanted| current.is_some_and(|current| current < *wanted));
        // Where none is to be had, the test says what it lacks.
        let _ = better.map(Some).any(|current| setrlimit(Resource::Nofile, Rlimit { current, maximum }).is_ok());
    });
}
