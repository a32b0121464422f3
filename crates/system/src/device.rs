use std::ptr::NonNull;
use std::sync::Arc;

use fulmen_verbs::{
    CompletionChannel, CompletionQueue, Device, DeviceInfo, GidEntry, PortInfo, ProtectionDomain, VerbsError,
};

use crate::{Attributes, FoundDevice, Library, OpenError, PortSpeed, ffi};

/// A device of the machine, opened.
pub struct SystemDevice {
    info: DeviceInfo,
    attributes: Attributes,
}

impl SystemDevice {
    /// What the device says of itself.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// How fast a port is.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if there is no such port, [`VerbsError::System`].
    pub fn port_speed(&self, number: u8) -> Result<PortSpeed, VerbsError> {
        self.info.check_port(number)?;
        Err(self.unsupported())
    }

    fn unsupported(&self) -> VerbsError {
        VerbsError::Unsupported { device: self.info.name.clone(), what: "calls yet" }
    }
}

pub(crate) fn open(
    _library: &Arc<Library>,
    _device: NonNull<ffi::Device>,
    found: &FoundDevice,
) -> Result<Arc<SystemDevice>, OpenError> {
    Err(OpenError::Call {
        device: found.name.clone(),
        call: "ibv_open_device",
        errno: 95,
        cause: crate::errno::explain("ibv_open_device", 95),
    })
}

impl Device for SystemDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn port(&self, _number: u8) -> Result<PortInfo, VerbsError> {
        Err(self.unsupported())
    }

    fn gid_table(&self, _port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        Err(self.unsupported())
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Err(self.unsupported())
    }

    fn create_cq(
        &self,
        _entries: u32,
        _channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        Err(self.unsupported())
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        Err(self.unsupported())
    }
}
