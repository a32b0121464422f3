//! The few steps by which an operation on a share and the end of that share never miss one another, over any words, so that
//! loom can put its own beneath them.
//!
//! Who works: [`announce`], look whether the share [`stands`], work, and the announcement goes. Who ends the share: [`end`],
//! and then look until nobody [works on](works_on) it. Each writes before it reads, and a fence lies between: so one of both
//! sees the other.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

/// A word that several ranks use. Real ones are atomics; loom puts its own beneath.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Orders what this thread has written before what it reads after it, in the one order of all such fences.
    fn fence();
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline(always)]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// While it exists, the share that it announces is worked on.
pub(super) struct Announced<'a, W: Word = AtomicU64>(pub(super) &'a W);

impl<W: Word> Drop for Announced<'_, W> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Announces a share in a hazard that nobody else writes. `light`: the share's owner sees to the fence.
#[inline(always)]
pub(super) fn announce<W: Word>(hazard: &W, share: u64, light: bool) -> Announced<'_, W> {
    hazard.store(share, Ordering::Relaxed);
    if light {
        compiler_fence(Ordering::SeqCst);
    } else {
        W::fence();
    }
    Announced(hazard)
}

/// Whether the share of this tag stands. What its owner wrote before it ended the share is seen if not.
#[inline(always)]
pub(super) fn stands(word: &impl Word, tag: u64) -> bool {
    word.load(Ordering::SeqCst) == tag
}

/// Ends the share of this word. [`works_on`] is asked after a [fence](Word::fence), here and, for those that announce
/// lightly, everywhere.
pub(super) fn end(word: &impl Word) {
    word.store(0, Ordering::SeqCst);
}

/// Whether this hazard announces the share. What was done under the announcement is seen if not.
pub(super) fn works_on(hazard: &impl Word, share: u64) -> bool {
    hazard.load(Ordering::Acquire) == share
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};
    use loom::thread;

    use super::*;

    const SHARE: u64 = 7;
    const TAG: u64 = 9;

    impl Word for AtomicU64 {
        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }

        fn fence() {
            fence(Ordering::SeqCst);
        }
    }

    /// A share, and the memory that goes with it. Loom ends the test if two are at the memory at a time, or one after the
    /// other without an order.
    struct Model {
        tag: AtomicU64,
        hazards: Vec<AtomicU64>,
        memory: UnsafeCell<u64>,
    }

    impl Model {
        fn new(threads: usize) -> Arc<Model> {
            let hazards = (0..threads).map(|_| AtomicU64::new(0)).collect();
            Arc::new(Model { tag: AtomicU64::new(TAG), hazards, memory: UnsafeCell::new(0) })
        }

        fn work(&self, thread: usize) {
            let _announced = announce(&self.hazards[thread], SHARE, false);
            if stands(&self.tag, TAG) {
                // Operations of several ranks meet in it: what is to be apart is only the owner's next use of it.
                self.memory.with(|_| ());
            }
        }

        fn end_and_reuse(&self) {
            end(&self.tag);
            AtomicU64::fence();
            while self.hazards.iter().any(|hazard| works_on(hazard, SHARE)) {
                thread::yield_now();
            }
            self.memory.with_mut(|_| ());
        }
    }

    fn check(threads: usize, operations: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Model::new(threads);
            let spawn = |thread| {
                let model = model.clone();
                loom::thread::spawn(move || (0..operations).for_each(|_| model.work(thread)))
            };
            let workers: Vec<_> = (0..threads).map(spawn).collect();
            model.end_and_reuse();
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }

    #[test]
    fn under_loom_nobody_works_on_a_share_that_has_ended() {
        check(1, 2);
    }

    #[test]
    fn under_loom_none_of_two_threads_is_missed() {
        check(2, 1);
    }
}
