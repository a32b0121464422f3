//! The bed: its hosts, its nets, their end.

use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::host;
use crate::net::Plan;
use crate::wire::Wire;
use crate::{Host, Link, Net};

/// Why there can be no hosts on this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BedError {
    /// The system lets this process make no namespaces.
    #[error("network namespaces cannot be made here: {0} (it takes root)")]
    Namespaces(io::Error),
    /// The system has no TAP devices for this process.
    #[error("/dev/net/tun cannot be opened: {0} (it takes root and the kernel's tun)")]
    Tap(io::Error),
    /// A program is missing.
    #[error("the program {program} cannot be run: {cause} (apt-get install {package})")]
    Program {
        /// Its name.
        program: &'static str,
        /// Why not.
        cause: io::Error,
        /// Where Debian has it.
        package: &'static str,
    },
    /// The wire's thread could not be started.
    #[error("the thread that moves frames cannot be started: {0}")]
    Wire(io::Error),
}

/// Hosts and nets of one test. At its end, also by a panic, all that runs on its hosts is killed.
#[derive(Debug)]
pub struct Bed {
    hosts: Mutex<Vec<Host>>,
    nets: Mutex<usize>,
    wire: Wire,
}

impl Bed {
    /// A bed without hosts.
    ///
    /// # Errors
    /// [`BedError`] if this machine cannot have hosts.
    pub fn new() -> Result<Bed, BedError> {
        host::namespaces("fulmen-testbed").map_err(BedError::Namespaces)?;
        fs::File::options().read(true).write(true).open("/dev/net/tun").map_err(BedError::Tap)?;
        for (program, package) in [("ip", "iproute2"), ("sh", "dash"), ("find", "findutils")] {
            // Each of them is content with this, or says that it is not; what counts is that it is there.
            let ran = Command::new(program).args(["-c", ""]).stdin(Stdio::null()).output();
            ran.map_err(|cause| BedError::Program { program, cause, package })?;
        }
        let wire = Wire::start().map_err(BedError::Wire)?;
        Ok(Bed { hosts: Mutex::default(), nets: Mutex::default(), wire })
    }

    /// A bed without hosts; or none, and a line that says that `what` is skipped, and why.
    #[must_use]
    pub fn or_skip(what: &str) -> Option<Bed> {
        Bed::new().inspect_err(|why| eprintln!("SKIPPED: {what}: {why}")).ok()
    }

    /// Why this machine cannot have hosts; `None` if it can.
    #[must_use]
    pub fn skip_reason() -> Option<String> {
        Bed::new().err().map(|why| why.to_string())
    }

    /// Adds a host. Its name is its hostname, too.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn host(&self, name: &str) -> Host {
        let host = Host::new(name).unwrap_or_else(|error| panic!("host {name} cannot be made: {error}"));
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).push(host.clone());
        host
    }

    /// Adds so many hosts, named `a`, `b` and so on.
    ///
    /// # Panics
    /// If the system refuses, or beyond 26.
    pub fn hosts(&self, count: usize) -> Vec<Host> {
        assert!(count <= 26, "letters name 26 hosts");
        ('a'..='z').take(count).map(|name| self.host(&name.to_string())).collect()
    }

    /// Joins two hosts by a wire of their own, the same in both directions.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn cable(&self, one: &Host, other: &Host, link: Link) -> Net {
        self.switch(&[one.clone(), other.clone()], link)
    }

    /// Joins hosts by a switch. What `link` says holds for each direction between each two of them by itself: a rate is not shared.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn switch(&self, hosts: &[Host], link: Link) -> Net {
        self.plan(hosts).switch(&self.wire, link)
    }

    /// Joins hosts by the kernel alone: two by a veth pair, more by veth pairs and a bridge.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn direct(&self, hosts: &[Host]) -> Net {
        let bridge = (hosts.len() > 2).then(|| {
            // It is nobody's host, but ends with them.
            self.host("bridge")
        });
        self.plan(hosts).direct(bridge)
    }

    fn plan<'a>(&self, hosts: &'a [Host]) -> Plan<'a> {
        let mut nets = self.nets.lock().unwrap_or_else(PoisonError::into_inner);
        *nets += 1;
        Plan::new(hosts, *nets)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let hosts = self.hosts.get_mut().unwrap_or_else(PoisonError::into_inner);
        for host in hosts {
            if let Err(error) = host.kill_quietly() {
                eprintln!("{host}: {error}");
            }
        }
    }
}
