//! A device in one process under one lock: slow, plain, and right, so that the suite and the decorator can be tested.

mod objects;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fulmen_memory::ChunkRule;
use fulmen_verbs::conformance::Bench;
use fulmen_verbs::{
    AsyncEvent, Budget, Capabilities, CompletionChannel, CompletionQueue, Device, DeviceInfo, DeviceLimits, Gid,
    GidEntry, GidKind, LinkLayer, Mtu, PortInfo, PortState, ProtectionDomain, VerbsError,
};

use objects::{Channel, Domain, Queue};
use wire::World;

/// A promise that the model breaks, so that the suite can show that it notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    AnyTransition,
    OrderOfFlush,
    BoundsByOne,
    StaleKeys,
    ForeignKeys,
    IgnoresRights,
    CorruptsOneByte,
    ReorderedImmediate,
    SignalsAll,
    LateInline,
    DeepQueue,
    LeaksQueuePairs,
    AnyFrames,
    StaysArmed,
    EstablishesAlways,
    ShrinksTooFar,
}

/// Everything that a device of the model shares with the others of its pair.
pub struct Shared {
    pub info: DeviceInfo,
    pub bug: Option<Bug>,
    pub number: u8,
    pub world: Arc<Mutex<World>>,
    pub queue_pairs: Budget,
    pub domains: Budget,
    pub registrations: Budget,
    pub queues: Budget,
    pub teller: Arc<Teller>,
}

/// Whom a device tells of events.
pub type Teller = Mutex<Option<Arc<dyn Fn(AsyncEvent) + Send + Sync>>>;

pub fn tell(teller: &Teller, event: AsyncEvent) {
    let callback = teller.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(callback) = callback {
        callback(event);
    }
}

impl Shared {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

/// What the model is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// Everything, and UC loses what has no RECV.
    Infiniband,
    /// UC that holds, frames, few of everything.
    Thunderbolt,
}

pub struct Model {
    shared: Arc<Shared>,
}

fn info(likeness: Likeness, number: u8) -> DeviceInfo {
    let rich = likeness == Likeness::Infiniband;
    DeviceInfo {
        name: format!("model{number}"),
        provider: "model",
        ports: 1,
        limits: DeviceLimits {
            queue_pairs: if rich { 64 } else { 10 },
            completion_queues: if rich { 64 } else { 20 },
            completion_entries: 1 << 16,
            memory_regions: 100,
            protection_domains: if rich { 64 } else { 6 },
            queue_depth: 4095,
            pieces: if rich { 8 } else { 1 },
            inline_bytes: if rich { 128 } else { 0 },
            message_bytes: if rich { 1 << 30 } else { 4095 * 4096 },
            frame: (!rich).then_some(4096),
            registration: ChunkRule { boundary: (!rich).then_some(1 << 32), max_len: None },
            reads_in_flight: if rich { 16 } else { 0 },
        },
        capabilities: Capabilities {
            rc: rich,
            uc: true,
            ud: false,
            srq: false,
            write: rich,
            read: rich,
            atomics: rich,
            atomics_with_cpu: rich,
            immediate: rich,
            holds_sends: !rich,
            acknowledges: rich,
            reports_dead_peers: rich,
            dma_buf: false,
        },
    }
}

/// Two devices that reach each other.
pub fn pair(likeness: Likeness, bug: Option<Bug>) -> [Arc<dyn Device>; 2] {
    let world = Arc::new(Mutex::new(World::default()));
    [1, 2].map(|number| {
        let info = info(likeness, number);
        let (name, limits) = (info.name.clone(), info.limits);
        let budget = |what, limit: u32| Budget::new(name.clone(), what, limit.into());
        let shared = Arc::new(Shared {
            bug,
            number,
            world: world.clone(),
            queue_pairs: budget("queue pairs", limits.queue_pairs),
            domains: budget("protection domains", limits.protection_domains),
            registrations: budget("registrations", limits.memory_regions),
            queues: budget("completion queues", limits.completion_queues),
            teller: Arc::default(),
            info,
        });
        Arc::new(Model { shared }) as Arc<dyn Device>
    })
}

/// A bench of such pairs.
pub struct ModelBench {
    pub likeness: Likeness,
    pub bug: Option<Bug>,
}

impl Bench for ModelBench {
    fn name(&self) -> String {
        format!("model of {:?}", self.likeness)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        Ok(pair(self.likeness, self.bug))
    }
}

impl Device for Model {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        self.shared.info.check_port(number)?;
        let link_layer = match self.shared.info.capabilities.rc {
            true => LinkLayer::Infiniband,
            false => LinkLayer::Thunderbolt,
        };
        let (state, active_mtu) = (PortState::Active, Mtu::B4096);
        Ok(PortInfo { number, state, link_layer, active_mtu, gid_entries: 1, lid: 0 })
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.shared.info.check_port(port)?;
        let mut gid = Gid::default();
        gid.0[0] = 0xFD;
        gid.0[15] = self.shared.number;
        Ok(vec![GidEntry { index: 0, gid, kind: GidKind::Unknown, interface_up: None }])
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Domain::new(&self.shared)?)
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.shared.info.check_completion_queue(entries)?;
        let foreign = || VerbsError::Foreign { what: "channel", device: self.shared.info.name.clone() };
        let channel = match channel {
            Some(channel) => Some(channel.as_any().downcast_ref::<Channel>().ok_or_else(foreign)?.events.clone()),
            None => None,
        };
        Ok(Arc::new(Queue::new(&self.shared, entries, channel)?))
    }

    fn on_event(&self, callback: Arc<dyn Fn(AsyncEvent) + Send + Sync>) -> Result<(), VerbsError> {
        *self.shared.teller.lock().unwrap_or_else(PoisonError::into_inner) = Some(callback);
        Ok(())
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        Ok(Arc::new(Channel::default()))
    }
}
