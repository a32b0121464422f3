//! The machine's own devices, looked at by children: libraries and drivers hang and crash.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use fulmen::parts::system::Library;
use serde::{Deserialize, Serialize};

use super::Shown;
use crate::child;

/// The hidden command that looks.
pub const LOOK: &str = "__devices";

/// How long the library, and each device, may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The arguments of the hidden command.
#[derive(clap::Args)]
pub struct LookArgs {
    /// The device to look at; all are listed if none is named.
    name: Option<String>,
}

/// What a child answers.
#[derive(Serialize, Deserialize)]
enum Seen {
    List { library: String, devices: Vec<(String, String)> },
    Device(Box<Shown>),
}

/// What the machine has of its own.
#[derive(Serialize)]
pub struct Machine {
    /// The verbs library.
    library: Option<String>,
    /// Why there are no devices.
    problem: Option<String>,
    pub devices: Vec<Own>,
}

/// A device of the machine.
#[derive(Serialize)]
pub struct Own {
    pub name: String,
    pub transport: String,
    /// Why it cannot be used.
    pub problem: Option<String>,
    #[serde(flatten)]
    pub shown: Option<Shown>,
}

/// Looks, in the child.
pub fn look(args: LookArgs) -> anyhow::Result<ExitCode> {
    child::answer(|| {
        let library = Library::open()?;
        let Some(name) = args.name else {
            let devices = library.devices()?.into_iter().map(|found| (found.name, found.transport.to_string()));
            return Ok(Seen::List { library: library.path().display().to_string(), devices: devices.collect() });
        };
        let device = library.open_device(&name)?;
        let mut shown = super::show(None, &*device)?;
        for port in &mut shown.ports {
            port.gigabits = device.port_speed(port.number).ok().and_then(|speed| speed.gigabits());
        }
        let own = device.attributes();
        shown.firmware = Some(own.firmware.clone()).filter(|firmware| !firmware.is_empty());
        shown.vendor_id = Some(own.vendor_id);
        shown.vendor_part_id = Some(own.vendor_part_id);
        Ok(Seen::Device(Box::new(shown)))
    })
}

impl Machine {
    /// Looks for devices; that there are none is no failure.
    pub fn find() -> Machine {
        let none = |problem: String| Machine { library: None, problem: Some(problem), devices: Vec::new() };
        let (library, names) = match child::ask(&[LOOK], PATIENCE) {
            Ok(Seen::List { library, devices }) => (library, devices),
            Ok(Seen::Device(_)) => return none("a list of devices was not answered".into()),
            Err(trouble) => return none(trouble.to_string()),
        };
        let devices = names.into_iter().map(|(name, transport)| {
            let (shown, problem) = match child::ask(&[LOOK, "--", &name], PATIENCE) {
                Ok(Seen::Device(shown)) => (Some(*shown), None),
                Ok(Seen::List { .. }) => (None, Some("a device was not answered".into())),
                Err(trouble) => (None, Some(trouble.to_string())),
            };
            Own { name, transport, problem, shown }
        });
        Machine { library: Some(library), problem: None, devices: devices.collect() }
    }

    /// As people read it.
    pub fn describe(&self, text: &mut String) {
        if let Some(problem) = &self.problem {
            let _ = writeln!(text, "\nsystem     no devices: {problem}");
        }
        for own in &self.devices {
            match (&own.shown, &own.problem) {
                (Some(shown), _) => {
                    let _ = writeln!(text, "\nsystem {}   --device {}", own.name, own.name);
                    shown.describe(text);
                }
                (None, problem) => {
                    let _ = writeln!(text, "\nsystem {}   {}", own.name, problem.as_deref().unwrap_or_default());
                }
            }
        }
    }
}
