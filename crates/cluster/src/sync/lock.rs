//! A lock under a lease.
//!
//! One word says it all: who holds the lock (13 bits: its rank and one; 0 for nobody) and the fence number (51 bits). Each
//! change of it is one compare-and-swap of the whole word that raises the number. So a waiter that has seen the same word for
//! the whole lease takes exactly that word away, and a renewal that came meanwhile wins over it.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_collectives::Group;
use fulmen_fabric::{Loss, OpName, Rights};

use super::SyncError;
use super::home::Home;

/// Bits of the fence number.
const FENCE: u32 = 51;
/// The shortest lease: a holder has to be able to renew it in time.
const SHORTEST: Duration = Duration::from_millis(1);
/// How long a waiter rests after its first look; twice as long after each, up to an eighth of the lease.
const FIRST_REST: Duration = Duration::from_micros(2);
const LONGEST_REST: Duration = Duration::from_millis(20);

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    holder: Option<u32>,
    fence: u64,
}

impl State {
    fn of(word: u64) -> State {
        State { holder: ((word >> FENCE) as u32).checked_sub(1), fence: word & ((1 << FENCE) - 1) }
    }

    fn word(self) -> u64 {
        self.holder.map_or(0, |rank| u64::from(rank) + 1) << FENCE | self.fence
    }

    /// The next state, held by `holder`.
    fn next(self, holder: Option<u32>) -> State {
        State { holder, fence: self.fence + 1 }
    }
}

/// A lock of all ranks of a group. See the [module](super).
///
/// Threads of one rank exclude one another by it, too.
pub struct Lock {
    group: Group,
    home: Home,
    lease: Duration,
}

impl Lock {
    /// Makes a lock in the memory of rank `home`. Collective. A holder that neither renews nor releases it for `lease` (at
    /// least 1 ms; the same on all ranks) can lose it to another rank; one whose process has ended loses it at once where
    /// the ranks share a host's memory.
    ///
    /// # Errors
    /// [`SyncError::Invalid`], [`SyncError::Group`], [`SyncError::Fabric`].
    pub fn new(group: &Group, home: u32, lease: Duration) -> Result<Lock, SyncError> {
        if lease < SHORTEST {
            let problem = format!("a lease of {lease:?} cannot be renewed in time: give at least {SHORTEST:?}");
            return Err(SyncError::Invalid { op: "lock", problem });
        }
        let home = Home::new("lock", group, home, 8, Rights::ATOMIC)?;
        Ok(Lock { group: group.clone(), home, lease })
    }

    /// How long the lock is held without a renewal.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`SyncError::Held`] when `timeout` has passed, and [`SyncError::Fabric`] when the home is lost.
    pub fn acquire(&self, timeout: Duration) -> Result<Guard<'_>, SyncError> {
        let began = Instant::now();
        let mut seen: Option<(State, Instant)> = None;
        let mut rest = FIRST_REST;
        loop {
            let state = State::of(self.home.load(0, self.group.deadline())?);
            let same_since = match seen {
                Some((known, since)) if known == state => since,
                _ => {
                    let now = Instant::now();
                    seen = Some((state, now));
                    now
                }
            };
            let Some(holder) = state.holder.filter(|holder| !self.is_free_of(*holder, same_since)) else {
                match self.take(state, state.next(Some(self.group.rank())))? {
                    Some(guard) => return Ok(guard),
                    None => continue,
                }
            };
            let waited = began.elapsed();
            if waited >= timeout {
                return Err(SyncError::Held { holder, waited });
            }
            thread::sleep(rest.min(timeout - waited));
            rest = (rest * 2).min(self.lease / 8).min(LONGEST_REST);
        }
    }

    /// Takes the lock if nobody holds it now.
    ///
    /// # Errors
    /// [`SyncError::Fabric`] when the home is lost.
    pub fn try_acquire(&self) -> Result<Option<Guard<'_>>, SyncError> {
        match self.acquire(Duration::ZERO) {
            Ok(guard) => Ok(Some(guard)),
            Err(SyncError::Held { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the lock can be taken from its holder, which has not touched it since that moment.
    fn is_free_of(&self, holder: u32, same_since: Instant) -> bool {
        // Clocks may differ a little in their pace.
        if same_since.elapsed() >= self.lease + self.lease / 8 {
            return true;
        }
        // Only of a process that has ended nothing can come late; any other loss has to wait for the lease.
        // What the word says may be anything.
        let holder = (holder < self.group.size()).then(|| self.group.in_fabric(holder));
        matches!(holder.and_then(|holder| self.group.fabric().loss(holder)), Some(Loss::Ended))
    }

    /// Changes the word, if it is still what it was: the guard of its new state.
    fn take(&self, from: State, to: State) -> Result<Option<Guard<'_>>, SyncError> {
        // Before the change is made: nobody counts the lease from an earlier moment.
        let until = Instant::now() + self.lease;
        Ok(self.change(from, to)?.then_some(Guard { lock: self, state: to, until, over: false }))
    }

    fn change(&self, from: State, to: State) -> Result<bool, SyncError> {
        let found = self.home.remote().compare_swap(0, from.word(), to.word(), self.group.deadline())?;
        Ok(found == from.word())
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("home", &self.home.remote().rank()).field("lease", &self.lease).finish()
    }
}

/// A lock that is held. Dropping it releases it.
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard<'a> {
    lock: &'a Lock,
    state: State,
    until: Instant,
    over: bool,
}

impl Guard<'_> {
    /// The fence number: greater than that of every guard before it. What is guarded by the lock refuses smaller numbers
    /// than it has seen.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.state.fence
    }

    /// How long the lock is surely held from now on. Zero when the lease has run out: then another rank may have it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Begins a new lease, with a greater fence number.
    ///
    /// # Errors
    /// [`SyncError::Lost`] if another rank has taken the lock, and [`SyncError::Fabric`] when the home is lost.
    pub fn renew(&mut self) -> Result<(), SyncError> {
        let next = self.state.next(self.state.holder);
        let until = Instant::now() + self.lock.lease;
        if !self.lock.change(self.state, next)? {
            self.over = true;
            return Err(self.lost("renew"));
        }
        (self.state, self.until) = (next, until);
        Ok(())
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`SyncError::Lost`] if another rank had taken it: what was done under it may have been undone or mixed up.
    pub fn release(mut self) -> Result<(), SyncError> {
        self.over = true;
        if self.lock.change(self.state, self.state.next(None))? {
            return Ok(());
        }
        Err(self.lost("release"))
    }

    pub(super) fn lost(&self, op: OpName) -> SyncError {
        SyncError::Lost { op, lease: self.lock.lease }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.over
            && let Err(error) = self.lock.change(self.state, self.state.next(None))
        {
            tracing::debug!(%error, "a lock could not be released");
        }
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("fence", &self.fence()).field("remaining", &self.remaining()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_word_and_grows() {
        let free = State::of(0);
        assert_eq!(free, State { holder: None, fence: 0 });
        let held = free.next(Some(4095));
        assert_eq!(State::of(held.word()), State { holder: Some(4095), fence: 1 });
        let free = held.next(None);
        assert_eq!((State::of(free.word()), free.fence), (free, 2));
    }
}
