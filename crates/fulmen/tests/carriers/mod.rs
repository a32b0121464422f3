//! What the ranks of a test run over.

use std::env;
use std::fmt;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

/// One way in which ranks reach one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// They map one another's memory.
    Shared,
    /// The software device, by the name of its profile.
    Profile(&'static str),
    /// A device of this machine, by name.
    Device(String),
    /// As if each rank were on a host of its own without RDMA: by TCP, by the rules of this profile if there is one.
    Hosts(Option<&'static str>),
    /// As if each two ranks were on a host of their own: they share memory, and reach the others by TCP.
    Pairs,
}

impl Carrier {
    /// Shared memory, the software device's profiles, and hosts of one rank and of two that TCP connects; or only the machine's device
    /// that `FULMEN_TEST_DEVICE` names.
    pub fn all() -> Vec<Carrier> {
        if let Ok(device) = env::var("FULMEN_TEST_DEVICE") {
            return vec![Carrier::Device(device)];
        }
        let mut all = vec![Carrier::Shared, Carrier::Profile("infiniband"), Carrier::Profile("thunderbolt")];
        all.extend([Carrier::Hosts(None), Carrier::Pairs]);
        if fulmen_testbed::is_full() {
            all.push(Carrier::Hosts(Some("thunderbolt")));
        }
        all
    }

    /// Whether nobody can know that a rank which is lost has ended, and does not go on elsewhere.
    #[allow(dead_code, reason = "not all tests kill ranks")]
    pub fn hides_ends(&self) -> bool {
        matches!(self, Carrier::Hosts(_) | Carrier::Pairs)
    }

    /// Has a rank run over it.
    pub fn set<'a>(&self, rank: u32, command: &'a mut Command) -> &'a mut Command {
        for name in ["FULMEN_PROFILE", "FULMEN_DEVICE", "FULMEN_HOST_ID", "FULMEN_REQUIRE", "FULMEN_TRUSTED_RAIL"] {
            command.env_remove(name);
        }
        match self {
            Carrier::Shared => command,
            Carrier::Profile(profile) => command.env("FULMEN_PROFILE", profile),
            Carrier::Device(device) => command.env("FULMEN_DEVICE", device),
            Carrier::Hosts(profile) => {
                static HOSTS: AtomicU32 = AtomicU32::new(0);
                let host = format!("{} {}", process::id(), HOSTS.fetch_add(1, Ordering::Relaxed));
                command
                    .env("FULMEN_HOST_ID", host)
                    .env("FULMEN_VERBS_LIBRARY", "/nonexistent/libibverbs.so.1")
                    .envs(profile.map(|profile| ("FULMEN_PROFILE", profile)))
            }
            Carrier::Pairs => command
                .env("FULMEN_HOST_ID", format!("{} pair {}", process::id(), rank / 2))
                .env("FULMEN_VERBS_LIBRARY", "/nonexistent/libibverbs.so.1"),
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Carrier::Shared => f.write_str("shared memory"),
            Carrier::Profile(profile) => write!(f, "the profile {profile}"),
            Carrier::Device(device) => write!(f, "the device {device}"),
            Carrier::Hosts(None) => f.write_str("TCP"),
            Carrier::Hosts(Some(profile)) => write!(f, "TCP, by the profile {profile}"),
            Carrier::Pairs => f.write_str("shared memory of pairs, and TCP"),
        }
    }
}
