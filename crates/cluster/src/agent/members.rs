//! What a node knows of its cluster: who belongs to it, who is up, who coordinates it, and who may do what.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::api::{ClusterStatus, NodeState, NodeStatus, Programs, Role};
use crate::registry::Snapshot;

/// Tables of the registry.
pub(super) const NODES: &str = "nodes";
pub(super) const ADDRESSES: &str = "addresses";
pub(super) const ALIVE: &str = "alive";
pub(super) const ROLES: &str = "roles";
pub(super) const TOKENS: &str = "tokens";
pub(super) const COORDINATOR: &str = "coordinator";
/// The key of the coordinator's name.
pub(super) const COORDINATOR_NOW: &str = "coordinator/now";

/// The table that says whose an etcd is, and its key: the fingerprint of the cluster's authority.
pub(super) const CLUSTER: &str = "cluster";
pub(super) const CLUSTER_ROOT: &str = "cluster/root";

/// The role of a node that may do everything.
pub(super) const MEMBER: &str = "member";
/// The role of a node that only works for others.
pub(super) const GUEST: &str = "guest";

/// A node that belongs to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    pub(super) id: u64,
    /// Of its certificate, in hex.
    pub(super) fingerprint: String,
    pub(super) role: String,
    pub(super) joined_ms: u64,
    /// It is being removed: it is no longer listened to.
    #[serde(default)]
    pub(super) leaving: bool,
}

/// A node that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Alive {
    pub(super) started_ms: u64,
    pub(super) slots: u32,
    pub(super) slots_taken: u32,
}

/// A node as others remember it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) record: NodeRecord,
    pub(super) address: Option<String>,
}

/// What may be done by a role that nobody has defined.
pub(super) fn built_in(role: &str) -> Role {
    let member = role == MEMBER;
    Role { name: role.into(), votes: member, spawn: if member { Programs::All } else { Programs::Only(Vec::new()) } }
}

/// What a node knows of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) nodes: BTreeMap<String, NodeRecord>,
    pub(super) addresses: BTreeMap<String, String>,
    pub(super) alive: BTreeMap<String, Alive>,
    pub(super) roles: BTreeMap<String, Role>,
    pub(super) coordinator: Option<String>,
}

/// The tables that make a view.
pub(super) const TABLES: [&str; 5] = [NODES, ADDRESSES, ALIVE, ROLES, COORDINATOR];

fn entries<T: DeserializeOwned>(snapshot: &Snapshot) -> BTreeMap<String, T> {
    let entry = |entry: &crate::registry::Entry| {
        let (_, name) = entry.key.split_once('/')?;
        let value = serde_json::from_slice(&entry.value);
        let value = value.inspect_err(|error| tracing::warn!(key = entry.key, %error, "an entry cannot be read"));
        Some((name.to_owned(), value.ok()?))
    };
    snapshot.entries.iter().filter_map(entry).collect()
}

impl View {
    pub(super) fn new(known: &[Known]) -> View {
        let nodes = known.iter().map(|known| (known.name.clone(), known.record.clone())).collect();
        let address = |known: &Known| Some((known.name.clone(), known.address.clone()?));
        View { nodes, addresses: known.iter().filter_map(address).collect(), ..View::default() }
    }

    /// Takes what a table says now.
    pub(super) fn take(&mut self, table: &str, snapshot: &Snapshot) {
        match table {
            NODES => self.nodes = entries(snapshot),
            ADDRESSES => self.addresses = entries(snapshot),
            ALIVE => self.alive = entries(snapshot),
            ROLES => self.roles = entries(snapshot),
            _ => self.coordinator = entries(snapshot).remove("now"),
        }
    }

    /// The nodes, to be remembered.
    pub(super) fn known(&self) -> Vec<Known> {
        let known = |(name, record): (&String, &NodeRecord)| Known {
            name: name.clone(),
            record: record.clone(),
            address: self.addresses.get(name).cloned(),
        };
        self.nodes.iter().map(known).collect()
    }

    pub(super) fn named(&self, id: u64) -> Option<&str> {
        self.nodes.iter().find(|(_, record)| record.id == id).map(|(name, _)| &**name)
    }

    /// The node with this certificate. Which name is in it proves nothing.
    pub(super) fn of_fingerprint(&self, fingerprint: &str) -> Option<(&str, &NodeRecord)> {
        let node = self.nodes.iter().find(|(_, record)| record.fingerprint == fingerprint)?;
        Some((&**node.0, node.1))
    }

    pub(super) fn role(&self, name: &str) -> Role {
        self.roles.get(name).cloned().unwrap_or_else(|| built_in(name))
    }

    /// What a node may do. Nothing, if it is none or is being removed.
    pub(super) fn role_of(&self, node: &str) -> Option<Role> {
        self.nodes.get(node).filter(|record| !record.leaving).map(|record| self.role(&record.role))
    }

    /// Who is to belong to the registry, and who of them is to vote.
    pub(super) fn members(&self) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let stay = || self.nodes.values().filter(|record| !record.leaving);
        let voters = stay().filter(|record| self.role(&record.role).votes);
        (stay().map(|record| record.id).collect(), voters.map(|record| record.id).collect())
    }

    /// As it is told to people: by a node that is in touch with the others, or is not.
    pub(super) fn status(&self, this: &str, in_touch: bool) -> ClusterStatus {
        let status = |(name, record): (&String, &NodeRecord)| NodeStatus {
            name: name.clone(),
            role: record.role.clone(),
            address: self.addresses.get(name).cloned(),
            state: match self.alive.contains_key(name) {
                _ if record.leaving => NodeState::Leaving,
                _ if name == this => NodeState::Up,
                _ if !in_touch => NodeState::Unknown,
                true => NodeState::Up,
                false => NodeState::Down,
            },
            slots: self.alive.get(name).map_or(0, |alive| alive.slots),
            slots_taken: self.alive.get(name).map_or(0, |alive| alive.slots_taken),
            joined_ms: record.joined_ms,
        };
        let coordinator = self.coordinator.clone().filter(|_| in_touch);
        let nodes = self.nodes.iter().map(status).collect();
        ClusterStatus { registry: None, in_touch, settled: false, coordinator, nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Entry;

    #[test]
    fn it_is_made_of_the_tables_and_nothing_in_them_breaks_it() {
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into(), version: 1, lease: None };
        let mut view = View::default();
        let node = |id| format!(r#"{{"id":{id},"fingerprint":"f{id}","role":"member","joined_ms":1}}"#);
        let entries = vec![entry("nodes/a", &node(1)), entry("nodes/b", &node(2)), entry("nodes/c", "nonsense")];
        view.take(NODES, &Snapshot { revision: 1, entries });
        view.take(COORDINATOR, &Snapshot { revision: 1, entries: vec![entry("coordinator/now", "\"a\"")] });
        let alive = vec![entry("alive/b", r#"{"started_ms":1,"slots":4,"slots_taken":0}"#)];
        view.take(ALIVE, &Snapshot { revision: 1, entries: alive });
        assert_eq!(view.named(2), Some("b"));
        assert_eq!(view.of_fingerprint("f1").unwrap().0, "a");
        assert_eq!(view.of_fingerprint("f3"), None);
        let states = |in_touch| -> Vec<NodeState> {
            view.status("a", in_touch).nodes.into_iter().map(|node| node.state).collect()
        };
        assert_eq!(states(true), [NodeState::Up, NodeState::Up]);
        assert_eq!(states(false), [NodeState::Up, NodeState::Unknown]);
        assert_eq!(view.status("b", true).nodes[0].state, NodeState::Down);
        assert_eq!(view.status("a", false).coordinator, None);
        assert_eq!(View::new(&view.known()).nodes, view.nodes);
    }

    #[test]
    fn roles_say_who_may_start_what() {
        let mut view = View::default();
        let record = |role: &str, leaving| NodeRecord {
            id: 1,
            fingerprint: String::new(),
            role: role.into(),
            joined_ms: 0,
            leaving,
        };
        for (name, role) in [("m", MEMBER), ("g", GUEST), ("b", "builder")] {
            view.nodes.insert(name.into(), record(role, false));
        }
        view.nodes.insert("gone".into(), record(MEMBER, true));
        let builder = Role { name: "builder".into(), votes: false, spawn: Programs::Only(vec!["make".into()]) };
        view.roles.insert("builder".into(), builder);
        let may = |node: &str, program: &str| view.role_of(node).is_some_and(|role| role.spawn.allows(program));
        assert!(may("m", "/bin/sh") && !may("g", "true") && !may("nobody", "true") && !may("gone", "true"));
        assert!(may("b", "make") && !may("b", "/tmp/make") && !may("b", "sh") && !may("b", ""));
    }
}
