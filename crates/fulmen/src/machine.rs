//! The machine's own devices, for ranks to talk over.

use std::sync::Arc;

use fulmen_fabric::Cables;
use fulmen_system::{Library, OpenError};
use fulmen_verbs::Device;

/// Names every device of the machine that can be opened.
pub(crate) const ANY: &str = "any";

/// A device from which a cable leads, and which cannot be used.
pub(crate) struct NotOpened<'a> {
    pub name: &'a str,
    /// The first rank to which it leads.
    pub rank: u32,
    pub cause: OpenError,
}

/// Opens the devices from which cables lead to other ranks.
pub(crate) fn open_cabled(cables: &Cables) -> Result<Vec<Arc<dyn Device>>, NotOpened<'_>> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut library = None;
    for (rank, name) in (0..).zip(&cables.0).flat_map(|(rank, names)| names.iter().map(move |name| (rank, name))) {
        if names.contains(&name.as_str()) {
            continue;
        }
        let failed = |cause| NotOpened { name, rank, cause };
        let library = match &library {
            Some(library) => library,
            None => library.insert(Library::open().map_err(failed)?),
        };
        devices.push(library.open_device(name).map_err(failed)?);
        names.push(name);
    }
    Ok(devices)
}

/// Opens the device of this name; or, for `any`, all that can be opened, in the library's order: the fabric takes the first
/// that has a usable port.
pub(crate) fn open(name: &str) -> Result<Vec<Arc<dyn Device>>, OpenError> {
    let library = Library::open()?;
    if name != ANY {
        let device = library.open_device(name)?;
        return Ok(vec![device]);
    }
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    let mut refused = None;
    for found in library.devices()? {
        match library.open_device(&found.name) {
            Ok(device) => devices.push(device),
            Err(error) => {
                tracing::warn!(device = %found.name, %error, "a device of this machine is left out");
                refused = refused.or(Some(error));
            }
        }
    }
    match refused {
        Some(error) if devices.is_empty() => Err(error),
        _ => Ok(devices),
    }
}
