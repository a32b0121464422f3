//! Another process's device: its directory, its doorbell, and the regions of it that are mapped here.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, Region, RegionError};
use fulmen_reach::{Doorbell, Peer, ReachError, Refusal, ShareKey};

use crate::directory::Directory;
use crate::layout::directory as at;
use crate::progress::Progress;
use crate::vm::{Fault, Process};
use crate::wire::Cause;

/// How long the device's thread waits for one mapping before it looks at its other work; it asks again later.
const MAP_PATIENCE: Duration = Duration::from_millis(100);
/// How long a peer that did not answer in time is left alone at first; twice as long each time that it does not.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(1600);
/// How often a mapping is tried for which this process, or the peer, has no descriptor or memory left at the moment.
const TRIES: u32 = 6;
/// Mappings that are remembered of one peer, more than it can have registrations.
const MOST_MAPPINGS: usize = 2 * at::KEY_SLOTS;

pub(crate) struct Remote {
    pub(crate) peer: Arc<Peer>,
    pub(crate) directory: Directory,
    doorbell: Doorbell,
    maps: Mutex<Maps>,
    /// Whether this side copies from and to its memory by the system's calls, where it can.
    copies: bool,
    /// The process, found when it is needed first, if it can be reached.
    process: OnceLock<Option<Process>>,
    this: Weak<Remote>,
}

#[derive(Default)]
struct Maps {
    known: HashMap<u64, Mapping>,
    revoked: u64,
    pause: Option<Pause>,
}

/// A peer that does not answer is left alone for a while, so that it does not hold up the others.
#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    long: Duration,
}

enum Mapping {
    /// The device's thread was asked for it, and tried so often in vain.
    Asked(u32),
    Mapped(Exposed),
    Refused,
    /// It was refused for a reason that may pass: whoever looks first is told so, and the next one has it tried again.
    RefusedOnce,
}

/// What a look for a mapping found.
pub(crate) enum Lookup {
    Mapped(Exposed),
    /// The device's thread maps it, and drives the queue pair then.
    Later,
    /// It cannot be mapped.
    Refused,
}

impl Remote {
    /// Maps the directory that `peer` shares under `key`. `copies`: what cannot be mapped may be copied by the system's
    /// calls.
    pub(crate) fn open(
        peer: Arc<Peer>,
        key: ShareKey,
        profile: u64,
        copies: bool,
        until: Instant,
    ) -> Result<Arc<Remote>, Cause> {
        let left = || until.saturating_duration_since(Instant::now());
        let mut region = peer.map(key, left())?;
        if region.len() == at::SIZE && Directory::new(region.expose()?).is_closed() {
            // Somebody here still keeps the directory of a device that was there before.
            region = peer.map_anew(key, &region, left())?;
        }
        if region.len() != at::SIZE {
            return Err(format!("its directory has {} bytes and not {}", region.len(), at::SIZE).into());
        }
        let words = region.expose()?;
        let doorbell = Doorbell::at(&words, at::DOORBELL);
        let directory = Directory::new(words);
        match directory.profile() {
            None => return Err("its directory is of another version of Fulmen".into()),
            Some(theirs) if theirs != profile => {
                return Err("its device has another profile: open both with the same".into());
            }
            Some(_) => {}
        }
        Ok(Arc::new_cyclic(|this| Remote {
            peer,
            directory,
            doorbell,
            maps: Mutex::default(),
            copies,
            process: OnceLock::new(),
            this: this.clone(),
        }))
    }

    /// Its process, if the system copies from and to its memory for this one.
    pub(crate) fn process(&self) -> Option<&Process> {
        if !self.copies {
            return None;
        }
        let find = || match Process::find(self.peer.process(), self.directory.probe()) {
            Ok(process) => Some(process),
            Err(why) => {
                tracing::info!(peer = %self.peer.address(), why, "a peer's memory that cannot be mapped goes through rings");
                None
            }
        };
        self.process.get_or_init(find).as_ref().filter(|process| process.is_reached())
    }

    /// Why the system does not copy for this side.
    pub(crate) fn fault(&self) -> Fault {
        let gone = self.process.get().is_some_and(|process| process.as_ref().is_some_and(Process::is_gone));
        if gone { Fault::Gone } else { Fault::Process }
    }

    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.peer.is_alive()
    }

    /// Whether its device is the one that its node has under this number.
    pub(crate) fn is_open(&self) -> bool {
        self.is_alive() && !self.directory.is_closed()
    }

    /// Wakes the peer's device if it sleeps. What was written before is seen by then.
    #[inline]
    pub(crate) fn wake(&self) {
        // The peer says that it sleeps, and then looks once more: one of both sides sees the other's store.
        fence(Ordering::SeqCst);
        if self.directory.is_asleep() {
            self.doorbell.ring();
        }
    }

    /// The region that the peer shares under `share`. Never waits.
    pub(crate) fn region(&self, share: ShareKey, progress: &Progress) -> Lookup {
        let mut maps = self.maps();
        let key = share.to_u64();
        match maps.known.get(&key) {
            Some(Mapping::Mapped(memory)) => Lookup::Mapped(memory.clone()),
            Some(Mapping::Asked(_)) => Lookup::Later,
            Some(Mapping::Refused) => Lookup::Refused,
            Some(Mapping::RefusedOnce) => {
                maps.known.remove(&key);
                Lookup::Refused
            }
            // A correct peer does not name so many.
            None if maps.known.len() >= MOST_MAPPINGS => Lookup::Refused,
            None => {
                maps.known.insert(key, Mapping::Asked(0));
                drop(maps);
                progress.map(self.this.clone(), share);
                Lookup::Later
            }
        }
    }

    /// When the next mapping may be tried, if the peer is left alone at `now`.
    pub(crate) fn paused(&self, now: Instant) -> Option<Instant> {
        self.maps().pause.map(|pause| pause.until).filter(|until| *until > now)
    }

    /// Maps what was asked for; false if it is to be tried again after the pause. For the device's thread.
    pub(crate) fn map(&self, share: ShareKey) -> bool {
        let result = self.peer.map(share, MAP_PATIENCE);
        self.mapped(share, result)
    }

    fn mapped(&self, share: ShareKey, result: Result<Region, ReachError>) -> bool {
        let key = share.to_u64();
        let mut maps = self.maps();
        let found = match result.map(|region| region.expose()) {
            Ok(Ok(memory)) => Mapping::Mapped(memory),
            Ok(Err(_)) => Mapping::Refused,
            // A stopped peer is not dead.
            Err(ReachError::TimedOut { .. }) => {
                maps.pause();
                return false;
            }
            Err(error) if may_pass(&error) => match maps.known.get(&key) {
                Some(Mapping::Asked(tried)) if tried + 1 < TRIES => {
                    let tried = tried + 1;
                    maps.known.insert(key, Mapping::Asked(tried));
                    maps.pause();
                    return false;
                }
                _ => Mapping::RefusedOnce,
            },
            Err(_) => Mapping::Refused,
        };
        maps.pause = None;
        maps.known.insert(key, found);
        let revoked = self.directory.revoked();
        if maps.revoked != revoked {
            maps.revoked = revoked;
            let valid: HashSet<u64> = self.directory.shares().collect();
            let keep = |known: &u64, found: &mut Mapping| match found {
                Mapping::Asked(_) => true,
                Mapping::Mapped(_) | Mapping::Refused | Mapping::RefusedOnce => valid.contains(known) || *known == key,
            };
            maps.known.retain(keep);
        }
        true
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Maps {
    fn pause(&mut self) {
        let long = self.pause.map_or(FIRST_PAUSE, |pause| (pause.long * 2).min(LONGEST_PAUSE));
        self.pause = Some(Pause { until: Instant::now() + long, long });
    }
}

/// Whether a refusal says nothing about the region: there is no descriptor or memory left at the moment.
fn may_pass(error: &ReachError) -> bool {
    match error {
        ReachError::Descriptors { .. } | ReachError::System { .. } => true,
        ReachError::Refused { reason, .. } => *reason != Refusal::UnknownKey,
        ReachError::Memory { cause, .. } => !matches!(cause, RegionError::Unfit { .. } | RegionError::Empty),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmen_reach::Node;

    const LONG: Duration = Duration::from_secs(60);
    const SHARE: u64 = 77;

    struct Known {
        remote: Arc<Remote>,
        progress: Progress,
        node: Node,
    }

    fn known() -> Known {
        let [node, peer] = [Node::open().unwrap(), Node::open().unwrap()];
        let region = Region::alloc(at::SIZE).unwrap();
        let words = region.expose().unwrap();
        let directory = Directory::new(words.clone());
        directory.announce(1, 7, None);
        let key = node.share(&region).unwrap();
        let connected = peer.connect(&node.address(), LONG).unwrap();
        let remote = Remote::open(connected, key, 1, true, Instant::now() + LONG).unwrap();
        Known { remote, progress: Progress::new(directory, &words), node }
    }

    fn no_descriptor() -> ReachError {
        let cause = std::io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
        ReachError::Descriptors { action: "receive a peer's memory", cause }
    }

    #[test]
    fn a_refusal_that_may_pass_is_not_remembered() {
        let Known { remote, progress, node } = known();
        let share = ShareKey::from_u64(SHARE);
        assert!(matches!(remote.region(share, &progress), Lookup::Later));
        for _ in 1..TRIES {
            assert!(!remote.mapped(share, Err(no_descriptor())), "it is tried again");
            assert!(remote.maps().pause.is_some());
        }
        assert!(remote.mapped(share, Err(no_descriptor())), "not for ever");
        assert!(matches!(remote.region(share, &progress), Lookup::Refused));
        // Whoever asks next finds that it has passed.
        assert!(matches!(remote.region(share, &progress), Lookup::Later));
        assert!(node.share_as(share, &Region::alloc(4096).unwrap()).unwrap());
        until_mapped(&remote, share);
        assert!(matches!(remote.region(share, &progress), Lookup::Mapped(_)));
    }

    #[test]
    fn an_unknown_key_stays_refused() {
        let Known { remote, progress, .. } = known();
        let share = ShareKey::from_u64(SHARE);
        assert!(matches!(remote.region(share, &progress), Lookup::Later));
        until_mapped(&remote, share);
        for _ in 0..2 {
            assert!(matches!(remote.region(share, &progress), Lookup::Refused));
        }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_left_alone_for_longer_and_longer() {
        let Known { remote, .. } = known();
        let share = ShareKey::from_u64(SHARE);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let late = ReachError::TimedOut { pid: 1, action: "answer", waited: MAP_PATIENCE };
            assert!(!remote.mapped(share, Err(late)));
            pauses.push(remote.maps().pause.unwrap().long);
        }
        assert!(pauses.is_sorted() && pauses[0] == FIRST_PAUSE && pauses[7] == LONGEST_PAUSE, "{pauses:?}");
        until_mapped(&remote, share);
        assert!(remote.paused(Instant::now()).is_none(), "it answered");
    }

    #[test]
    fn a_hostile_peer_cannot_name_ever_more_regions() {
        let Known { remote, progress, .. } = known();
        for key in 0..MOST_MAPPINGS as u64 {
            assert!(matches!(remote.region(ShareKey::from_u64(key), &progress), Lookup::Later));
        }
        assert!(matches!(remote.region(ShareKey::from_u64(u64::MAX), &progress), Lookup::Refused));
    }

    fn until_mapped(remote: &Remote, share: ShareKey) {
        let end = Instant::now() + LONG;
        while !remote.map(share) {
            assert!(Instant::now() < end, "the node answers");
        }
    }
}
