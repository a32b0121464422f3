//! The machine's own devices, for ranks to talk over: those that the host's agent owns, through it, and all others opened here.

use std::path::PathBuf;
use std::sync::Arc;

use fulmen_attach::{AttachError, Attached};
use fulmen_fabric::Cables;
use fulmen_system::{Library, OpenError};
use fulmen_verbs::Device;

/// Names every device of the machine that can be opened.
pub(crate) const ANY: &str = "any";

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// It does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The agent that owns it does not let it be used.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// A device from which a cable leads, and which cannot be used.
pub(crate) struct NotOpened<'a> {
    pub name: &'a str,
    /// The first rank to which it leads.
    pub rank: u32,
    pub cause: MachineError,
}

/// What this host has.
struct Machine {
    /// Where its agent offers devices, and which.
    agent: Option<(PathBuf, Vec<String>)>,
    /// Opened when it is asked for first.
    library: Option<Arc<Library>>,
}

impl Machine {
    fn new() -> Result<Machine, MachineError> {
        let offer = |socket: PathBuf| match fulmen_attach::offered(&socket) {
            Ok(names) => Ok(Some((socket, names))),
            // Of an agent that was killed.
            Err(AttachError::NoOwner { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        let agent = fulmen_attach::here().map(offer).transpose()?.flatten();
        Ok(Machine { agent, library: None })
    }

    fn library(&mut self) -> Result<&Arc<Library>, OpenError> {
        match &mut self.library {
            Some(library) => Ok(library),
            library => Ok(library.insert(Library::open()?)),
        }
    }

    fn offers(&self) -> &[String] {
        self.agent.as_ref().map_or(&[], |(_, names)| names)
    }

    fn open(&mut self, name: &str) -> Result<Arc<dyn Device>, MachineError> {
        match &self.agent {
            Some((socket, names)) if names.iter().any(|owned| owned == name) => Ok(Attached::open(socket, name)?),
            _ => Ok(self.library()?.open_device(name)?),
        }
    }
}

/// Opens the devices from which cables lead to other ranks.
pub(crate) fn open_cabled(cables: &Cables) -> Result<Vec<Arc<dyn Device>>, NotOpened<'_>> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut machine = None;
    for (rank, name) in (0..).zip(&cables.0).flat_map(|(rank, names)| names.iter().map(move |name| (rank, name))) {
        if names.contains(&name.as_str()) {
            continue;
        }
        let failed = |cause| NotOpened { name, rank, cause };
        let machine = match &mut machine {
            Some(machine) => machine,
            None => machine.insert(Machine::new().map_err(failed)?),
        };
        devices.push(machine.open(name).map_err(failed)?);
        names.push(name);
    }
    Ok(devices)
}

/// Opens the device of this name; or, for `any`, all that can be opened: the agent's, and the others in the library's order. The fabric
/// takes the first that has a usable port.
pub(crate) fn open(name: &str) -> Result<Vec<Arc<dyn Device>>, MachineError> {
    let mut machine = Machine::new()?;
    if name != ANY {
        return Ok(vec![machine.open(name)?]);
    }
    let mut names = machine.offers().to_vec();
    let mut refused = None;
    match machine.library().and_then(|library| library.devices()) {
        Ok(found) => {
            names.extend(found.into_iter().map(|found| found.name).filter(|name| !machine.offers().contains(name)))
        }
        Err(error) if names.is_empty() => return Err(error.into()),
        // What the agent has will do.
        Err(_) => {}
    }
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for name in names {
        match machine.open(&name) {
            Ok(device) => devices.push(device),
            Err(error) => {
                tracing::warn!(device = %name, %error, "a device of this machine is left out");
                refused = refused.or(Some(error));
            }
        }
    }
    match refused {
        Some(error) if devices.is_empty() => Err(error),
        _ => Ok(devices),
    }
}
