//! Clusters whose registry is an etcd: real servers, and agents that join, die, are removed and come back.

use std::fs;
use std::path::PathBuf;

use fulmen_testbed::Etcd;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ended, Running, fulmen, wait_until};

/// A node of a cluster, in the foreground.
struct Node {
    name: &'static str,
    place: TempDir,
    keeper: Running,
}

fn state(place: &TempDir) -> PathBuf {
    place.path().join("state")
}

fn address(etcd: &Etcd, servers: usize) -> String {
    let endpoints: Vec<String> = (0..servers).map(|server| etcd.endpoint(server)).collect();
    format!("etcd://{}/cluster/a", endpoints.join(","))
}

impl Node {
    fn start(name: &'static str, place: TempDir, args: &[&str]) -> Node {
        let fixed = ["up", "--foreground", "--name", name, "--slots", "2", "--state"];
        let keeper = fulmen(&[&fixed[..], &[state(&place).to_str().unwrap()], args].concat());
        let node = Node { name, place, keeper };
        wait_until("the agent to answer", || node.run("status", &["--json"]).code == Some(0));
        node
    }

    fn found(name: &'static str, registry: &str) -> Node {
        let node = Node::start(name, tempfile::tempdir().unwrap(), &["--registry", registry]);
        wait_until("it to coordinate", || node.coordinator().as_deref() == Some(name));
        node
    }

    fn join(name: &'static str, token: &str) -> Node {
        Node::start(name, tempfile::tempdir().unwrap(), &["--join", token])
    }

    fn run(&self, command: &str, args: &[&str]) -> Ended {
        fulmen(&[&[command, "--state", state(&self.place).to_str().unwrap()], args].concat()).end()
    }

    fn token(&self, args: &[&str]) -> String {
        let ended = self.run("token", args);
        assert_eq!((ended.code, &*ended.err), (Some(0), ""));
        ended.out.trim().to_owned()
    }

    fn status(&self) -> Value {
        serde_json::from_str::<Value>(&self.run("status", &["--json"]).out).expect("JSON")["cluster"].take()
    }

    fn states(&self) -> Vec<(String, String)> {
        let status = self.status();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().map(|node| (text(&node["name"]), text(&node["state"]))).collect()
    }

    fn all_up(&self, count: usize) -> bool {
        let states = self.states();
        states.len() == count && states.iter().all(|(_, state)| state == "up")
    }

    fn coordinator(&self) -> Option<String> {
        self.status()["coordinator"].as_str().map(str::to_owned)
    }

    /// Kills the agent, whose keeper ends what is left, and gives the state back.
    fn kill(mut self) -> TempDir {
        let status: Value = serde_json::from_str(&self.run("status", &["--json"]).out).expect("JSON");
        kill_process(Pid::from_raw(status["pid"].as_i64().unwrap() as i32).unwrap(), Signal::KILL).unwrap();
        self.keeper.wait_exit();
        wait_until("nothing to be left", || self.keeper.processes().is_empty());
        self.place
    }
}

fn refused(ended: &Ended, code: i32, words: &str) {
    assert!(ended.code == Some(code) && ended.err.contains(words), "{:?} {}", ended.code, ended.err);
}

fn leave(mut node: Node) {
    let left = node.run("down", &["--leave"]);
    let said = format!("agent {} has ended; it has left its cluster\n", node.name);
    assert_eq!((left.code, &*left.out), (Some(0), &*said), "{}", left.err);
    node.keeper.wait_exit();
}

/// `fulmen up` for a node that does not come up.
fn up(place: &TempDir, args: &[&str]) -> Ended {
    fulmen(&[&["up", "--state", state(place).to_str().unwrap()], args].concat()).end()
}

#[test]
fn nodes_agree_in_an_etcd_and_find_it_again() {
    let Some(etcd) = Etcd::or_skip("a cluster of agents in etcd", 3) else { return };
    let registry = address(&etcd, 3);
    let first = Node::found("a", &registry);
    let token = first.token(&["--uses", "2"]);
    let nodes = [first, Node::join("b", &token), Node::join("c", &token)];
    for node in &nodes {
        wait_until("all nodes to be up", || node.all_up(3));
        let status = node.status();
        assert_eq!((&status["registry"], &status["settled"]), (&registry.as_str().into(), &true.into()));
        for other in ["a", "b", "c"] {
            assert_eq!(node.run("spawn", &["--node", other, "--", "sh", "-c", "exit 5"]).code, Some(5));
        }
        assert!(!state(&node.place).join("registry.redb").exists());
    }
    let late = tempfile::tempdir().unwrap();
    refused(&up(&late, &["--name", "d", "--join", &token]), 1, "was used already");

    // A node dies, and a server with it: the others go on, and another coordinates.
    let [a, b, c] = nodes;
    etcd.kill(0);
    let place = a.kill();
    for node in [&b, &c] {
        wait_until("it to be down", || node.states().contains(&("a".into(), "down".into())));
        wait_until("another coordinator", || node.coordinator().is_some_and(|name| name != "a"));
    }
    assert_eq!(b.coordinator(), c.coordinator());
    assert_eq!(b.run("spawn", &["--gateway", "--", "sh", "-c", "exit 9"]).code, Some(9));
    // It finds the registry without being told.
    let a = Node::start("a", place, &[]);
    for node in [&a, &b, &c] {
        wait_until("all nodes to be up again", || node.all_up(3));
    }
    assert_eq!(c.run("spawn", &["--node", "a", "--", "sh", "-c", "exit 4"]).code, Some(4));

    // Without a majority of servers nothing is agreed on, and own work goes on.
    etcd.kill(1);
    for node in [&a, &b, &c] {
        wait_until("it to notice", || node.status()["in_touch"] == false);
    }
    let said = a.run("status", &[]).out;
    assert!(said.contains(&format!("not in touch with the registry {registry}")), "{said}");
    assert!(a.states().contains(&("b".into(), "unknown".into())), "{:?}", a.states());
    refused(&a.run("token", &[]), 1, "does not answer");
    assert_eq!(a.run("spawn", &["--", "sh", "-c", "exit 3"]).code, Some(3));
    etcd.start(0);
    for node in [&a, &b, &c] {
        wait_until("all nodes to be up with the servers", || node.all_up(3));
        wait_until("a coordinator", || node.coordinator().is_some());
    }

    // What else is given later is refused.
    let place = a.kill();
    for other in ["etcd://127.0.0.1:1", &*registry.replace("/a", "/b")] {
        refused(&up(&place, &["--registry", other]), 1, &format!("has its registry at {registry}, for good"));
    }
    refused(&up(&place, &["--recover"]), 1, "leave --recover out");
    let a = Node::start("a", place, &["--registry", &registry]);
    wait_until("it to be back", || a.all_up(3));
}

#[test]
fn whoever_is_removed_from_an_etcd_or_leaves_is_gone() {
    let Some(etcd) = Etcd::or_skip("nodes that are removed from an etcd", 1) else { return };
    let registry = address(&etcd, 1);
    let a = Node::found("a", &registry);
    let token = a.token(&["--uses", "2"]);
    let (b, c) = (Node::join("b", &token), Node::join("c", &token));
    wait_until("all nodes to be up", || a.all_up(3) && b.all_up(3) && c.all_up(3));
    let removed = c.run("remove", &["a"]);
    assert_eq!((removed.code, &*removed.out), (Some(0), "node a is removed\n"), "{}", removed.err);
    for node in [&b, &c] {
        wait_until("the others to agree", || node.all_up(2));
        wait_until("another coordinator", || node.coordinator().is_some_and(|name| name != "a"));
    }
    // It still reaches the registry, and says nothing there any more.
    wait_until("it to notice", || a.status()["in_touch"] == false);
    assert_eq!(a.run("spawn", &["--node", "b", "--", "true"]).code, Some(1));
    assert_eq!(a.run("spawn", &["--", "true"]).code, Some(0), "at home it works");
    leave(a);
    let a = Node::join("a", &b.token(&[]));
    wait_until("it to be back", || a.all_up(3) && b.all_up(3));

    // Another cluster has to be somewhere else.
    let place = tempfile::tempdir().unwrap();
    refused(&up(&place, &["--name", "x", "--registry", &registry]), 1, "another cluster has the registry");
    assert!(!state(&place).join("node.json").exists());
    let other = Node::start("x", place, &["--registry", &registry.replace("/a", "/b")]);
    wait_until("it to be alone", || other.all_up(1));

    leave(c);
    wait_until("the others to forget it", || a.all_up(2) && b.all_up(2));
    leave(a);
    wait_until("the other to forget it", || b.all_up(1));
    leave(b);
    // Nothing is left of it, so that there may be another.
    let again = Node::found("y", &registry);
    wait_until("it to be alone", || again.all_up(1));
}

#[test]
fn an_etcd_that_was_emptied_is_no_registry_and_makes_no_other_cluster() {
    let Some(etcd) = Etcd::or_skip("an etcd that was emptied", 1) else { return };
    let a = Node::found("a", &address(&etcd, 1));
    let b = Node::join("b", &a.token(&[]));
    wait_until("all nodes to be up", || a.all_up(2) && b.all_up(2));
    etcd.kill(0);
    etcd.empty(0);
    etcd.start(0);
    let problem = "it was emptied, or another cluster has it";
    for node in [&a, &b] {
        wait_until("it to notice", || node.status()["in_touch"] == false);
        node.keeper.wait_for_message(problem);
        assert_eq!(node.states().len(), 2, "{:?}", node.states());
    }
    // Nor by one that made it, and is started again.
    let a = Node::start("a", a.kill(), &[]);
    a.keeper.wait_for_message(problem);
    assert_eq!((a.states().len(), a.status()["in_touch"].as_bool()), (2, Some(false)));
}

#[test]
fn a_registry_that_is_none_is_said_to_be() {
    let place = tempfile::tempdir().unwrap();
    for (bad, words) in [
        ("localhost:2379", "is no registry"),
        ("etcds://localhost:2379", "without TLS so far"),
        ("etcd://localhost", "is no address of a server"),
        ("etcd://localhost:1/a b", "cannot be a prefix"),
    ] {
        refused(&up(&place, &["--registry", bad]), 2, words);
    }
    refused(&up(&place, &["--registry", "etcd://a:1", "--join", "x"]), 2, "cannot be used with");
    // Nobody listens there any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ended = up(&place, &["--name", "x", "--registry", &format!("etcd://{gone}")]);
    refused(&ended, 1, &format!("the registry at etcd://{gone}/fulmen does not answer"));
    // A cluster that was never made is forgotten.
    assert!(!fs::exists(state(&place).join("node.json")).unwrap());
    // One that has its registry among its nodes keeps it there.
    let node = Node::start("x", place, &[]);
    let place = node.kill();
    refused(&up(&place, &["--registry", "etcd://127.0.0.1:1"]), 1, "has its registry among its nodes, for good");
}
