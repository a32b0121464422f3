//! The machine's own devices, for ranks to talk over.

use std::sync::Arc;

use fulmen_system::{Library, OpenError};
use fulmen_verbs::Device;

/// Names every device of the machine that can be opened.
const ANY: &str = "any";

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
