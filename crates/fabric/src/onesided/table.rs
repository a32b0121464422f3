//! What ranks that map one another's memory keep in their control regions for one-sided operations.
//!
//! A rank's *area* has two tables. Its *exports*: a line for each share, of which a tag other than zero says that it is
//! valid. And its *hazards*: a line for each thread of this rank that works on a share of any rank, which names that share.
//!
//! A thread announces the share in its hazard, looks whether the tag still stands, works, and clears the hazard. Who ends a
//! share clears the tag and then looks at everybody's hazards. One of both sees the other, since each writes before it reads
//! and a fence lies between. The fence on the side that works is left out where the system makes one for it on all
//! processors that matter, when the other side asks (`membarrier`): shares end seldom, and operations take nanoseconds. The
//! steps themselves are in [`hazard`].

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread;

use fulmen_memory::Exposed;

use super::hazard::{self, Announced};

/// Bytes of a cache line.
const LINE: usize = 64;
/// 64-bit words of one.
const WORDS: usize = LINE / 8;
/// Threads of a rank that work on shares at a time, without waiting for one another.
pub(super) const HAZARDS: usize = 64;
/// Of them, those that threads have in turns: they are for threads that found no hazard of their own.
const TURNS: usize = 4;
/// Shares of a rank at a time.
pub(crate) const SLOTS: usize = 4096;

/// Bytes of an area.
pub(crate) const LEN: usize = (1 + HAZARDS + SLOTS) * LINE;

/// A rank's area, in its control region.
#[derive(Clone, Debug)]
pub(super) struct Area {
    memory: Exposed,
}

/// What a line of the exports says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// Where the share begins in its region.
    pub offset: u64,
    pub len: u64,
    pub rights: u8,
    /// The key under which the region can be mapped; 0 if it cannot.
    pub region: u64,
}

/// One line of the exports.
#[derive(Clone, Copy)]
pub(super) struct Line<'a>(&'a [AtomicU64]);

impl Area {
    /// The area in this memory, which has [`LEN`] bytes and starts at a cache line.
    pub(super) fn new(memory: Exposed) -> Area {
        assert!(memory.len() >= LEN && memory.addr().is_multiple_of(LINE), "an area has its place");
        Area { memory }
    }

    /// Says that this rank asks the system for everybody's fence before it looks at hazards.
    pub(super) fn promise_fences(&self) {
        self.memory.atomic_u64(0).store(1, Ordering::Release);
    }

    pub(super) fn promises_fences(&self) -> bool {
        self.memory.atomic_u64(0).load(Ordering::Acquire) == 1
    }

    #[inline]
    fn hazard(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[(1 + index) * WORDS]
    }

    #[inline]
    pub(super) fn line(&self, slot: usize) -> Line<'_> {
        let at = (1 + HAZARDS + slot) * WORDS;
        Line(&self.memory.words()[at..at + WORDS])
    }

    /// Whether a thread of this area's rank works on any share.
    pub(super) fn works(&self) -> bool {
        (0..HAZARDS).any(|index| self.hazard(index).load(Ordering::Acquire) != 0)
    }

    /// Whether a thread of this area's rank works on that share.
    pub(super) fn works_on(&self, share: u64) -> bool {
        (0..HAZARDS).any(|index| hazard::works_on(self.hazard(index), share))
    }
}

/// How hazards name the share in a slot of a rank. Never 0.
pub(super) fn name(rank: u32, slot: usize) -> u64 {
    u64::from(rank) << 32 | (slot as u64 + 1)
}

impl<'a> Line<'a> {
    const TAG: usize = 0;
    const LISTENERS: usize = 5;

    /// Whether the share of this tag stands. See [`hazard::stands`].
    #[inline]
    pub(super) fn stands(self, tag: u64) -> bool {
        hazard::stands(&self.0[Self::TAG], tag)
    }

    /// What stands there under this tag.
    pub(super) fn read(self, tag: u64) -> Option<Export> {
        if tag == 0 || !self.stands(tag) {
            return None;
        }
        let [offset, len, rights, region] = [1, 2, 3, 4].map(|at| self.0[at].load(Ordering::Relaxed));
        // If it has changed meanwhile, so has the tag.
        fence(Ordering::Acquire);
        self.stands(tag).then_some(Export { offset, len, rights: rights as u8, region })
    }

    pub(super) fn publish(self, tag: u64, export: Export) {
        let Export { offset, len, rights, region } = export;
        for (at, value) in (1..).zip([offset, len, rights.into(), region]) {
            self.0[at].store(value, Ordering::Relaxed);
        }
        self.0[Self::LISTENERS].store(0, Ordering::Relaxed);
        self.0[Self::TAG].store(tag, Ordering::SeqCst);
    }

    pub(super) fn clear(self) {
        hazard::end(&self.0[Self::TAG]);
    }

    /// How many threads of the owner wait for a word of the share to change.
    #[inline]
    pub(super) fn listeners(self) -> &'a AtomicU64 {
        &self.0[Self::LISTENERS]
    }
}

/// Has the system run a fence on every processor that works for a rank which relies on it.
pub(super) fn fence_everywhere() {
    fence(Ordering::SeqCst);
    if fences::available() {
        fences::run();
    }
}

#[cfg(target_os = "linux")]
pub(super) mod fences {
    use std::sync::OnceLock;

    use rustix::thread::{MembarrierCommand, membarrier};

    /// Whether this process takes part, in both roles. The first call signs it up.
    pub(in super::super) fn available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| {
            membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
                && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
        })
    }

    pub(super) fn run() {
        // It worked when it was tried, and has no reason to fail later.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) mod fences {
    /// There is no such call.
    pub(in super::super) fn available() -> bool {
        false
    }

    pub(super) fn run() {}
}

/// Which hazards of a rank belong to a thread.
type Taken = [AtomicBool; HAZARDS - TURNS];

/// The hazards of this rank.
#[derive(Debug)]
pub(super) struct Hazards {
    area: Area,
    /// Tells them apart from those of other fabrics in this process.
    id: u64,
    taken: Arc<Taken>,
}

/// A hazard that belongs to a thread until the thread ends.
struct Held {
    id: u64,
    index: usize,
    taken: Weak<Taken>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.upgrade() {
            taken[self.index].store(false, Ordering::Release);
        }
    }
}

thread_local! {
    /// The hazard that this thread used last: whose, and which.
    static LAST: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

impl Hazards {
    pub(super) fn new(area: Area) -> Hazards {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Hazards { area, id, taken: Arc::new([const { AtomicBool::new(false) }; HAZARDS - TURNS]) }
    }

    /// Announces a share. `light`: its owner sees to the fence.
    #[inline]
    pub(super) fn announce(&self, share: u64, light: bool) -> Announced<'_> {
        let (id, index) = LAST.get();
        if id == self.id || self.find() {
            let index = if id == self.id { index } else { LAST.get().1 };
            return hazard::announce(self.area.hazard(index), share, light);
        }
        self.take_turns(share)
    }

    /// Finds this thread's hazard, or one for it: false if all are taken.
    #[cold]
    fn find(&self) -> bool {
        let found = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(own) = held.iter().find(|held| held.id == self.id) {
                return Some(own.index);
            }
            let take = |taken: &AtomicBool| !taken.swap(true, Ordering::AcqRel);
            let index = self.taken.iter().position(take)?;
            held.retain(|held| held.taken.strong_count() > 0);
            held.push(Held { id: self.id, index, taken: Arc::downgrade(&self.taken) });
            Some(index)
        });
        // A thread that is just ending has nothing any more.
        let Ok(Some(index)) = found else { return false };
        LAST.set((self.id, index));
        true
    }

    #[cold]
    fn take_turns(&self, share: u64) -> Announced<'_> {
        loop {
            for index in HAZARDS - TURNS..HAZARDS {
                let hazard = self.area.hazard(index);
                if hazard.compare_exchange(0, share, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                    fence(Ordering::SeqCst);
                    return Announced(hazard);
                }
            }
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use fulmen_memory::Region;

    use super::*;

    fn area() -> Area {
        Area::new(Region::alloc(LEN).unwrap().expose().unwrap())
    }

    #[test]
    fn a_line_says_what_was_published_until_it_is_cleared() {
        let area = area();
        let export = Export { offset: 64, len: 100, rights: 5, region: 77 };
        for slot in [0, 1, SLOTS - 1] {
            assert_eq!(area.line(slot).read(0), None);
            area.line(slot).publish(9, export);
            assert_eq!(area.line(slot).read(9), Some(export));
            assert_eq!(area.line(slot).read(8), None);
            area.line(slot).clear();
            assert_eq!(area.line(slot).read(9), None);
            assert_eq!(area.line(slot).read(0), None);
        }
    }

    #[test]
    fn a_hazard_is_seen_while_its_thread_works_and_goes_with_the_thread() {
        let area = area();
        let hazards = Hazards::new(area.clone());
        let (one, two) = (name(0, 0), name(1, 0));
        for light in [false, true] {
            let announced = hazards.announce(one, light);
            assert!(area.works_on(one) && !area.works_on(two));
            drop(announced);
            assert!(!area.works_on(one));
        }
        // More threads, one after the other, than there are hazards.
        for _ in 0..2 * HAZARDS {
            thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let _announced = hazards.announce(two, false);
                    assert!(area.works_on(two));
                });
                // The scope alone waits for the closure, and not for what belongs to the thread.
                thread.join().unwrap();
            });
        }
        assert_eq!(hazards.taken.iter().filter(|taken| taken.load(Ordering::Relaxed)).count(), 1, "this thread's");
    }

    #[test]
    fn threads_without_a_hazard_of_their_own_take_turns() {
        let area = area();
        let hazards = Hazards::new(area.clone());
        hazards.taken.iter().for_each(|taken| taken.store(true, Ordering::Relaxed));
        let working = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..4 * TURNS {
                let (hazards, area, working) = (&hazards, &area, &working);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let announced = hazards.announce(name(0, thread), false);
                        assert!(working.fetch_add(1, Ordering::SeqCst) < TURNS as u64);
                        assert!(area.works_on(name(0, thread)));
                        working.fetch_sub(1, Ordering::SeqCst);
                        drop(announced);
                    }
                });
            }
        });
    }

    #[test]
    fn two_fabrics_of_a_thread_keep_their_hazards_apart() {
        let (one, two) = (area(), area());
        let (first, second) = (Hazards::new(one.clone()), Hazards::new(two.clone()));
        for _ in 0..3 {
            let a = first.announce(5, false);
            let b = second.announce(6, false);
            assert!(one.works_on(5) && two.works_on(6) && !one.works_on(6) && !two.works_on(5));
            drop((a, b));
        }
        assert!(!one.works_on(5) && !two.works_on(6));
    }
}
