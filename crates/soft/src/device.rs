//! The device: what belongs to one process.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::{Region, RegionError};
use fulmen_reach::{Node, NodeAddress, ReachError, ShareKey};
use fulmen_verbs::{
    AsyncEvent, Budget, CompletionChannel, CompletionQueue, Device, DeviceInfo, DeviceLimits, Gid, GidEntry, LinkLayer,
    Mtu, PortInfo, PortState, ProtectionDomain, VerbsError,
};

use crate::completion::{Channel, ChannelHandle, Queue, QueueHandle, own_channel};
use crate::datagrams::Datagrams;
use crate::directory::Directory;
use crate::domain::{Domain, DomainHandle};
use crate::layout::directory as at;
use crate::network::scout::Scout;
use crate::network::{Door, Network, Place};
use crate::pair::{Driven, Pair};
use crate::progress::{self, Progress};
use crate::registrations::Registrations;
use crate::remote::Remote;
use crate::vm::Proof;
use crate::wire::{Cause, PeerWire};
use crate::{Profile, SoftOptions};

/// Devices of one node.
pub(crate) const MOST_DEVICES: u32 = 32;
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
    #[error("a node has at most {most} soft devices: open another node, or drop a device")]
    TooMany {
        /// How many it has at most.
        most: u32,
    },
    /// Devices are to be found by a number that their node does not have.
    #[error("the node is not the one of the number by which its devices are to be found: open it by that number")]
    Number,
    /// Nobody can be reached by this address.
    #[error("a soft device cannot go by {address}: give it one address of this host by which peers reach it")]
    Unspecified {
        /// The address.
        address: SocketAddr,
    },
    /// It cannot listen at its address.
    #[error("a soft device cannot listen at {address}: {cause} (is it an address of this host, and is the port free?)")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        cause: std::io::Error,
    },
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
type OnEvent = dyn Fn(AsyncEvent) + Send + Sync;

/// Opens user-space RDMA devices.
///
/// A device has one port, whose address names the node on which it was opened ([`Addressing`](crate::Addressing)), so
/// that peers find it. A device and all that was made of it keep the node open.
///
/// Some calls wait for a peer. The transition to RTR connects to it, and ends with [`VerbsError::Unreachable`] if the peer
/// is stopped for 10 s, and with [`VerbsError::Stale`] if it is in error or connected to another queue pair for so long
/// (so reset both sides before either connects). The end of a registration, and of a connection (the transitions to ERR
/// and RESET, and the end of the queue pair), waits for a peer that is just working on the memory, 2 s at most.
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
    pub(crate) options: SoftOptions,
    pub(crate) info: DeviceInfo,
    pub(crate) budgets: Budgets,
    pub(crate) directory: Directory,
    pub(crate) registrations: Registrations,
    pub(crate) progress: Arc<Progress>,
    pub(crate) datagrams: Datagrams,
    /// The device on the network, if it is there.
    pub(crate) network: Option<Arc<Network>>,
    /// Called by the node as long as the device is there.
    _on_death: Arc<OnDeath>,
    /// What proves to peers which process this is.
    #[cfg_attr(not(test), expect(dead_code, reason = "peers look at it"))]
    pub(crate) proof: Option<Proof>,
    /// The device's number on its node: a part of the numbers of its queue pairs.
    pub(crate) index: u32,
    directory_key: ShareKey,
    domains: AtomicU64,
    /// The number of the next queue that events name.
    numbers: AtomicU32,
    on_event: Mutex<Option<Arc<OnEvent>>>,
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
        SoftDevice::open_as(node, SoftOptions::new(profile))
    }

    /// Opens a device with other limits than the profile's, such as those of a host that has fewer of everything.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(node: &Node, profile: Profile, limits: DeviceLimits) -> Result<Arc<dyn Device>, OpenError> {
        SoftDevice::open_as(node, SoftOptions { limits, ..SoftOptions::new(profile) })
    }

    /// Opens a device as `options` say.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_as(node: &Node, options: SoftOptions) -> Result<Arc<dyn Device>, OpenError> {
        Ok(Arc::new(SoftDevice { core: SoftDevice::open_core(node, options)? }))
    }

    /// Opens a device as `options` say, and gives a scout, which asks devices at other addresses where they are; `None` for a device
    /// that is not on the network.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with_scout(node: &Node, options: SoftOptions) -> Result<(Arc<dyn Device>, Option<Scout>), OpenError> {
        let core = SoftDevice::open_core(node, options)?;
        let scout = core.network.clone().map(Scout::new);
        Ok((Arc::new(SoftDevice { core }), scout))
    }

    fn open_core(node: &Node, options: SoftOptions) -> Result<Arc<DeviceCore>, OpenError> {
        let (profile, limits) = (options.profile, options.limits);
        check("queue pairs", limits.queue_pairs.into(), at::PAIR_SLOTS as u64)?;
        check("memory regions", limits.memory_regions.into(), at::KEY_SLOTS as u64)?;
        check("pieces a request", limits.pieces.into(), crate::layout::MAX_PIECES as u64)?;
        check("bytes a message", limits.message_bytes, 1 << 31)?;
        if !options.addressing.suits(node) {
            return Err(OpenError::Number);
        }
        let region = Region::alloc(at::SIZE)?;
        let words = region.expose()?;
        let directory = Directory::new(words.clone());
        let random = || {
            let action = "get random bytes";
            getrandom::u64().map_err(|cause| OpenError::System { action, cause: std::io::Error::other(cause) })
        };
        let proof = if options.process_vm { Some(Proof::new(random()?)) } else { None };
        directory.announce(profile.code(), random()?, proof.as_ref().map(Proof::probe));
        let (index, directory_key) = publish(node, &region, options.addressing.most_devices())?;
        let name = options.name.clone().unwrap_or_else(|| format!("soft{index}"));
        let salt = random()? as u32;
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
        let network = options.network.as_ref();
        let network =
            network.map(|network| Network::open(node, profile, network, &progress)).transpose()?.map(Arc::new);
        let core = Arc::new(DeviceCore {
            node: node.clone(),
            network,
            datagrams: Datagrams::new(node, index, &name, &progress),
            options,
            info: DeviceInfo { name, provider: "soft", ports: 1, limits, capabilities },
            budgets,
            progress,
            _on_death: on_death,
            proof,
            directory,
            registrations: Registrations::new(salt),
            index,
            directory_key,
            domains: AtomicU64::new(1),
            numbers: AtomicU32::new(1),
            on_event: Mutex::default(),
            pairs: Mutex::default(),
            slots: Mutex::new((0..at::PAIR_SLOTS as u32).map(|slot| (slot, salt % SALTS)).collect()),
            remotes: Mutex::default(),
            lingering: Mutex::default(),
        });
        let started = |cause| OpenError::System { action: "start a thread", cause };
        progress::start(&core).map_err(started)?;
        if let Some(network) = &core.network {
            let core = Arc::downgrade(&core);
            let door: Weak<dyn Door> = core;
            network.start(door).map_err(started)?;
        }
        Ok(core)
    }
}

fn check(what: &'static str, asked: u64, most: u64) -> Result<(), OpenError> {
    if asked <= most { Ok(()) } else { Err(OpenError::Limit { what, asked, most }) }
}

fn publish(node: &Node, region: &Region, most: u32) -> Result<(u32, ShareKey), OpenError> {
    for index in 0..most {
        let key = directory_key(index);
        if node.share_as(key, region)? {
            return Ok((index, key));
        }
    }
    Err(OpenError::TooMany { most })
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
pub(crate) fn pair_device(number: u32) -> u32 {
    number >> SLOT_BITS & (MOST_DEVICES - 1)
}

impl DeviceCore {
    pub(crate) fn foreign(&self, what: &'static str) -> VerbsError {
        VerbsError::Foreign { what, device: self.info.name.clone() }
    }

    pub(crate) fn system(&self, call: &'static str, cause: &dyn std::fmt::Display) -> VerbsError {
        VerbsError::System { device: self.info.name.clone(), call, cause: cause.to_string() }
    }

    /// The port's addresses, in the order of its table.
    pub(crate) fn gids(&self) -> Vec<Gid> {
        if let Some(network) = &self.network {
            return vec![network.gid()];
        }
        self.options.addressing.gids(&self.node.address(), self.index, self.options.profile)
    }

    /// The port's address within the subnet; 0 if it has none.
    pub(crate) fn lid(&self) -> u16 {
        if let Some(network) = &self.network {
            return network.lid();
        }
        self.options.addressing.lid(&self.node.address(), self.index)
    }

    /// The device that has queue pair `number`, at an address of this host.
    pub(crate) fn find(&self, gid: Gid, lid: u16, number: u32) -> Result<(NodeAddress, u32), Cause> {
        if let Some(network) = &self.network {
            let peer = network.peer_at(gid, lid)?;
            return match network.place(peer, Instant::now() + WORK_PATIENCE)? {
                Place::Here(node) => Ok((node, pair_device(number))),
                Place::There => Err("it is on another host, where datagrams do not go".into()),
            };
        }
        let found = self.options.addressing.find(gid, lid)?;
        let index = pair_device(number);
        match found.index {
            Some(named) if named != index => Err(format!("it has no queue pair {number}").into()),
            _ => Ok((found.node, index)),
        }
    }

    /// Refuses what would change a parent's device in a child that it forked.
    pub(crate) fn check_own(&self, call: &'static str) -> Result<(), VerbsError> {
        if self.node.is_inherited() {
            return Err(self.system(call, &"this process was forked off the one that opened the device: open its own"));
        }
        Ok(())
    }

    /// A number for a completion queue or shared receive queue, unlike all others.
    pub(crate) fn next_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells the program what no completion does.
    pub(crate) fn tell(&self, event: AsyncEvent) {
        let callback = lock(&self.on_event).clone();
        if let Some(callback) = callback {
            callback(event);
        }
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

    pub(crate) fn pair(&self, number: u32) -> Option<Arc<Pair>> {
        lock(&self.pairs).iter().find(|pair| pair.number() == number).cloned()
    }

    pub(crate) fn remove_pair(&self, pair: &Arc<Pair>) {
        lock(&self.pairs).retain(|known| !Arc::ptr_eq(known, pair));
    }

    /// Drives all queue pairs: whether there was something to do, and when there will be if nobody rings.
    pub(crate) fn drive_all(&self) -> (bool, Option<Instant>) {
        let driven = self.drive_each(Pair::drive_unless_asleep);
        (driven.worked, driven.next)
    }

    /// Drives what nobody else does at the moment; of what is at rest, `all` or none.
    pub(crate) fn drive_idle(&self, all: bool) {
        self.drive_each(|pair| if all { pair.drive_if_idle() } else { pair.drive_if_awake_and_idle() });
    }

    fn drive_each(&self, drive: impl Fn(&Pair) -> Driven) -> Driven {
        let mut driven = self.datagrams.serve(self);
        if let Some(network) = &self.network {
            network.sweep();
        }
        for pair in lock(&self.pairs).iter() {
            driven.join(drive(pair));
        }
        driven
    }

    /// Device `index` of the node at `address`.
    pub(crate) fn remote(&self, address: NodeAddress, index: u32, until: Instant) -> Result<Arc<Remote>, Cause> {
        let known = |remotes: &HashMap<(NodeAddress, u32), Weak<Remote>>| {
            remotes.get(&(address, index)).and_then(Weak::upgrade).filter(|remote| remote.is_open())
        };
        if let Some(remote) = known(&lock(&self.remotes)) {
            return Ok(remote);
        }
        let peer = self.node.connect(&address, until.saturating_duration_since(Instant::now()))?;
        let remote =
            Remote::open(peer, directory_key(index), self.options.profile.code(), self.options.process_vm, until)?;
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
    /// taken to be stopped. Nor does a thread of this process after that.
    pub(crate) fn wait_for_peers(&self, key: u32) {
        let until = Instant::now() + WORK_PATIENCE;
        self.datagrams.wait_for_copies();
        // Each queue pair's lock is taken here, with which its messages are copied.
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
        if self.node.is_inherited() {
            return;
        }
        if let Some(network) = &self.network {
            network.stop();
        }
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
        let core = &self.core;
        let link_layer = core.options.profile.link_layer();
        Ok(PortInfo {
            number,
            state: PortState::Active,
            link_layer,
            active_mtu: Mtu::B4096,
            gid_entries: core.gids().len() as u16,
            lid: if link_layer == LinkLayer::Infiniband || core.network.is_some() { core.lid() } else { 0 },
        })
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.core.info.check_port(port)?;
        let kind = self.core.options.profile.gid_kind();
        let entry = |(index, gid)| GidEntry { index, gid, kind, interface_up: None };
        Ok((0..).zip(self.core.gids()).map(entry).collect())
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
        let queue = Queue::new(&self.core, entries, channel)?;
        Ok(Arc::new(QueueHandle(Arc::new(queue))))
    }

    fn on_event(&self, callback: Arc<OnEvent>) -> Result<(), VerbsError> {
        let last = lock(&self.core.on_event).replace(callback);
        // What it owns may call the device when it goes.
        drop(last);
        Ok(())
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        Ok(Arc::new(ChannelHandle(Arc::new(Channel::new(&self.core)))))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked left a whole state: changes are single statements, or end with the queue pair.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
