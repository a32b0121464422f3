//! The ring that holds the last operations.
//!
//! Writers never wait and never take more than one step that others see: each takes the next place of the ring and writes
//! its entry there, over the oldest. A ring has either one thread that takes places, which a plain load and store do, or
//! any number, which need an atomic addition. An entry ends with a *check* over all of it, its place included. A reader takes an entry
//! only if the check fits, so what it takes is whole: one that is being written, or that a writer who was held up for a whole
//! turn of the ring wrote into, does not fit and is left out. So no word needs an order beside any other, and all
//! that an entry costs is plain stores.
//!
//! An operation has one entry: it is written when the operation begins, its end when it ends, and its beginning once more if
//! the time is looked at while it goes on.

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

/// How many words an entry has beside its check, place, beginning and end. What they mean is not known here.
pub(crate) const FIELDS: usize = 4;

/// How often a reader looks at an entry that does not fit before it leaves it out: a writer is done within nanoseconds,
/// unless it was taken off its processor.
const LOOKS: u32 = 8;

/// A line of the cache.
#[repr(align(64))]
struct Slot<W, const N: usize> {
    check: W,
    place: W,
    fields: [W; N],
    begin: W,
    end: W,
}

/// An entry that was begun, to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(super) place: u64,
    /// The sum over all but the beginning and the end.
    pub(super) sum: u64,
}

/// An entry as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<const N: usize = FIELDS> {
    /// How many were begun before it.
    pub(crate) place: u64,
    pub(crate) fields: [u64; N],
    /// What it was begun with, or what that was changed to.
    pub(crate) begin: u64,
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
        let slot = || Slot {
            check: W::new(),
            place: W::new(),
            fields: std::array::from_fn(|_| W::new()),
            begin: W::new(),
            end: W::new(),
        };
        Ring { head: W::new(), slots: (0..entries).map(|_| slot()).collect() }
    }

    #[inline]
    fn slot(&self, place: u64) -> &Slot<W, N> {
        &self.slots[place as usize & (self.slots.len() - 1)]
    }

    /// The next place, for a thread among several that take places.
    #[inline]
    pub(crate) fn take(&self) -> u64 {
        self.head.next()
    }

    /// The next place, for the one thread that takes places.
    #[inline]
    pub(crate) fn take_alone(&self) -> u64 {
        let place = self.head.load();
        self.head.store(place + 1);
        place
    }

    /// Writes a new entry at a place that was taken, over the oldest.
    #[inline]
    pub(crate) fn begin(&self, place: u64, fields: [u64; N], begin: u64) -> Begun {
        let begun = Begun { place, sum: sum(place, &fields) };
        let slot = self.slot(place);
        slot.place.store(place);
        for (word, field) in slot.fields.iter().zip(fields) {
            word.store(field);
        }
        slot.begin.store(begin);
        slot.end.store(0);
        slot.check.store(close(begun.sum, begin, 0));
        begun
    }

    /// Ends an entry with what `end` makes of its beginning, which is not 0; `false` if newer ones lie over it.
    #[inline]
    pub(crate) fn end(&self, begun: Begun, end: impl FnOnce(u64) -> u64) -> bool {
        let slot = self.slot(begun.place);
        if slot.place.load() != begun.place {
            return false;
        }
        // Should another thread come around to this entry now, its own does not fit until it ends: it is lost.
        let begin = slot.begin.load();
        let end = end(begin);
        slot.end.store(end);
        slot.check.store(close(begun.sum, begin, end));
        true
    }

    /// Changes the beginning of the newest entry, unless it has ended, to what `change` makes of it, if anything. For the
    /// one thread that takes places.
    pub(crate) fn change_newest(&self, change: impl FnOnce(u64) -> Option<u64>) {
        let Some(place) = self.head.load().checked_sub(1) else { return };
        let slot = self.slot(place);
        if slot.end.load() != 0 {
            return;
        }
        if let Some(begin) = change(slot.begin.load()) {
            let fields = std::array::from_fn(|field| slot.fields[field].load());
            slot.begin.store(begin);
            slot.check.store(close(sum::<N>(place, &fields), begin, 0));
        }
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
        let (begin, end) = (slot.begin.load(), slot.end.load());
        let fits = slot.place.load() == place && close(sum(place, &fields), begin, end) == expected;
        fits.then_some(Entry { place, fields, begin, end })
    }
}

/// Odd numbers without a pattern: the first for the place, the next two for the beginning and the end, others for fields.
const FACTORS: [u64; 3 + FIELDS] = [
    0x9e6c_63d0_876a_68ef,
    0xd1b5_4a32_d192_ed03,
    0x8cb9_2ba7_2f3d_8dd7,
    0xaf25_1af3_b0f0_25b5,
    0xb7e1_5162_8aed_2a6b,
    0xc2b2_ae3d_27d4_eb4f,
    0xe703_7ed1_a0b4_28db,
];

/// The sum over all but the beginning and the end. Each word has a factor of its own, so that no mixture of two entries
/// comes to the sum of one but by chance; and none waits for another, so that the sum costs little more than one product.
#[inline]
fn sum<const N: usize>(place: u64, fields: &[u64; N]) -> u64 {
    let words = fields.iter().zip(&FACTORS[3..]);
    words.fold((!place).wrapping_mul(FACTORS[0]), |sum, (word, factor)| sum.wrapping_add(word.wrapping_mul(*factor)))
}

/// The check over all. A slot that nobody wrote does not fit.
#[inline]
fn close(sum: u64, begin: u64, end: u64) -> u64 {
    sum.wrapping_add(begin.wrapping_mul(FACTORS[1])).wrapping_add(end.wrapping_mul(FACTORS[2]))
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
        let ends = entry.end == 0 || entry.end == entry.begin.wrapping_add(1);
        entry.fields == fields(entry.begin & !CHANGED) && ends
    }

    /// What tests set in the beginning of an entry that goes on.
    const CHANGED: u64 = 1 << 63;

    fn begin<W: Word, const N: usize>(ring: &Ring<W, N>, seed: u64) -> Begun {
        ring.begin(ring.take(), fields(seed), seed)
    }

    fn end<W: Word, const N: usize>(ring: &Ring<W, N>, begun: Begun) -> bool {
        ring.end(begun, |begin| begin.wrapping_add(1))
    }

    proptest! {
        #[test]
        fn the_last_entries_are_there_in_their_order_and_ended_ones_say_so(
            size in 0u32..6, count in 0u64..200, ended in any::<u64>(), alone in any::<bool>(),
        ) {
            let ring: Ring = Ring::new(1 << size);
            for seed in 0..count {
                let begun = if alone { ring.begin(ring.take_alone(), fields(seed), seed) } else { begin(&ring, seed) };
                if ended >> (seed % 64) & 1 == 1 {
                    prop_assert!(end(&ring, begun));
                }
            }
            let contents = ring.read();
            prop_assert_eq!((contents.begun, contents.torn), (count, 0));
            let places: Vec<u64> = contents.entries.iter().map(|entry| entry.place).collect();
            prop_assert_eq!(places, (count.saturating_sub(1 << size)..count).collect::<Vec<_>>());
            for entry in contents.entries {
                let end = if ended >> (entry.place % 64) & 1 == 1 { entry.place + 1 } else { 0 };
                prop_assert_eq!((entry.fields, entry.begin, entry.end), (fields(entry.place), entry.place, end));
            }
        }

        #[test]
        fn an_entry_of_which_any_word_is_another_one_is_left_out(seed in any::<u64>(), word in 0..FIELDS + 4, flip in 1u64..) {
            let ring: Ring = Ring::new(1);
            let begun = begin(&ring, seed);
            prop_assert_eq!(ring.read().entries.len(), 1);
            let slot = ring.slot(begun.place);
            let word = match word {
                0 => &slot.check,
                1 => &slot.place,
                2 => &slot.end,
                3 => &slot.begin,
                field => &slot.fields[field - 4],
            };
            Word::store(word, Word::load(word) ^ flip);
            prop_assert_eq!((ring.read().entries.len(), ring.read().torn), (0, 1));
        }
    }

    #[test]
    fn an_entry_that_was_written_over_cannot_be_ended() {
        let ring: Ring = Ring::new(2);
        let first = begin(&ring, 1);
        let rest = [begin(&ring, 2), begin(&ring, 3)];
        assert!(!end(&ring, first));
        assert!(end(&ring, rest[1]));
        assert_eq!(ring.read().entries.iter().map(|entry| entry.end).collect::<Vec<_>>(), [0, 4]);
    }

    #[test]
    fn the_newest_entry_can_begin_anew_until_it_ends() {
        let ring: Ring = Ring::new(2);
        let change = || ring.change_newest(|begin| (begin & CHANGED == 0).then_some(begin | CHANGED));
        change();
        assert!(ring.read().entries.is_empty());
        let [ended, running] = [begin(&ring, 1), begin(&ring, 2)];
        change();
        change();
        assert!(end(&ring, ended) && end(&ring, running));
        ring.change_newest(|_| Some(9));
        let found: Vec<_> = ring.read().entries.iter().map(|entry| (entry.begin, entry.end)).collect();
        assert_eq!(found, [(1, 2), (2 | CHANGED, 3 | CHANGED)]);
    }

    #[test]
    fn entries_that_are_read_while_threads_write_are_whole() {
        let rounds = fulmen_testbed::by_tier(50_000, 500_000, 2_000_000);
        let ring: Arc<Ring> = Arc::new(Ring::new(16));
        let (start, over) = (Arc::new(Barrier::new(5)), Arc::new(AtomicBool::new(false)));
        let writers: Vec<_> = (0..4u64)
            .map(|thread| {
                let (ring, start) = (ring.clone(), start.clone());
                thread::spawn(move || {
                    start.wait();
                    for round in 0..rounds {
                        let seed = thread << 32 | round;
                        let begun = begin(&ring, seed);
                        end(&ring, begun);
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

    /// Without fields: of each word more, loom would try all values that a reader may see.
    type LoomRing = loom::sync::Arc<Ring<loom::sync::atomic::AtomicU64, 0>>;

    fn writer(ring: &LoomRing, seed: u64) -> loom::thread::JoinHandle<()> {
        let ring = ring.clone();
        loom::thread::spawn(move || {
            let begun = begin(&ring, seed);
            end(&ring, begun);
        })
    }

    /// A writer that comes around over an older entry, and a reader, in every order that the memory model allows.
    #[test]
    fn under_loom_a_reader_beside_a_writer_takes_whole_entries_only() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let ring = LoomRing::new(Ring::new(1));
            let _old = begin(&ring, 1);
            let writer = writer(&ring, 2);
            let seen = [ring.look(0), ring.look(1)];
            for entry in seen.iter().flatten() {
                assert!(is_whole(entry), "{entry:x?}");
            }
            writer.join().unwrap();
            assert!(ring.look(0).is_none() && ring.look(1).is_some_and(|entry| entry.end == 3));
        });
    }

    /// The one thread of a ring, which laps itself and changes a beginning, and a reader.
    #[test]
    fn under_loom_a_reader_beside_one_that_begins_anew_takes_whole_entries_only() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let ring = LoomRing::new(Ring::new(1));
            let old = ring.begin(ring.take_alone(), [], 1);
            end(&ring, old);
            let writer = loom::thread::spawn({
                let ring = ring.clone();
                move || {
                    let begun = ring.begin(ring.take_alone(), [], 2);
                    ring.change_newest(|begin| Some(begin | CHANGED));
                    end(&ring, begun);
                }
            });
            let seen = [ring.look(0), ring.look(1)];
            assert!(seen.iter().flatten().all(is_whole), "{seen:x?}");
            assert!(seen[0].is_none_or(|entry| (entry.begin, entry.end) == (1, 2)), "{seen:x?}");
            assert!(seen[1].is_none_or(|entry| entry.begin & !CHANGED == 2), "{seen:x?}");
            writer.join().unwrap();
            assert!(ring.look(1).is_some_and(|entry| entry.end == 3 | CHANGED));
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
