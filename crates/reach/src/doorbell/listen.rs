use std::time::{Duration, Instant};

use super::{Doorbell, Words};
use crate::moment_after;

/// Waiting for words in shared memory that are not the doorbell's own, so that whoever writes them needs no
/// read-modify-write when nobody waits.
impl Doorbell {
    /// Wakes those who [listen](Doorbell::listen) or wait, if there are any: a fence and a load when there are not, and
    /// the sequence does not move then. To be called after the writes that listeners look for.
    #[inline]
    pub fn notify(&self) {
        notify(self);
    }

    /// Wakes those who listen already, without a fence, for who has more to write soon: whoever begins to listen meanwhile may miss it, so
    /// that a [`Doorbell::notify`] has to follow.
    #[inline]
    pub fn hint(&self) {
        hint(self);
    }

    /// Counts the caller in as waiting. What it then looks at and does not find written will be announced to it by
    /// [`Doorbell::notify`], so that [`Listener::wait`] returns. The way to wait: look; listen; look again; wait.
    #[must_use]
    pub fn listen(&self) -> Listener<'_> {
        Listener { doorbell: self, seen: listen(self) }
    }
}

/// Wakes listeners, if there are any.
#[inline(always)]
pub(super) fn notify(words: &impl Words) {
    // Pairs with the fence of `listen`: either the count of a listener is seen here, or the listener sees the caller's
    // writes.
    words.fence();
    hint(words);
}

/// Wakes listeners that are seen without a fence.
#[inline(always)]
pub(super) fn hint(words: &impl Words) {
    if words.waiters() != 0 {
        words.advance();
        words.unpark();
    }
}

/// Counts a waiter in: the sequence after which a notification is for it.
#[inline(always)]
pub(super) fn listen(words: &impl Words) -> u32 {
    words.enter();
    words.fence();
    words.sequence()
}

/// Parks until the sequence is no longer `seen`: false after `until`.
pub(super) fn wait_on(words: &impl Words, seen: u32, until: Instant) -> bool {
    loop {
        if words.sequence() != seen {
            return true;
        }
        if !words.park(seen, until) {
            return false;
        }
    }
}

/// Counts its owner as waiting, until it is dropped. See [`Doorbell::listen`].
#[derive(Debug)]
pub struct Listener<'a> {
    doorbell: &'a Doorbell,
    seen: u32,
}

impl Listener<'_> {
    /// Parks until the doorbell was rung or notified since [`Doorbell::listen`]: true if it was, false after `timeout`
    /// (at most a year).
    pub fn wait(self, timeout: Duration) -> bool {
        wait_on(self.doorbell, self.seen, moment_after(timeout))
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.doorbell.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Duration;

    use fulmen_memory::Region;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_listens_and_nothing_moves() {
        let memory = Region::alloc(64).unwrap().expose().unwrap();
        let bell = Doorbell::at(&memory, 0);
        bell.notify();
        bell.hint();
        assert_eq!(bell.sequence(), 0);
        let listener = bell.listen();
        bell.notify();
        assert_eq!(bell.sequence(), 1);
        assert!(listener.wait(LONG));
        let listener = bell.listen();
        bell.hint();
        assert_eq!(bell.sequence(), 2);
        assert!(listener.wait(LONG));
        bell.notify();
        bell.hint();
        assert_eq!(bell.sequence(), 2, "a listener that is gone no longer counts");
        assert!(!bell.listen().wait(Duration::from_millis(1)));
    }

    #[test]
    fn no_write_is_missed() {
        let memory = Region::alloc(256).unwrap().expose().unwrap();
        let rounds = 20_000;
        // Each side waits for the other's word and then writes its own.
        let side = |mine: usize, other: usize, first: bool| {
            let memory = memory.clone();
            move || {
                let (own, peer) = (Doorbell::at(&memory, mine), Doorbell::at(&memory, other));
                for round in 1..=rounds {
                    let expected = if first { round - 1 } else { round };
                    let arrived = || memory.atomic_u64(other + 8).load(Ordering::Acquire) == expected;
                    while !arrived() {
                        let listener = own.listen();
                        if arrived() {
                            break;
                        }
                        assert!(listener.wait(LONG), "a write was missed");
                    }
                    memory.atomic_u64(mine + 8).store(round, Ordering::Release);
                    peer.notify();
                }
            }
        };
        let other = thread::spawn(side(0, 128, false));
        side(128, 0, true)();
        other.join().unwrap();
    }
}
