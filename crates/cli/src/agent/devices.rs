//! Which devices the agent owns.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fulmen::parts::reach::Node;
use fulmen::parts::soft::{Profile, SoftDevice, SoftOptions};
use fulmen::parts::system::{Library, OpenError};
use fulmen::parts::verbs::Device;

use super::AgentError;

/// A device with fewer queue pairs is not for each program to open.
const FEW: u32 = 64;
/// What the software device is called in place of a name.
const TRIAL: &str = "thunderbolt";
const STRICT: &str = "thunderbolt-strict";

/// What `--devices` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Those that have few queue pairs.
    #[default]
    Auto,
    /// These.
    Named(Vec<String>),
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Devices, String> {
        let mut names: Vec<String> = Vec::new();
        for name in text.split(',').map(str::trim) {
            match name {
                "auto" if text == name => return Ok(Devices::Auto),
                "none" if text == name => return Ok(Devices::Named(Vec::new())),
                "" | "auto" | "none" => {
                    return Err("give names of devices with commas between, or auto, or none".into());
                }
                name if names.iter().any(|known| known == name) => return Err(format!("{name} is there twice")),
                name => names.push(name.to_owned()),
            }
        }
        Ok(Devices::Named(names))
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Devices::Auto => f.write_str("auto"),
            Devices::Named(names) if names.is_empty() => f.write_str("none"),
            Devices::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

impl Devices {
    pub fn open(&self) -> anyhow::Result<Vec<Arc<dyn Device>>> {
        match self {
            Devices::Auto => narrow(),
            Devices::Named(names) => {
                let mut library = None;
                names.iter().map(|name| open(name, &mut library)).collect()
            }
        }
    }
}

fn open(name: &str, library: &mut Option<Arc<Library>>) -> anyhow::Result<Arc<dyn Device>> {
    let limits = match name {
        TRIAL => Profile::Thunderbolt.limits(),
        STRICT => Profile::Thunderbolt.strict_limits(),
        _ => {
            let refused = |cause: OpenError| AgentError(format!("the agent cannot own {name}: {cause}"));
            let library = match library {
                Some(library) => library,
                None => library.insert(Library::open().map_err(refused)?),
            };
            return Ok(library.open_device(name).map_err(refused)?);
        }
    };
    let node = Node::open()?;
    let options = SoftOptions { limits, name: Some(name.to_owned()), ..SoftOptions::new(Profile::Thunderbolt) };
    Ok(SoftDevice::open_as(&node, options)?)
}

/// The machine's devices that have few queue pairs. One that does not open is told of, and does not keep the agent from its other work.
fn narrow() -> anyhow::Result<Vec<Arc<dyn Device>>> {
    let Ok(library) = Library::open() else { return Ok(Vec::new()) };
    let Ok(found) = library.devices() else { return Ok(Vec::new()) };
    let mut narrow: Vec<Arc<dyn Device>> = Vec::new();
    for found in found {
        match library.open_device(&found.name) {
            Ok(device) if device.info().limits.queue_pairs < FEW => narrow.push(device),
            Ok(_) => {}
            Err(error) => tracing::warn!(device = found.name, %error, "a device of this machine cannot be looked at"),
        }
    }
    Ok(narrow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in ["auto", "none", "rdma_en5", "rdma_en5,rdma_en6"] {
            assert_eq!(text.parse::<Devices>().unwrap().to_string(), text);
        }
        for bad in ["", "auto,rdma_en5", "a,,b", "none,none", "a,a", "a,"] {
            assert!(bad.parse::<Devices>().is_err(), "{bad}");
        }
    }
}
