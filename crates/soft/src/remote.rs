//! Another process's device: its directory, its doorbell, and the regions of it that are mapped here.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;
use fulmen_reach::{Doorbell, Peer, ReachError, ShareKey};

use crate::directory::Directory;
use crate::layout::directory as at;
use crate::progress::Progress;
use crate::wire::Cause;

/// How long the device's thread waits for one mapping before it looks at its other work; it asks again then.
const MAP_PATIENCE: Duration = Duration::from_millis(100);

pub(crate) struct Remote {
    pub(crate) peer: Arc<Peer>,
    pub(crate) directory: Directory,
    doorbell: Doorbell,
    maps: Mutex<Maps>,
    this: Weak<Remote>,
}

#[derive(Default)]
struct Maps {
    known: HashMap<u64, Mapping>,
    revoked: u64,
}

enum Mapping {
    /// The device's thread was asked for it.
    Asked,
    Mapped(Exposed),
    Refused,
}

/// What a look for a mapping found.
pub(crate) enum Lookup {
    Mapped(Exposed),
    /// The device's thread maps it, and drives the queue pair then.
    Later,
    /// It cannot be mapped.
    Refused,
}

impl Remote {
    /// Maps the directory that `peer` shares under `key`.
    pub(crate) fn open(peer: Arc<Peer>, key: ShareKey, profile: u64, until: Instant) -> Result<Arc<Remote>, Cause> {
        let left = || until.saturating_duration_since(Instant::now());
        let mut region = peer.map(key, left())?;
        if region.len() == at::SIZE && Directory::new(region.expose()?).is_closed() {
            // Somebody here still keeps the directory of a device that was there before.
            region = peer.map_anew(key, &region, left())?;
        }
        if region.len() != at::SIZE {
            return Err(format!("its directory has {} bytes and not {}", region.len(), at::SIZE).into());
        }
        let words = region.expose()?;
        let doorbell = Doorbell::at(&words, at::DOORBELL);
        let directory = Directory::new(words);
        match directory.profile() {
            None => return Err("its directory is of another version of Fulmen".into()),
            Some(theirs) if theirs != profile => {
                return Err("its device has another profile: open both with the same".into());
            }
            Some(_) => {}
        }
        Ok(Arc::new_cyclic(|this| Remote { peer, directory, doorbell, maps: Mutex::default(), this: this.clone() }))
    }

    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.peer.is_alive()
    }

    /// Whether its device is the one that its node has under this number.
    pub(crate) fn is_open(&self) -> bool {
        self.is_alive() && !self.directory.is_closed()
    }

    /// Wakes the peer's device if it sleeps. What was written before is seen by then.
    #[inline]
    pub(crate) fn wake(&self) {
        // The peer says that it sleeps, and then looks once more: one of both sides sees the other's store.
        fence(Ordering::SeqCst);
        if self.directory.is_asleep() {
            self.doorbell.ring();
        }
    }

    /// The region that the peer shares under `share`. Never waits.
    pub(crate) fn region(&self, share: ShareKey, progress: &Progress) -> Lookup {
        let mut maps = self.maps();
        match maps.known.get(&share.to_u64()) {
            Some(Mapping::Mapped(memory)) => Lookup::Mapped(memory.clone()),
            Some(Mapping::Asked) => Lookup::Later,
            Some(Mapping::Refused) => Lookup::Refused,
            None => {
                maps.known.insert(share.to_u64(), Mapping::Asked);
                drop(maps);
                let Some(this) = self.this.upgrade() else { return Lookup::Refused };
                progress.map(this, share);
                Lookup::Later
            }
        }
    }

    /// Maps what was asked for; false if it is to be tried again. For the device's thread.
    pub(crate) fn map(&self, share: ShareKey) -> bool {
        let found = match self.peer.map(share, MAP_PATIENCE) {
            Ok(region) => region.expose().map_or(Mapping::Refused, Mapping::Mapped),
            // A stopped peer is not dead.
            Err(ReachError::TimedOut { .. }) => return false,
            Err(_) => Mapping::Refused,
        };
        let mut maps = self.maps();
        maps.known.insert(share.to_u64(), found);
        let revoked = self.directory.revoked();
        if maps.revoked != revoked {
            maps.revoked = revoked;
            let valid: HashSet<u64> = self.directory.shares().collect();
            let keep = |key: &u64, found: &mut Mapping| match found {
                Mapping::Asked => true,
                Mapping::Mapped(_) | Mapping::Refused => valid.contains(key) || *key == share.to_u64(),
            };
            maps.known.retain(keep);
        }
        true
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
