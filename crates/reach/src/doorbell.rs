use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;

use crate::moment_after;
use crate::shared::Shared;

#[cfg_attr(target_os = "linux", path = "doorbell/linux.rs")]
#[cfg_attr(target_os = "macos", path = "doorbell/macos.rs")]
mod park;

mod listen;

#[cfg(test)]
mod model;

pub use listen::Listener;

/// Two words in shared memory that a thread can wait on, whichever process rings: `sequence: u32`, which counts the
/// rings, and `waiters: u32`, which counts who is parked.
///
/// Zeroed memory is a doorbell that was never rung. Any number of processes may ring it and wait on it. The way to wait
/// without losing a ring: read [`Doorbell::sequence`], look at what the ring announces, and if there is nothing yet,
/// [`Doorbell::wait`] with that sequence. What was written before a ring is visible to whoever saw its sequence.
///
/// A process that is killed while it waits leaves `waiters` one too high for ever. That costs each later ring a system
/// call, and nothing else. A process that writes the words at will can take wake-ups from others, whose waits then end
/// by their time-out.
#[derive(Clone, Debug)]
pub struct Doorbell {
    words: Shared,
}

impl Doorbell {
    /// Bytes that a doorbell takes in shared memory.
    pub const SIZE: usize = 8;

    /// The doorbell at `offset` of `memory`. Give it a cache line of its own where it is rung often.
    ///
    /// # Panics
    /// If its 8 bytes do not lie inside, are not aligned to 8 bytes, or the region cannot be written.
    #[must_use]
    #[track_caller]
    pub fn at(memory: &Exposed, offset: usize) -> Doorbell {
        let end = offset.checked_add(Self::SIZE).expect("an offset in memory");
        Doorbell { words: Shared::new(memory.slice(offset..end), 8) }
    }

    /// Announces something, and wakes those who wait. No system call when nobody does.
    #[inline]
    pub fn ring(&self) {
        ring(self);
    }

    /// How often it was rung (it wraps).
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.word(0).load(Ordering::Acquire)
    }

    /// Parks until the sequence differs from `seen`: true if it does, false after `timeout` (at most a year).
    ///
    /// Returns at once, without a system call, if it differs already.
    #[must_use]
    pub fn wait(&self, seen: u32, timeout: Duration) -> bool {
        wait(self, seen, moment_after(timeout))
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the eight bytes are aligned to eight and exist (`at`), so that both halves are aligned words that
        // live as long as `self`; they are reached by atomics of this width only.
        unsafe { AtomicU32::from_ptr(self.words.word(0).as_ptr().cast::<u32>().add(index)) }
    }
}

/// What the algorithm needs of a doorbell, so that loom can put its own words beneath it.
trait Words {
    /// Adds one to the sequence (acquire and release).
    fn advance(&self);
    /// Reads the sequence (acquire).
    fn sequence(&self) -> u32;
    /// Reads the sequence by a read-modify-write (acquire and release).
    fn sequence_by_write(&self) -> u32;
    /// Counts one waiter in (acquire and release).
    fn enter(&self);
    /// Counts one waiter out (release).
    fn leave(&self);
    /// Reads the waiters (acquire).
    fn waiters(&self) -> u32;
    /// Orders what this thread has written before what it reads after it, in the order of all such fences.
    fn fence(&self);
    /// Parks while the sequence is `seen`; false once `until` has passed. May return early.
    fn park(&self, seen: u32, until: Instant) -> bool;
    /// Wakes all that are parked.
    fn unpark(&self);
}

/// Rings: if a waiter's count is not seen here, then [`wait`] sees this ring.
///
/// Both sides write one word and then read the other. The waiter reads the sequence by a read-modify-write, which the
/// order of modifications puts either after this one (it sees the ring) or before (this one has acquired the waiter's
/// count with it). That needs no fence on this side, which is the fast one.
#[inline(always)]
fn ring(words: &impl Words) {
    words.advance();
    if words.waiters() != 0 {
        words.unpark();
    }
}

fn wait(words: &impl Words, seen: u32, until: Instant) -> bool {
    if words.sequence() != seen {
        return true;
    }
    words.enter();
    let mut rung = words.sequence_by_write() != seen;
    while !rung {
        // The system compares the sequence again before it parks the thread.
        let in_time = words.park(seen, until);
        rung = words.sequence() != seen;
        if !in_time {
            break;
        }
    }
    words.leave();
    rung
}

impl Words for Doorbell {
    #[inline(always)]
    fn advance(&self) {
        self.word(0).fetch_add(1, Ordering::AcqRel);
    }

    fn sequence(&self) -> u32 {
        self.word(0).load(Ordering::Acquire)
    }

    fn sequence_by_write(&self) -> u32 {
        self.word(0).fetch_add(0, Ordering::AcqRel)
    }

    fn enter(&self) {
        self.word(1).fetch_add(1, Ordering::AcqRel);
    }

    fn leave(&self) {
        self.word(1).fetch_sub(1, Ordering::Release);
    }

    #[inline(always)]
    fn waiters(&self) -> u32 {
        self.word(1).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn park(&self, seen: u32, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        park::wait(self.word(0), seen, left);
        true
    }

    #[cold]
    fn unpark(&self) {
        park::wake_all(self.word(0));
    }
}
