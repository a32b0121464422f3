//! Ranks on the nodes of a cluster, whose agents start the helpers: `fulmen spawn` takes ssh's place.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;

use fulmen::parts::fabric::launch::hostfile::{HostList, Listed};
use fulmen_cluster::agent::api::{ClusterStatus, NodeState, NodeStatus, Status};
use fulmen_cluster::agent::{Client, ClientError};

use super::{HOST, HostsError, Placed, Placement, Where};
use crate::agent::{self, Which};
use crate::run::processes;

/// The nodes of a cluster.
pub struct Nodes {
    /// This program.
    pub program: OsString,
    /// Where fulmen is on the nodes.
    pub fulmen: String,
    /// The state of the agent that is asked.
    state: PathBuf,
    /// Of this host's node.
    own: Option<IpAddr>,
    addresses: HashMap<String, IpAddr>,
}

/// Gives ranks places on the nodes that are up: this host's node first, then by name.
pub fn place(which: &Which, ranks: Option<u32>, fulmen: String) -> Result<(Placement, Nodes), HostsError> {
    let refused = |cause: String| HostsError::Cluster(cause);
    let client = which.client().map_err(|error| refused(error.to_string()))?;
    let status = agent::run(async { Ok(ask(&client).await?) }).map_err(|error| refused(error.to_string()))?;
    let hosts = free(&status.cluster, &status.name, ranks).map_err(refused)?;
    let mut placement = Placement::new(&hosts, ranks, None).map_err(HostsError::Place)?;
    for host in &mut placement.hosts {
        // Whatever its name is, its agent starts its ranks, and counts them.
        host.whereabouts = Where::Elsewhere;
    }
    let addresses: HashMap<String, IpAddr> =
        status.cluster.nodes.iter().filter_map(|node| Some((node.name.clone(), ip(node)?))).collect();
    let program = processes::own_program().map_err(|error| refused(error.to_string()))?.into();
    let own = addresses.get(&status.name).copied();
    Ok((placement, Nodes { program, fulmen, state: client.state().to_owned(), own, addresses }))
}

/// What the agent knows, with the slots of each node as it counts them itself.
async fn ask(client: &Client) -> Result<Status, ClientError> {
    let mut status = client.status().await?;
    let up = status.cluster.nodes.iter_mut().filter(|node| node.state == NodeState::Up);
    let ask = |node| async move {
        let node: &mut NodeStatus = node;
        match client.on(&node.name).status().await {
            Ok(theirs) => {
                let own = theirs.cluster.nodes.iter().find(|other| other.name == theirs.name);
                node.slots_taken = own.map_or(node.slots, |own| own.slots_taken);
            }
            Err(error) => {
                tracing::warn!(node = node.name, %error, "this node gets no ranks");
                node.state = NodeState::Unknown;
            }
        }
    };
    futures_util::future::join_all(up.map(ask)).await;
    Ok(status)
}

fn ip(node: &NodeStatus) -> Option<IpAddr> {
    Some(node.address.as_ref()?.to_socket_addrs().ok()?.next()?.ip())
}

/// The nodes that have slots free, with so many places.
fn free(cluster: &ClusterStatus, own: &str, ranks: Option<u32>) -> Result<HostList, String> {
    if !cluster.in_touch {
        return Err("this host's agent is not in touch with its cluster: see fulmen status".into());
    }
    let up = || cluster.nodes.iter().filter(|node| node.state == NodeState::Up);
    let mut nodes: Vec<&NodeStatus> = up().filter(|node| node.slots > node.slots_taken).collect();
    nodes.sort_by_key(|node| (node.name != own, node.name.clone()));
    let (all, taken) = up().fold((0, 0), |(all, taken), node| (all + node.slots, taken + node.slots_taken));
    let left = all - taken.min(all);
    if nodes.is_empty() || ranks.is_some_and(|ranks| ranks > left) {
        let wanted = ranks.map_or("none is free".into(), |ranks| format!("{left} are free, and -n asks for {ranks}"));
        return Err(format!(
            "the nodes that are up have {all} slots, of which {wanted}: wait for others to end, or give nodes more (fulmen up --slots)"
        ));
    }
    let listed = |node: &NodeStatus| Listed {
        name: node.name.clone(),
        slots: Some(node.slots - node.slots_taken),
        ..Listed::default()
    };
    Ok(HostList { hosts: nodes.into_iter().map(listed).collect(), ..HostList::default() })
}

impl Nodes {
    /// What `fulmen` is told to have a node's agent start the helper.
    pub fn arguments(&self, host: &Placed) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["spawn".into(), "--state".into(), self.state.clone().into()];
        let slots = host.count.to_string();
        args.extend(["--node", &host.name, "--slots", &slots, "--stdin", "--", &self.fulmen, HOST].map(OsString::from));
        args
    }

    /// As ssh's server would say it: this machine's address and port, and the node's.
    pub fn addresses(&self, host: &Placed) -> Option<String> {
        Some(format!("{} 0 {} 0", self.own?, self.addresses.get(&host.name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: NodeState, slots: u32, slots_taken: u32) -> NodeStatus {
        NodeStatus { name: name.into(), role: "member".into(), address: None, state, slots, slots_taken, joined_ms: 0 }
    }

    #[test]
    fn ranks_go_where_slots_are_free() {
        let nodes = vec![
            node("a", NodeState::Up, 4, 1),
            node("b", NodeState::Up, 2, 2),
            node("c", NodeState::Down, 8, 0),
            node("d", NodeState::Up, 2, 0),
        ];
        let mut cluster = ClusterStatus { registry: None, in_touch: true, settled: true, coordinator: None, nodes };
        let places = |cluster: &ClusterStatus, ranks| {
            let list = free(cluster, "d", ranks)?;
            Ok::<_, String>(list.hosts.into_iter().map(|host| (host.name, host.slots.unwrap())).collect::<Vec<_>>())
        };
        assert_eq!(places(&cluster, Some(5)).unwrap(), [("d".to_string(), 2), ("a".into(), 3)]);
        let error = places(&cluster, Some(6)).unwrap_err();
        assert!(error.contains("8 slots, of which 5 are free, and -n asks for 6"), "{error}");
        cluster.nodes.retain(|node| node.name == "b");
        assert!(places(&cluster, None).unwrap_err().contains("none is free"));
        cluster.in_touch = false;
        assert!(places(&cluster, None).unwrap_err().contains("not in touch"));
    }
}
