//! How many of a thing a device still has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::VerbsError;

/// Counts what a device hands out of a limited thing, such as its queue pairs. A clone counts on the same books.
#[derive(Clone, Debug)]
pub struct Budget {
    books: Arc<Books>,
}

#[derive(Debug)]
struct Books {
    device: String,
    what: &'static str,
    tally: Tally<AtomicU64>,
}

impl Budget {
    /// A budget of `limit`; `what` is in the plural, for the message of [`VerbsError::Limit`].
    #[must_use]
    pub fn new(device: impl Into<String>, what: &'static str, limit: u64) -> Budget {
        Budget {
            books: Arc::new(Books { device: device.into(), what, tally: Tally { limit, used: AtomicU64::new(0) } }),
        }
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
        match books.tally.take(count) {
            Ok(()) => Ok(Claim { books: books.clone(), count }),
            Err(asked) => Err(VerbsError::Limit {
                device: books.device.clone(),
                what: books.what,
                asked,
                limit: books.tally.limit,
            }),
        }
    }

    /// How many are taken now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.books.tally.used.load(Ordering::Relaxed)
    }

    /// How many there are.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.books.tally.limit
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
        self.books.tally.give_back(self.count);
    }
}

/// A count up to a limit, over any word, so that loom can put its own beneath it.
#[derive(Debug)]
struct Tally<W> {
    limit: u64,
    used: W,
}

trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn compare_exchange_weak(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn compare_exchange_weak(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        AtomicU64::compare_exchange_weak(self, current, new, success, failure)
    }

    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_sub(self, value, order)
    }
}

impl<W: Word> Tally<W> {
    /// Takes `count`, or says how many would be taken then, which is more than the limit.
    fn take(&self, count: u64) -> Result<(), u64> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let after = used.saturating_add(count);
            if after > self.limit {
                return Err(after);
            }
            // Acquire pairs with the release of what is given back: whoever gets it sees it torn down.
            match self.used.compare_exchange_weak(used, after, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => used = now,
            }
        }
    }

    fn give_back(&self, count: u64) {
        self.used.fetch_sub(count, Ordering::Release);
    }
}

#[cfg(test)]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    type Modelled = loom::sync::atomic::AtomicU64;

    impl Word for Modelled {
        fn load(&self, order: Ordering) -> u64 {
            Modelled::load(self, order)
        }

        fn compare_exchange_weak(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            Modelled::compare_exchange_weak(self, current, new, success, failure)
        }

        fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            Modelled::fetch_sub(self, value, order)
        }
    }

    /// A thing of which there is one, and its tally.
    struct One {
        tally: Tally<Modelled>,
        uses: Modelled,
    }

    impl One {
        /// Takes the thing, uses it and gives it back; whether it could. Nothing else orders the uses.
        fn try_use(&self) -> bool {
            if self.tally.take(1).is_err() {
                return false;
            }
            let uses = self.uses.load(Ordering::Relaxed);
            self.uses.store(uses + 1, Ordering::Relaxed);
            self.tally.give_back(1);
            true
        }
    }

    #[test]
    fn under_loom_one_has_it_at_a_time_and_sees_what_the_last_one_did() {
        loom::model(|| {
            let one = Arc::new(One { tally: Tally { limit: 1, used: Modelled::new(0) }, uses: Modelled::new(0) });
            let other = Arc::clone(&one);
            let thread = thread::spawn(move || other.try_use());
            let mine = one.try_use();
            let theirs = thread.join().expect("it does not panic");
            assert!(mine || theirs, "one of them gets it");
            assert_eq!(one.uses.load(Ordering::Relaxed), u64::from(mine) + u64::from(theirs));
            assert_eq!(one.tally.used.load(Ordering::Relaxed), 0);
        });
    }
}
