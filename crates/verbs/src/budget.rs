//! How many of a thing a device still has.

use crate::VerbsError;
use crate::sync::{Arc, AtomicU64, Ordering};

/// Counts what a device hands out of a limited thing, such as its queue pairs. A clone counts on the same books.
#[derive(Clone, Debug)]
pub struct Budget {
    books: Arc<Books>,
}

#[derive(Debug)]
struct Books {
    device: String,
    what: &'static str,
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `limit`; `what` is in the plural, for the message of [`VerbsError::Limit`].
    #[must_use]
    pub fn new(device: impl Into<String>, what: &'static str, limit: u64) -> Budget {
        Budget { books: Arc::new(Books { device: device.into(), what, limit, used: AtomicU64::new(0) }) }
    }

    /// Takes one, until the claim is dropped.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if all are taken.
    pub fn take(&self) -> Result<Claim, VerbsError> {
        self.take_many(1)
    }

    /// Takes `count` at once or none, until the claim is dropped.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if fewer are left; `asked` counts those that are taken already.
    pub fn take_many(&self, count: u64) -> Result<Claim, VerbsError> {
        let books = &self.books;
        let mut used = books.used.load(Ordering::Relaxed);
        loop {
            let after = used.saturating_add(count);
            if after > books.limit {
                let (what, limit) = (books.what, books.limit);
                return Err(VerbsError::Limit { device: books.device.clone(), what, asked: after, limit });
            }
            // Acquire pairs with the release of a dropped claim: whoever gets what another gave back sees it torn down.
            match books.used.compare_exchange_weak(used, after, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Claim { books: books.clone(), count }),
                Err(now) => used = now,
            }
        }
    }

    /// How many are taken now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.books.used.load(Ordering::Relaxed)
    }

    /// How many there are.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.books.limit
    }
}

/// A part of a [`Budget`], given back on drop.
#[derive(Debug)]
pub struct Claim {
    books: Arc<Books>,
    count: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.books.used.fetch_sub(self.count, Ordering::Release);
    }
}
