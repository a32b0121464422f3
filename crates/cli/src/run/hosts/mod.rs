//! Ranks on several hosts.
//!
//! On each other host, ssh, or that host's agent ([`cluster`]), starts a *helper* (this program again, hidden command, [`mod@helper`]), which starts that host's ranks
//! as the launcher starts those of its own, and tells what becomes of them ([`protocol`]). Here, a thread for each host
//! ([`bridge`]) stands in for the supervisors of its ranks: the launcher has a socket and two pipes for each rank, wherever
//! that is, so labels, exit codes, signals and time limits are those of one machine. All hosts are reached ([`connect`]) before a
//! rank is started on any of them.

mod bridge;
mod cluster;
mod connect;
mod connection;
mod error;
mod flow;
mod helper;
mod parcel;
mod place;
mod protocol;
mod work;

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmen::parts::fabric::launch::hostfile::{HostList, HostListError, LONGEST};

use super::signals::Signals;
use super::{Job, RunError};
use crate::agent::Which;

pub use bridge::{Bridge, Remote};
pub use connect::Stopped;
pub use connection::Connection;
pub use error::{HostError, UNREACHED};
pub use helper::helper;
pub use parcel::Shelf;
pub use place::{Place, Placed, Placement, Where};
pub use protocol::{Secret, Task, bytes};

/// The hidden command of the helper on another host.
pub const HOST: &str = "__host";

/// How long hosts may take to answer unless the user says otherwise.
const CONNECT: &str = "30";

/// The options that say where ranks run.
#[derive(clap::Args)]
#[group(skip)]
pub struct Options {
    /// Start the ranks on these hosts, over ssh: names, `user@name` or addresses, each with `:N` for N ranks. `localhost` is this
    /// machine.
    #[arg(long, value_name = "HOST[:N],…")]
    pub hosts: Option<String>,
    /// Take the hosts from a file: a host a line with `slots=N`, also OpenMPI's, MPICH's or mlx.launch's file.
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub hostfile: Option<PathBuf>,
    /// Start the ranks on the nodes of the cluster that this host's agent belongs to (`fulmen up`), this host first: as many on each
    /// as it has slots free.
    #[arg(long, conflicts_with_all = ["hosts", "hostfile", "direct"])]
    pub cluster: bool,
    #[command(flatten)]
    agent: Which,
    /// Start the ranks of a host that has this machine's own name without ssh, as those of `localhost`.
    #[arg(long)]
    direct: bool,
    /// The program to reach other hosts with; it takes ssh's arguments.
    #[arg(long, value_name = "PROGRAM", env = "FULMEN_SSH", default_value = "ssh")]
    ssh: OsString,
    /// An argument for ssh; give it once for each.
    #[arg(long = "ssh-option", value_name = "ARG", allow_hyphen_values = true)]
    ssh_options: Vec<OsString>,
    /// The path of this program on the other hosts [default: its path here].
    #[arg(long, value_name = "PATH")]
    remote_fulmen: Option<String>,
    /// The address of this machine, with a port or without, at which the ranks of all hosts meet [default: as each host sees it].
    #[arg(long, value_name = "IP", value_parser = address)]
    address: Option<SocketAddr>,
    /// How long hosts may take to answer.
    #[arg(long, value_name = "SECONDS", value_parser = super::positive_seconds, allow_negative_numbers = true, default_value = CONNECT)]
    connect_timeout: Duration,
}

/// How other hosts are reached.
pub enum Way {
    /// By ssh.
    Ssh(Ssh),
    /// By the agents of a cluster.
    Nodes(cluster::Nodes),
}

/// The same, to be spoken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// ssh.
    Ssh,
    /// `fulmen spawn`.
    Nodes,
}

impl Way {
    fn means(&self) -> Means {
        match self {
            Way::Ssh(_) => Means::Ssh,
            Way::Nodes(_) => Means::Nodes,
        }
    }

    /// The program that leads to a host.
    fn program(&self) -> OsString {
        match self {
            Way::Ssh(ssh) => ssh.program.clone(),
            Way::Nodes(nodes) => nodes.program.clone(),
        }
    }

    /// What it is told for a host.
    fn arguments(&self, host: &Placed, limit: Duration) -> Vec<OsString> {
        match self {
            Way::Ssh(ssh) => ssh.arguments(host, limit),
            Way::Nodes(nodes) => nodes.arguments(host),
        }
    }

    /// Where a host's fulmen is.
    fn remote(&self, host: &Placed) -> String {
        match self {
            Way::Ssh(ssh) => ssh.remote(host),
            Way::Nodes(nodes) => nodes.fulmen.clone(),
        }
    }

    /// By which addresses this machine and a host see each other, where the host does not say it itself.
    fn addresses(&self, host: &Placed) -> Option<String> {
        match self {
            Way::Ssh(_) => None,
            Way::Nodes(nodes) => nodes.addresses(host),
        }
    }
}

/// What it takes to reach hosts by ssh.
pub struct Ssh {
    /// The program.
    program: OsString,
    /// The user's arguments for it.
    options: Vec<OsString>,
    /// Where fulmen is on a host that says nothing else.
    fulmen: String,
    /// How often ssh asks a host for a sign of life.
    alive: Duration,
}

/// On which hosts a run's ranks are, and how these are reached.
pub struct Hosts {
    /// Where each rank is.
    pub placement: Placement,
    /// Variables for all ranks, which a hostfile named.
    pub variables: Vec<(String, String)>,
    way: Way,
    address: Option<SocketAddr>,
    connect_timeout: Duration,
}

/// Why a list of hosts is refused.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// The argument of `--hosts`.
    #[error("--hosts: {0}")]
    Argument(HostListError),
    /// A hostfile.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: HostListError,
    },
    /// A hostfile that is not there.
    #[error("cannot read the hostfile {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// The ranks have no place on the hosts.
    #[error("{0}")]
    Place(String),
    /// The cluster cannot be asked.
    #[error("--cluster: {0}")]
    Cluster(String),
}

impl Options {
    /// The hosts, if there are any. `ranks` is how many the user wants.
    pub fn hosts(self, ranks: Option<u32>, silence: Duration) -> anyhow::Result<Option<Hosts>> {
        let refused = |error: HostsError| RunError::Hosts(error);
        let own_path = || -> anyhow::Result<String> {
            Ok(std::env::current_exe().context("cannot find the file of this program")?.to_string_lossy().into_owned())
        };
        if self.cluster {
            let fulmen = self.remote_fulmen.clone().map_or_else(own_path, Ok)?;
            let (placement, nodes) = cluster::place(&self.agent, ranks, fulmen).map_err(refused)?;
            let (way, variables) = (Way::Nodes(nodes), Vec::new());
            let Options { address, connect_timeout, .. } = self;
            return Ok(Some(Hosts { placement, variables, way, address, connect_timeout }));
        }
        let list = match (&self.hosts, &self.hostfile) {
            (Some(text), _) => HostList::from_argument(text).map_err(|error| refused(HostsError::Argument(error)))?,
            (None, Some(path)) => {
                let text = read(path).map_err(refused)?;
                let file = |error| refused(HostsError::File { path: path.clone(), error });
                HostList::from_file(&text).map_err(file)?
            }
            (None, None) => return Ok(None),
        };
        let own = self.direct.then(place::own_name);
        let placement =
            Placement::new(&list, ranks, own.as_deref()).map_err(|cause| refused(HostsError::Place(cause)))?;
        let fulmen = self.remote_fulmen.clone().map_or_else(own_path, Ok)?;
        let ssh = Ssh { program: self.ssh, options: self.ssh_options, fulmen, alive: silence / 2 };
        let variables = list.variables;
        let way = Way::Ssh(ssh);
        Ok(Some(Hosts { placement, variables, way, address: self.address, connect_timeout: self.connect_timeout }))
    }
}

fn read(path: &Path) -> Result<String, HostsError> {
    let unreadable = |cause: String| HostsError::Unreadable { path: path.to_owned(), cause };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let read = file.take(LONGEST + 1).read_to_string(&mut text).map_err(|error| unreadable(error.to_string()))?;
    if read as u64 > LONGEST {
        return Err(unreadable(format!("it has more than {LONGEST} bytes")));
    }
    Ok(text)
}

/// Reads an address of this machine.
fn address(text: &str) -> Result<SocketAddr, String> {
    let ip = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0)).or_else(|_| text.parse());
    match ip {
        Ok(address) if !address.ip().is_unspecified() && !address.ip().is_multicast() => Ok(address),
        _ => {
            Err("give an address of this machine, such as 192.0.2.1, 192.0.2.1:7117 or [2001:db8::1]:7117".to_string())
        }
    }
}

/// Hosts that have been reached, but told nothing yet.
pub struct Reached {
    reached: Vec<connect::Reached>,
    limits: connect::Limits,
    /// Where the coordinator is to be.
    pub listen: SocketAddr,
    /// By host, at which of this machine's addresses its ranks meet, and by which others reach it.
    pub places: Vec<Place>,
}

impl Hosts {
    /// Reaches all other hosts.
    pub fn reach(&self, signals: &mut Signals, run: Option<Instant>) -> Result<Reached, Stopped> {
        let limits = connect::Limits { limit: self.connect_timeout, run };
        let reached = connect::connect(&self.placement.others(), &self.way, signals, limits)?;
        let seen: Vec<Option<&str>> = reached.iter().map(|host| host.addresses.as_deref()).collect();
        let (listen, places) =
            self.placement.meet(&seen, self.address).map_err(|error| Stopped::Failed(vec![error]))?;
        Ok(Reached { reached, limits, listen, places })
    }

    /// Tells the other hosts what to run, and gives a bridge to each, once all of them can.
    pub fn prepare(
        &self,
        reached: Reached,
        job: &Job,
        secret: &str,
        coordinator: u16,
        signals: &mut Signals,
    ) -> Result<Vec<Connection>, Stopped> {
        let Reached { reached, limits, places, .. } = reached;
        let others = self.placement.others();
        let tasks = self.placement.hosts.iter().zip(&places).filter(|(host, _)| host.whereabouts == Where::Elsewhere);
        let tasks = tasks.map(|(host, place)| job.task(host, place, secret, coordinator)).collect();
        connect::prepare(&others, reached, tasks, self.way.means(), signals, limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_a_port() {
        assert_eq!(address("192.0.2.1"), Ok("192.0.2.1:0".parse().unwrap()));
        assert_eq!(address("2001:db8::1"), Ok("[2001:db8::1]:0".parse().unwrap()));
        assert_eq!(address("[2001:db8::1]:7117"), Ok("[2001:db8::1]:7117".parse().unwrap()));
        for wrong in ["", "a", "0.0.0.0", "::", "224.0.0.1", "192.0.2.1:x"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
