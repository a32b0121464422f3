//! Which device is probed.

use std::sync::Arc;

use anyhow::Context;
use fulmen::parts::reach::Node;
use fulmen::parts::soft::SoftDevice;
use fulmen::parts::system::{Library, OpenError, SystemDevice};
use fulmen::parts::verbs::Device;
use serde::{Deserialize, Serialize};

/// A device, as the command line names it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The machine's first device.
    First,
    /// The machine's device of this name.
    Named(String),
    /// The software device with this profile.
    Soft(String),
}

/// A device, opened.
pub struct Opened {
    pub device: Arc<dyn Device>,
    /// The same, if it is one of the machine's own.
    system: Option<Arc<SystemDevice>>,
}

impl Target {
    /// Opens it.
    pub fn open(&self) -> anyhow::Result<Opened> {
        match self {
            Target::Soft(profile) => {
                let node = Node::open().context("cannot share memory with other processes")?;
                Ok(Opened { device: SoftDevice::open(&node, profile.parse()?)?, system: None })
            }
            Target::Named(name) => Opened::system(Library::open()?.open_device(name)?),
            Target::First => {
                let first = || -> Result<Arc<SystemDevice>, OpenError> {
                    let library = Library::open()?;
                    let devices = library.devices()?;
                    // The library gives no empty list.
                    let name = devices.first().map(|device| device.name.as_str()).unwrap_or_default();
                    library.open_device(name)
                };
                let system = first().map_err(|error| {
                    anyhow::anyhow!("{error}; or probe the software device, with --profile infiniband or thunderbolt")
                })?;
                Opened::system(system)
            }
        }
    }
}

impl Opened {
    fn system(system: Arc<SystemDevice>) -> anyhow::Result<Opened> {
        Ok(Opened { device: system.clone(), system: Some(system) })
    }

    /// Bits a second that a port promises, if it says so.
    pub fn nominal(&self, port: u8) -> Option<u64> {
        let gigabits = self.system.as_ref()?.port_speed(port).ok()?.gigabits()?;
        Some((gigabits * 1e9) as u64)
    }
}
