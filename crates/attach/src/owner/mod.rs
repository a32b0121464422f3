//! The process that owns devices.

mod desk;
mod device;
mod joined;
mod slots;
mod switch;
mod trunk;

use std::sync::Arc;

use fulmen_verbs::{Device, Gid, VerbsError};
use serde::{Deserialize, Serialize};

pub use desk::Desk;
use device::Owned;

use crate::wire::{Answer, Call, Refusal, to_bytes};

/// Why devices cannot be owned.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The device refused something.
    #[error("{device} cannot be shared by programs: {cause}")]
    Device {
        /// The device.
        device: String,
        /// Why.
        cause: VerbsError,
    },
    /// The system refused something.
    #[error("{device} cannot be shared by programs: there is no {what}: {cause}")]
    System {
        /// The device.
        device: String,
        /// What was needed.
        what: &'static str,
        /// What the system said.
        cause: String,
    },
}

/// How owners talk besides their devices.
pub trait Far: Send + Sync {
    /// Takes what an owner asks to the one whose device has this GID, where [`Owner::answer`] answers it; within 20 s. It may
    /// ask in turn before it answers.
    ///
    /// # Errors
    /// In words, if nobody has this GID, or does not answer.
    fn ask(&self, gid: Gid, call: &[u8]) -> Result<Vec<u8>, String>;
}

/// What is told of an owned device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub device: String,
    /// Who provides it.
    pub provider: String,
    /// Queue pairs that programs have.
    pub pairs: usize,
    /// Other owners with which there is a trunk.
    pub trunks: usize,
    /// Bytes of programs' messages that went out over trunks.
    pub sent_bytes: u64,
    /// Bytes that came.
    pub received_bytes: u64,
}

/// Devices that this process owns, for programs of its host.
#[derive(Clone)]
pub struct Owner {
    inner: Arc<Inner>,
}

struct Inner {
    devices: Vec<Arc<Owned>>,
    far: Arc<dyn Far>,
}

impl Inner {
    fn has(&self, gid: Gid) -> bool {
        let has = |owned: &Arc<Owned>| {
            owned.device().gid_table(1).is_ok_and(|table| table.iter().any(|entry| entry.gid == gid))
        };
        self.devices.iter().any(has)
    }

    fn try_answer(&self, call: &[u8]) -> Result<Answer, Refusal> {
        let unread = || Refusal::Invalid("this cannot be read: run one version of Fulmen".into());
        let call: Call = postcard::from_bytes(call).map_err(|_| unread())?;
        let (Call::Open { to, .. } | Call::Look { to, .. } | Call::Please { to, .. }) = &call;
        let here = self.devices.iter().find_map(|owned| Some((owned, owned.index_of(*to)?)));
        let (owned, index) = here.ok_or_else(|| Refusal::Unreachable(format!("no device is at {to}")))?;
        owned.answer(call, index, self)
    }
}

/// A cable may lead from one of the devices to another one.
impl Far for Inner {
    fn ask(&self, gid: Gid, call: &[u8]) -> Result<Vec<u8>, String> {
        if self.has(gid) { Ok(to_bytes(&self.try_answer(call))) } else { self.far.ask(gid, call) }
    }
}

impl Owner {
    /// Takes devices: of each a protection domain, a completion queue, three queue pairs for each other owner that is talked to, and
    /// registrations of 4 to 32 MiB for messages on their way.
    ///
    /// # Errors
    /// [`OwnerError`].
    pub fn new(devices: Vec<Arc<dyn Device>>, far: Arc<dyn Far>) -> Result<Owner, OwnerError> {
        let devices = devices.into_iter().map(Owned::open).collect::<Result<_, _>>()?;
        Ok(Owner { inner: Arc::new(Inner { devices, far }) })
    }

    /// Answers what another owner asks, which [`Far::ask`] has brought. It may take some seconds. Bytes that are no such thing
    /// are answered, too.
    #[must_use]
    pub fn answer(&self, call: &[u8]) -> Vec<u8> {
        to_bytes(&self.inner.try_answer(call))
    }

    /// The GID of the device of the owner that asks this, if it is something that owners ask.
    #[must_use]
    pub fn asker(call: &[u8]) -> Option<Gid> {
        let call: Call = postcard::from_bytes(call).ok()?;
        let (Call::Open { from, .. } | Call::Look { from, .. } | Call::Please { from, .. }) = call;
        Some(Gid(from.gid))
    }

    /// The owner of the device with this GID is known to be gone, which a device may not tell: programs whose peers are there see them go.
    pub fn lost(&self, gid: Gid) {
        self.inner.devices.iter().for_each(|owned| owned.lost(gid));
    }

    /// Whether one of the devices has this GID.
    #[must_use]
    pub fn has(&self, gid: Gid) -> bool {
        self.inner.has(gid)
    }

    /// How the devices are.
    #[must_use]
    pub fn status(&self) -> Vec<DeviceStatus> {
        self.inner.devices.iter().map(|owned| owned.status()).collect()
    }
}
