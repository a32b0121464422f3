//! When operations were: from what stands in the ring to nanoseconds of the clock that all processes of a host share.
//!
//! To look at the clock costs more than all the rest that is recorded of an operation. So most have no stamp of their own,
//! but the time of the system's last tick, which is some milliseconds old. Within that, they are placed between the stamps
//! of their neighbours, in their order.

use fulmen_reach::Ticks;

use super::file::Phase;
use super::ring::Entry;

/// The bit of an entry's beginning that says that the clock was looked at.
const STAMPED: u64 = 1;

/// Bits of an entry's end that say how it ended; the rest is when, or 0.
const PHASE_BITS: u32 = 3;

/// What an operation without a stamp at its end lasted at most, in nanoseconds: one that waits for long has a stamp.
const QUICK: u64 = 1000;

/// A beginning at which the clock is looked at.
#[inline]
pub(super) fn stamped(clock: Ticks) -> u64 {
    clock.now() << 1 | STAMPED
}

/// A beginning without a stamp of its own.
#[inline]
pub(super) fn unstamped() -> u64 {
    Ticks::last_tick() << 1
}

#[inline]
pub(super) fn is_stamped(begin: u64) -> bool {
    begin & STAMPED != 0
}

/// An end, with a stamp if there is a clock to look at.
#[inline]
pub(super) fn end(phase: Phase, clock: Option<Ticks>) -> u64 {
    clock.map_or(0, Ticks::now) << PHASE_BITS | phase as u64
}

/// How far an entry is.
pub(super) fn phase(entry: &Entry) -> Phase {
    match entry.end & ((1 << PHASE_BITS) - 1) {
        0 => Phase::Running,
        1 => Phase::Done,
        2 => Phase::Failed,
        _ => Phase::LetGo,
    }
}

/// When an entry was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) begin: u64,
    pub(super) end: Option<u64>,
    /// Whether both have stamps of their own.
    pub(super) exact: bool,
}

/// When the entries of a ring were, which are in its order. A `tick` of the system is so long.
pub(super) fn place(entries: &[Entry], pace: Pace, tick: u64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::with_capacity(entries.len());
    let (mut from, mut left) = (0, (entries.first().map_or(0, |entry| entry.place), pace.began.monotonic));
    // Each run of entries without a stamp lies between two with one, or the moments when the record begins and ends.
    while from < entries.len() {
        let run = entries[from..].iter().take_while(|entry| !is_stamped(entry.begin)).count();
        let after = entries.get(from + run);
        let right = match after {
            Some(after) => (after.place, pace.of(after.begin >> 1).max(left.1)),
            None => (left.0 + run as u64 + 1, pace.now.monotonic.max(left.1)),
        };
        for entry in &entries[from..from + run] {
            let (steps, step) = (right.0.saturating_sub(left.0).max(1), entry.place.saturating_sub(left.0));
            let between = left.1 + (u128::from(right.1 - left.1) * u128::from(step) / u128::from(steps)) as u64;
            let ticked = entry.begin >> 1;
            let begin = between.clamp(ticked, ticked.saturating_add(tick)).clamp(left.1, right.1);
            spans.push(Span { begin, end: None, exact: false });
        }
        if after.is_some() {
            spans.push(Span { begin: right.1, end: None, exact: true });
        }
        (from, left) = (from + run + 1, right);
    }
    for (index, entry) in entries.iter().enumerate() {
        let next = spans.get(index + 1).map_or(pace.now.monotonic, |next| next.begin);
        let span = &mut spans[index];
        if phase(entry) == Phase::Running {
            continue;
        }
        let stamp = entry.end >> PHASE_BITS;
        if stamp == 0 {
            span.end = Some(span.begin + (next.saturating_sub(span.begin) / 2).min(QUICK));
            span.exact = false;
        } else {
            let end = pace.of(stamp);
            (span.begin, span.end) = (span.begin.min(end), Some(end));
        }
    }
    spans
}

/// One moment on three clocks.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) ticks: u64,
    pub(super) monotonic: u64,
    pub(super) unix: u64,
}

impl Moment {
    /// Reads the clocks as close to one another as a few tries can.
    pub(super) fn now(clock: Ticks) -> Moment {
        let read = |id| {
            let time = rustix::time::clock_gettime(id);
            (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
        };
        let look = || {
            let before = clock.now();
            let monotonic = read(rustix::time::ClockId::Monotonic);
            let after = clock.now();
            let unix = read(rustix::time::ClockId::Realtime);
            let width = after.saturating_sub(before);
            (width, Moment { ticks: before + width / 2, monotonic, unix })
        };
        (0..8).map(|_| look()).min_by_key(|(width, _)| *width).map(|(_, moment)| moment).expect("several looks")
    }
}

/// From ticks to nanoseconds of the monotonic clock.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    pub(super) began: Moment,
    pub(super) now: Moment,
}

impl Pace {
    pub(super) fn of(self, ticks: u64) -> u64 {
        let Pace { began, now } = self;
        let (span, time) = (now.ticks.saturating_sub(began.ticks), now.monotonic.saturating_sub(began.monotonic));
        if span == 0 {
            return now.monotonic;
        }
        // An entry may be newer than the last look at the clock.
        let since = i128::from(ticks) - i128::from(began.ticks);
        let at = i128::from(began.monotonic) + since * i128::from(time) / i128::from(span);
        at.clamp(0, i128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ticks are nanoseconds, and the record goes from 1,000 to 1,000,000.
    fn pace() -> Pace {
        let moment = |at| Moment { ticks: at, monotonic: at, unix: at };
        Pace { began: moment(1_000), now: moment(1_000_000) }
    }

    fn entry(place: u64, begin: u64, end: u64) -> Entry {
        Entry { place, fields: [0; 4], begin, end }
    }

    fn done(at: u64) -> u64 {
        at << PHASE_BITS | Phase::Done as u64
    }

    #[test]
    fn what_has_no_stamp_lies_between_its_neighbours() {
        let entries = [
            entry(4, 10_000 << 1 | STAMPED, done(10_300)),
            entry(5, 8_000 << 1, done(0)),
            entry(7, 8_000 << 1, done(0)),
            entry(8, 18_000 << 1 | STAMPED, 0),
        ];
        let spans = place(&entries, pace(), 100_000);
        let span = |begin, end, exact| Span { begin, end, exact };
        assert_eq!(
            spans,
            [
                span(10_000, Some(10_300), true),
                // Two places of four later, and half the way to the next, but no longer than what is quick.
                span(12_000, Some(13_000), false),
                span(16_000, Some(17_000), false),
                span(18_000, None, true),
            ]
        );
    }

    #[test]
    fn the_last_before_a_pause_lies_where_the_tick_says_and_not_at_the_end_of_the_pause() {
        let entries = [entry(0, 10_000 << 1 | STAMPED, done(10_100)), entry(1, 9_000 << 1, done(0))];
        let last = place(&entries, pace(), 4_000)[1];
        assert_eq!((last.begin, last.end, last.exact), (13_000, Some(14_000), false));
        // One that was begun after the pause lies after it.
        let entries = [entries[0], entry(1, 900_000 << 1, 0)];
        let running = place(&entries, pace(), 4_000)[1];
        assert_eq!((running.begin, running.end, running.exact), (900_000, None, false));
    }

    #[test]
    fn a_failure_has_its_own_end() {
        let failed = 20_000 << PHASE_BITS | Phase::Failed as u64;
        let span = place(&[entry(3, 900_000 << 1, failed)], pace(), 4_000)[0];
        assert_eq!((span.begin, span.end, span.exact), (20_000, Some(20_000), false));
    }

    proptest! {
        #[test]
        fn whatever_stands_there_beginnings_keep_their_order_and_no_end_is_before_them(
            words in prop::collection::vec((any::<u64>(), any::<u64>(), 1u64..1 << 40), 0..40),
        ) {
            let mut place_of = 0;
            let entries: Vec<Entry> = words
                .into_iter()
                .map(|(begin, end, step)| {
                    place_of += step;
                    entry(place_of, begin, end)
                })
                .collect();
            let ended_later = entries.iter().all(|entry| entry.end >> PHASE_BITS == 0);
            let spans = place(&entries, pace(), 4_000_000);
            prop_assert_eq!(spans.len(), entries.len());
            prop_assert!(spans.iter().all(|span| span.end.is_none_or(|end| span.begin <= end)));
            prop_assert!(!ended_later || spans.is_sorted_by_key(|span| span.begin), "{spans:?}");
        }
    }
}
