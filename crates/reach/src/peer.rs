use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fulmen_memory::{Region, WeakRegion};

use crate::link::{Link, Reply};
use crate::{Node, NodeAddress, ReachError, ShareKey, platform};

/// Another process, connected. The connection ends when the last handle is dropped; what was mapped stays mapped.
///
/// It keeps this process's [`Node`] open.
pub struct Peer {
    link: Arc<Link>,
    regions: Mutex<HashMap<u64, WeakRegion>>,
    node: Node,
}

impl Peer {
    pub(crate) fn new(link: Arc<Link>, node: Node) -> Peer {
        Peer { link, regions: Mutex::default(), node }
    }

    /// Where it is found.
    #[must_use]
    pub fn address(&self) -> NodeAddress {
        *self.link.peer()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.link.peer().pid()
    }

    /// Its process as the system knows it, whatever it says itself; none if it is in another namespace of processes,
    /// where this one has no number for it.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        platform::peer_process(self.link.socket())
    }

    /// Whether its node is open. One atomic load; false as soon as this process's node has seen the connection hang
    /// up or the peer's process end, however it ends. A stopped process is alive.
    #[inline]
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    /// Maps the region that the peer shares under `key`. While a handle to it exists, the same region is given again
    /// without asking.
    ///
    /// Returns at the latest when `deadline` (at most a year) has passed. It must not be called from an
    /// [`on_death`](Node::on_death) callback, which holds up the thread that receives the answer.
    ///
    /// # Errors
    /// [`ReachError::Gone`], [`ReachError::Refused`], [`ReachError::TimedOut`], [`ReachError::Descriptors`], and
    /// [`ReachError::Memory`] if the peer handed over what cannot be mapped.
    pub fn map(&self, key: ShareKey, deadline: Duration) -> Result<Region, ReachError> {
        match self.cached(key) {
            Some(region) => Ok(region),
            None => self.ask(key, deadline, |_| true),
        }
    }

    /// Maps the region that the peer shares under `key` now, when `stale` is what it shared before: the peer took it
    /// back, and shares another one under the same key.
    ///
    /// Waits and fails as [`Peer::map`] does.
    ///
    /// # Errors
    /// As [`Peer::map`].
    pub fn map_anew(&self, key: ShareKey, stale: &Region, deadline: Duration) -> Result<Region, ReachError> {
        match self.cached(key).filter(|region| region.id() != stale.id()) {
            Some(region) => Ok(region),
            None => self.ask(key, deadline, |known| known.id() != stale.id()),
        }
    }

    /// Sends two numbers, which mean something to those who [listen](Node::on_notice_while) at the peer's node, in order.
    /// That they are on their way does not say that the peer will live to see them.
    ///
    /// Returns at the latest when `deadline` (at most a year) has passed.
    ///
    /// # Errors
    /// [`ReachError::Gone`], and [`ReachError::TimedOut`] if the peer is stopped and took none of many for so long.
    pub fn notify(&self, a: u64, b: u64, deadline: Duration) -> Result<(), ReachError> {
        self.link.notify(a, b, deadline)
    }

    /// Asks for a region, unless another thread brought one meanwhile that is `fit`.
    fn ask(&self, key: ShareKey, deadline: Duration, fit: impl Fn(&Region) -> bool) -> Result<Region, ReachError> {
        let pid = self.pid();
        let (len, descriptor) = match self.link.ask(key.to_u64(), deadline)? {
            Reply::Mapped(len, Some(descriptor)) => (len, descriptor),
            Reply::Mapped(_, None) => {
                // The system drops a descriptor that a process has no room for.
                let cause = rustix::io::Errno::MFILE.into();
                return Err(ReachError::Descriptors { action: "receive a peer's memory", cause });
            }
            Reply::Refused(reason) => return Err(ReachError::Refused { pid, reason }),
        };
        let len = usize::try_from(len).map_err(|_| ReachError::Foreign { pid })?;
        let region = Region::from_fd(descriptor, len).map_err(|cause| ReachError::Memory { pid, cause })?;
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have mapped it meanwhile: one mapping for all.
        if let Some(first) = regions.get(&key.to_u64()).and_then(WeakRegion::upgrade).filter(fit) {
            return Ok(first);
        }
        regions.retain(|_, region| region.upgrade().is_some());
        regions.insert(key.to_u64(), region.downgrade());
        Ok(region)
    }

    fn cached(&self, key: ShareKey) -> Option<Region> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).get(&key.to_u64())?.upgrade()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A connection that was inherited is its process's to end.
        if !self.node.is_inherited() {
            self.link.close();
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("address", self.link.peer()).field("alive", &self.is_alive()).finish()
    }
}
