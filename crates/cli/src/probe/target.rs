//! Which device is probed.

use std::sync::Arc;

use anyhow::Context;
use fulmen::parts::reach::Node;
use fulmen::parts::soft::SoftDevice;
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

impl Target {
    /// Opens it.
    pub fn open(&self) -> anyhow::Result<Arc<dyn Device>> {
        match self {
            Target::Soft(profile) => {
                let node = Node::open().context("cannot share memory with other processes")?;
                Ok(SoftDevice::open(&node, profile.parse()?)?)
            }
            Target::First | Target::Named(_) => {
                anyhow::bail!(
                    "this machine's own devices cannot be used yet; --profile infiniband probes the software device"
                )
            }
        }
    }
}
