//! What a rank has shared, and what it has taken back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fulmen_memory::{Exposed, Region};
use fulmen_reach::{ReachError, ShareKey};

use super::table::{self, Area, Export, Hazards, SLOTS, fence_everywhere, fences};
use super::{RemoteKey, Rights};
use crate::map::Neighbours;
use crate::{FabricError, OpName};

/// One-sided operations of a rank, in both roles.
pub(crate) struct OneSided {
    rank: u32,
    /// By rank; this rank's own, too. Where ranks do not map one another's memory, only that.
    areas: Vec<Option<Area>>,
    /// This rank's own.
    pub(super) hazards: Hazards,
    neighbours: Option<Arc<Neighbours>>,
    books: Mutex<Books>,
    /// How many shares are in quarantine, to be looked at without the lock.
    quarantined: AtomicUsize,
}

#[derive(Default)]
struct Books {
    /// Lines of the exports that were used before.
    free: Vec<u32>,
    /// The first one that was not.
    fresh: u32,
    /// By line.
    shares: HashMap<u32, Own>,
    /// Regions that others may map because of shares in them: by id, how many there are.
    regions: HashMap<u64, (ShareKey, usize)>,
    /// Memory of shares that have ended, which a peer may still be writing.
    quarantine: Vec<(u32, Own)>,
}

/// A share of this rank.
struct Own {
    tag: u64,
    memory: Exposed,
    /// Whether its region is listed in the books.
    listed: bool,
}

impl OneSided {
    /// `controls` are the areas of all ranks, as far as they are mapped here.
    pub(crate) fn new(rank: u32, controls: Vec<Option<Exposed>>, neighbours: Option<Arc<Neighbours>>) -> OneSided {
        let areas: Vec<_> = controls.into_iter().map(|control| control.map(Area::new)).collect();
        let own = areas[rank as usize].clone().expect("this rank's own control region");
        if fences::available() {
            own.promise_fences();
        }
        OneSided {
            rank,
            areas,
            hazards: Hazards::new(own),
            neighbours,
            books: Mutex::default(),
            quarantined: AtomicUsize::new(0),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Each change is made in an order in which what was done so far is right.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank's area, if it is mapped here.
    pub(super) fn area(&self, rank: u32) -> Option<&Area> {
        self.areas.get(rank as usize)?.as_ref()
    }

    pub(super) fn own(&self) -> &Area {
        self.areas[self.rank as usize].as_ref().expect("this rank's own area")
    }

    /// Whether threads of this rank can leave the fence to the owner of a share.
    pub(super) fn trusts_fences_of(&self, area: &Area) -> bool {
        fences::available() && area.promises_fences()
    }

    pub(super) fn share(&self, op: OpName, memory: &Exposed, rights: Rights) -> Result<RemoteKey, FabricError> {
        let rank = self.rank;
        let writes = rights.intersects(Rights::WRITE | Rights::ATOMIC);
        if writes && !memory.region().is_writable() {
            return Err(FabricError::NotPermitted { op, rank, need: rights - Rights::READ });
        }
        self.sweep();
        let tag = loop {
            match getrandom::u64().map_err(|cause| FabricError::NoRandom { op, cause })? {
                0 => {}
                tag => break tag,
            }
        };
        let mut books = self.books();
        let slot = books.take_slot().ok_or(FabricError::TooManyShares { op, most: SLOTS })?;
        let (region, listed) = match self.publish_region(&mut books, memory.region()) {
            Ok(published) => published,
            Err(cause) => {
                books.free.push(slot);
                return Err(FabricError::Reach { op, rank, cause: Arc::new(cause) });
            }
        };
        let (offset, len) = (memory.offset() as u64, memory.len() as u64);
        self.own().line(slot as usize).publish(tag, Export { offset, len, rights: rights.bits(), region });
        books.shares.insert(slot, Own { tag, memory: memory.clone(), listed });
        Ok(RemoteKey { rank, len, rights: rights.bits(), slot, tag })
    }

    /// Lets peers map the region: the key for that (0 if they cannot), and whether it is listed in the books.
    fn publish_region(&self, books: &mut Books, region: &Region) -> Result<(u64, bool), ReachError> {
        let Some(neighbours) = &self.neighbours else { return Ok((0, false)) };
        if let Some(key) = neighbours.pool_key(region) {
            return Ok((key.to_u64(), false));
        }
        if let Some((key, users)) = books.regions.get_mut(&region.id()) {
            *users += 1;
            return Ok((key.to_u64(), true));
        }
        match neighbours.publish(region) {
            Ok(key) => {
                books.regions.insert(region.id(), (key, 1));
                Ok((key.to_u64(), true))
            }
            Err(ReachError::NotShareable) => Ok((0, false)),
            Err(cause) => Err(cause),
        }
    }

    /// This rank's own share of that tag.
    pub(super) fn memory(&self, slot: u32, tag: u64) -> Option<Exposed> {
        let books = self.books();
        books.shares.get(&slot).filter(|own| own.tag == tag).map(|own| own.memory.clone())
    }

    /// Ends a share: nobody begins to work on it any more. False if it has ended before.
    pub(super) fn revoke(&self, slot: u32, tag: u64) -> bool {
        let mut books = self.books();
        let Some(own) = books.shares.remove(&slot) else { return false };
        if own.tag != tag {
            books.shares.insert(slot, own);
            return false;
        }
        self.own().line(slot as usize).clear();
        // The memory stays here until it is known that nobody works on it.
        books.quarantine.push((slot, own));
        self.quarantined.store(books.quarantine.len(), Ordering::Release);
        drop(books);
        fence_everywhere();
        true
    }

    /// The ranks that are in the middle of an operation on this share, which has ended.
    pub(super) fn still_working_on(&self, slot: u32, tag: u64) -> Vec<u32> {
        let books = self.books();
        // Once it has left the quarantine, another one may have the line.
        let kept = books.quarantine.iter().any(|(kept, own)| *kept == slot && own.tag == tag);
        if kept { self.working_on(slot) } else { Vec::new() }
    }

    fn working_on(&self, slot: u32) -> Vec<u32> {
        let share = table::name(self.rank, slot as usize);
        let works = |(rank, area): (u32, &Option<Area>)| {
            let area = area.as_ref()?;
            (area.works_on(share) && self.is_alive(rank)).then_some(rank)
        };
        (0..).zip(&self.areas).filter_map(works).collect()
    }

    /// Whether a rank's process may still do anything.
    fn is_alive(&self, rank: u32) -> bool {
        rank == self.rank || self.neighbours.as_ref().is_some_and(|neighbours| neighbours.is_alive(rank))
    }

    /// Lets go of the memory of shares that have ended, as far as nobody works on it any more.
    pub(crate) fn sweep(&self) {
        if !self.has_quarantined() {
            return;
        }
        let mut books = self.books();
        let mut at = 0;
        let mut released = Vec::new();
        while at < books.quarantine.len() {
            if self.working_on(books.quarantine[at].0).is_empty() {
                released.push(books.quarantine.swap_remove(at));
            } else {
                at += 1;
            }
        }
        for (slot, own) in &released {
            books.free.push(*slot);
            if own.listed {
                self.withdraw_region(&mut books, own.memory.region().id());
            }
        }
        self.quarantined.store(books.quarantine.len(), Ordering::Release);
        // Memory goes without the lock.
        drop(books);
    }

    /// Whether memory waits for a peer that may still write it.
    #[inline]
    pub(crate) fn has_quarantined(&self) -> bool {
        self.quarantined.load(Ordering::Acquire) > 0
    }

    fn withdraw_region(&self, books: &mut Books, region: u64) {
        let Some((key, users)) = books.regions.get_mut(&region) else { return };
        *users -= 1;
        if *users == 0 {
            if let Some(neighbours) = &self.neighbours {
                neighbours.withdraw(*key);
            }
            books.regions.remove(&region);
        }
    }

    /// Ends all shares: this rank's fabric is over. Memory on which somebody works stays in quarantine.
    pub(crate) fn revoke_all(&self) {
        let all: Vec<_> = self.books().shares.iter().map(|(slot, own)| (*slot, own.tag)).collect();
        for (slot, tag) in all {
            self.revoke(slot, tag);
        }
        self.sweep();
    }
}

impl Books {
    fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        (self.fresh < SLOTS as u32).then(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }
}
