//! How frames are written faster: through the caches or past them.
//!
//! What lies in a cache that another processor has far away is written anew ten times as slowly as what goes past all caches; where the two
//! processors share one, that hardly matters, and what went past it takes its reader twice as long. (Measured of copies by hand of 16 KiB:
//! far, 6.9 and 0.7 µs to write and 1.1 to read either way; near, 0.6 and 0.7 µs to write, 0.5 and 1.2 to read. Of 4 KiB, through a ring that
//! stays in the caches: far, 2.3 and 0.07 µs to write; near, 0.67 and 0.08, and 0.18 and 0.44 to read.) No system says well how far
//! processors are apart, and virtual machines move. So the writer looks at the time that it takes, and now and then tries the other way.

use fulmen_reach::Ticks;

/// Bytes of the shortest frame for which the way matters.
pub(super) const LEAST: usize = 2 << 10;
/// One in so many frames is measured: to look at the clock for each would take a tenth of what a frame takes.
const MEASURED: u32 = 8;
/// One in so many of those goes the other way, for the first time soon.
const TRIES: u32 = 32;
const FIRST: u32 = 1;

/// So many times as long must the frames of a ring take through the caches before they go past them. Where processors are near, they take up
/// to twice as long, as measured, and their reader is the faster for it.
const MARGIN: f32 = 3.0;
/// A write counts for no more than so many times what is known.
const MOST: f32 = 8.0;

/// The ways that the frames of a ring, or those in cells, go.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    ticks: Ticks,
    /// Ticks for each KiB through the caches, and past them; zero: not known.
    took: [f32; 2],
    /// Frames go past them.
    past: bool,
    /// Frames before the next one that is measured.
    left: u32,
    measured: u32,
    /// The frame that is being written, if it is measured: whether it goes past the caches, its length, and since when.
    open: Option<(bool, usize, u64)>,
}

impl Ways {
    pub(super) fn new(ticks: Ticks) -> Ways {
        // The first frames wait for pages of memory, and say nothing.
        Ways { ticks, took: [0.0; 2], past: false, left: MEASURED - 1, measured: 0, open: None }
    }

    /// A frame of `len` bytes is about to be written: whether past the caches.
    #[inline]
    pub(super) fn begin(&mut self, len: usize) -> bool {
        if len < LEAST {
            return false;
        }
        match self.left {
            0 => self.measure(len),
            _ => {
                self.left -= 1;
                self.past
            }
        }
    }

    #[cold]
    fn measure(&mut self, len: usize) -> bool {
        self.left = MEASURED - 1;
        let past = self.past != (self.measured % TRIES == FIRST);
        self.measured = self.measured.wrapping_add(1);
        self.open = Some((past, len, self.ticks.now()));
        past
    }

    /// It was written.
    #[inline]
    pub(super) fn end(&mut self) {
        if let Some((past, len, since)) = self.open.take() {
            self.note(past, self.ticks.now().wrapping_sub(since) as f32 / (len as f32 / 1024.0));
        }
    }

    #[cold]
    fn note(&mut self, past: bool, took: f32) {
        let known = &mut self.took[usize::from(past)];
        // A write that was disturbed says little, but if all are slower it is so.
        let disturbed = took > *known;
        *known = if *known == 0.0 || !disturbed { took } else { *known + (took.min(MOST * *known) - *known) / 8.0 };
        let [through, past] = self.took;
        self.past = through > 0.0 && past > 0.0 && through > MARGIN * past;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that take these times, through the caches and past them: how many went past them.
    fn frames(ways: &mut Ways, count: u32, took: [f32; 2]) -> u32 {
        let mut past = 0;
        for _ in 0..count {
            let way = ways.begin(LEAST);
            past += u32::from(way);
            if let Some((open, len, _)) = ways.open.take() {
                assert_eq!((open, len), (way, LEAST));
                ways.note(way, took[usize::from(way)]);
            }
        }
        past
    }

    #[test]
    fn the_faster_way_is_found_and_found_again() {
        let mut ways = Ways::new(Ticks::new());
        let tries = MEASURED * TRIES;
        let count = 10 * tries;
        assert_eq!(frames(&mut ways, count, [30.0, 35.0]), 10);
        // The processors are far apart from now on.
        assert!(frames(&mut ways, count, [350.0, 35.0]) > count - 10 - 4 * MEASURED);
        assert_eq!(frames(&mut ways, count, [350.0, 35.0]), count - 10);
        // And near again.
        assert!(frames(&mut ways, count, [30.0, 35.0]) < 10 + 2 * tries);
        assert_eq!(frames(&mut ways, count, [30.0, 35.0]), 10);
    }

    #[test]
    fn a_write_that_was_disturbed_changes_nothing() {
        let mut ways = Ways::new(Ticks::new());
        frames(&mut ways, 10 * MEASURED * TRIES, [30.0, 35.0]);
        ways.note(false, 1e6);
        assert!(!ways.past);
    }

    #[test]
    fn short_frames_go_through_the_caches_and_count_for_nothing() {
        let mut ways = Ways::new(Ticks::new());
        assert!((0..1000).all(|_| !ways.begin(LEAST - 1) && ways.open.is_none()));
        assert_eq!(ways.measured, 0);
    }
}
