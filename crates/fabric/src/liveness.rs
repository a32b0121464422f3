//! Who of the peers is lost.
//!
//! Losses come from two sides: the connection between two processes of a host hangs up as soon as one of them ends, and
//! the coordinator tells of ranks whose connection to it ended without a goodbye. Both come within milliseconds of a
//! process's death; every wait on the dead rank ends in **under 2 s**. A process that is merely stopped is not lost to
//! the first, and lost to the second only after the silence that the coordinator allows.
//!
//! A link that breaks between two live processes is a loss too. The end that finds out leaves the coordinator without a
//! goodbye, so that the other end, and everybody else, hears of it as fast as of a death.
//!
//! A waiting thread looks at one counter in its own memory, and only when that has moved at who it was.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::Loss;
use crate::driver::Parker;

/// The ranks that a wait depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On<'a> {
    /// All other ranks.
    All,
    /// These.
    Ranks(&'a [u32]),
}

impl<'a> From<&'a [u32]> for On<'a> {
    fn from(ranks: &'a [u32]) -> On<'a> {
        On::Ranks(ranks)
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for On<'a> {
    fn from(ranks: &'a [u32; N]) -> On<'a> {
        On::Ranks(ranks)
    }
}

/// The losses that this rank knows of.
pub(crate) struct Life {
    /// How many there are: what waits look at.
    count: AtomicU32,
    lost: Mutex<Vec<Option<Loss>>>,
    parker: Box<dyn Parker>,
    /// Tells the others that this rank cannot go on.
    desert: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Life {
    pub(crate) fn new(size: u32, parker: Box<dyn Parker>) -> Life {
        Life { count: AtomicU32::new(0), lost: Mutex::new(vec![None; size as usize]), parker, desert: OnceLock::new() }
    }

    /// Notes a loss, the first of a rank only, and wakes whoever waits.
    pub(crate) fn lose(&self, rank: u32, loss: Loss) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot @ None) = lost.get_mut(rank as usize) else { return };
        tracing::debug!(rank, cause = %loss, "lost a rank");
        let broken = matches!(loss, Loss::Broken(_));
        *slot = Some(loss);
        self.count.fetch_add(1, Ordering::Release);
        drop(lost);
        if broken && let Some(desert) = self.desert.get() {
            desert();
        }
        self.parker.wake();
    }

    /// What to do as soon as a link breaks: its other end has a process that lives and cannot know of it.
    pub(crate) fn on_broken(&self, desert: impl Fn() + Send + Sync + 'static) {
        // It is said once, at the start.
        let _ = self.desert.set(Box::new(desert));
    }

    /// Changes with every loss.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// How a rank was lost, if it was.
    pub(crate) fn loss(&self, rank: u32) -> Option<Loss> {
        if self.count() == 0 {
            return None;
        }
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get(rank as usize).cloned().flatten()
    }

    /// The first of these ranks that is lost.
    pub(crate) fn first(&self, on: On<'_>) -> Option<(u32, Loss)> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let look = |rank: u32| lost.get(rank as usize).cloned().flatten().map(|loss| (rank, loss));
        match on {
            On::All => (0..lost.len() as u32).find_map(look),
            On::Ranks(ranks) => ranks.iter().copied().find_map(look),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Deaf;
    impl Parker for Deaf {
        fn park(&self, _timeout: Duration, _awake: &mut dyn FnMut() -> bool) {}
        fn wake(&self) {}
    }

    #[test]
    fn the_first_word_about_a_rank_counts() {
        let life = Life::new(3, Box::new(Deaf));
        assert_eq!(life.first(On::All), None);
        life.lose(2, Loss::Ended);
        life.lose(2, Loss::Left);
        life.lose(7, Loss::Ended);
        assert_eq!(life.count(), 1);
        assert_eq!(life.loss(2), Some(Loss::Ended));
        assert_eq!(life.loss(7), None);
        assert_eq!(life.first(On::Ranks(&[0, 1])), None);
        assert_eq!(life.first((&[1, 2]).into()), Some((2, Loss::Ended)));
        assert_eq!(life.first(On::All), Some((2, Loss::Ended)));
    }
}
