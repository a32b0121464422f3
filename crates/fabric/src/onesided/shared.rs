//! Memory that this rank shares.

use std::fmt;
use std::hint;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;

use super::RemoteKey;
use crate::{Action, Fabric, FabricError, On, OpName, What, clock};

/// Memory that other ranks may work on, as far as the rights go that it was shared with. See [`Fabric::share`].
///
/// Dropping it ends the share, as [`Shared::close`] does, but without waiting.
#[derive(Debug)]
pub struct Shared {
    pub(super) fabric: Fabric,
    pub(super) key: RemoteKey,
    pub(super) memory: Exposed,
}

/// Looks at others' work that the processor is given to somebody else between, before this thread sleeps between.
const YIELDS: u32 = 100;
/// How often a word is looked at that a peer's device may change.
const DEVICE_NAP: Duration = Duration::from_micros(500);
/// The most looks at a word before it is said that somebody waits for it: some microseconds.
const SILENT: u32 = 1024;
/// How long it sleeps.
const NAP: Duration = Duration::from_micros(200);

impl Shared {
    /// What others need to work on it.
    #[must_use]
    pub fn key(&self) -> RemoteKey {
        self.key.clone()
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Exposed {
        &self.memory
    }

    /// Waits until the 64-bit word at `offset` is at least `at_least`, and returns it. What was put before it was counted
    /// ([`Remote::put_counted`](super::Remote::put_counted)) can be read then.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`], [`FabricError::TimedOut`], and
    /// [`FabricError::PeerLost`] as soon as any rank is lost, since nobody knows who was to count.
    pub fn wait_counter(&self, offset: u64, at_least: u64, timeout: Duration) -> Result<u64, FabricError> {
        const OP: OpName = "wait_counter";
        super::check_word(OP, self.fabric.rank(), &self.memory, offset)?;
        let word = self.memory.atomic_u64(offset as usize);
        let ready = || {
            let value = word.load(Ordering::SeqCst);
            if value >= at_least { Poll::Ready(value) } else { Poll::Pending }
        };
        // A word that changes soon is waited for in silence: to say that somebody listens takes the cache line away from
        // those who look at it for each operation.
        let looks =
            if self.fabric.inner.neighbours.is_some() { self.fabric.poll_policy().spins.min(SILENT) } else { 0 };
        for _ in 0..=looks {
            if let Poll::Ready(value) = ready() {
                return Ok(value);
            }
            hint::spin_loop();
        }
        let onesided = &self.fabric.inner.onesided;
        onesided.begin_wait(self.key.slot);
        let recorder = &self.fabric.inner.recorder;
        let running = recorder.begin(What::of(Action::WaitCounter, self.fabric.rank(), offset, 8));
        let waited = match self.key.devices.is_empty() {
            true => self.fabric.wait(OP, On::All, timeout, ready),
            // A peer's device changes words, and tells nobody.
            false => self.fabric.wait_in_naps(OP, On::All, timeout, DEVICE_NAP, ready),
        };
        onesided.end_wait(self.key.slot);
        recorder.ended(running, waited)
    }

    /// Ends the share and waits until nobody is in the middle of an operation on it. After that no byte of it is changed
    /// by others any more. Operations that begin later fail with [`FabricError::NoSuchKey`].
    ///
    /// A thread of this rank that looks for memory to let go of may hold a handle to this one for another moment: who wants
    /// the [block](Exposed::into_block) back tries again then.
    ///
    /// Of devices this holds as far as it does of the end of a registration: a device that is part of a machine has let go of
    /// the memory when that returns. A *soft* device waits up to 2 s for a peer that is just writing, and takes one that is
    /// stopped for longer to be dead: if it goes on after that, it may finish that one WRITE late.
    ///
    /// # Errors
    /// [`FabricError::TimedOut`], which names the ranks that are at it: they are stopped, or the deadline is short. The
    /// share has ended all the same, but those may still write what they were writing; so the fabric keeps a handle to the
    /// memory, which is used for nothing else until they have ended.
    pub fn close(self, timeout: Duration) -> Result<(), FabricError> {
        const OP: OpName = "close";
        let Fabric { inner } = &self.fabric;
        let started = Instant::now();
        let until = clock::after(timeout);
        self.revoke();
        for look in 0_u32.. {
            let missing = inner.lanes.still_working_on(self.key.slot, self.key.tag);
            if missing.is_empty() {
                break;
            }
            if Instant::now() >= until {
                let link = inner.link_kind();
                return Err(FabricError::TimedOut { op: OP, link, waited: started.elapsed(), missing });
            }
            if inner.lanes.pump_all() || look < YIELDS {
                thread::yield_now();
            } else {
                thread::sleep(NAP);
            }
        }
        inner.lanes.sweep();
        Ok(())
    }

    fn revoke(&self) -> bool {
        self.fabric.inner.onesided.revoke(self.key.slot, self.key.tag)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let inner = &self.fabric.inner;
        self.revoke();
        inner.lanes.sweep();
        if inner.onesided.has_quarantined() {
            inner.progress.need();
        }
    }
}

impl fmt::Debug for super::OneSided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneSided").finish_non_exhaustive()
    }
}
