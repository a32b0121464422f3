//! The device: what belongs to one process.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::{Region, RegionError};
use fulmen_reach::{Node, NodeAddress, ReachError, ShareKey};
use fulmen_verbs::{
    Budget, CompletionChannel, CompletionQueue, Device, DeviceInfo, DeviceLimits, Gid, GidEntry, Mtu, PortInfo,
    PortState, ProtectionDomain, VerbsError,
};

use crate::Profile;
use crate::completion::{Channel, ChannelHandle, Queue, QueueHandle, own_channel};
use crate::directory::Directory;
use crate::domain::{Domain, DomainHandle};
use crate::layout::directory as at;
use crate::pair::Pair;
use crate::progress::{self, Progress};
use crate::registrations::Registrations;
use crate::remote::Remote;
use crate::wire::{Cause, PeerWire};

/// Devices of one node.
const MOST_DEVICES: u32 = 32;
/// Directories are shared under well-known keys: whoever knows the node's name may read them.
const DIRECTORY_KEY: u64 = u64::from_be_bytes(*b"FLMSOFT\0");

/// How long the end of a registration or of a connection waits for a peer that is just working on this process's memory.
/// A peer that takes longer is stopped.
pub(crate) const WORK_PATIENCE: Duration = Duration::from_secs(2);

/// Why a soft device was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The node has as many devices as it can have.
    #[error("a node has at most {MOST_DEVICES} soft devices: open another node, or drop a device")]
    TooMany,
    /// The limits exceed what a soft device can hold.
    #[error("a soft device has at most {most} {what}, and {asked} were asked for")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// What there is.
        most: u64,
    },
    /// There is no memory for its tables.
    #[error("no memory for the tables of a soft device: {0}")]
    Memory(#[from] RegionError),
    /// Its tables cannot be shared.
    #[error("the tables of a soft device cannot be shared: {0}")]
    Share(#[from] ReachError),
    /// The system refused.
    #[error("cannot {action} for a soft device: {cause}")]
    System {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        cause: std::io::Error,
    },
}

type OnDeath = dyn Fn(&NodeAddress) + Send + Sync;

/// Opens user-space RDMA devices.
///
/// A device has one port. Its only GID names the node on which it was opened, so that peers find it. A device and all
/// that was made of it keep the node open.
///
/// Some calls wait for a peer: the transition to RTR connects to it, and ends with [`VerbsError::Unreachable`] if the peer
/// is stopped, or in error or connected to another queue pair, for 10 s (so reset both sides before either connects); the end of a registration, and of a connection (the transitions to ERR and RESET, and the
/// end of the queue pair), waits for a peer that is just working on the memory, 2 s at most.
#[derive(Clone)]
pub struct SoftDevice {
    core: Arc<DeviceCore>,
}

pub(crate) struct Budgets {
    pub(crate) protection_domains: Budget,
    pub(crate) completion_queues: Budget,
    pub(crate) memory_regions: Budget,
    pub(crate) queue_pairs: Budget,
}

pub(crate) struct DeviceCore {
    pub(crate) node: Node,
    pub(crate) profile: Profile,
    pub(crate) info: DeviceInfo,
    pub(crate) budgets: Budgets,
    pub(crate) directory: Directory,
    pub(crate) registrations: Registrations,
    pub(crate) progress: Arc<Progress>,
    /// Called by the node as long as the device is there.
    _on_death: Arc<OnDeath>,
    /// The device's number on its node: a part of the numbers of its queue pairs.
    index: u32,
    directory_key: ShareKey,
    domains: AtomicU64,
    pairs: Mutex<Vec<Arc<Pair>>>,
    /// Slots of queue pairs that are free, each with the salt of its next number.
    slots: Mutex<VecDeque<(u32, u32)>>,
    remotes: Mutex<HashMap<(NodeAddress, u32), Weak<Remote>>>,
    /// Peers that were in the middle of something when their queue pair was let go.
    lingering: Mutex<Vec<Arc<Lingering>>>,
}

/// A peer that was in the middle of a WRITE, READ or atomic when its queue pair was let go.
pub(crate) struct Lingering {
    remote: Arc<Remote>,
    wire: PeerWire,
}

impl Lingering {
    fn works(&self) -> bool {
        self.remote.is_alive() && self.wire.works()
    }
}

impl SoftDevice {
    /// Opens a device on `node`, with the limits of its profile.
    ///
    /// # Errors
    /// [`OpenError`].
    #[allow(clippy::new_ret_no_self)]
    pub fn open(node: &Node, profile: Profile) -> Result<Arc<dyn Device>, OpenError> {
        SoftDevice::open_with(node, profile, profile.limits())
    }

    /// Opens a device with other limits than the profile's, such as those of a host that has fewer of everything.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(node: &Node, profile: Profile, limits: DeviceLimits) -> Result<Arc<dyn Device>, OpenError> {
        check("queue pairs", limits.queue_pairs.into(), at::PAIR_SLOTS as u64)?;
        check("memory regions", limits.memory_regions.into(), at::KEY_SLOTS as u64)?;
        check("pieces a request", limits.pieces.into(), crate::layout::MAX_PIECES as u64)?;
        check("bytes a message", limits.message_bytes, 1 << 31)?;
        let region = Region::alloc(at::SIZE)?;
        let words = region.expose()?;
        let directory = Directory::new(words.clone());
        directory.announce(profile.code());
        let (index, directory_key) = publish(node, &region)?;
        let name = format!("soft{index}");
        let random = getrandom::u32()
            .map_err(|cause| OpenError::System { action: "get random bytes", cause: std::io::Error::other(cause) })?;
        let budgets = Budgets {
            protection_domains: Budget::new(name.as_str(), "protection domains", limits.protection_domains.into()),
            completion_queues: Budget::new(name.as_str(), "completion queues", limits.completion_queues.into()),
            memory_regions: Budget::new(name.as_str(), "registrations", limits.memory_regions.into()),
            queue_pairs: Budget::new(name.as_str(), "queue pairs", limits.queue_pairs.into()),
        };
        let capabilities = profile.capabilities();
        let progress = Arc::new(Progress::new(directory.clone(), &words));
        let kicked = progress.clone();
        let on_death: Arc<OnDeath> = Arc::new(move |_| kicked.kick());
        node.on_death_while(Arc::downgrade(&on_death));
        let core = Arc::new(DeviceCore {
            node: node.clone(),
            profile,
            info: DeviceInfo { name, provider: "soft", ports: 1, limits, capabilities },
            budgets,
            progress,
            _on_death: on_death,
            directory,
            registrations: Registrations::new(random),
            index,
            directory_key,
            domains: AtomicU64::new(1),
            pairs: Mutex::default(),
            slots: Mutex::new((0..at::PAIR_SLOTS as u32).map(|slot| (slot, random % SALTS)).collect()),
            remotes: Mutex::default(),
            lingering: Mutex::default(),
        });
        progress::start(&core).map_err(|cause| OpenError::System { action: "start a thread", cause })?;
        Ok(Arc::new(SoftDevice { core }))
    }
}

fn check(what: &'static str, asked: u64, most: u64) -> Result<(), OpenError> {
    if asked <= most { Ok(()) } else { Err(OpenError::Limit { what, asked, most }) }
}

fn publish(node: &Node, region: &Region) -> Result<(u32, ShareKey), OpenError> {
    for index in 0..MOST_DEVICES {
        let key = directory_key(index);
        if node.share_as(key, region)? {
            return Ok((index, key));
        }
    }
    Err(OpenError::TooMany)
}

fn directory_key(index: u32) -> ShareKey {
    ShareKey::from_u64(DIRECTORY_KEY + u64::from(index))
}

// A queue pair's number: 10 bits of slot, 5 of device, 9 of salt that changes with each use of the slot.
const SLOT_BITS: u32 = 10;
const INDEX_BITS: u32 = 5;
const SALTS: u32 = 1 << 9;

fn pair_number(slot: u32, index: u32, salt: u32) -> u32 {
    salt << (SLOT_BITS + INDEX_BITS) | index << SLOT_BITS | slot
}

/// The slot of a queue pair's number.
pub(crate) fn pair_slot(number: u32) -> usize {
    number as usize % at::PAIR_SLOTS
}

/// The device of a queue pair's number.
fn pair_device(number: u32) -> u32 {
    number >> SLOT_BITS & (MOST_DEVICES - 1)
}

impl DeviceCore {
    pub(crate) fn foreign(&self, what: &'static str) -> VerbsError {
        VerbsError::Foreign { what, device: self.info.name.clone() }
    }

    pub(crate) fn system(&self, call: &'static str, cause: &dyn std::fmt::Display) -> VerbsError {
        VerbsError::System { device: self.info.name.clone(), call, cause: cause.to_string() }
    }

    pub(crate) fn gid(&self) -> Gid {
        Gid(*self.node.address().name())
    }

    /// A free slot and the number of a queue pair in it. The budget has fewer than there are slots.
    pub(crate) fn take_slot(&self) -> Option<u32> {
        let (slot, salt) = lock(&self.slots).pop_front()?;
        // Number 0 and 1 are special queue pairs elsewhere.
        let salt = if salt == 0 { 1 } else { salt };
        Some(pair_number(slot, self.index, salt))
    }

    pub(crate) fn give_slot_back(&self, number: u32) {
        let salt = (number >> (SLOT_BITS + INDEX_BITS)) + 1;
        lock(&self.slots).push_back((pair_slot(number) as u32, salt % SALTS));
    }

    pub(crate) fn add_pair(&self, pair: &Arc<Pair>) {
        lock(&self.pairs).push(pair.clone());
    }

    pub(crate) fn remove_pair(&self, pair: &Arc<Pair>) {
        lock(&self.pairs).retain(|known| !Arc::ptr_eq(known, pair));
    }

    /// Drives all queue pairs: whether there was something to do, and when there will be if nobody rings.
    pub(crate) fn drive_all(&self) -> (bool, Option<Instant>) {
        let mut worked = false;
        let mut next = None;
        for pair in lock(&self.pairs).iter() {
            let driven = pair.drive(true);
            worked |= driven.worked;
            next = match (next, driven.next) {
                (Some(one), Some(other)) => Some(std::cmp::min::<Instant>(one, other)),
                (one, other) => one.or(other),
            };
        }
        (worked, next)
    }

    /// The device that has queue pair `number`, at `gid`.
    pub(crate) fn remote(&self, gid: Gid, number: u32, until: Instant) -> Result<Arc<Remote>, Cause> {
        let address = NodeAddress::on_this_host(gid.0)?;
        let index = pair_device(number);
        let known = |remotes: &HashMap<(NodeAddress, u32), Weak<Remote>>| {
            remotes.get(&(address, index)).and_then(Weak::upgrade).filter(|remote| remote.is_open())
        };
        if let Some(remote) = known(&lock(&self.remotes)) {
            return Ok(remote);
        }
        let peer = self.node.connect(&address, until.saturating_duration_since(Instant::now()))?;
        let remote = Remote::open(peer, directory_key(index), self.profile.code(), until)?;
        let mut remotes = lock(&self.remotes);
        if let Some(first) = known(&remotes) {
            return Ok(first);
        }
        remotes.retain(|_, remote| remote.strong_count() > 0);
        remotes.insert((address, index), Arc::downgrade(&remote));
        Ok(remote)
    }

    /// Remembers a peer that works on a registration of this process, and starts nothing new; `None` if it does not.
    pub(crate) fn linger(&self, remote: Arc<Remote>, wire: PeerWire) -> Option<Arc<Lingering>> {
        let mut lingering = lock(&self.lingering);
        lingering.retain(|peer| peer.works());
        let peer = Arc::new(Lingering { remote, wire });
        if !peer.works() {
            return None;
        }
        lingering.push(peer.clone());
        Some(peer)
    }

    /// Waits until a peer has done what it was in the middle of: 2 s at most.
    pub(crate) fn wait_for(&self, peer: &Lingering) {
        let until = Instant::now() + WORK_PATIENCE;
        while peer.works() && Instant::now() < until {
            thread::yield_now();
        }
    }

    fn lingers_on(&self, key: u32) -> bool {
        let mut lingering = lock(&self.lingering);
        lingering.retain(|peer| peer.works());
        lingering.iter().any(|peer| peer.wire.works_on(key))
    }

    /// Waits until no peer works on registration `key`, which is no longer valid: 2 s at most, after which the peer is
    /// taken to be stopped.
    pub(crate) fn wait_for_peers(&self, key: u32) {
        let until = Instant::now() + WORK_PATIENCE;
        let pairs: Vec<Arc<Pair>> = lock(&self.pairs).iter().filter(|pair| pair.peer_works_on(key)).cloned().collect();
        for pair in pairs {
            while pair.peer_works_on(key) && Instant::now() < until {
                thread::yield_now();
            }
        }
        while self.lingers_on(key) && Instant::now() < until {
            thread::yield_now();
        }
    }
}

impl Drop for DeviceCore {
    fn drop(&mut self) {
        self.progress.stop();
        // Another device may take its place.
        self.directory.close();
        self.node.unshare(self.directory_key);
    }
}

impl Device for SoftDevice {
    fn info(&self) -> &DeviceInfo {
        &self.core.info
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        self.core.info.check_port(number)?;
        Ok(PortInfo {
            number,
            state: PortState::Active,
            link_layer: self.core.profile.link_layer(),
            active_mtu: Mtu::B4096,
            gid_entries: 1,
            lid: 0,
        })
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.core.info.check_port(port)?;
        let kind = self.core.profile.gid_kind();
        Ok(vec![GidEntry { index: 0, gid: self.core.gid(), kind, interface_up: None }])
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        let claim = self.core.budgets.protection_domains.take()?;
        let number = self.core.domains.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(DomainHandle(Arc::new(Domain { device: self.core.clone(), number, _claim: claim }))))
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.core.info.check_completion_queue(entries)?;
        let channel = channel.map(|channel| own_channel(&self.core, channel)).transpose()?;
        let queue = Queue::new(&self.core, entries, channel, &self.core.budgets.completion_queues)?;
        Ok(Arc::new(QueueHandle(Arc::new(queue))))
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        Ok(Arc::new(ChannelHandle(Arc::new(Channel::new(&self.core)))))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked left a whole state: changes are single statements, or end with the queue pair.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
