//! What a rank has shared, and what it has taken back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, Region};
use fulmen_reach::{ReachError, ShareKey};
use fulmen_verbs::MemoryRegion;

use super::RemoteKey;
use super::table::{self, Area, Export, Hazards, SLOTS, fence_everywhere, fences};
use crate::driver::device::Registrar;
use crate::engine::{Exports, Place, Rights};
use crate::map::Neighbours;
use crate::{FabricError, OpName};

/// The longest operation of a rank that runs, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_micros(100);

/// One-sided operations of a rank, in both roles.
pub(crate) struct OneSided {
    generation: u64,
    rank: u32,
    /// By rank, where they are mapped here; this rank's own, too.
    areas: Vec<Option<Area>>,
    /// This rank's own.
    pub(super) hazards: Hazards,
    neighbours: Option<Arc<Neighbours>>,
    /// What peers reach through the links to them.
    exports: Exports,
    books: Mutex<Books>,
    /// Peers may ask this rank's links for something, and nobody else answers.
    serves: AtomicBool,
    /// How many shares are in quarantine, to be looked at without the lock.
    quarantined: AtomicUsize,
}

/// Says where large moves of the links reach memory, if they do.
pub(crate) type Direct = Box<dyn Fn(&Exposed) -> Option<Place> + Send + Sync>;

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
    /// Where the links' large moves reach memory, until the generation ends.
    direct: Option<Direct>,
    /// Registers memory for peers' devices, until the generation ends.
    registrar: Option<Registrar>,
}

/// A share in quarantine.
pub(crate) enum Kept {
    /// Another thread of this rank is just ending it.
    Ending,
    /// Somebody may still work on this memory.
    Memory(Exposed),
}

/// A share of this rank.
#[derive(Clone)]
struct Own {
    tag: u64,
    memory: Exposed,
    /// Whether its region is listed in the books.
    listed: bool,
    /// Its registrations, while peers may use them.
    registrations: Vec<Arc<dyn MemoryRegion>>,
    /// It has ended, and whoever begins to work on it sees that: only then the hazards say who still works on it.
    fenced: bool,
}

impl OneSided {
    /// `controls` are the areas of all ranks, as far as they are mapped here.
    pub(crate) fn new(
        (generation, rank): (u64, u32),
        controls: Vec<Option<Exposed>>,
        neighbours: Option<Arc<Neighbours>>,
        exports: Exports,
        direct: Direct,
        registrar: Option<Registrar>,
    ) -> OneSided {
        let areas: Vec<_> = controls.into_iter().map(|control| control.map(Area::new)).collect();
        let own = areas[rank as usize].clone().expect("this rank's own control region");
        if fences::available() {
            own.promise_fences();
        }
        OneSided {
            generation,
            rank,
            areas,
            hazards: Hazards::new(own),
            neighbours,
            exports,
            books: Mutex::new(Books { direct: Some(direct), registrar, ..Books::default() }),
            serves: AtomicBool::new(false),
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
        let mut books = self.books();
        let slot = books.take_slot().ok_or(FabricError::TooManyShares { op, most: SLOTS })?;
        let (region, listed) = match self.publish_region(&mut books, memory.region()) {
            Ok(published) => published,
            Err(cause) => {
                books.free.push(slot);
                return Err(FabricError::Reach { op, rank, cause: Arc::new(cause) });
            }
        };
        let exported = match books.direct.as_ref().and_then(|direct| direct(memory)) {
            Some(place) => self.exports.add_direct(memory.clone(), rights, place),
            None => self.exports.add(memory.clone(), rights),
        };
        let tag = exported.map_err(|cause| {
            books.free.push(slot);
            if listed {
                self.withdraw_region(&mut books, memory.region().id());
            }
            FabricError::NoRandom { op, cause }
        })?;
        let all_map = region != 0 && self.areas.iter().all(Option::is_some);
        if !all_map && self.areas.len() > 1 {
            self.serves.store(true, Ordering::Release);
        }
        let (offset, len) = (memory.offset() as u64, memory.len() as u64);
        self.own().line(slot as usize).publish(tag, Export { offset, len, rights: rights.bits(), region });
        let registered = books.registrar.as_ref().map(|registrar| registrar.register(memory, rights));
        let (registrations, devices) = registered.unwrap_or_default().into_iter().unzip();
        books.shares.insert(slot, Own { tag, memory: memory.clone(), listed, registrations, fenced: false });
        Ok(RemoteKey { generation: self.generation, rank, len, rights: rights.bits(), slot, tag, devices })
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
        let Some(mut own) = books.shares.remove(&slot) else { return false };
        if own.tag != tag {
            books.shares.insert(slot, own);
            return false;
        }
        self.own().line(slot as usize).clear();
        self.exports.remove(tag);
        let registrations = std::mem::take(&mut own.registrations);
        // The memory stays here until it is known that nobody works on it: by no other thread before the fence.
        books.quarantine.push((slot, own));
        self.quarantined.store(books.quarantine.len(), Ordering::Release);
        drop(books);
        // It waits for whoever is in the middle of an operation.
        drop(registrations);
        fence_everywhere();
        if let Some(own) = self.books().quarantined(slot, tag) {
            own.fenced = true;
        }
        true
    }

    /// The memory of this share, which has ended, if somebody may still work on it.
    pub(crate) fn in_quarantine(&self, slot: u32, tag: u64) -> Option<Kept> {
        // Once it has left the quarantine, another share may have the line.
        let mut books = self.books();
        let own = books.quarantined(slot, tag)?;
        Some(if own.fenced { Kept::Memory(own.memory.clone()) } else { Kept::Ending })
    }

    /// This rank.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// The ranks that are in the middle of an operation on mapped memory of the share in this line.
    pub(crate) fn working_on(&self, slot: u32) -> Vec<u32> {
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

    /// Lets go of the memory of shares that have ended, if nobody works on it any more.
    pub(crate) fn sweep(&self, is_free: impl Fn(u32, &Exposed) -> bool) {
        if !self.has_quarantined() {
            return;
        }
        let kept: Vec<_> = self.books().quarantine.iter().filter(|(_, own)| own.fenced).cloned().collect();
        // Without the lock, since whoever looks may have to wait for others.
        let free: Vec<_> = kept.into_iter().filter(|(slot, own)| is_free(*slot, &own.memory)).collect();
        let mut books = self.books();
        for (slot, own) in &free {
            let Some(at) = books.quarantine.iter().position(|(kept, other)| kept == slot && other.tag == own.tag)
            else {
                continue;
            };
            books.quarantine.swap_remove(at);
            books.free.push(*slot);
            if own.listed {
                self.withdraw_region(&mut books, own.memory.region().id());
            }
        }
        self.quarantined.store(books.quarantine.len(), Ordering::Release);
        // Memory goes without the lock.
        drop(books);
    }

    /// Whether links have to be served although this rank's program does nothing with them.
    pub(crate) fn serves(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    /// A thread waits for a word of a share, until it says that it does no longer.
    pub(super) fn begin_wait(&self, slot: u32) {
        // Whoever changes a word looks at this after that, and the thread at the word after this.
        self.own().line(slot as usize).listeners().fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_wait(&self, slot: u32) {
        self.own().line(slot as usize).listeners().fetch_sub(1, Ordering::SeqCst);
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

    /// Lets nobody map any region any more: also none of shares that are still in quarantine.
    fn withdraw_all(&self, books: &mut Books) {
        for (_, (key, _)) in books.regions.drain() {
            if let Some(neighbours) = &self.neighbours {
                neighbours.withdraw(key);
            }
        }
    }

    /// Ends all shares: this rank's fabric is over. Memory on which somebody works stays in quarantine.
    pub(crate) fn revoke_all(&self) {
        let all: Vec<_> = self.books().shares.iter().map(|(slot, own)| (*slot, own.tag)).collect();
        for (slot, tag) in all {
            self.revoke(slot, tag);
        }
    }
}

impl Drop for OneSided {
    /// Memory that a peer may still write is never used for anything else, although nobody looks after it any more.
    fn drop(&mut self) {
        let kept = {
            let mut books = self.books();
            self.withdraw_all(&mut books);
            std::mem::take(&mut books.quarantine)
        };
        for (slot, own) in kept {
            if !self.working_on(slot).is_empty() {
                std::mem::forget(own.memory);
            }
        }
    }
}

impl OneSided {
    /// Ends all shares, and waits until none of the ranks that go on is in the middle of an operation on them, and no thread
    /// of this rank in the middle of one on anybody's: no longer than a rank needs for one, unless it was stopped just now. True
    /// if a rank that goes on may still write to a share.
    pub(crate) fn retire(&self, goes_on: impl Fn(u32) -> bool) -> bool {
        self.revoke_all();
        let end = Instant::now() + PATIENCE;
        let works = || {
            let books = self.books();
            let works = |(slot, own): &(u32, Own)| !own.fenced || self.working_on(*slot).into_iter().any(&goes_on);
            books.quarantine.iter().any(works)
        };
        while (works() || self.own().works()) && Instant::now() < end {
            thread::sleep(NAP);
        }
        let works = works();
        // Registrations go with these.
        let mut books = self.books();
        self.withdraw_all(&mut books);
        let gone = (books.direct.take(), books.registrar.take());
        drop(books);
        drop(gone);
        works
    }
}

impl Books {
    fn quarantined(&mut self, slot: u32, tag: u64) -> Option<&mut Own> {
        let kept = self.quarantine.iter_mut().find(|(kept, own)| *kept == slot && own.tag == tag)?;
        Some(&mut kept.1)
    }

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

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use fulmen_verbs::Access;

    use super::*;
    use crate::bootstrap::Regroup;
    use crate::tests;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_rank_retires_when_its_own_operations_are_over() {
        let ranks = tests::start(2);
        let onesided = &ranks[0].0.inner.onesided;
        let ended = AtomicBool::new(false);
        let (begun, begins) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let announced = onesided.hazards.announce(table::name(1, 7), false);
                begun.send(()).unwrap();
                thread::sleep(Duration::from_millis(100));
                ended.store(true, Ordering::SeqCst);
                drop(announced);
            });
            begins.recv().unwrap();
            assert!(!onesided.retire(|_| true), "nobody writes to this rank's memory");
            assert!(ended.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn memory_in_which_a_rank_that_goes_on_is_stuck_is_taken_back() {
        let ranks = tests::start(2);
        let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0);
        let memory = zero.alloc(64).unwrap().into_exposed();
        let share = zero.share(&memory, Rights::all()).unwrap();
        let _stuck = one.inner.onesided.hazards.announce(table::name(0, share.key().slot as usize), false);
        let next = thread::scope(|scope| {
            let ranks = [zero, one].map(|fabric| scope.spawn(|| fabric.regroup(Regroup::Survivors, LONG).unwrap()));
            ranks.map(|rank| rank.join().unwrap())
        });
        assert_ne!(next[0].pool().region().id(), zero.pool().region().id());
        assert_eq!(next[1].pool().region().id(), one.pool().region().id());
    }

    /// A registration whose end takes as long as its other side likes.
    struct Slow {
        region: Region,
        ends: Sender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl MemoryRegion for Slow {
        fn region(&self) -> &Region {
            &self.region
        }
        fn range(&self) -> Range<usize> {
            0..1
        }
        fn access(&self) -> Access {
            Access::empty()
        }
        fn lkey(&self) -> u32 {
            1
        }
        fn rkey(&self) -> u32 {
            1
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.ends.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
    }

    #[test]
    fn a_share_that_another_thread_is_just_ending_is_not_swept() {
        let onesided = tests::alone();
        let region = Region::alloc(64).unwrap();
        let key = onesided.share("share", &region.expose().unwrap(), Rights::all()).unwrap();
        let ((ends, ending), (go, go_on)) = (channel(), channel());
        let slow = Slow { region, ends, go_on: Mutex::new(go_on) };
        onesided.books().shares.get_mut(&key.slot).unwrap().registrations = vec![Arc::new(slow)];
        thread::scope(|scope| {
            let other = scope.spawn(|| onesided.revoke(key.slot, key.tag));
            ending.recv().unwrap();
            let again = onesided.revoke(key.slot, key.tag);
            onesided.sweep(|_, _| true);
            let kept = onesided.in_quarantine(key.slot, key.tag);
            go.send(()).unwrap();
            assert!(other.join().unwrap() && !again, "it was ended once");
            assert!(matches!(kept, Some(Kept::Ending)), "it was swept");
        });
        assert!(matches!(onesided.in_quarantine(key.slot, key.tag), Some(Kept::Memory(_))));
        onesided.sweep(|_, _| true);
        assert!(onesided.in_quarantine(key.slot, key.tag).is_none());
    }

    #[test]
    fn nobody_maps_memory_in_quarantine_when_its_generation_is_over() {
        let ranks = tests::start(2);
        let [(zero, _), (one, _)] = &ranks[..] else { unreachable!("two ranks were started") };
        let region = Region::alloc(4096).unwrap();
        let shared = zero.share(&region.expose().unwrap(), Rights::all()).unwrap();
        let key = shared.key();
        let export = zero.inner.onesided.own().line(key.slot as usize).read(key.tag).unwrap();
        // A rank that is in the middle of an operation for ever.
        let hazards = &one.inner.onesided.hazards;
        let working = hazards.announce(table::name(0, key.slot as usize), false);
        zero.inner.onesided.retire(|_| false);
        assert!(zero.inner.onesided.has_quarantined());
        let neighbours = one.inner.neighbours.as_ref().unwrap();
        let mapped = neighbours.borrow("remote", 0, export.region, Duration::from_secs(60));
        assert!(mapped.is_err(), "memory that nobody shares any more was mapped");
        drop(working);
    }
}
