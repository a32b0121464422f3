//! A lock that a program may hold from one call to the next, as between `ibv_wr_start` and `ibv_wr_complete`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{hint, thread};

/// Looks at a held lock before others get the processor.
const SPINS: u32 = 64;

/// A value and the lock around it. It is held for the length of a post, so that waiting is short.
pub(super) struct Latch<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by whoever holds the lock alone.
unsafe impl<T: Send> Sync for Latch<T> {}

impl<T> Latch<T> {
    pub(super) fn new(value: T) -> Latch<T> {
        Latch { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock; [`Latch::release`] gives it back.
    #[inline]
    pub(super) fn acquire(&self) {
        while self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        while self.held.load(Ordering::Relaxed) {
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Gives the lock back.
    #[inline]
    pub(super) fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// The value, for whoever holds the lock.
    ///
    /// # Safety
    /// The caller holds the lock and has no other reference to the value.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn value(&self) -> &mut T {
        // SAFETY: the holder of the lock is alone with the value, by the contract of this function.
        unsafe { &mut *self.value.get() }
    }

    /// Takes the lock until the guard is dropped.
    #[inline]
    pub(super) fn lock(&self) -> Held<'_, T> {
        self.acquire();
        Held { latch: self }
    }
}

/// A held [`Latch`].
pub(super) struct Held<'a, T> {
    latch: &'a Latch<T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard stands for the lock, and borrows of the value go through the guard.
        unsafe { &*self.latch.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, with the guard borrowed alone.
        unsafe { &mut *self.latch.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.latch.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let latch = Latch::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *latch.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*latch.lock(), 80_000);
    }
}
