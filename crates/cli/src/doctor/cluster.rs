//! The agent of this host, and the cluster to which it belongs.

use std::time::Duration;

use fulmen_cluster::agent::api::{NodeState, Status};
use fulmen_cluster::agent::{Client, ClientError};

use super::report::Check;
use crate::agent::{Which, run};

const NAME: &str = "agent";

/// Whether an agent answers, of this version, and whether it knows how its cluster is.
pub fn check(which: &Which, patience: Duration) -> Check {
    let client = match which.client() {
        Ok(client) => client,
        Err(error) => return Check::not_applicable(NAME, error.to_string()),
    };
    let asked = run(async { Ok(tokio::time::timeout(patience, client.status()).await) });
    match asked {
        Ok(Ok(Ok(status))) => found(&status),
        Ok(Ok(Err(ClientError::NotUp(state)))) => Check::not_applicable(
            NAME,
            format!(
                "none is up with its state in {}: `fulmen up` starts one; ranks and their programs need none",
                state.display()
            ),
        ),
        Ok(Ok(Err(error))) => Check::failure(NAME, told(&client, &error), "fulmen down, and fulmen up again"),
        Ok(Err(_)) | Err(_) => Check::failure(
            NAME,
            told(&client, &format!("it has not answered for {} s", patience.as_secs_f64())),
            "if its process is stopped (`pgrep -fa fulmen` lists it), continue it (kill -CONT), or end it (kill)",
        ),
    }
}

fn told(client: &Client, problem: &dyn std::fmt::Display) -> String {
    format!("the agent with its state in {} cannot be asked: {problem}", client.state().display())
}

fn found(status: &Status) -> Check {
    let Status { name, version, cluster, .. } = status;
    let known = cluster.nodes.len();
    let up = cluster.nodes.iter().filter(|node| node.state == NodeState::Up).count();
    if version != env!("CARGO_PKG_VERSION") {
        let sentence = format!("node {name} is up with fulmen {version}, and this is {}", env!("CARGO_PKG_VERSION"));
        return Check::warning(NAME, sentence, "fulmen down, and fulmen up with this version");
    }
    if cluster.in_touch {
        return Check::ok(NAME, format!("node {name} is up, and knows of {up} of {known} nodes that they are"));
    }
    match &cluster.registry {
        None => Check::warning(
            NAME,
            format!(
                "node {name} is not in touch with a majority of its cluster's {known} nodes: nobody can join, and what others do is not known"
            ),
            "start the others (`fulmen up` there), let firewalls pass their addresses (`fulmen status`), or remove what is gone for good (`fulmen remove`)",
        ),
        Some(registry) => Check::warning(
            NAME,
            format!(
                "node {name} is not in touch with its cluster's registry, {registry}: nobody can join, and what others do is not known"
            ),
            "see whether etcd has a majority of its servers (`etcdctl endpoint health`), and whether they are reached from here",
        ),
    }
}
