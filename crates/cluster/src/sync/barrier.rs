//! A barrier on counters.
//!
//! Ranks count their arrivals at the home. Whoever comes last adds one to a word of each rank, on which that rank waits in
//! its own memory.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use fulmen_collectives::Group;
use fulmen_fabric::{On, Remote, Rights, Shared};

use super::SyncError;
use super::home::{Home, exchange};

const OP: &str = "barrier";

/// A barrier of all ranks of a group, apart from the order of the group's collective operations. One thread of a rank at a
/// time.
pub struct Barrier {
    group: Group,
    arrivals: Home,
    releases: Vec<Remote>,
    /// The group's other ranks, as the fabric knows them.
    others: Vec<u32>,
    own: Shared,
    rounds: Mutex<u64>,
}

impl Barrier {
    /// Makes a barrier whose arrivals are counted in the memory of rank `home`. Collective.
    ///
    /// # Errors
    /// [`SyncError::Invalid`], [`SyncError::Group`], [`SyncError::Fabric`].
    pub fn new(group: &Group, home: u32) -> Result<Barrier, SyncError> {
        let arrivals = Home::new(OP, group, home, 8, Rights::ATOMIC)?;
        let (own, releases) = exchange(OP, group, 8, Rights::ATOMIC)?;
        let others = (0..group.size()).filter(|rank| *rank != group.rank()).map(|rank| group.in_fabric(rank)).collect();
        Ok(Barrier { group: group.clone(), arrivals, releases, others, own, rounds: Mutex::new(0) })
    }

    /// Returns when all ranks have called it as often as this one.
    ///
    /// # Errors
    /// [`SyncError::Fabric`]: a rank was lost, or `timeout` has passed. Then this rank has come all the same, so that the
    /// barrier is of no more use.
    pub fn wait(&self, timeout: Duration) -> Result<(), SyncError> {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        *rounds += 1;
        let round = *rounds;
        let before = self.arrivals.remote().fetch_add(0, 1, timeout)?;
        if before + 1 == round * u64::from(self.group.size()) {
            // To all, also where one is lost: the others are not to wait for it.
            let released = self.releases.iter().map(|rank| rank.fetch_add(0, 1, timeout).map(drop));
            released.fold(Ok(()), Result::and)?;
        }
        let word = self.own.memory().atomic_u64(0);
        Ok(self.group.fabric().wait(OP, On::Ranks(&self.others), timeout, || {
            if word.load(Ordering::Acquire) >= round { Poll::Ready(()) } else { Poll::Pending }
        })?)
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").field("home", &self.arrivals.remote().rank()).finish_non_exhaustive()
    }
}
