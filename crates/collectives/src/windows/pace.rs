//! How slots and stages are written faster: through the caches or past them.
//!
//! That depends on how far apart the ranks' processors are: with caches of their own in common, two ranks take half the time through
//! them, and else nearly twice. No system says it well, and virtual machines move. So both ways are tried now and then, by calls of about
//! the same length and kind, and what took less time is kept to. Each rank decides for itself: the bytes are the same either way.

use std::time::{Duration, Instant};

use fulmen_kernels::Stores;

use crate::call::Kind;

/// So many calls in a row go one way when it is tried, and the last of them is measured: who only gives waits for what others did with the
/// call before.
const TRIAL: u32 = 2;

/// The first calls of a kind and length try both ways in turn, and then the first in so many try the other one, and the next the one that is
/// kept to.
const FIRST: u32 = 4 * TRIAL;
const EVERY: u32 = 128;

/// The shortest length that is tried, as a power of two (shorter ones always go through the caches), and how many powers of two are told apart
/// from there on.
const SHORTEST: u32 = 11;
const LENGTHS: usize = 15;

const WAYS: [Stores; 2] = [Stores::Streaming, Stores::Cached];

/// What calls of each kind and length took.
#[derive(Default)]
pub(super) struct Paces([[Pace; LENGTHS]; Kind::ALL.len()]);

/// What calls of about one length took.
#[derive(Clone, Copy, Default)]
struct Pace {
    calls: u32,
    /// Nanoseconds a KiB, each way.
    took: [f32; 2],
}

/// One call: how it writes, and when it began if it is measured.
pub(super) struct Trial {
    pub(super) stores: Stores,
    /// It is to end when all ranks have what they need, so that the next one begins with all.
    pub(super) meets: bool,
    kind: Kind,
    len: usize,
    begun: Option<Instant>,
}

impl Paces {
    /// A call that begins to write.
    pub(super) fn begin(&mut self, kind: Kind, len: usize) -> Trial {
        let next = if len < 1 << SHORTEST { None } else { Some(self.of(kind, len).next()) };
        let (stores, tried) = next.unwrap_or((Stores::Cached, Tried::Not));
        let begun = (tried == Tried::Measured).then(Instant::now);
        Trial { stores, meets: tried != Tried::Not, kind, len, begun }
    }

    /// All ranks have what they need: what one rank writes faster, others may read slower.
    pub(super) fn end(&mut self, trial: &Trial) {
        if let Some(begun) = trial.begun {
            self.of(trial.kind, trial.len).took(trial.stores, trial.len, begun.elapsed());
        }
    }

    fn of(&mut self, kind: Kind, len: usize) -> &mut Pace {
        let power = (len.ilog2() - SHORTEST) as usize;
        &mut self.0[kind as usize - 1][power.min(LENGTHS - 1)]
    }
}

/// What is tried by a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tried {
    Not,
    /// The next one is measured.
    Before,
    Measured,
}

impl Pace {
    fn best(&self) -> usize {
        usize::from(self.took[1] < self.took[0])
    }

    /// How the next call writes, and whether it is to be measured. Ranks that write in the same calls measure the same ones.
    fn next(&mut self) -> (Stores, Tried) {
        let calls = self.calls;
        self.calls = calls.wrapping_add(1);
        let way = match calls {
            calls if calls < FIRST => (calls / TRIAL) as usize % 2,
            calls if calls % EVERY < TRIAL => 1 - self.best(),
            _ => self.best(),
        };
        let tried = calls < FIRST || calls % EVERY < 2 * TRIAL;
        let tried = match tried {
            true if (calls + 1).is_multiple_of(TRIAL) => Tried::Measured,
            true => Tried::Before,
            false => Tried::Not,
        };
        (WAYS[way], tried)
    }

    /// So long a call took that was measured.
    fn took(&mut self, stores: Stores, len: usize, time: Duration) {
        let way = usize::from(stores == WAYS[1]);
        let new = time.as_secs_f32() * 1e9 / (len as f32 / 1024.0);
        let known = &mut self.took[way];
        // A call that was disturbed says little, but if all are slower it is so.
        *known = if *known == 0.0 { new } else { new.min(*known + (new - *known) / 8.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that take these times, in nanoseconds, past the caches and through them: how often each way was taken.
    fn calls(pace: &mut Pace, count: u32, nanos: [u64; 2]) -> [u32; 2] {
        let mut taken = [0; 2];
        for _ in 0..count {
            let (stores, tried) = pace.next();
            let way = usize::from(stores == Stores::Cached);
            taken[way] += 1;
            if tried == Tried::Measured {
                pace.took(stores, 1 << 16, Duration::from_nanos(nanos[way]));
            }
        }
        taken
    }

    #[test]
    fn the_faster_way_is_found_and_found_again() {
        let mut paces = Paces::default();
        let pace = paces.of(Kind::AllReduce, 1 << 16);
        let [past, through] = calls(pace, 1000, [11_000, 6_000]);
        assert!(through > 960 && past >= 1000 / EVERY, "{past} {through}");
        // The processors are far apart from now on.
        calls(pace, 20 * EVERY, [11_000, 20_000]);
        let [past, through] = calls(pace, 1000, [11_000, 20_000]);
        assert!(past > 960 && through >= 1000 / EVERY, "{past} {through}");
    }

    #[test]
    fn a_call_that_was_disturbed_changes_nothing() {
        let mut pace = Pace::default();
        calls(&mut pace, 100, [11_000, 6_000]);
        pace.took(Stores::Cached, 1 << 16, Duration::from_micros(30));
        assert_eq!(pace.next().0, Stores::Cached);
    }

    #[test]
    fn the_call_before_one_that_is_measured_went_the_same_way() {
        let (mut pace, mut before, mut measured_each) = (Pace::default(), (Stores::Cached, Tried::Not), [0; 2]);
        for _ in 0..10 * EVERY {
            let (stores, tried) = pace.next();
            if tried == Tried::Measured {
                assert_eq!(before, (stores, Tried::Before));
                let way = usize::from(stores == Stores::Cached);
                measured_each[way] += 1;
                pace.took(stores, 1 << 16, Duration::from_micros([11, 6][way]));
            }
            before = (stores, tried);
        }
        assert!(measured_each.iter().all(|count| *count > 9), "{measured_each:?}");
    }

    #[test]
    fn lengths_and_kinds_are_told_apart_as_far_as_there_is_room() {
        let mut paces = Paces::default();
        for kind in Kind::ALL {
            for len in [0, 1, (1 << SHORTEST) - 1] {
                let trial = paces.begin(kind, len);
                assert!(trial.stores == Stores::Cached && trial.begun.is_none());
            }
            assert_eq!(paces.of(kind, 1 << SHORTEST).calls, 0);
            calls(paces.of(kind, 1 << 20), 5, [1, 2]);
            assert_eq!(paces.of(kind, (1 << 21) - 1).calls, 5);
            assert_eq!((paces.of(kind, 1 << 21).calls, paces.of(kind, usize::MAX).calls), (0, 0));
        }
    }
}
