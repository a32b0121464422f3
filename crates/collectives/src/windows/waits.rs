//! Waiting for peers, waking them, and the marks of those that failed.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::Poll;

use fulmen_fabric::{FabricError, On};

use super::layout::{self, Counter};
use super::{Ongoing, Windows};
use crate::CollectiveError;

/// Looks at the others before this rank wakes them, where each rank has a processor: those that come at about the same
/// time have no need to be woken first.
const EAGER_LOOKS: u32 = 64;

impl Windows {
    /// Adds to one of this rank's counters and wakes who waits for it.
    pub(crate) fn count(&self, counter: Counter, value: u64) {
        self.window.local().words()[counter.word()].store(value, Ordering::Release);
        self.ring_all();
    }

    /// Waits until a counter of some of the peers has reached `value`.
    pub(crate) fn await_counter(
        &self,
        ongoing: &mut Ongoing<'_>,
        counter: Counter,
        value: u64,
        of: impl Fn(usize) -> bool,
    ) -> Result<(), CollectiveError> {
        self.await_ranks(ongoing, |rank, words| !of(rank) || words[counter.word()].load(Ordering::Acquire) >= value)
    }

    /// Waits until all peers are ready, one of them is poisoned, or the fabric sees no hope for one that is not.
    pub(super) fn await_ranks(
        &self,
        ongoing: &mut Ongoing<'_>,
        ready: impl Fn(usize, &[AtomicU64]) -> bool,
    ) -> Result<(), CollectiveError> {
        let is_ready = |rank| rank == self.rank || ready(rank, self.words(rank));
        // One after the other, and each rank begins with another one: to look at a line before it is written makes the write slower.
        let mut next = 1;
        let look = |next: &mut usize| {
            while *next < self.size {
                let rank = self.rank + *next;
                let rank = if rank < self.size { rank } else { rank - self.size };
                if !ready(rank, self.words(rank)) {
                    return false;
                }
                *next += 1;
            }
            true
        };
        if look(&mut next) {
            return Ok(());
        }
        if ongoing.owes_ring {
            if self.busy {
                for _ in 0..EAGER_LOOKS {
                    if look(&mut next) {
                        return Ok(());
                    }
                }
            }
            self.settle(ongoing);
        }
        let (operation, sequence) = (ongoing.operation, ongoing.sequence);
        let mut late: Option<Vec<u32>> = None;
        loop {
            let on = late.as_deref().unwrap_or(self.team.others());
            let waited = self.team.fabric.wait(operation, On::Ranks(on), ongoing.deadline.left(), || {
                if look(&mut next) {
                    return Poll::Ready(Ok(()));
                }
                self.check_poison(sequence).map_or_else(|poisoned| Poll::Ready(Err(poisoned)), |()| Poll::Pending)
            });
            let Err(error) = waited else { return waited? };
            let missing: Vec<u32> =
                (0..self.size).filter(|rank| !is_ready(*rank)).map(|rank| self.team.in_fabric(rank)).collect();
            match error {
                // Whoever has done its part may leave, and is no loss to those that still wait for others.
                FabricError::PeerLost { .. } if missing.len() < on.len() => late = Some(missing),
                FabricError::TimedOut { op, link, waited, .. } => {
                    return Err(FabricError::TimedOut { op, link, waited, missing }.into());
                }
                other => return Err(other.into()),
            }
        }
    }

    /// Wakes peers that may be parked, if something was written since the last time.
    pub(crate) fn settle(&self, ongoing: &mut Ongoing<'_>) {
        if std::mem::take(&mut ongoing.owes_ring) {
            self.ring_all();
        }
    }

    fn ring_all(&self) {
        for peer in self.peers() {
            self.window.ring(peer as u32);
        }
    }

    /// Marks this rank's part, so that no peer goes on with this call or a later one.
    pub(crate) fn poison(&self, sequence: u64, why: &str) {
        let mut end = why.len().min(layout::POISON_TEXT_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let local = self.window.local();
        local.write(layout::POISON_TEXT, &why.as_bytes()[..end]);
        let words = &local.words()[layout::POISON / 8..];
        words[1].store(end as u64, Ordering::Relaxed);
        words[0].store(sequence, Ordering::Release);
        // The mark is there before the caller uses its memory for anything else.
        fence(Ordering::SeqCst);
        self.ring_all();
    }

    /// Fails if a peer has failed in this call or before it.
    pub(crate) fn check_poison(&self, sequence: u64) -> Result<(), CollectiveError> {
        // What was read of the peers' memory was read before the marks are.
        fence(Ordering::Acquire);
        for peer in self.peers() {
            let failed = self.words(peer)[layout::POISON / 8].load(Ordering::Acquire);
            if failed != 0 && failed <= sequence {
                return Err(CollectiveError::Poisoned { cause: self.poison_of(peer).into() });
            }
        }
        Ok(())
    }

    #[cold]
    fn poison_of(&self, peer: usize) -> String {
        let len = self.words(peer)[layout::POISON / 8 + 1].load(Ordering::Relaxed) as usize;
        let mut text = vec![0; len.min(layout::POISON_TEXT_MAX)];
        self.window.peer(peer as u32).read(layout::POISON_TEXT, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}
