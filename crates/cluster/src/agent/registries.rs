//! What a cluster does in its own way with each kind of registry: one that its nodes keep, of whose members it has to be told, and one
//! that is elsewhere, which knows nothing of nodes.
//!
//! Whoever reaches an etcd can change everything there. So that mistakes do no harm, a cluster puts down there whose it is, and a node
//! that was removed, which still reaches it, does not say any more that it is up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::StartError;
use super::cluster::{Cluster, put};
use super::identity::{Identity, hex};
use super::members::{
    ADDRESSES, ALIVE, CLUSTER, CLUSTER_ROOT, COORDINATOR, COORDINATOR_NOW, NODES, NodeRecord, TABLES, TOKENS,
};
use super::peers::Peers;
use crate::registry::{Change, Condition, Embedded, Entry, Etcd, Registry, RegistryError, Verdict, Write};

/// How often it is looked whether the registry's members are the cluster's.
const LOOK: Duration = Duration::from_millis(250);
/// Changes of one write, of which an etcd allows 128.
const CHANGES: usize = 100;
/// How often a claim is made whose fate is unknown.
const CLAIMS: usize = 3;

/// The registry of a node's cluster, and the node's own part of it.
pub(super) async fn open(
    directory: &Path,
    identity: &Identity,
    peers: Arc<Peers>,
) -> Result<(Arc<dyn Registry>, Option<Embedded>), StartError> {
    if let Some(address) = &identity.registry {
        return Ok((Arc::new(Etcd::new(address.clone())), None));
    }
    let embedded = Embedded::open(identity.id, &super::state::registry(directory), peers).await?;
    if identity.founder {
        embedded.found().await?;
    }
    Ok((Arc::new(embedded.clone()), Some(embedded)))
}

/// Whose an etcd is.
enum Owner {
    Nobody,
    This,
    Other,
}

fn root(identity: &Identity) -> String {
    hex(&fulmen_trust::fingerprint(&identity.root))
}

async fn find(registry: &dyn Registry, table: &str, key: &str) -> Result<Option<Entry>, RegistryError> {
    Ok(registry.read(table).await?.entries.into_iter().find(|entry| entry.key == key))
}

async fn owner(registry: &dyn Registry, identity: &Identity) -> Result<Owner, RegistryError> {
    let entry = find(registry, CLUSTER, CLUSTER_ROOT).await?;
    let own = |entry: Entry| serde_json::from_slice::<String>(&entry.value).is_ok_and(|text| text == root(identity));
    Ok(entry.map_or(Owner::Nobody, |entry| if own(entry) { Owner::This } else { Owner::Other }))
}

/// Makes an etcd that is nobody's a cluster's: whether it is that now.
async fn claim(registry: &dyn Registry, identity: &Identity) -> Result<bool, RegistryError> {
    let mut doubt = None;
    for _ in 0..CLAIMS {
        match owner(registry, identity).await? {
            Owner::This => return Ok(true),
            Owner::Other => return Ok(false),
            Owner::Nobody => {}
        }
        let when = vec![Condition::Absent(CLUSTER_ROOT.into())];
        let write = Write { when, then: vec![put(CLUSTER, "root", &root(identity), None)] };
        match registry.write(write).await {
            // By whom, the next look tells.
            Ok(_) => {}
            Err(error @ RegistryError::Unknown(_)) => doubt = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(doubt.unwrap_or_else(|| RegistryError::Invalid("others change it all the time".into())))
}

/// The same for a cluster that is new. One that cannot have it is forgotten.
pub(super) async fn claim_first(
    directory: &Path,
    registry: &dyn Registry,
    identity: &Identity,
) -> Result<(), StartError> {
    let claimed = claim(registry, identity).await;
    // If it may be this one's, the next start finds out.
    if !matches!(claimed, Ok(true) | Err(RegistryError::Unknown(_))) {
        Identity::forget(directory);
    }
    match (claimed?, identity.registry.clone()) {
        (false, Some(address)) => Err(StartError::TakenRegistry(address)),
        _ => Ok(()),
    }
}

impl Cluster {
    /// This node's record, if it still belongs to the cluster.
    async fn own_record(&self) -> Result<Result<Entry, usize>, RegistryError> {
        let nodes = self.registry.read(NODES).await?.entries;
        let (count, key) = (nodes.len(), format!("{NODES}/{}", self.name()));
        let own = |entry: &Entry| {
            let record = serde_json::from_slice::<NodeRecord>(&entry.value);
            entry.key == key && record.is_ok_and(|record| record.id == self.identity.id)
        };
        Ok(nodes.into_iter().find(own).ok_or(count))
    }

    /// What has to hold for as long as this node belongs to the cluster, where nobody else sees to that.
    pub(super) async fn standing(&self) -> Result<Vec<Condition>, RegistryError> {
        if self.embedded.is_some() {
            return Ok(Vec::new());
        }
        let removed =
            "this node was removed from its cluster: have it forget that (fulmen down --leave), and join again";
        let own = self.own_record().await?.map_err(|_| RegistryError::Invalid(removed.into()))?;
        Ok(vec![Condition::Version(own.key, own.version)])
    }

    /// What has to hold when this node says that it is up. The first node of a cluster lets itself in.
    pub(super) async fn entry(&self, then: &mut Vec<Change>) -> Result<Vec<Condition>, RegistryError> {
        if self.embedded.is_some() {
            return Ok(Vec::new());
        }
        // Of one that was emptied later, no cluster is made anew: it would have lost its nodes.
        let new = self.identity.founder && self.identity.known.is_empty() && self.view().nodes.is_empty();
        let owned = match owner(&*self.registry, &self.identity).await? {
            Owner::Nobody => new && claim(&*self.registry, &self.identity).await?,
            Owner::This => true,
            Owner::Other => false,
        };
        if !owned {
            let problem =
                "the registry does not have this node's cluster any more: it was emptied, or another cluster has it";
            return Err(RegistryError::Invalid(problem.into()));
        }
        if new && matches!(self.own_record().await?, Err(0)) {
            then.push(put(NODES, self.name(), &self.first(), None));
            return Ok(vec![Condition::Absent(format!("{NODES}/{}", self.name()))]);
        }
        self.standing().await
    }

    /// Has the registry's members be the cluster's, as long as this node leads it.
    pub(super) async fn reconcile(self: Arc<Cluster>, embedded: Embedded) {
        loop {
            sleep(LOOK).await;
            if embedded.is_closed() {
                return;
            }
            if !embedded.leads() {
                continue;
            }
            let (wanted, leaving) = {
                let view = self.view();
                let leaving = view.nodes.iter().filter(|(_, record)| record.leaving);
                let leaving: Vec<_> = leaving.map(|(name, record)| (name.clone(), record.id)).collect();
                (view.members(), leaving)
            };
            if embedded.members() != wanted && !wanted.1.is_empty() {
                if let Err(error) = embedded.set_members(wanted.0, wanted.1).await {
                    tracing::debug!(%error, "the members of the registry are not the cluster's yet");
                }
                continue;
            }
            for (name, id) in leaving {
                if !embedded.members().0.contains(&id) {
                    let tables = [NODES, ALIVE, ADDRESSES];
                    let then = tables.map(|table| Change::Delete(format!("{table}/{name}"))).to_vec();
                    let _ = self.registry.write(Write::new(then)).await;
                }
            }
        }
    }

    /// Has a node be removed: from now on nobody listens to it. False if there is none.
    pub(super) async fn remove(&self, node: &str) -> Result<bool, RegistryError> {
        match &self.embedded {
            Some(_) => self.change_node(node, |record| record.leaving = true).await,
            None => self.take_out(node).await,
        }
    }

    async fn change_node(&self, node: &str, change: impl Fn(&mut NodeRecord)) -> Result<bool, RegistryError> {
        loop {
            let nodes = self.registry.read(NODES).await?;
            let key = format!("{NODES}/{node}");
            let Some(entry) = nodes.entries.into_iter().find(|entry| entry.key == key) else { return Ok(false) };
            let Ok(mut record) = serde_json::from_slice(&entry.value) else { return Ok(false) };
            change(&mut record);
            let when = vec![Condition::Version(key, entry.version)];
            let write = Write { when, then: vec![put(NODES, node, &record, None)] };
            if self.registry.write(write).await? == Verdict::Done {
                return Ok(true);
            }
        }
    }

    /// Removes everything of a node at once. It may still reach the registry, so that it does not end by itself what ends with it.
    async fn take_out(&self, node: &str) -> Result<bool, RegistryError> {
        let registry = &*self.registry;
        loop {
            let key = format!("{NODES}/{node}");
            let Some(entry) = find(registry, NODES, &key).await? else { return Ok(false) };
            let lease = find(registry, ALIVE, &format!("{ALIVE}/{node}")).await?.and_then(|alive| alive.lease);
            let mut when = vec![Condition::Version(key, entry.version)];
            let mut then = [NODES, ALIVE, ADDRESSES].map(|table| Change::Delete(format!("{table}/{node}"))).to_vec();
            let coordinator = find(registry, COORDINATOR, COORDINATOR_NOW).await?;
            let own = |entry: &Entry| serde_json::from_slice::<String>(&entry.value).is_ok_and(|name| name == node);
            if let Some(entry) = coordinator.filter(own) {
                when.push(Condition::Version(entry.key.clone(), entry.version));
                then.push(Change::Delete(entry.key));
            }
            if registry.write(Write { when, then }).await? == Verdict::Done {
                if let Some(lease) = lease {
                    let _ = registry.revoke(lease).await;
                }
                return Ok(true);
            }
        }
    }

    /// Waits until this node, which is being removed, has no part in the registry any more.
    pub(super) async fn let_go(&self) {
        let Some(embedded) = &self.embedded else { return };
        while embedded.members().1.contains(&self.identity.id) {
            sleep(LOOK).await;
        }
    }

    /// Leaves nothing of the cluster, whose last node this is, in a registry that stays.
    pub(super) async fn dissolve(&self) -> Result<(), RegistryError> {
        if self.embedded.is_some() {
            return Ok(());
        }
        if self.registry.read(NODES).await?.entries.len() > 1 {
            // It has not seen the others yet.
            return self.remove(self.name()).await.map(drop);
        }
        // Whose it is last, so that what is left by a failure is this cluster's.
        for table in TABLES.into_iter().chain([TOKENS, CLUSTER]) {
            let all: Vec<Change> =
                self.registry.read(table).await?.entries.into_iter().map(|entry| Change::Delete(entry.key)).collect();
            for some in all.chunks(CHANGES) {
                self.registry.write(Write::new(some.to_vec())).await?;
            }
        }
        Ok(())
    }
}
