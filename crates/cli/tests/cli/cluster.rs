//! Agents that are a cluster: joining, roles, processes on other nodes, and nodes that die, are cut off, removed and come back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ended, FULMEN, Running, fulmen, start_with_stdin, wait_until, wait_until_settled};

/// A node of a cluster, in the foreground.
struct Node {
    name: &'static str,
    place: TempDir,
    keeper: Running,
}

impl Node {
    /// The first node of a new cluster.
    fn found(name: &'static str) -> Node {
        Node::start(name, tempfile::tempdir().unwrap())
    }

    fn start(name: &'static str, place: TempDir) -> Node {
        let state = state(&place);
        let keeper =
            fulmen(&["up", "--foreground", "--name", name, "--slots", "2", "--state", state.to_str().unwrap()]);
        let node = Node { name, place, keeper };
        wait_until("the agent to answer", || node.run("status", &["--json"]).code == Some(0));
        node
    }

    /// Another node, with a token that comes by standard input.
    fn join(name: &'static str, token: &str) -> Node {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(FULMEN);
        let fixed = ["up", "--foreground", "--name", name, "--slots", "2", "--join", "-", "--state"];
        command.args(fixed).arg(state(&place));
        let file = place.path().join("token");
        fs::write(&file, token).unwrap();
        let keeper = start_with_stdin(&mut command, Stdio::from(fs::File::open(file).unwrap()));
        let node = Node { name, place, keeper };
        wait_until("the agent to answer", || node.run("status", &["--json"]).code == Some(0));
        node.wait_until_coordinated();
        node
    }

    /// A cluster of members.
    fn cluster<const N: usize>(names: [&'static str; N]) -> [Node; N] {
        let first = Node::found(names[0]);
        let token = first.token(&["--uses", "9"]);
        let mut first = Some(first);
        let nodes = names.map(|name| first.take().unwrap_or_else(|| Node::join(name, &token)));
        for node in &nodes {
            let everybody_up = || node.states().iter().filter(|(_, state)| state == "up").count() == N;
            wait_until("all nodes to be seen", everybody_up);
            wait_until("them to be settled", || node.status()["cluster"]["settled"] == true);
        }
        nodes
    }

    fn start_command(&self, command: &str, args: &[&str]) -> Running {
        fulmen(&[&[command, "--state", state(&self.place).to_str().unwrap()], args].concat())
    }

    fn run(&self, command: &str, args: &[&str]) -> Ended {
        self.start_command(command, args).end()
    }

    fn token(&self, args: &[&str]) -> String {
        let ended = self.run("token", args);
        assert_eq!((ended.code, &*ended.err), (Some(0), ""));
        ended.out
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.run("status", &["--json"]).out).expect("JSON")
    }

    fn states(&self) -> Vec<(String, String)> {
        let status = self.status();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let nodes = status["cluster"]["nodes"].as_array().unwrap();
        nodes.iter().map(|node| (text(&node["name"]), text(&node["state"]))).collect()
    }

    fn coordinator(&self) -> Option<String> {
        self.status()["cluster"]["coordinator"].as_str().map(str::to_owned)
    }

    fn wait_until_coordinated(&self) {
        wait_until("a coordinator", || self.coordinator().is_some());
    }

    fn audit(&self) -> String {
        fs::read_to_string(state(&self.place).join("audit.log")).unwrap()
    }

    fn agent(&self) -> Pid {
        Pid::from_raw(self.status()["pid"].as_i64().unwrap() as i32).unwrap()
    }

    /// Kills the agent, whose keeper ends what is left, and gives the state back.
    fn kill(mut self) -> TempDir {
        kill_process(self.agent(), Signal::KILL).unwrap();
        self.keeper.wait_exit();
        wait_until("nothing to be left", || self.keeper.processes().is_empty());
        self.place
    }
}

/// Ends what was started in the background, also if a test fails.
struct Background(PathBuf);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = Command::new(FULMEN).args(["down", "--state"]).arg(&self.0).output();
    }
}

fn state(place: &TempDir) -> PathBuf {
    place.path().join("state")
}

fn refused(ended: &Ended, code: i32, words: &str) {
    assert!(
        ended.code == Some(code) && ended.err.contains(words) && ended.err.lines().count() == 1,
        "{:?} {}",
        ended.code,
        ended.err
    );
}

/// `fulmen up --join` in a directory of its own.
fn join(place: &TempDir, name: &str, token: &str) -> Ended {
    fulmen(&["up", "--name", name, "--state", state(place).to_str().unwrap(), "--join", token.trim()]).end()
}

#[test]
fn a_cluster_is_tried_out_on_one_machine_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("try");
    let _background = Background(directory.clone());
    let run = |command: &str, args: &[&str]| {
        fulmen(&[&[command, "--state", directory.to_str().unwrap()], args].concat()).end()
    };
    let mut up = fulmen(&["up", "--nodes", "3", "--name", "n", "--state", directory.to_str().unwrap()]);
    assert_eq!(up.wait_exit().code(), Some(0));
    wait_until_settled(&directory);
    refused(&run("up", &["--nodes", "2"]), 2, "has nodes already");
    let status = run("status", &[]);
    assert!(status.out.contains("3 nodes, coordinated by n-1"), "{}", status.out);

    let ended = run("spawn", &["--node", "n-2", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((ended.code, &*ended.out, &*ended.err), (Some(7), "out\n", "err\n"));
    let ended = run("spawn", &["--gateway", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(ended.code, Some(137));
    let ended = run("spawn", &["--all", "--", "sh", "-c", "echo one; printf two >&2"]);
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&ended.out), ["[n-1] one", "[n-2] one", "[n-3] one"]);
    assert_eq!(lines(&ended.err), ["[n-1] two", "[n-2] two", "[n-3] two"]);
    assert_eq!(run("spawn", &["--all", "--", "sh", "-c", "exit 3"]).code, Some(3));
    refused(&run("spawn", &["--node", "n-4", "--", "true"]), 1, "no node n-4");
    let id = run("spawn", &["--node", "n-3", "--detach", "--", "sh", "-c", "echo here; exec sleep 100"]).out;
    wait_until("it to be listed", || run("ps", &["--node", "n-3"]).out.contains("sleep 100"));
    let attached = fulmen(&["attach", "--state", directory.to_str().unwrap(), "--node", "n-3", id.trim()]);
    attached.wait_for("here", 1);
    assert_eq!(run("kill", &["--node", "n-3", id.trim()]).code, Some(0));
    assert_eq!(attached.end().code, Some(143));

    let top = run("top", &[]);
    for words in ["3 nodes, coordinated by n-1", "n-2", "ended: code 7: err", "got SIGTERM", "n-3 is up"] {
        assert!(top.out.contains(words), "no {words} in\n{}", top.out);
    }
    let down = run("down", &[]);
    assert_eq!((down.code, &*down.out), (Some(0), "3 agents have ended, and nothing is left of them\n"));
    up.wait_gone();
    assert!(!directory.exists());
}

#[test]
fn a_token_lets_in_whom_it_should_and_nobody_else() {
    let node = Node::found("first");
    let places: Vec<TempDir> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let token = node.token(&[]);
    assert!(token.starts_with("fulmen1-"));
    for nonsense in ["", "fulmen1-", "fulmen1-AAAA", "hello", &token[..token.len() - 8]] {
        refused(&join(&places[0], "x", nonsense), 2, "this is no token");
    }
    refused(&join(&places[0], "first", &token), 1, "there is a node first already");
    let second = Node::join("second", &token);
    refused(&join(&places[0], "third", &token), 1, "was used already");
    refused(&join(&second.place, "third", &token), 1, "an agent is up already");

    let short = node.token(&["--valid", "1"]);
    // It is over then, by whatever clock, also if it was noted late or another node had to be elected.
    std::thread::sleep(std::time::Duration::from_secs(10));
    refused(&join(&places[1], "late", &short), 1, "not good any more");
    // One of another cluster leads there, and to nowhere else.
    let other = Node::found("other");
    let stranger = other.token(&[]);
    assert_eq!(node.status()["cluster"]["nodes"].as_array().unwrap().len(), 2);
    let place = other.kill();
    refused(&join(&places[2], "third", &stranger), 1, "no node of the cluster answers");
    drop(place);

    // Nothing secret is in what is kept for people to read, nor where others look.
    let audit = node.audit();
    for event in [r#""event":"token""#, r#""event":"joined","node":"second""#, r#""event":"notjoined","node":"third""#]
    {
        assert!(audit.contains(event), "no {event} in\n{audit}");
    }
    let kept: Value = serde_json::from_slice(&fs::read(state(&node.place).join("node.json")).unwrap()).unwrap();
    let secrets = [token.trim(), kept["key"].as_str().unwrap(), kept["authority"].as_str().unwrap()];
    for (pid, line) in node.keeper.processes().into_iter().chain(second.keeper.processes()) {
        let about = |name: &str| fs::read_to_string(Path::new("/proc").join(pid.as_raw_pid().to_string()).join(name));
        let all = [line, about("environ").unwrap_or_default(), audit.clone(), second.audit()].concat();
        assert!(!secrets.iter().any(|secret| all.contains(secret)), "a secret is told");
    }
}

#[test]
fn a_role_says_what_may_be_started() {
    let node = Node::found("first");
    assert_eq!(node.run("role", &["builder", "--spawn", "true", "--spawn", "sleep"]).code, Some(0));
    refused(&node.run("role", &["member", "--spawn", "all"]), 1, "the role member is what it is");
    let guest = Node::join("guest", &node.token(&["--role", "guest"]));
    let builder = Node::join("builder", &node.token(&["--role", "builder"]));
    // They are told of everything, and everybody works for a member.
    wait_until("all to be seen", || guest.states().iter().filter(|(_, state)| state == "up").count() == 3);
    for name in ["guest", "builder"] {
        assert_eq!(node.run("spawn", &["--node", name, "--", "sh", "-c", "exit 5"]).code, Some(5));
    }
    assert_eq!(guest.run("spawn", &["--", "sh", "-c", "exit 5"]).code, Some(5), "at home it may");
    refused(&guest.run("spawn", &["--node", "first", "--", "true"]), 1, "node guest may not start true");
    refused(&builder.run("spawn", &["--node", "first", "--", "sh", "-c", "true"]), 1, "may not start sh");
    refused(&builder.run("spawn", &["--node", "first", "--", "/bin/true"]), 1, "may not start /bin/true");
    assert_eq!(builder.run("spawn", &["--node", "first", "--", "true"]).code, Some(0));
    refused(&guest.run("token", &[]), 1, "may not let others in");
    // What others started is none of their business.
    let own = node.run("spawn", &["--detach", "--", "sleep", "100"]).out;
    let theirs = builder.run("spawn", &["--node", "first", "--detach", "--", "sleep", "100"]).out;
    refused(&builder.run("kill", &["--node", "first", own.trim()]), 1, "there is no process");
    assert!(!builder.run("ps", &["--node", "first"]).out.contains("sh -c"));
    assert_eq!(builder.run("kill", &["--node", "first", theirs.trim()]).code, Some(0));
    assert!(node.audit().contains(r#""event":"refused","caller":"node guest""#), "{}", node.audit());
    // Nobody but members coordinates.
    let place = node.kill();
    wait_until("them to notice", || guest.coordinator().is_none());
    let node = Node::start("first", place);
    wait_until("it to coordinate again", || guest.coordinator().as_deref() == Some("first"));
    drop(node);
}

#[test]
fn whoever_is_removed_is_not_listened_to() {
    let [first, second, third] = Node::cluster(["first", "second", "third"]);
    let mut kept = second.start_command("spawn", &["--node", "first", "--", "sh", "-c", "echo on; exec sleep 1000"]);
    kept.wait_for("on", 1);
    let removed = third.run("remove", &["second"]);
    assert_eq!((removed.code, &*removed.out), (Some(0), "node second is removed\n"));
    // Also in the middle of something.
    assert_eq!(kept.wait_exit().code(), Some(1));
    wait_until("its process to end", || first.audit().contains(r#""because":"caller-gone""#));
    let ended = second.run("spawn", &["--node", "first", "--", "true"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    for node in [&first, &third] {
        wait_until("the others to agree", || {
            let states = node.states();
            states.len() == 2 && states.iter().all(|(name, state)| name != "second" && state == "up")
        });
    }
    refused(&third.run("remove", &["second"]), 1, "no node second");
    // It goes on trying, and is noted once.
    wait_until("it to be noted", || {
        third.audit().contains(r#""event":"stranger""#) || first.audit().contains(r#""event":"stranger""#)
    });
    for node in [&first, &third] {
        assert!(node.audit().matches(r#""event":"stranger""#).count() < 2, "{}", node.audit());
    }
    assert_eq!(second.run("spawn", &["--", "true"]).code, Some(0), "at home it works");
}

#[test]
fn the_coordinator_dies_and_comes_back() {
    let nodes = Node::cluster(["a", "b", "c"]);
    let coordinator = nodes[2].coordinator().unwrap();
    let (dead, rest): (Vec<Node>, Vec<Node>) = nodes.into_iter().partition(|node| node.name == coordinator);
    let dead = dead.into_iter().next().unwrap();
    let name = dead.name;
    let mut waits = rest[0].start_command("spawn", &["--node", name, "--", "sh", "-c", "echo on; exec sleep 1000"]);
    waits.wait_for("on", 1);
    let mut work = dead.start_command("spawn", &["--node", rest[1].name, "--", "sh", "-c", "echo on; exec sleep 1000"]);
    work.wait_for("on", 1);
    let place = dead.kill();
    // Whoever waited for it hears, and what it had asked for ends.
    assert_eq!(waits.wait_exit().code(), Some(1));
    assert_eq!(work.wait_exit().code(), Some(1));
    wait_until("its process to end", || rest[1].audit().contains(r#""because":"caller-gone""#));
    for node in &rest {
        wait_until("another coordinator", || node.coordinator().is_some_and(|now| now != name));
        wait_until("it to be down", || node.states().contains(&(name.into(), "down".into())));
    }
    assert_eq!(rest[0].coordinator(), rest[1].coordinator());
    assert_eq!(rest[0].run("spawn", &["--gateway", "--", "sh", "-c", "exit 9"]).code, Some(9));
    refused(&rest[0].run("spawn", &["--node", name, "--", "true"]), 1, "is not reached at");
    let all = rest[0].run("spawn", &["--all", "--", "echo", "hi"]);
    assert!(
        all.code == Some(1) && all.out.lines().count() == 2 && all.err.contains("it is down"),
        "{} {}",
        all.out,
        all.err
    );
    let back = Node::start(name, place);
    for node in rest.iter().chain([&back]) {
        wait_until("it to be back", || {
            node.states().iter().all(|(_, state)| state == "up") && node.states().len() == 3
        });
    }
    assert_eq!(rest[0].run("spawn", &["--node", name, "--", "sh", "-c", "exit 4"]).code, Some(4));
}

#[test]
fn of_two_nodes_one_says_what_it_cannot_know() {
    let [one, two] = Node::cluster(["one", "two"]);
    // Stopped, it is as if it were cut off: whoever asks for it is told, and does not wait for it.
    let agent = two.agent();
    kill_process(agent, Signal::STOP).unwrap();
    refused(&one.run("ps", &["--node", "two"]), 1, "node two is not reached");
    let doctor = two.run("doctor", &["--patience", "0.5"]);
    assert!(doctor.code == Some(2) && doctor.out.contains("it has not answered for 0.5 s"), "{}", doctor.out);
    let doctor = one.run("doctor", &[]).out;
    assert!(doctor.contains("node one is not in touch with a majority"), "{doctor}");
    kill_process(agent, Signal::CONT).unwrap();
    wait_until("it to be seen again", || one.status()["cluster"]["in_touch"] == true);
    let doctor = one.run("doctor", &[]).out;
    assert!(doctor.contains("node one is up"), "{doctor}");
    let place = two.kill();
    wait_until("it to notice", || one.status()["cluster"]["in_touch"] == false);
    assert!(one.states().contains(&("two".into(), "unknown".into())), "{:?}", one.states());
    assert!(one.run("status", &[]).out.contains("cannot be known"));
    // Its own work goes on.
    assert_eq!(one.run("spawn", &["--", "sh", "-c", "exit 5"]).code, Some(5));
    refused(&one.run("token", &[]), 1, "cannot be known");
    refused(&one.run("spawn", &["--gateway", "--", "true"]), 1, "no node coordinates the cluster now");
    let two = Node::start("two", place);
    wait_until("both to be up", || one.states().iter().all(|(_, state)| state == "up"));
    drop(two);
}

#[test]
fn what_is_left_goes_on_alone_when_it_is_told_to() {
    let [one, two] = Node::cluster(["one", "two"]);
    let (lost, place) = (two.kill(), one.kill());
    refused(
        &fulmen(&["up", "--recover", "--state", place.path().join("none").to_str().unwrap()]).end(),
        1,
        "has no vote",
    );
    let state = state(&place);
    let _background = Background(state.clone());
    let mut up = fulmen(&["up", "--recover", "--state", state.to_str().unwrap()]);
    assert_eq!(up.wait_exit().code(), Some(0));
    let run =
        |command: &str, args: &[&str]| fulmen(&[&[command, "--state", state.to_str().unwrap()], args].concat()).end();
    wait_until("it to coordinate", || run("status", &[]).out.contains("coordinated by one"));
    assert_eq!(run("remove", &["two"]).code, Some(0));
    assert!(run("token", &[]).out.starts_with("fulmen1-"));
    assert_eq!(run("down", &[]).code, Some(0));
    up.wait_gone();
    drop(lost);
}

#[test]
fn a_node_leaves_and_joins_again() {
    let [first, second] = Node::cluster(["first", "second"]);
    let mut second = second;
    let left = second.run("down", &["--leave"]);
    assert_eq!((left.code, &*left.out), (Some(0), "agent second has ended; it has left its cluster\n"), "{}", left.err);
    second.keeper.wait_exit();
    wait_until("the other to forget it", || first.states().len() == 1);
    assert!(!state(&second.place).join("node.json").exists());
    // One is a majority of one.
    wait_until("it to coordinate", || first.coordinator().as_deref() == Some("first"));
    let again = Node::join("second", &first.token(&[]));
    wait_until("both to be up", || first.states().len() == 2);
    drop(again);
    let mut named = fulmen(&["up", "--name", "else", "--state", state(&second.place).to_str().unwrap()]);
    assert_eq!(named.wait_exit().code(), Some(0), "a new cluster of its own");
    assert_eq!(fulmen(&["down", "--state", state(&second.place).to_str().unwrap()]).end().code, Some(0));
    let named = fulmen(&["up", "--name", "other", "--state", state(&second.place).to_str().unwrap()]).end();
    refused(&named, 1, "is called else, for good");
}
