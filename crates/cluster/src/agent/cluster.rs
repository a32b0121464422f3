//! An agent's part in its cluster: it says that it is up, watches who else is, and coordinates if nobody does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_trust::Authority;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use super::api::ClusterStatus;
use super::identity::Identity;
use super::members::{ADDRESSES, ALIVE, Alive, COORDINATOR_NOW, Known, NODES, NodeRecord, ROLES, TABLES, View};
use super::peers::{self, Gate, Peers};
use super::{Config, StartError, check_name, now_ms, registries, state};
use crate::registry::{Change, Condition, Embedded, Lease, Registry, RegistryError, Verdict, Write};

/// Where agents listen if nobody says otherwise and nobody else does.
const PORT: u16 = 7387;
/// How long a node is taken for up after it was heard of last, and how often it says so.
const LIFE: Duration = Duration::from_secs(5);
const SIGN: Duration = Duration::from_secs(1);
/// How long to wait after the registry was asked in vain.
const AGAIN: Duration = Duration::from_millis(500);

/// What an agent knows of its cluster, and does in it.
pub(super) struct Cluster {
    directory: PathBuf,
    pub(super) identity: Identity,
    pub(super) registry: Arc<dyn Registry>,
    /// This node's part of it, unless it is an etcd.
    pub(super) embedded: Option<Embedded>,
    pub(super) peers: Arc<Peers>,
    view: watch::Sender<View>,
    address: String,
    slots: u32,
    /// How many of them are taken.
    taken: watch::Receiver<u32>,
    started_ms: u64,
    /// Until when others take this node for up.
    alive: watch::Sender<Option<(Lease, Instant)>>,
}

/// Where a node listens, and how others call that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The address to listen at [default: all of this host, at port 7387 or, if another has that, any; later, the same].
    pub listen: Option<SocketAddr>,
    /// Where other hosts reach that [default: the host's first address that others can reach].
    pub address: Option<String>,
}

/// The address by which others reach this host.
fn own_address() -> IpAddr {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let reachable = all.iter().filter(|one| !one.is_loopback() && !one.is_link_local()).map(|one| one.ip());
    reachable.min_by_key(IpAddr::is_ipv6).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

async fn listen(place: &Place, before: Option<u16>) -> std::io::Result<(TcpListener, String)> {
    let listener = match place.listen {
        Some(address) if address.port() != 0 => TcpListener::bind(address).await?,
        wish => {
            let ip = wish.map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
            let mut listener = None;
            for port in before.into_iter().chain(wish.is_none().then_some(PORT)) {
                listener = TcpListener::bind((ip, port)).await.ok();
                if listener.is_some() {
                    break;
                }
            }
            match listener {
                Some(listener) => listener,
                None => TcpListener::bind((ip, 0)).await?,
            }
        }
    };
    let bound = listener.local_addr()?;
    let address = match &place.address {
        Some(address) if address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
            address.clone()
        }
        Some(host) => format!("{host}:{}", bound.port()),
        None if bound.ip().is_unspecified() => SocketAddr::new(own_address(), bound.port()).to_string(),
        None => bound.to_string(),
    };
    Ok((listener, address))
}

pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data")
}

pub(super) fn put(table: &str, name: &str, value: &impl Serialize, lease: Option<Lease>) -> Change {
    Change::Put { key: format!("{table}/{name}"), value: json(value), lease }
}

impl Cluster {
    /// Takes a node's place in its cluster: a new one, if it has none. Returns what others connect to, too.
    pub(super) async fn open(
        directory: &Path,
        host: &str,
        config: &Config,
        taken: watch::Receiver<u32>,
    ) -> Result<(Arc<Cluster>, (Gate, Gate)), StartError> {
        let system = |what| move |cause| StartError::System { what, cause };
        let (name, place) = (config.name.as_deref(), &config.place);
        let (mut identity, fresh) = match Identity::load(directory)? {
            Some(identity) => (identity, false),
            None => {
                let name = name.unwrap_or(host);
                check_name(name)?;
                (Identity::found(name, config.registry.clone())?, true)
            }
        };
        if let Some(name) = name.filter(|name| *name != identity.name) {
            return Err(StartError::OtherName { name: name.into(), had: identity.name });
        }
        if let Some(given) = config.registry.clone().filter(|given| identity.registry.as_ref() != Some(given)) {
            let had = identity.registry.map_or("among its nodes".into(), |registry| format!("at {registry}"));
            return Err(StartError::OtherRegistry { given, had });
        }
        let (listener, address) = listen(place, identity.port).await.map_err(system("listening for other nodes"))?;
        identity.port = listener.local_addr().ok().map(|bound| bound.port());
        let view = watch::Sender::new(View::new(&identity.known));
        let seal = identity.key.identity(&identity.root, &identity.certificate)?;
        let peers = Peers::new(identity.id, seal, view.subscribe());
        let gates = peers::accept(listener, &identity, view.subscribe())?;
        let (registry, embedded) = registries::open(directory, &identity, peers.clone()).await?;
        if fresh {
            identity.save(directory)?;
            if embedded.is_none() {
                registries::claim_first(directory, &*registry, &identity).await?;
            }
        }
        let cluster = Cluster {
            directory: directory.to_owned(),
            registry,
            identity,
            embedded,
            peers,
            view,
            address,
            slots: config.slots,
            taken,
            started_ms: now_ms(),
            alive: watch::Sender::new(None),
        };
        let cluster = Arc::new(cluster);
        for table in TABLES {
            tokio::spawn(cluster.clone().watch(table));
        }
        tokio::spawn(cluster.clone().remember());
        tokio::spawn(cluster.clone().live());
        tokio::spawn(cluster.clone().coordinate());
        if let Some(embedded) = cluster.embedded.clone() {
            tokio::spawn(cluster.clone().reconcile(embedded));
        }
        Ok((cluster, gates))
    }

    pub(super) fn name(&self) -> &str {
        &self.identity.name
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn view(&self) -> watch::Ref<'_, View> {
        // Of the sender's own value: there is always one.
        self.view.borrow()
    }

    /// Tells of every change of the view.
    pub(super) fn subscribe(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// As it is told to people.
    pub(super) fn status(&self) -> ClusterStatus {
        let (view, in_touch) = (self.view(), self.in_touch());
        let agreed = |embedded: &Embedded| embedded.members() == view.members();
        let settled = in_touch && self.embedded.as_ref().is_none_or(agreed);
        let registry = self.identity.registry.as_ref().map(ToString::to_string);
        let mut status = ClusterStatus { registry, settled, ..view.status(self.name(), in_touch) };
        for own in status.nodes.iter_mut().filter(|node| node.name == self.name()) {
            // What others are told a moment later.
            own.slots_taken = *self.taken.borrow();
        }
        status
    }

    pub(super) fn authority(&self) -> Option<Authority> {
        self.identity.authority().ok().flatten()
    }

    /// The nodes, as soon as this one is among them, with its address.
    pub(super) async fn known(&self) -> Vec<Known> {
        let complete = |view: &View| view.nodes.contains_key(self.name()) && view.addresses.contains_key(self.name());
        match self.view.subscribe().wait_for(complete).await {
            Ok(view) => view.known(),
            Err(_) => Vec::new(),
        }
    }

    /// Whether others take this node for up, because it agrees with a majority of them.
    pub(super) fn in_touch(&self) -> bool {
        self.alive.borrow().is_some_and(|(_, until)| Instant::now() < until)
    }

    /// Keeps a table of the view as the registry has it.
    async fn watch(self: Arc<Cluster>, table: &'static str) {
        let mut revision = 0;
        loop {
            match self.registry.changed(table, revision).await {
                Ok(snapshot) => {
                    revision = snapshot.revision;
                    self.view.send_if_modified(|view| {
                        let before = view.clone();
                        view.take(table, &snapshot);
                        *view != before
                    });
                }
                Err(RegistryError::Ended(_)) => return,
                Err(error) => {
                    tracing::info!(%error, table, "the registry tells nothing");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Keeps the nodes on disk, so that this one finds them when it is started again.
    async fn remember(self: Arc<Cluster>) {
        let mut view = self.view.subscribe();
        let mut kept: Vec<Known> = Vec::new();
        loop {
            let known = view.borrow_and_update().known();
            if known != kept && !known.is_empty() {
                let Ok(Some(mut identity)) = Identity::load(&self.directory) else { return };
                (identity.known, identity.port) = (known.clone(), self.identity.port);
                if let Err(error) = identity.save(&self.directory) {
                    tracing::warn!(%error, "the nodes of the cluster are not remembered");
                }
                kept = known;
            }
            if view.changed().await.is_err() {
                return;
            }
        }
    }

    /// Says again and again that this node is up.
    async fn live(self: Arc<Cluster>) {
        let mut taken = self.taken.clone();
        // Others place ranks by what is free.
        let mut told = None;
        // Said once for each kind of trouble.
        let mut trouble = None;
        loop {
            let now = *taken.borrow_and_update();
            match self.sign(now, told != Some(now)).await {
                Ok(()) => {
                    (told, trouble) = (Some(now), None);
                    let _ = tokio::time::timeout(SIGN, taken.changed()).await;
                }
                Err(RegistryError::Ended(_)) => return,
                Err(error) => {
                    if matches!(error, RegistryError::LeaseOver) {
                        self.alive.send_replace(None);
                    }
                    told = None;
                    let kind = Some(std::mem::discriminant(&error));
                    if trouble != kind {
                        tracing::warn!(%error, "the cluster does not hear of this node");
                    }
                    trouble = kind;
                    sleep(AGAIN).await;
                }
            }
        }
    }

    async fn sign(&self, slots_taken: u32, changed: bool) -> Result<(), RegistryError> {
        let lease = self.alive.borrow().map(|(lease, _)| lease);
        let now = Instant::now();
        let lease = match lease {
            Some(lease) => {
                self.registry.renew(lease).await?;
                if changed {
                    self.registry.write(Write::new(vec![self.alive_with(slots_taken, lease)])).await?;
                }
                lease
            }
            None => {
                let lease = self.registry.grant(LIFE).await?;
                let own = put(ADDRESSES, self.name(), &self.address, None);
                let mut then = vec![self.alive_with(slots_taken, lease), own];
                let when = self.entry(&mut then).await?;
                if self.registry.write(Write { when, then }).await? == Verdict::Refused {
                    return Err(RegistryError::Invalid("the nodes of the cluster have just changed".into()));
                }
                if self.embedded.is_some()
                    && self.identity.founder
                    && self.registry.read(NODES).await?.entries.is_empty()
                {
                    // The first node lets itself in.
                    self.registry.write(Write::new(vec![put(NODES, self.name(), &self.first(), None)])).await?;
                }
                let heard = tokio::time::timeout(LIFE, self.hear_of(lease)).await;
                heard.map_err(|_| RegistryError::LeaseOver)??;
                lease
            }
        };
        self.alive.send_replace(Some((lease, now + LIFE)));
        Ok(())
    }

    /// Waits until this node itself has heard of its lease. What it knew before may be long over: that it coordinates the cluster, say.
    async fn hear_of(&self, lease: Lease) -> Result<(), RegistryError> {
        let mut revision = 0;
        loop {
            let alive = self.registry.changed(ALIVE, revision).await?;
            if alive.entries.iter().any(|entry| entry.lease == Some(lease)) {
                return Ok(());
            }
            revision = alive.revision;
        }
    }

    fn alive_with(&self, slots_taken: u32, lease: Lease) -> Change {
        let alive = Alive { started_ms: self.started_ms, slots: self.slots, slots_taken };
        put(ALIVE, self.name(), &alive, Some(lease))
    }

    pub(super) fn first(&self) -> NodeRecord {
        NodeRecord {
            id: self.identity.id,
            fingerprint: self.identity.fingerprint(),
            role: super::members::MEMBER.into(),
            joined_ms: now_ms(),
            leaving: false,
        }
    }

    /// Becomes the coordinator whenever there is none.
    async fn coordinate(self: Arc<Cluster>) {
        let mut view = self.view.subscribe();
        loop {
            let candidate =
                |view: &View| view.coordinator.is_none() && view.role_of(self.name()).is_some_and(|role| role.votes);
            if view.wait_for(candidate).await.is_err() {
                return;
            }
            let mut alive = self.alive.subscribe();
            let Ok(lease) = alive.wait_for(Option::is_some).await.map(|alive| alive.map(|(lease, _)| lease)) else {
                return;
            };
            let then = vec![Change::Put { key: COORDINATOR_NOW.into(), value: json(&self.name()), lease }];
            let written = async {
                let mut when = vec![Condition::Absent(COORDINATOR_NOW.into())];
                when.extend(self.standing().await?);
                self.registry.write(Write { when, then }).await
            };
            match written.await {
                Ok(Verdict::Done) => tracing::info!("this node coordinates the cluster"),
                Ok(Verdict::Refused) => {}
                Err(error) => tracing::debug!(%error, "this node does not coordinate the cluster"),
            }
            // Until that, or another's, is seen.
            let _ = tokio::time::timeout(AGAIN, view.wait_for(|view| view.coordinator.is_some())).await;
        }
    }

    /// Waits until a node is no longer known.
    pub(super) async fn is_removed(&self, node: &str) {
        let gone = |view: &View| !view.nodes.is_empty() && !view.nodes.contains_key(node);
        let _ = self.view.subscribe().wait_for(gone).await;
    }

    pub(super) async fn set_role(&self, role: &super::api::Role) -> Result<(), RegistryError> {
        self.registry.write(Write::new(vec![put(ROLES, &role.name, role, None)])).await.map(drop)
    }

    /// Forgets the cluster, which this node has left.
    pub(super) fn forget(&self) {
        let _ = std::fs::remove_file(state::registry(&self.directory));
        Identity::forget(&self.directory);
    }

    /// Lets the others know at once that this node is down.
    pub(super) async fn close(&self) {
        let alive = self.alive.send_replace(None);
        if let Some((lease, _)) = alive {
            let _ = tokio::time::timeout(SIGN, self.registry.revoke(lease)).await;
        }
        if let Some(embedded) = &self.embedded {
            embedded.close().await;
        }
    }
}
