//! A program's side: a device like others, which its owner leads on.

mod domain;
mod owner;
mod pair;
mod queue;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_memory::ChunkRule;
use fulmen_reach::{Node, ReachError};
use fulmen_soft::{OpenError, Profile, SoftDevice, SoftOptions};
use fulmen_verbs::{
    AsyncEvent, Capabilities, CompletionChannel, CompletionQueue, Device, DeviceInfo, DeviceLimits, GidEntry, PortInfo,
    ProtectionDomain, VerbsError,
};

use crate::wire::{Ask, LONGEST_MESSAGE, PAIRS, Told, VERSION};
use domain::AttachedDomain;
pub(crate) use owner::OwnerLink;
use queue::AttachedQueue;

/// Why a device of an owner cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Nobody serves the socket.
    #[error("nobody offers devices at {}: {cause}", socket.display())]
    NoOwner {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The owner has refused.
    #[error("the owner of the devices at {} refuses {device}: {reason}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// What was asked for.
        device: String,
        /// Why, in words.
        reason: String,
    },
    /// The owner went away, or says what no owner says.
    #[error("the owner of the devices at {} does not answer: {cause}", socket.display())]
    Gone {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// This process cannot be reached by the owner.
    #[error("this process cannot share memory with the owner of the devices: {0}")]
    Node(#[from] ReachError),
    /// The software device that leads to the owner does not open.
    #[error("the way to the owner of the devices could not be opened: {0}")]
    Device(#[from] OpenError),
}

/// The names of the devices that are offered at a socket.
///
/// # Errors
/// [`AttachError::NoOwner`] if nobody is there, [`AttachError::Refused`] and [`AttachError::Gone`].
pub fn offered(socket: &Path) -> Result<Vec<String>, AttachError> {
    let owner = OwnerLink::connect(socket)?;
    match owner.ask_first("to tell them", &Ask::Offer { version: VERSION })? {
        Told::Offer(names) => Ok(names),
        _ => Err(owner.garbled()),
    }
}

/// A device that another process owns. See the crate's documentation.
///
/// It has UC queue pairs, 64 for a program and 256 for all, with SEND and RECV; a SEND is held until its RECV is posted, up to 16 of them
/// already out of the sender's memory. Messages have 64 KiB at most. Memory is registered as with the software device: any
/// amount of it, anywhere. Its ports and GIDs are the device's own.
pub struct Attached {
    core: Arc<Core>,
}

/// What all that is made of the device shares.
pub(crate) struct Core {
    pub(crate) info: DeviceInfo,
    pub(crate) inner: Arc<dyn Device>,
    pub(crate) owner: OwnerLink,
    pub(crate) names: queue::Names,
}

impl Attached {
    /// Opens the device of this name, which is offered at a socket.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn open(socket: &Path, device: &str) -> Result<Arc<dyn Device>, AttachError> {
        let owner = OwnerLink::connect(socket)?;
        let node = Node::open()?;
        let below = SoftOptions::new(Profile::Infiniband);
        let limits = DeviceLimits {
            queue_pairs: PAIRS,
            inline_bytes: 0,
            message_bytes: LONGEST_MESSAGE as u64,
            frame: None,
            registration: ChunkRule::NONE,
            reads_in_flight: 0,
            ..below.limits
        };
        let inner = SoftDevice::open_as(&node, SoftOptions { limits, name: Some(device.to_owned()), ..below })?;
        let gid = inner.gid_table(1).map_err(|cause| owner.refused(device, &cause))?;
        let gid = gid.first().ok_or_else(|| owner.garbled())?.gid.0;
        let attach = Ask::Attach { version: VERSION, device: device.to_owned(), gid };
        let Told::Attached { ports } = owner.ask_first(device, &attach)? else { return Err(owner.garbled()) };
        let capabilities = Capabilities {
            rc: false,
            uc: true,
            ud: false,
            srq: false,
            write: false,
            read: false,
            atomics: false,
            atomics_with_cpu: false,
            immediate: false,
            holds_sends: true,
            acknowledges: false,
            reports_dead_peers: false,
            dma_buf: false,
        };
        let info = DeviceInfo { name: device.to_owned(), provider: "attached", ports, limits, capabilities };
        Ok(Arc::new(Attached { core: Arc::new(Core { info, inner, owner, names: queue::Names::default() }) }))
    }
}

impl Core {
    pub(crate) fn foreign(&self, what: &'static str) -> VerbsError {
        VerbsError::Foreign { what, device: self.info.name.clone() }
    }

    /// Asks the owner, for a call of the verbs.
    pub(crate) fn ask(&self, call: &'static str, ask: &Ask) -> Result<Told, VerbsError> {
        let failed = |cause: String| VerbsError::System { device: self.info.name.clone(), call, cause };
        match self.owner.ask(ask) {
            Ok(Told::Refused(reason)) => Err(failed(format!("the owner of the device refuses: {reason}"))),
            Ok(told) => Ok(told),
            Err(cause) => Err(failed(format!("the owner of the device does not answer: {cause}"))),
        }
    }

    /// What the owner has answered is no answer to that.
    pub(crate) fn garbled(&self, call: &'static str) -> VerbsError {
        let cause = "the owner of the device says something else".to_owned();
        VerbsError::System { device: self.info.name.clone(), call, cause }
    }

    pub(crate) fn look(&self, number: u8) -> Result<(PortInfo, Vec<GidEntry>), VerbsError> {
        self.info.check_port(number)?;
        let Told::Port { port, gids } = self.ask("query_port", &Ask::Port { number })? else {
            return Err(self.garbled("query_port"));
        };
        let gids = gids.iter().map(crate::wire::Entry::read).collect::<Option<Vec<_>>>();
        port.read(number).zip(gids).ok_or_else(|| self.garbled("query_port"))
    }
}

impl Device for Attached {
    fn info(&self) -> &DeviceInfo {
        &self.core.info
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        Ok(self.core.look(number)?.0)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        Ok(self.core.look(port)?.1)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Arc::new(AttachedDomain { inner: self.core.inner.alloc_pd()?, core: self.core.clone() }))
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        Ok(Arc::new(AttachedQueue { inner: self.core.inner.create_cq(entries, channel)?, core: self.core.clone() }))
    }

    fn on_event(&self, callback: Arc<dyn Fn(AsyncEvent) + Send + Sync>) -> Result<(), VerbsError> {
        let core = Arc::downgrade(&self.core);
        self.core.inner.on_event(Arc::new(move |event| {
            let named = |qp_num: u32| core.upgrade().and_then(|core| core.names.of(qp_num)).unwrap_or(qp_num);
            callback(match event {
                AsyncEvent::QueuePairFatal { qp_num } => AsyncEvent::QueuePairFatal { qp_num: named(qp_num) },
                AsyncEvent::Established { qp_num } => AsyncEvent::Established { qp_num: named(qp_num) },
                AsyncEvent::LastReceive { qp_num } => AsyncEvent::LastReceive { qp_num: named(qp_num) },
                other => other,
            });
        }))
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.core.inner.create_channel()
    }
}
