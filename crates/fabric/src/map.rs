//! The memory of other ranks, mapped here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use fulmen_memory::{Exposed, Region};
use fulmen_reach::{Doorbell, Node, NodeAddress, Peer, ReachError, ShareKey};

use crate::driver::reach;
use crate::handshake::Hello;
use crate::hosts::Near;
use crate::liveness::Life;
use crate::{Fabric, FabricError, Loss, OpName, StartError, clock};

/// How long a peer's answer to a request for its memory may take. Its node answers from a thread of its own; a process
/// that is stopped does not.
pub(crate) const MAP_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes in the memory that a rank shares, as that rank tells others to find them: [`Fabric::region_ref`],
/// [`Fabric::map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionRef {
    /// The region's key, of the rank that shares it.
    pub key: u64,
    /// The first byte's place in the region.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// A region that other processes may map for as long as this value exists.
pub(crate) struct Share {
    node: Node,
    key: ShareKey,
}

impl Share {
    pub(crate) fn new(node: &Node, region: &Region) -> Result<Share, ReachError> {
        Ok(Share { node: node.clone(), key: node.share(region)? })
    }

    pub(crate) fn key(&self) -> ShareKey {
        self.key
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.node.unshare(self.key);
    }
}

type OnDeath = dyn Fn(&NodeAddress) + Send + Sync;

/// The other ranks whose memory is mapped here.
pub(crate) struct Neighbours {
    node: Node,
    /// The node calls it for as long as it is here: nothing of an old generation stays with the node.
    _on_death: Arc<OnDeath>,
    /// This rank's pool, until the generation ends.
    pool: Mutex<Option<Share>>,
    /// By rank; `None` for this one, and those of other hosts.
    peers: Vec<Option<Neighbour>>,
    /// The keys of this rank's own regions, by their ids. The pool's is the first.
    keys: RwLock<Vec<(u64, ShareKey)>>,
}

struct Neighbour {
    peer: Arc<Peer>,
    bell: Doorbell,
    control: Exposed,
    /// Regions by key. One that is mapped stays mapped until it is forgotten: the next message comes out of the same.
    regions: RwLock<Vec<(u64, Exposed)>>,
}

impl Neighbours {
    /// Connects to all other ranks that are near, maps their control regions and pools, and has losses noted in `life`. `pool` is
    /// this rank's, and how it is shared.
    ///
    /// After the meeting nobody needs an answer from a rank that may have ended by then: what it has is mapped.
    pub(crate) fn meet(
        node: Node,
        (rank, near): (u32, &Near),
        hellos: &[Hello],
        (pool, shared): (&Region, Share),
        life: &Arc<Life>,
        control_len: usize,
        timeout: Duration,
    ) -> Result<Neighbours, StartError> {
        let deadline = clock::after(timeout);
        let left = || clock::until(deadline);
        let near = (0..).zip(hellos).filter(|(other, _)| near.are(rank, *other));
        let addresses = near.map(|(other, hello)| Ok((other, address(other, hello)?)));
        let addresses = addresses.collect::<Result<Vec<_>, StartError>>()?;

        let ranks: HashMap<NodeAddress, u32> =
            addresses.iter().map(|(other, (address, _))| (*address, *other)).collect();
        let weak = Arc::downgrade(life);
        let on_death: Arc<OnDeath> = Arc::new(move |address| {
            if let (Some(rank), Some(life)) = (ranks.get(address), weak.upgrade()) {
                life.lose(*rank, Loss::Ended);
            }
        });
        node.on_death_while(Arc::downgrade(&on_death));

        let mut peers: Vec<_> = hellos.iter().map(|_| None).collect();
        for (other, (address, keys)) in addresses.into_iter().filter(|(other, _)| *other != rank) {
            let failed = |cause| StartError::Reach { rank: other, cause };
            let peer = node.connect(&address, left()).map_err(failed)?;
            let memory = |what| move |cause| StartError::Memory { what, cause };
            let control = peer.map(keys.control, left()).map_err(failed)?;
            let control = control.expose().map_err(memory("a peer's control region"))?;
            let pool = peer.map(keys.pool, left()).map_err(failed)?;
            let pool = pool.expose().map_err(memory("a peer's pool"))?;
            if control.len() < control_len {
                return Err(StartError::Garbled { rank: other });
            }
            if !peer.is_alive() {
                // It may have died before the callback stood.
                life.lose(other, Loss::Ended);
            }
            let bell = reach::doorbell(&control);
            let regions = RwLock::new(vec![(keys.pool.to_u64(), pool)]);
            peers[other as usize] = Some(Neighbour { peer, bell, control, regions });
        }
        let keys = RwLock::new(vec![(pool.id(), shared.key())]);
        Ok(Neighbours { node, _on_death: on_death, pool: Mutex::new(Some(shared)), peers, keys })
    }

    /// Lets nobody map this rank's memory any more.
    pub(crate) fn retire(&self) {
        drop(self.pool.lock().unwrap_or_else(PoisonError::into_inner).take());
        for (_, key) in self.keys.write().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.node.unshare(key);
        }
    }

    /// Whether a rank's memory is mapped here; not this one's.
    pub(crate) fn maps(&self, rank: u32) -> bool {
        self.peers.get(rank as usize).is_some_and(Option::is_some)
    }

    /// Whether that of all other ranks is.
    pub(crate) fn maps_all(&self) -> bool {
        self.peers.iter().filter(|peer| peer.is_none()).count() == 1
    }

    /// By rank, the control regions that are mapped here.
    pub(crate) fn controls(&self) -> impl Iterator<Item = Option<&Exposed>> {
        self.peers.iter().map(|peer| peer.as_ref().map(|peer| &peer.control))
    }

    /// Whether the process of another rank may still do anything.
    pub(crate) fn is_alive(&self, rank: u32) -> bool {
        self.peers.get(rank as usize).and_then(Option::as_ref).is_some_and(|neighbour| neighbour.peer.is_alive())
    }

    /// Wakes a rank. Nothing for this one or none.
    #[inline]
    pub(crate) fn ring(&self, rank: u32) {
        if let Some(Some(neighbour)) = self.peers.get(rank as usize) {
            neighbour.bell.notify();
        }
    }

    /// Shares a region of this rank, and remembers the key for references to its bytes.
    pub(crate) fn share(&self, region: &Region) -> Result<ShareKey, ReachError> {
        let key = self.node.share(region)?;
        self.keys.write().unwrap_or_else(PoisonError::into_inner).push((region.id(), key));
        Ok(key)
    }

    /// The key of this rank's pool, if the region is that.
    pub(crate) fn pool_key(&self, region: &Region) -> Option<ShareKey> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.first().filter(|(id, _)| *id == region.id()).map(|(_, key)| *key)
    }

    /// Lets peers map a region under a new key.
    pub(crate) fn publish(&self, region: &Region) -> Result<ShareKey, ReachError> {
        self.node.share(region)
    }

    /// Lets no more peers map it.
    pub(crate) fn withdraw(&self, key: ShareKey) {
        self.node.unshare(key);
    }

    pub(crate) fn unshare(&self, key: ShareKey) {
        self.node.unshare(key);
        self.keys.write().unwrap_or_else(PoisonError::into_inner).retain(|(_, known)| *known != key);
    }

    pub(crate) fn reference(&self, memory: &Exposed) -> Option<RegionRef> {
        let id = memory.region().id();
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let (_, key) = keys.iter().find(|(known, _)| *known == id)?;
        Some(RegionRef { key: key.to_u64(), offset: memory.offset() as u64, len: memory.len() as u64 })
    }

    /// A whole region of a peer, mapped for as long as the caller has it.
    pub(crate) fn borrow(&self, op: OpName, rank: u32, key: u64, timeout: Duration) -> Result<Exposed, FabricError> {
        let neighbour = self.peers.get(rank as usize).and_then(Option::as_ref).ok_or(FabricError::NoWindows { op })?;
        let known = neighbour.regions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, region)) = known.iter().find(|(known, _)| *known == key) {
            return Ok(region.clone());
        }
        drop(known);
        let failed = |cause| FabricError::Reach { op, rank, cause: Arc::new(cause) };
        let region = neighbour.peer.map(ShareKey::from_u64(key), timeout.min(MAP_TIMEOUT)).map_err(failed)?;
        region.expose().map_err(|cause| FabricError::Memory { op, cause: Arc::new(cause) })
    }

    /// A whole region of a peer, mapped until it is [forgotten](Neighbours::forget).
    pub(crate) fn region(&self, op: OpName, rank: u32, key: u64, timeout: Duration) -> Result<Exposed, FabricError> {
        let region = self.borrow(op, rank, key, timeout)?;
        let Some(neighbour) = &self.peers[rank as usize] else { unreachable!("its memory was just borrowed") };
        let known = neighbour.regions.read().unwrap_or_else(PoisonError::into_inner);
        if known.iter().any(|(known, _)| *known == key) {
            return Ok(region);
        }
        drop(known);
        let mut known = neighbour.regions.write().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|(known, _)| *known == key) {
            known.push((key, region.clone()));
        }
        Ok(region)
    }

    /// Unmaps a peer's region as soon as nobody uses it.
    pub(crate) fn forget(&self, rank: u32, key: u64) {
        if let Some(Some(neighbour)) = self.peers.get(rank as usize) {
            neighbour.regions.write().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| *known != key);
        }
    }

    /// The bytes that a peer's reference means. Checked: the reference is not trusted.
    pub(crate) fn map(&self, op: OpName, rank: u32, at: RegionRef, timeout: Duration) -> Result<Exposed, FabricError> {
        let region = self.region(op, rank, at.key, timeout)?;
        let inside = at.offset.checked_add(at.len).is_some_and(|end| end <= region.len() as u64);
        if !inside {
            let RegionRef { offset, len, .. } = at;
            return Err(FabricError::OutOfBounds { op, rank, offset, len, region: region.len() as u64 });
        }
        Ok(region.slice(at.offset as usize..(at.offset + at.len) as usize))
    }
}

/// What a rank shares from the start.
struct Keys {
    control: ShareKey,
    pool: ShareKey,
}

fn address(rank: u32, hello: &Hello) -> Result<(NodeAddress, Keys), StartError> {
    let reach = hello.reach.as_ref().ok_or(StartError::Garbled { rank })?;
    let bytes = reach.node.as_slice().try_into().map_err(|_| StartError::Garbled { rank })?;
    let address = NodeAddress::from_bytes(bytes).map_err(|cause| StartError::Reach { rank, cause })?;
    let keys = Keys { control: ShareKey::from_u64(reach.control), pool: ShareKey::from_u64(reach.pool) };
    Ok((address, keys))
}

impl Fabric {
    /// How other ranks find these bytes, if they lie in memory that this rank shares: the [pool](Fabric::pool) or a
    /// [window](Fabric::window).
    #[must_use]
    pub fn region_ref(&self, memory: &Exposed) -> Option<RegionRef> {
        self.inner.neighbours.as_ref()?.reference(memory)
    }

    /// The bytes that another rank [referred to](Fabric::region_ref). Pools are mapped from the start, and windows while
    /// they exist here; the first reference to another region maps it, which takes the peer's answer (at most 30 s).
    ///
    /// # Errors
    /// [`FabricError::NoSuchRank`], [`FabricError::NoWindows`], [`FabricError::Reach`], and
    /// [`FabricError::OutOfBounds`] if the reference does not fit its region.
    pub fn map(&self, rank: u32, at: RegionRef) -> Result<Exposed, FabricError> {
        const OP: OpName = "map";
        self.inner.check_peer(OP, rank)?;
        let neighbours = self.inner.neighbours.as_ref().ok_or(FabricError::NoWindows { op: OP })?;
        neighbours.map(OP, rank, at, MAP_TIMEOUT)
    }

    /// Wakes a rank if it is parked in a wait. To be called after the writes to shared memory that it waits for. Costs
    /// a fence and a load while the rank is awake.
    #[inline]
    pub fn ring(&self, rank: u32) {
        if let Some(neighbours) = &self.inner.neighbours {
            neighbours.ring(rank);
        }
    }

    /// Wakes the threads of a rank that wait, after a change of its memory: this rank's, too.
    pub(crate) fn wake(&self, rank: u32) {
        if rank == self.rank() { self.inner.lanes.parker.wake() } else { self.ring(rank) }
    }

    /// Whether all ranks map one another's memory. The same on all ranks.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.inner.neighbours.as_ref().is_some_and(|neighbours| neighbours.maps_all())
    }

    /// Whether these ranks map one another's memory, of which this one is one. The same on all of them.
    #[must_use]
    pub fn has_windows_among(&self, ranks: &[u32]) -> bool {
        let maps = |rank: u32| rank == self.rank() || self.inner.maps(rank);
        self.inner.neighbours.is_some() && ranks.iter().all(|rank| maps(*rank))
    }
}
