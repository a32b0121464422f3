//! What the ranks of a test run over.

use std::env;
use std::fmt;
use std::process::Command;

/// One way in which ranks reach one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// They map one another's memory.
    Shared,
    /// The software device, by the name of its profile.
    Profile(&'static str),
    /// A device of this machine, by name.
    Device(String),
}

impl Carrier {
    /// Shared memory and the software device's profiles; or only the machine's device that `FULMEN_TEST_DEVICE` names.
    pub fn all() -> Vec<Carrier> {
        match env::var("FULMEN_TEST_DEVICE") {
            Ok(device) => vec![Carrier::Device(device)],
            Err(_) => vec![Carrier::Shared, Carrier::Profile("infiniband"), Carrier::Profile("thunderbolt")],
        }
    }

    /// Has a rank run over it.
    pub fn set<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env_remove("FULMEN_PROFILE").env_remove("FULMEN_DEVICE");
        match self {
            Carrier::Shared => command,
            Carrier::Profile(profile) => command.env("FULMEN_PROFILE", profile),
            Carrier::Device(device) => command.env("FULMEN_DEVICE", device),
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Carrier::Shared => f.write_str("shared memory"),
            Carrier::Profile(profile) => write!(f, "the profile {profile}"),
            Carrier::Device(device) => write!(f, "the device {device}"),
        }
    }
}
