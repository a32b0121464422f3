//! The agent of a node: it starts processes for the programs of its host and of other nodes, and sees them to their end.
//!
//! It is reached over a socket of the system's with mode 0600, by HTTP with JSON bodies ([`api`]; `openapi.json`, which
//! it also serves, describes it for other languages), which [`Client`] speaks. Its state is a directory; a restarted agent goes on with it.
//!
//! Every process has exactly one outcome. It leads a process group, which is ended with SIGTERM and, after its grace, SIGKILL when its
//! time is over, when its caller goes away (unless it is detached) and when the agent ends; what it leaves in its group is ended with it.
//! All of that is in the audit log.

pub mod api;
mod audit;
mod client;
mod cluster;
mod desk;
mod devices;
mod identity;
mod join;
mod limits;
mod log;
mod members;
mod metrics;
mod nodes;
mod peers;
mod process;
mod registries;
mod server;
mod stage;
mod state;
mod streams;
mod table;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fulmen_verbs::Device;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use api::{NodeState, NodeStatus, Status};
use audit::{Audit, Note, Strangers};
pub use client::{Client, ClientError, Events};
use cluster::Cluster;
pub use cluster::Place;
use devices::Devices;
pub use devices::OpenError as DevicesError;
pub use join::{JoinError, join, recover};
use limits::Limits;
pub use process::SpawnError;
pub use stage::Orders;
use state::State;
pub use state::{StateError, socket};
use table::Table;

use crate::registry::EtcdAddress;

/// How often it is looked at what changes by time alone.
const LOOK: Duration = Duration::from_secs(1);

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name, if it is to have a certain one. A node has the same for good.
    pub name: Option<String>,
    /// The directory of its state, which is made if there is none.
    pub state: PathBuf,
    /// Where other nodes reach it.
    pub place: Place,
    /// The etcd that a new cluster has for its registry; else its nodes keep it themselves. A cluster has the same for good.
    pub registry: Option<EtcdAddress>,
    /// Ranks that it runs at a time.
    pub slots: u32,
    /// A program and arguments that become another program as [`Orders`] say: where a process has to be somewhere before it begins.
    pub stage: Vec<OsString>,
    /// Whether processes may be limited by cgroups; else only their memory can be, by looking at it.
    pub cgroups: bool,
}

/// A name that no node can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be a name: up to 63 letters, digits, and any of - _ .")]
pub struct NameError(String);

/// Whether a node, or a role, can have this name.
///
/// # Errors
/// It cannot.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good = (1..64).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.');
    if good { Ok(()) } else { Err(NameError(name.into())) }
}

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its state cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// It has another name.
    #[error(
        "the node with this state is called {had}, for good: leave --name {name} out, or give another directory (--state)"
    )]
    OtherName {
        /// The name that it was to have.
        name: String,
        /// The name that it has.
        had: String,
    },
    /// Its cluster has another registry.
    #[error(
        "the cluster of the node with this state has its registry {had}, for good: leave --registry {given} out, or give another directory (--state)"
    )]
    OtherRegistry {
        /// The registry that it was to have.
        given: EtcdAddress,
        /// Where it has it.
        had: String,
    },
    /// Another cluster has the registry.
    #[error(
        "another cluster has the registry {0} already: join that with a token (--join), or give this one another prefix (etcd://HOST:PORT/PREFIX)"
    )]
    TakenRegistry(EtcdAddress),
    /// Its name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There are no keys.
    #[error(transparent)]
    Trust(#[from] fulmen_trust::TrustError),
    /// Its part of the registry cannot be used.
    #[error(transparent)]
    Registry(#[from] crate::registry::OpenError),
    /// Devices cannot be owned.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// Its registry does not begin.
    #[error(transparent)]
    Ended(#[from] crate::registry::RegistryError),
    /// The system refused something.
    #[error("the agent does not start: {what}: {cause}")]
    System {
        /// What it was to do.
        what: &'static str,
        /// What the system said.
        cause: io::Error,
    },
}

/// An agent that is up.
pub struct Agent {
    started_ms: u64,
    cluster: Arc<Cluster>,
    state: State,
    audit: Audit,
    strangers: Strangers,
    table: Table,
    limits: Limits,
    /// Taken when the agent ends.
    devices: Mutex<Option<Arc<Devices>>>,
    stage: Vec<OsString>,
    /// Where processes run that say nothing else.
    home: PathBuf,
    /// It is to end.
    down: watch::Sender<bool>,
    /// It has left its cluster.
    leaves: AtomicBool,
}

impl Agent {
    /// Runs an agent until it is to end: by a request, by SIGTERM or SIGINT, or when `stop` is ready. Then its processes have ended, and
    /// nothing but its logs is left. It owns these devices, which programs use through it. To be called in a runtime of tokio's, in a
    /// process of its own: it waits for all children of the process.
    ///
    /// # Errors
    /// [`StartError`]: nothing was started then.
    pub async fn run(
        config: Config,
        devices: Vec<Arc<dyn Device>>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), StartError> {
        let system = |what| move |cause| StartError::System { what, cause };
        let state = State::take(&config.state)?;
        let audit = Audit::open(&state.audit()).map_err(system("opening the audit log"))?;
        let listener = listen(&socket(state.directory())).map_err(system("listening on its socket"))?;
        let desk = listen(&state.desk()).map_err(system("listening on its desk"))?;
        let mut children = signal(SignalKind::child()).map_err(system("hearing of children"))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(system("hearing of SIGTERM"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("hearing of SIGINT"))?;
        let home = std::env::home_dir().filter(|home| home.is_dir()).unwrap_or_else(|| "/".into());
        let (table, limits, down) = (Table::new(config.slots), Limits::new(config.cgroups), watch::Sender::new(false));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        config.name.iter().try_for_each(|name| check_name(name))?;
        let taken = table.slots_taken();
        let opened = Cluster::open(state.directory(), &host, &config, taken).await;
        let (cluster, gates) = opened.inspect_err(|_| state.clear())?;
        let devices = Devices::open(devices, state.directory(), &cluster).inspect_err(|_| state.clear())?;
        let agent = Arc::new(Agent {
            started_ms: now_ms(),
            cluster,
            state,
            audit,
            strangers: Strangers::default(),
            table,
            limits,
            devices: Mutex::new(devices.map(Arc::new)),
            stage: config.stage,
            home,
            down,
            leaves: AtomicBool::new(false),
        });
        let name = agent.cluster.name();
        agent.audit.write(Note::Up { name, pid: std::process::id(), version: env!("CARGO_PKG_VERSION") });

        let reaper = tokio::spawn({
            let agent = agent.clone();
            async move {
                while children.recv().await.is_some() {
                    agent.table.reap();
                }
            }
        });
        let mut asked = agent.down.subscribe();
        let ends = async {
            tokio::select! {
                _ = asked.wait_for(|down| *down) => {}
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = stop => {}
            }
            agent.table.close().await;
            let devices = agent.devices.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(devices) = devices {
                devices.close().await;
            }
            agent.cluster.close().await;
            if agent.leaves.load(Ordering::SeqCst) {
                agent.cluster.forget();
            }
            // Before anybody hears that it has ended: the next agent may be started at once.
            agent.state.clear();
        };
        tokio::spawn(notice(agent.clone()));
        let generation = agent.started_ms;
        let desk = tokio::spawn({
            let agent = agent.clone();
            async move { desk::serve(desk, agent.state.directory(), generation).await }
        });
        let served = server::serve(&agent, listener, gates, ends).await;
        desk.abort();
        reaper.abort();
        served.map_err(system("serving its socket"))
    }

    fn status(&self) -> Status {
        let (running, spawned, ended) = self.table.counts();
        Status {
            name: self.cluster.name().into(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            started_ms: self.started_ms,
            state: self.state.directory().display().to_string(),
            running,
            spawned,
            ended,
            cluster: self.cluster.status(),
            devices: self.devices().map_or_else(Vec::new, |devices| devices.status()),
        }
    }

    /// The devices that it owns, if there are any.
    fn devices(&self) -> Option<Arc<Devices>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Notes what changes in the cluster, as this node sees it.
async fn notice(agent: Arc<Agent>) {
    let mut changed = agent.cluster.subscribe();
    let mut before = agent.cluster.status();
    // Whether it is in touch changes by time alone.
    while !matches!(tokio::time::timeout(LOOK, changed.changed()).await, Ok(Err(_))) {
        let now = agent.cluster.status();
        for NodeStatus { name, state, .. } in &now.nodes {
            let was = before.nodes.iter().find(|node| node.name == *name).map(|node| node.state);
            if was != Some(*state) {
                agent.audit.write(Note::Seen { node: name, state: state.word() });
                if *state == NodeState::Down
                    && let Some(devices) = agent.devices()
                {
                    devices.lost(name);
                }
            }
        }
        for NodeStatus { name, .. } in &before.nodes {
            if !now.nodes.iter().any(|node| node.name == *name) {
                agent.audit.write(Note::Seen { node: name, state: "removed" });
            }
        }
        if now.coordinator != before.coordinator {
            agent.audit.write(Note::Coordinator { node: now.coordinator.as_deref() });
        }
        before = now;
    }
}

/// For this user alone: the directory is, and the socket too.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}
