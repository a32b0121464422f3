//! The process that owns devices.

mod desk;
pub(crate) mod device;
mod slots;
mod switch;
mod trunk;

use std::sync::Arc;

use fulmen_verbs::{Device, Gid, VerbsError};
use serde::Serialize;

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
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

impl Owner {
    /// Takes devices: of each a protection domain, a completion queue, three queue pairs for each other owner that is talked to, and a
    /// registration for each 4 MiB of messages on their way.
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
        to_bytes(&self.try_answer(call))
    }

    fn try_answer(&self, call: &[u8]) -> Result<Answer, Refusal> {
        let call: Call = postcard::from_bytes(call)
            .map_err(|_| Refusal::Invalid("this cannot be read: run one version of Fulmen".into()))?;
        let (Call::Open { to, .. } | Call::Look { to, .. } | Call::Please { to, .. }) = &call;
        let here = self.inner.devices.iter().find_map(|owned| Some((owned, owned.index_of(*to)?)));
        let (owned, index) = here.ok_or_else(|| Refusal::Unreachable(format!("no device is at {to}")))?;
        owned.answer(call, index, &*self.inner.far)
    }

    /// Whether one of the devices has this GID.
    #[must_use]
    pub fn has(&self, gid: Gid) -> bool {
        let has = |owned: &Arc<Owned>| {
            owned.device().gid_table(1).is_ok_and(|table| table.iter().any(|entry| entry.gid == gid))
        };
        self.inner.devices.iter().any(has)
    }

    /// How the devices are.
    #[must_use]
    pub fn status(&self) -> Vec<DeviceStatus> {
        self.inner.devices.iter().map(|owned| owned.status()).collect()
    }
}
