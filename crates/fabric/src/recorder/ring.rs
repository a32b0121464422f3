//! The ring that holds the last operations.
//!
//! Writers never wait and never take more than one step that others see: each takes the next place of the ring and writes
//! its entry there, over the oldest. An entry ends with a *check* over all of it, its place included. A reader takes an entry
//! only if the check fits, so what it takes is whole: one that is being written, or that a writer who was held up for a whole
//! turn of the ring wrote into, does not fit and is left out. So no word needs an order beside any other, and an
//! operation costs one atomic addition and plain stores.
//!
//! An operation has one entry: it is written when the operation begins, and its last word again when it ends.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word that several threads use. Real ones are atomics; loom puts its own beneath.
pub(crate) trait Word {
    fn new() -> Self;
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    /// Adds one, and gives what was there before.
    fn next(&self) -> u64;
}

impl Word for AtomicU64 {
    fn new() -> AtomicU64 {
        AtomicU64::new(0)
    }

    #[inline]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Relaxed)
    }

    #[inline]
    fn store(&self, value: u64) {
        AtomicU64::store(self, value, Ordering::Relaxed);
    }

    #[inline]
    fn next(&self) -> u64 {
        self.fetch_add(1, Ordering::Relaxed)
    }
}

/// How many words an entry has beside its place, its end and its check. What they mean is not known here.
pub(crate) const FIELDS: usize = 5;

/// How often a reader looks at an entry that does not fit before it leaves it out: a writer is done within nanoseconds,
/// unless it was taken off its processor.
const LOOKS: u32 = 8;

/// A line of the cache.
#[repr(align(64))]
struct Slot<W, const N: usize> {
    check: W,
    place: W,
    fields: [W; N],
    end: W,
}

/// An entry that was begun, to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    place: u64,
    /// The check over all but the end.
    check: u64,
}

/// An entry as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<const N: usize = FIELDS> {
    /// How many were begun before it.
    pub(crate) place: u64,
    pub(crate) fields: [u64; N],
    /// What it was ended with; 0 until then.
    pub(crate) end: u64,
}

/// What a reader found.
#[derive(Debug)]
pub(crate) struct Contents<const N: usize = FIELDS> {
    /// Oldest first.
    pub(crate) entries: Vec<Entry<N>>,
    /// Entries ever begun.
    pub(crate) begun: u64,
    /// Entries that should be there and were just being written.
    pub(crate) torn: u64,
}

pub(crate) struct Ring<W = AtomicU64, const N: usize = FIELDS> {
    /// Entries begun.
    head: W,
    slots: Box<[Slot<W, N>]>,
}

impl<W: Word, const N: usize> Ring<W, N> {
    /// A ring of so many entries, a power of two.
    pub(crate) fn new(entries: usize) -> Ring<W, N> {
        assert!(entries.is_power_of_two(), "a ring has a power of two entries");
        let slot =
            || Slot { check: W::new(), place: W::new(), fields: std::array::from_fn(|_| W::new()), end: W::new() };
        Ring { head: W::new(), slots: (0..entries).map(|_| slot()).collect() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn slot(&self, place: u64) -> &Slot<W, N> {
        &self.slots[place as usize & (self.slots.len() - 1)]
    }

    /// Writes a new entry over the oldest.
    #[inline]
    pub(crate) fn begin(&self, fields: [u64; N]) -> Begun {
        let place = self.head.next();
        let begun = Begun { place, check: check(place, &fields) };
        let slot = self.slot(place);
        slot.place.store(place);
        for (word, field) in slot.fields.iter().zip(fields) {
            word.store(field);
        }
        slot.end.store(0);
        slot.check.store(close(begun.check, 0));
        begun
    }

    /// Ends an entry; `false` if newer ones lie over it. `end` is not 0.
    #[inline]
    pub(crate) fn end(&self, begun: Begun, end: u64) -> bool {
        let slot = self.slot(begun.place);
        if slot.place.load() != begun.place {
            return false;
        }
        // Should another thread come around to this entry now, its own does not fit until it ends: it is lost.
        slot.end.store(end);
        slot.check.store(close(begun.check, end));
        true
    }

    /// All entries that are whole.
    pub(crate) fn read(&self) -> Contents<N> {
        let begun = self.head.load();
        let oldest = begun.saturating_sub(self.slots.len() as u64);
        let mut contents = Contents { entries: Vec::new(), begun, torn: 0 };
        for place in oldest..begun {
            match (0..LOOKS).find_map(|_| self.look(place)) {
                Some(entry) => contents.entries.push(entry),
                None => contents.torn += 1,
            }
        }
        contents
    }

    fn look(&self, place: u64) -> Option<Entry<N>> {
        let slot = self.slot(place);
        let expected = slot.check.load();
        let fields = std::array::from_fn(|field| slot.fields[field].load());
        let end = slot.end.load();
        let fits = slot.place.load() == place && close(check(place, &fields), end) == expected;
        fits.then_some(Entry { place, fields, end })
    }
}

/// An odd number without a pattern.
const FACTOR: u64 = 0x9e6c_63d0_876a_68ef;

/// The check over all but the end. Each word changes it in a way that depends on all before, so that no mixture of two
/// entries fits but by a chance of 2^-64.
#[inline]
fn check<const N: usize>(place: u64, fields: &[u64; N]) -> u64 {
    fields.iter().fold(mix(!place), |check, field| mix(check ^ field))
}

#[inline]
fn close(check: u64, end: u64) -> u64 {
    mix(check.rotate_left(23) ^ end)
}

#[inline]
fn mix(word: u64) -> u64 {
    let word = word.wrapping_mul(FACTOR);
    word ^ word >> 32
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Barrier};
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    /// Fields of which each follows from the first.
    fn fields<const N: usize>(seed: u64) -> [u64; N] {
        std::array::from_fn(|index| seed.wrapping_mul(index as u64 + 1))
    }

    fn is_whole<const N: usize>(entry: &Entry<N>) -> bool {
        entry.fields == fields(entry.fields[0]) && (entry.end == 0 || entry.end == entry.fields[0] + 1)
    }

    proptest! {
        #[test]
        fn the_last_entries_are_there_in_their_order_and_ended_ones_say_so(
            size in 0u32..6, count in 0u64..200, ended in any::<u64>(),
        ) {
            let ring: Ring = Ring::new(1 << size);
            for seed in 0..count {
                let begun = ring.begin(fields(seed));
                if ended >> (seed % 64) & 1 == 1 {
                    prop_assert!(ring.end(begun, seed + 1));
                }
            }
            let contents = ring.read();
            prop_assert_eq!((contents.begun, contents.torn), (count, 0));
            let places: Vec<u64> = contents.entries.iter().map(|entry| entry.place).collect();
            prop_assert_eq!(places, (count.saturating_sub(1 << size)..count).collect::<Vec<_>>());
            for entry in contents.entries {
                let end = if ended >> (entry.place % 64) & 1 == 1 { entry.place + 1 } else { 0 };
                prop_assert_eq!((entry.fields, entry.end), (fields(entry.place), end));
            }
        }

        #[test]
        fn an_entry_of_which_any_word_is_another_one_is_left_out(seed in any::<u64>(), word in 0..FIELDS + 3, flip in 1u64..) {
            let ring: Ring = Ring::new(1);
            let begun = ring.begin(fields(seed));
            prop_assert_eq!(ring.read().entries.len(), 1);
            let slot = ring.slot(begun.place);
            let word = match word {
                0 => &slot.check,
                1 => &slot.place,
                2 => &slot.end,
                field => &slot.fields[field - 3],
            };
            Word::store(word, Word::load(word) ^ flip);
            prop_assert_eq!((ring.read().entries.len(), ring.read().torn), (0, 1));
        }
    }

    #[test]
    fn an_entry_that_was_written_over_cannot_be_ended() {
        let ring: Ring = Ring::new(2);
        let first = ring.begin(fields(1));
        let rest = [ring.begin(fields(2)), ring.begin(fields(3))];
        assert!(!ring.end(first, 2));
        assert!(ring.end(rest[1], 4));
        assert_eq!(ring.read().entries.iter().map(|entry| entry.end).collect::<Vec<_>>(), [0, 4]);
    }

    #[test]
    fn entries_that_are_read_while_threads_write_are_whole() {
        let rounds =
            if std::env::var("FULMEN_TEST_TIER").is_ok_and(|tier| tier == "full") { 2_000_000 } else { 50_000 };
        let ring: Arc<Ring> = Arc::new(Ring::new(16));
        let (start, over) = (Arc::new(Barrier::new(5)), Arc::new(AtomicBool::new(false)));
        let writers: Vec<_> = (0..4u64)
            .map(|thread| {
                let (ring, start) = (ring.clone(), start.clone());
                thread::spawn(move || {
                    start.wait();
                    for round in 0..rounds {
                        let seed = thread << 32 | round;
                        let begun = ring.begin(fields(seed));
                        ring.end(begun, seed + 1);
                    }
                })
            })
            .collect();
        let reader = thread::spawn({
            let (ring, start, over) = (ring.clone(), start.clone(), over.clone());
            move || {
                start.wait();
                let mut seen = 0u64;
                while !over.load(Ordering::Relaxed) {
                    let contents = ring.read();
                    seen += contents.entries.len() as u64;
                    for entry in &contents.entries {
                        assert!(is_whole(entry), "{entry:x?}");
                    }
                    assert_eq!(contents.entries.len() as u64 + contents.torn, contents.begun.min(16));
                }
                seen
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        let contents = ring.read();
        assert_eq!(contents.begun, 4 * rounds);
        for entry in &contents.entries {
            assert!(is_whole(entry), "{entry:x?}");
        }
    }

    impl Word for loom::sync::atomic::AtomicU64 {
        fn new() -> Self {
            loom::sync::atomic::AtomicU64::new(0)
        }

        fn load(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn store(&self, value: u64) {
            self.store(value, Ordering::Relaxed);
        }

        fn next(&self) -> u64 {
            self.fetch_add(1, Ordering::Relaxed)
        }
    }

    /// With one field: of each word more, loom would try all values that a reader may see.
    type LoomRing = loom::sync::Arc<Ring<loom::sync::atomic::AtomicU64, 1>>;

    fn writer(ring: &LoomRing, seed: u64) -> loom::thread::JoinHandle<()> {
        let ring = ring.clone();
        loom::thread::spawn(move || {
            let begun = ring.begin(fields(seed));
            ring.end(begun, seed + 1);
        })
    }

    /// A writer that comes around over an older entry, and a reader, in every order that the memory model allows.
    #[test]
    fn under_loom_a_reader_beside_a_writer_takes_whole_entries_only() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let ring = LoomRing::new(Ring::new(1));
            let _old = ring.begin(fields(1));
            let writer = writer(&ring, 2);
            let seen = [ring.look(0), ring.look(1)];
            for entry in seen.iter().flatten() {
                assert!(is_whole(entry), "{entry:x?}");
            }
            writer.join().unwrap();
            assert!(ring.look(0).is_none() && ring.look(1).is_some_and(|entry| entry.end == 3));
        });
    }

    /// Two writers of which one laps the other: what is left is whole, or left out.
    #[test]
    fn under_loom_writers_that_lap_one_another_leave_nothing_mixed() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let ring = LoomRing::new(Ring::new(1));
            let writers = [writer(&ring, 1), writer(&ring, 2)];
            for writer in writers {
                writer.join().unwrap();
            }
            let left = [ring.look(0), ring.look(1)];
            assert!(left.iter().flatten().all(is_whole), "{left:x?}");
        });
    }
}
