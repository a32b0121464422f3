//! Devices that the agent owns, for the programs of its host: what its owner says to those of other nodes goes from agent to agent.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fulmen_attach::{Desk, DeviceStatus, Far, Owner, OwnerError, socket};
use fulmen_verbs::{Device, Gid};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt, Limited};
use hyper::{Request, StatusCode};
use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::peers::full;

/// How long other nodes may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// More than the longest answer.
const LONGEST: usize = 64 << 10;

pub(super) struct Devices {
    owner: Owner,
    nodes: Arc<Nodes>,
    desk: Mutex<Option<Desk>>,
}

/// Which node has the device of a GID, as far as it was heard.
#[derive(Default)]
struct Nodes(Mutex<HashMap<Gid, String>>);

impl Nodes {
    fn all(&self) -> MutexGuard<'_, HashMap<Gid, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node says that it has a device: it is believed, unless another one that is up has said so.
    fn claim(&self, gid: Gid, node: String) -> Result<(), Unanswered> {
        let mut all = self.all();
        let known = all.entry(gid).or_insert_with(|| node.clone());
        if *known == node { Ok(()) } else { Err(Unanswered::Others { gid, node, known: known.clone() }) }
    }
}

/// Why another node's owner gets no answer.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("no device of this node has the GID {0}")]
    NotHere(Gid),
    #[error("node {node} says that the device with the GID {gid} is its own, but it is known as that of node {known}")]
    Others { gid: Gid, node: String, known: String },
}

/// The way to other nodes' owners.
struct Way {
    cluster: Weak<Cluster>,
    nodes: Arc<Nodes>,
    runtime: Handle,
}

impl Devices {
    /// Takes devices, if there are any, and lets programs come to a socket in the agent's state.
    pub(super) fn open(
        devices: Vec<Arc<dyn Device>>,
        state: &Path,
        cluster: &Arc<Cluster>,
    ) -> Result<Option<Devices>, OpenError> {
        if devices.is_empty() {
            return Ok(None);
        }
        let nodes = Arc::<Nodes>::default();
        let way = Way { cluster: Arc::downgrade(cluster), nodes: nodes.clone(), runtime: Handle::current() };
        let owner = Owner::new(devices, Arc::new(way))?;
        let path = socket(state);
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        Ok(Some(Devices { desk: Mutex::new(Some(owner.serve(listener)?)), owner, nodes }))
    }

    /// Ends what programs have.
    pub(super) async fn close(&self) {
        let desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner).take();
        // It waits for programs' threads, which may have to hear from another node, which takes this one.
        let _ = tokio::task::spawn_blocking(move || drop(desk)).await;
    }

    pub(super) fn status(&self) -> Vec<DeviceStatus> {
        self.owner.status()
    }

    /// Answers what another node's owner asks of the device with a GID.
    pub(super) async fn answer(&self, gid: Gid, by: Option<String>, call: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        if !self.owner.has(gid) {
            return Err(Unanswered::NotHere(gid));
        }
        if let (Some(node), Some(asker)) = (by, Owner::asker(&call)) {
            self.nodes.claim(asker, node)?;
        }
        let owner = self.owner.clone();
        // The device takes its time, and it may have to ask back.
        tokio::task::spawn_blocking(move || owner.answer(&call)).await.map_err(|_| Unanswered::NotHere(gid))
    }

    /// A node is down: a device may not tell.
    pub(super) fn lost(&self, node: &str) {
        let there: Vec<Gid> = self.nodes.all().extract_if(|_, known| known == node).map(|(gid, _)| gid).collect();
        if there.is_empty() {
            return;
        }
        let owner = self.owner.clone();
        tokio::task::spawn_blocking(move || there.into_iter().for_each(|gid| owner.lost(gid)));
    }
}

/// Why devices are not owned.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// One cannot be.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The system refused something.
    #[error("programs cannot come to the agent for its devices: {0}")]
    System(#[from] io::Error),
}

impl Far for Way {
    fn ask(&self, gid: Gid, call: &[u8]) -> Result<Vec<u8>, String> {
        let cluster = self.cluster.upgrade().ok_or("the agent is about to end")?;
        // Clocks are the runtime's, too.
        let asked = async { tokio::time::timeout(PATIENCE, ask_all(&cluster, gid, call)).await };
        let asked = self.runtime.block_on(asked);
        let (node, answer) = asked.map_err(|_| format!("no node has answered within {} s", PATIENCE.as_secs()))??;
        self.nodes.all().insert(gid, node);
        Ok(answer)
    }
}

/// Asks all other nodes: the one with that device answers.
async fn ask_all(cluster: &Cluster, gid: Gid, call: &[u8]) -> Result<(String, Vec<u8>), String> {
    let others: Vec<String> = cluster.view().nodes.keys().filter(|node| *node != cluster.name()).cloned().collect();
    let mut asked: FuturesUnordered<_> = others.iter().map(|node| ask(cluster, node, gid, call)).collect();
    let mut problems = Vec::new();
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    let what = format!("no node of the cluster owns a device with the GID {gid}");
    Err(if problems.is_empty() { what } else { format!("{what}, and not all were asked: {}", problems.join("; ")) })
}

/// None if the node has no such device.
async fn ask(cluster: &Cluster, node: &str, gid: Gid, call: &[u8]) -> Result<Option<(String, Vec<u8>)>, String> {
    let mut sender = cluster.peers.open(node).await.map_err(|error| error.to_string())?;
    let failed = |error: String| format!("node {node} went away ({error})");
    let request = Request::post(format!("/v1/trunks/{gid}")).header("host", node).body(full(call.to_vec()));
    let request = request.map_err(|error| failed(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(|error| failed(error.to_string()))?;
    match response.status() {
        StatusCode::OK => {
            let body = Limited::new(response.into_body(), LONGEST).collect().await;
            let body = body.map_err(|error| failed(error.to_string()))?.to_bytes();
            Ok(Some((node.to_owned(), body.to_vec())))
        }
        StatusCode::NOT_FOUND => Ok(None),
        status => Err(format!("node {node} refuses with {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device of a node that is up is no other's.
    #[test]
    fn nobody_takes_a_device_for_its_own_that_is_anothers() {
        let (nodes, gid) = (Nodes::default(), Gid([7; 16]));
        assert_eq!(nodes.claim(gid, "b".into()), Ok(()));
        assert_eq!(nodes.claim(gid, "b".into()), Ok(()));
        let refused = nodes.claim(gid, "c".into()).unwrap_err();
        assert_eq!(refused, Unanswered::Others { gid, node: "c".into(), known: "b".into() });
        assert!(nodes.claim(Gid([8; 16]), "c".into()).is_ok());
        nodes.all().remove(&gid);
        assert_eq!(nodes.claim(gid, "c".into()), Ok(()));
    }
}
