//! A value that only the holder of a lock changes, also when a former holder is late.
//!
//! The home has a *head* word and, for each rank, two slots of the value's length. A writer puts the new value into the one
//! of its own slots that is not the current value, and then changes the head by compare-and-swap: to its fence number (51
//! bits) and its slot (13 bits). A late writer so writes nothing that anybody reads, and then finds a head with a greater
//! number. A reader takes the slot that the head names, and looks at the head again.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fulmen_collectives::Group;
use fulmen_fabric::{FabricError, Rights};

use super::home::Home;
use super::{Guard, SyncError};

const SLOT: u32 = 13;
/// Where the slots begin: a cache line apart from the head.
const SLOTS: u64 = 64;
/// Ranks whose slots can be named.
const MOST_RANKS: u32 = 1 << (SLOT - 1);

/// A value of a fixed number of bytes that is guarded by a [`Lock`](super::Lock). See the [module](super).
pub struct Guarded {
    group: Group,
    head: Home,
    slots: Home,
    len: usize,
    /// Held by whoever writes: threads of one rank share its slots.
    writing: Mutex<()>,
}

impl Guarded {
    /// Makes a value of `len` zero bytes in the memory of rank `home`. Collective.
    ///
    /// # Errors
    /// [`SyncError::Invalid`], [`SyncError::Group`], [`SyncError::Fabric`].
    pub fn new(group: &Group, home: u32, len: usize) -> Result<Guarded, SyncError> {
        const OP: &str = "guarded";
        let invalid = |problem| SyncError::Invalid { op: OP, problem };
        if group.size() > MOST_RANKS {
            return Err(invalid(format!("{} ranks are too many: at most {MOST_RANKS}", group.size())));
        }
        let all =
            len.checked_next_multiple_of(SLOTS as usize).and_then(|slot| slot.checked_mul(2 * group.size() as usize));
        let all = all.ok_or_else(|| invalid(format!("{len} bytes for each rank are more than there is memory")))?;
        let head = Home::new(OP, group, home, 8, Rights::ATOMIC)?;
        let slots = Home::new(OP, group, home, all.max(8), Rights::READ | Rights::WRITE)?;
        Ok(Guarded { group: group.clone(), head, slots, len, writing: Mutex::new(()) })
    }

    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Changes the value. Renews the lease of the lock.
    ///
    /// # Errors
    /// [`SyncError::Lost`] if the lock was lost: then the value is what others made of it. [`SyncError::Length`], and
    /// [`SyncError::Fabric`] when the home is lost.
    pub fn write(&self, guard: &mut Guard<'_>, value: &[u8]) -> Result<(), SyncError> {
        if value.len() != self.len {
            return Err(SyncError::Length { len: value.len(), size: self.len });
        }
        let timeout = self.group.deadline();
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Each write has a fence number of its own, so that readers see that the head has changed.
        guard.renew()?;
        let head = self.head.load(0, timeout)?;
        if head >> SLOT >= guard.fence() {
            return Err(guard.lost("write"));
        }
        let first = u64::from(self.group.rank()) * 2;
        let slot = if head & ((1 << SLOT) - 1) == first { first + 1 } else { first };
        self.slots.remote().put_bytes(self.at(slot), value, timeout)?;
        let next = guard.fence() << SLOT | slot;
        if self.head.remote().compare_swap(0, head, next, timeout)? != head {
            return Err(guard.lost("write"));
        }
        Ok(())
    }

    /// The value as it is now: one that was written as a whole.
    ///
    /// # Errors
    /// [`SyncError::Fabric`] when the home is lost, or if others write all the time until `timeout` has passed.
    pub fn read(&self, timeout: Duration) -> Result<Vec<u8>, SyncError> {
        let began = Instant::now();
        let mut value = vec![0; self.len];
        let mut head = self.head.load(0, timeout)?;
        loop {
            self.slots.remote().get_bytes(self.at(head & ((1 << SLOT) - 1)), &mut value, timeout)?;
            let now = self.head.load(0, timeout)?;
            if now == head {
                return Ok(value);
            }
            head = now;
            let waited = began.elapsed();
            if waited >= timeout {
                let (rank, link) = (self.head.remote().rank(), self.group.fabric().link_kind());
                return Err(FabricError::TimedOut { op: "read", link, waited, missing: vec![rank] }.into());
            }
        }
    }

    fn at(&self, slot: u64) -> u64 {
        slot * (self.len as u64).next_multiple_of(SLOTS)
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("home", &self.head.remote().rank()).field("len", &self.len).finish()
    }
}
