//! Who still uses an object: it cannot be destroyed meanwhile (EBUSY).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the users of an object.
#[derive(Clone, Default)]
pub(crate) struct Users(Arc<AtomicUsize>);

/// One user, until it is dropped.
pub(crate) struct User(Arc<AtomicUsize>);

impl Users {
    /// One more user.
    pub(crate) fn add(&self) -> User {
        self.0.fetch_add(1, Ordering::AcqRel);
        User(self.0.clone())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
