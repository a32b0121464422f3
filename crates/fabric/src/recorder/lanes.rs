//! Which ring a thread writes into.
//!
//! The first threads that record have a ring each, where no step of theirs is seen by another thread that writes; all later
//! ones share one. A thread that waits for long keeps its place so, however much the others do.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::ring::Ring;

/// Threads that have a ring of their own.
const OWN: usize = 4;

/// Operations that a ring keeps.
pub(super) const KEPT: usize = 4096;

/// The rings of a rank. Each is made when it is first written into.
#[derive(Default)]
pub(super) struct Lanes {
    own: [OnceLock<Own>; OWN],
    shared: OnceLock<Ring>,
}

struct Own {
    thread: u32,
    ring: Ring,
}

/// A ring as a thread has it.
pub(super) struct Lane<'a> {
    /// The number of the ring.
    pub(super) number: u8,
    pub(super) ring: &'a Ring,
    /// Whether no other thread takes places of it.
    pub(super) alone: bool,
}

impl Lanes {
    /// The ring of a thread.
    #[inline]
    pub(super) fn of(&self, thread: u32) -> Lane<'_> {
        let number = thread as usize % OWN;
        // Threads that are ending all have the number 0.
        if thread != 0 {
            let own = self.own[number].get_or_init(|| Own { thread, ring: Ring::new(KEPT) });
            if own.thread == thread {
                return Lane { number: number as u8, ring: &own.ring, alone: true };
            }
        }
        Lane { number: OWN as u8, ring: self.shared.get_or_init(|| Ring::new(KEPT)), alone: false }
    }

    /// The ring of a number that [`Lanes::of`] gave.
    #[inline]
    pub(super) fn ring(&self, number: u8) -> Option<&Ring> {
        match self.own.get(usize::from(number)) {
            Some(own) => own.get().map(|own| &own.ring),
            None => self.shared.get(),
        }
    }

    /// All rings that were written into.
    pub(super) fn rings(&self) -> impl Iterator<Item = &Ring> {
        self.own.iter().filter_map(OnceLock::get).map(|own| &own.ring).chain(self.shared.get())
    }
}

/// A small number of this thread, from 1, which no other thread of the process ever has.
#[inline]
pub(super) fn thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    // A thread that is ending has no number any more.
    NUMBER
        .try_with(|number| {
            if number.get() == 0 {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_threads_have_rings_of_their_own_and_others_share_one() {
        let lanes = Lanes::default();
        let first = OWN as u32 + 2;
        for thread in first..first + OWN as u32 {
            assert!(lanes.of(thread).alone);
        }
        for thread in [0, 1, first - 1, first + OWN as u32] {
            let lane = lanes.of(thread);
            assert!(!lane.alone && std::ptr::eq(lane.ring, lanes.ring(lane.number).unwrap()), "{thread}");
        }
        for thread in first..first + OWN as u32 {
            let lane = lanes.of(thread);
            assert!(lane.alone && std::ptr::eq(lane.ring, lanes.ring(lane.number).unwrap()), "{thread}");
        }
        assert_eq!(lanes.rings().count(), OWN + 1);
    }

    #[test]
    fn a_thread_keeps_its_number() {
        let here = thread();
        assert_eq!(thread(), here);
        assert_ne!(std::thread::spawn(thread).join().unwrap(), here);
    }
}
