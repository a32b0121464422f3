//! The registrations of one device, private to its process, and their keys.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use fulmen_memory::{Exposed, Region};
use fulmen_reach::{Node, ReachError, ShareKey};
use fulmen_verbs::{Access, Piece};

use crate::directory::{Directory, SharedKey, slot_of};
use crate::layout::directory::KEY_SLOTS;

/// Slots whose uses are all spent are left out from then on, so that no key is ever used twice.
const LAPS: u32 = (1_u64 << 32).div_euclid(KEY_SLOTS as u64) as u32;

#[derive(Clone, Debug)]
struct Entry {
    key: u32,
    region: u64,
    range: Range<usize>,
    access: Access,
    domain: u64,
    share: Option<ShareKey>,
    /// The region, if peers may ask this process to work on it for them.
    served: Option<Exposed>,
    /// Where the region starts, as peers name it.
    base: usize,
}

/// Slots that are free, each with the number of its next use.
struct Slots {
    free: VecDeque<(u32, u32)>,
    fresh: u32,
    /// Where the laps of all slots start, so that keys of two devices differ.
    salt: u32,
    shares: HashMap<u64, (ShareKey, usize)>,
}

pub(crate) struct Registrations {
    entries: RwLock<Vec<Option<Entry>>>,
    slots: Mutex<Slots>,
}

/// How a piece can be named to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Under this key the region is shared, if it can be.
    pub(crate) share: Option<ShareKey>,
    /// Where the piece starts in the region.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Where it starts in this process.
    pub(crate) addr: u64,
}

/// What is registered.
pub(crate) struct Registration<'a> {
    pub(crate) region: &'a Region,
    pub(crate) range: Range<usize>,
    pub(crate) access: Access,
    /// The number of the protection domain.
    pub(crate) domain: u64,
    /// The bytes of the region, if it cannot be mapped by peers that may reach it.
    pub(crate) served: Option<Exposed>,
}

impl Registrations {
    pub(crate) fn new(salt: u32) -> Registrations {
        let slots = Slots { free: VecDeque::new(), fresh: 0, salt: salt % (LAPS - 1) + 1, shares: HashMap::new() };
        Registrations { entries: RwLock::default(), slots: Mutex::new(slots) }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers, and gives the key; `None` if all keys are used.
    pub(crate) fn add(
        &self,
        node: &Node,
        directory: &Directory,
        registration: Registration<'_>,
    ) -> Result<Option<u32>, ReachError> {
        let Registration { region, range, access, domain, served } = registration;
        let mut slots = self.slots();
        let share = match slots.shares.get_mut(&region.id()) {
            Some((share, users)) => {
                *users += 1;
                Some(*share)
            }
            None if region.fd().is_some() => {
                let share = node.share(region)?;
                slots.shares.insert(region.id(), (share, 1));
                Some(share)
            }
            None => None,
        };
        let Some(key) = slots.next_key() else {
            slots.leave(node, region.id());
            return Ok(None);
        };
        drop(slots);
        let slot = slot_of(key);
        let published = share.is_some() || served.is_some();
        let entry = Entry {
            key,
            region: region.id(),
            range: range.clone(),
            access,
            domain,
            share,
            served,
            base: region.addr(),
        };
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.len() <= slot {
            entries.resize(slot + 1, None);
        }
        entries[slot] = Some(entry);
        if published {
            let (offset, len) = (range.start as u64, (range.end - range.start) as u64);
            let addr = (region.addr() + range.start) as u64;
            directory.set_key(slot, &SharedKey { key, share, offset, len, addr, access, domain });
        }
        Ok(Some(key))
    }

    /// Ends a registration. It waits for threads of this process that serve a peer on it.
    pub(crate) fn remove(&self, node: &Node, directory: &Directory, key: u32) {
        let slot = slot_of(key);
        let entry = self.entries.write().unwrap_or_else(PoisonError::into_inner)[slot].take();
        directory.clear_key(slot);
        let mut slots = self.slots();
        if let Some(entry) = entry {
            slots.leave(node, entry.region);
        }
        slots.give_back(key);
    }

    /// Whether `piece` lies in the registration that it names, in this domain and with these rights; and where.
    pub(crate) fn place(&self, piece: &Piece, domain: u64, needed: Access) -> Option<Place> {
        let (offset, len) = (piece.memory.offset(), piece.memory.len());
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(slot_of(piece.lkey))?.as_ref()?;
        let fits = entry.key == piece.lkey
            && entry.domain == domain
            && entry.access.contains(needed)
            && entry.region == piece.memory.region().id()
            && entry.range.start <= offset
            && offset + len <= entry.range.end;
        fits.then_some(Place {
            share: entry.share,
            offset: offset as u64,
            len: len as u64,
            addr: piece.memory.addr() as u64,
        })
    }

    /// Works for a peer on `len` bytes at `addr` of this process, which must lie in registration `key`, of this domain
    /// and with these rights: the memory, and where they start in it. The registration does not end meanwhile.
    pub(crate) fn serve<R>(
        &self,
        key: u32,
        domain: u64,
        needed: Access,
        addr: u64,
        len: usize,
        work: impl FnOnce(&Exposed, usize) -> R,
    ) -> Option<R> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(slot_of(key))?.as_ref()?;
        let memory = entry.served.as_ref()?;
        let at = usize::try_from(addr).ok()?.checked_sub(entry.base)?;
        let end = at.checked_add(len)?;
        let fits = entry.key == key
            && entry.domain == domain
            && entry.access.contains(needed)
            && entry.range.start <= at
            && end <= entry.range.end;
        fits.then(|| work(memory, at))
    }
}

impl Slots {
    fn next_key(&mut self) -> Option<u32> {
        // Slots are used anew only when there are many, so that a stale key stays wrong for long.
        let (slot, lap) = if self.fresh < KEY_SLOTS as u32 {
            self.fresh += 1;
            (self.fresh - 1, 0)
        } else {
            self.free.pop_front()?
        };
        Some(self.key(slot, lap))
    }

    fn key(&self, slot: u32, lap: u32) -> u32 {
        // Key 0 means none: it is slot 0 on lap 0, which the salt skips at first and `give_back` later.
        let lap = (lap + self.salt) % LAPS;
        lap * KEY_SLOTS as u32 + slot
    }

    fn give_back(&mut self, key: u32) {
        let slot = key % KEY_SLOTS as u32;
        let lap = (key / KEY_SLOTS as u32 + LAPS - self.salt) % LAPS;
        if lap + 1 < LAPS && self.key(slot, lap + 1) != 0 {
            self.free.push_back((slot, lap + 1));
        }
    }

    fn leave(&mut self, node: &Node, region: u64) {
        if let Some((share, users)) = self.shares.get_mut(&region) {
            *users -= 1;
            if *users == 0 {
                node.unshare(*share);
                self.shares.remove(&region);
            }
        }
    }
}
