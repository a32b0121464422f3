//! Four nodes, each on a host of its own.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_cluster::agent::Client;
use fulmen_cluster::agent::api::{NodeState, Status};
use fulmen_testbed::{Bed, Host, Link, Net};
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{AGREE, AT_ONCE, NAMES, SLOTS};
use crate::random::Random;
use crate::support::{FULMEN, Running, start, start_with, wait_until};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node, whose agent is up, or not for a while.
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) host: Host,
    address: String,
    place: PathBuf,
    client: Client,
    /// All that were started; the last one's agent may be up.
    keepers: Mutex<Vec<Running>>,
    /// Agents that were killed, and could not tell how their processes ended.
    pub(super) killed: Mutex<BTreeSet<u64>>,
}

impl Node {
    pub(super) fn new(name: &'static str, host: &Host, net: &Net, place: &Path) -> Node {
        let place = place.join(name);
        fs::create_dir(&place).unwrap();
        let client = Client::new(&place.join("state"));
        let address = format!("{}:7387", net.address(host));
        Node { name, host: host.clone(), address, place, client, keepers: Mutex::default(), killed: Mutex::default() }
    }

    fn state(&self) -> &str {
        self.client.state().to_str().unwrap()
    }

    /// Has its agent be up, in a cluster that it joins with a token, or in the one that it had.
    pub(super) fn start(&self, token: Option<&str>) {
        let mut command = self.host.command(FULMEN);
        let slots = SLOTS.to_string();
        command.args(["up", "--foreground", "--name", self.name, "--slots", &slots, "--listen", &self.address]);
        command.args(["--state", self.state()]).env("FULMEN_LOG", "warn,fulmen_cluster=info,openraft=off");
        let stdin = match token {
            Some(token) => {
                let file = self.place.join("token");
                fs::write(&file, token).unwrap();
                command.args(["--join", "-"]);
                Stdio::from(File::open(file).unwrap())
            }
            None => Stdio::null(),
        };
        let log = OpenOptions::new().append(true).create(true).open(self.log()).unwrap();
        let keeper = start_with(&mut command, stdin, Stdio::null(), Stdio::from(log));
        wait_until("the agent to answer", || {
            assert!(!keeper.has_ended(), "node {} does not start", self.name);
            self.status().is_some()
        });
        lock(&self.keepers).push(keeper);
    }

    fn log(&self) -> PathBuf {
        self.place.join("log")
    }

    async fn ask(&self) -> Option<Status> {
        tokio::time::timeout(AT_ONCE, self.client.status()).await.ok()?.ok()
    }

    /// What it says of itself, if it does so at once.
    pub(super) fn status(&self) -> Option<Status> {
        runtime().block_on(self.ask())
    }

    pub(super) fn run(&self, command: &str, args: &[&str]) -> Running {
        let mut process = self.host.command(FULMEN);
        process.arg(command).args(["--state", self.state()]).args(args);
        start(process)
    }

    /// The agent that is up.
    pub(super) fn agent(&self) -> u32 {
        let mut pid = None;
        let last = Mutex::new(&mut pid);
        wait_until("the agent to answer", || {
            let status = self.status();
            **lock(&last) = status.map(|status| status.pid);
            lock(&last).is_some()
        });
        pid.unwrap()
    }

    pub(super) fn signal_agent(&self, pid: u32, signal: Signal) {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    }

    /// Kills the agent, after which its keeper leaves nothing.
    pub(super) fn kill_agent(&self) {
        let pid = self.agent();
        lock(&self.killed).insert(pid.into());
        self.signal_agent(pid, Signal::KILL);
        let mut keepers = lock(&self.keepers);
        let keeper = keepers.last_mut().unwrap();
        keeper.wait_exit();
        let left = keeper.processes();
        assert!(left.is_empty(), "the keeper of {} has left {left:?}", self.name);
    }

    /// Kills the keeper, after which the agent ends with all it has.
    pub(super) fn kill_keeper(&self) {
        let mut keepers = lock(&self.keepers);
        let keeper = keepers.last_mut().unwrap();
        keeper.send(Signal::KILL);
        keeper.wait_exit();
        keeper.wait_gone();
    }

    pub(super) fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.client.state().join("audit.log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Four nodes, each on a host of its own.
pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
    pub(super) net: Net,
    // In this order: what is in the bed ends before its files go.
    _bed: Bed,
    _place: TempDir,
}

impl Cluster {
    /// None, loudly, where that cannot be.
    pub(super) fn or_skip(what: &str, link: Link) -> Option<Cluster> {
        let bed = Bed::or_skip(what)?;
        let place = tempfile::tempdir().unwrap();
        let hosts = NAMES.map(|name| bed.host(name));
        let net = bed.switch(&hosts, link);
        let node = |(name, host): (&&'static str, &Host)| Node::new(name, host, &net, place.path());
        let nodes: Vec<Node> = NAMES.iter().zip(&hosts).map(node).collect();
        nodes[0].start(None);
        let token = nodes[0].run("token", &["--uses", "3"]).end();
        assert_eq!((token.code, &*token.err), (Some(0), ""));
        nodes[1..].iter().for_each(|node| node.start(Some(&token.out)));
        let cluster = Cluster { nodes, net, _bed: bed, _place: place };
        cluster.wait_agreed();
        Some(cluster)
    }

    pub(super) fn named(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    /// What all say at a moment.
    pub(super) fn look(&self) -> Vec<Option<Status>> {
        runtime().block_on(join_all(self.nodes.iter().map(Node::ask)))
    }

    /// Some node, more often than others the one that coordinates them: most depends on it.
    pub(super) fn victim(&self, random: &mut Random) -> &Node {
        let any = random.pick(&self.nodes);
        let coordinator = self.look().into_iter().flatten().find_map(|status| status.cluster.coordinator);
        let coordinator = coordinator.filter(|_| random.below(3) == 0);
        coordinator.map_or(any, |name| self.named(&name))
    }

    /// The coordinator, if all are in touch, up, and of one opinion.
    fn agreed(&self) -> Option<String> {
        let all: Option<Vec<Status>> = self.look().into_iter().collect();
        let of_one_mind = |status: &Status| {
            let cluster = &status.cluster;
            let up = cluster.nodes.iter().filter(|node| node.state == NodeState::Up);
            let up: Vec<&str> = up.map(|node| &*node.name).collect();
            cluster.in_touch && cluster.settled && up == NAMES && cluster.nodes.len() == NAMES.len()
        };
        let all = all.filter(|all| all.iter().all(of_one_mind))?;
        let mut coordinators: Vec<Option<String>> = all.into_iter().map(|status| status.cluster.coordinator).collect();
        coordinators.dedup();
        if coordinators.len() == 1 { coordinators.remove(0) } else { None }
    }

    pub(super) fn wait_agreed(&self) -> String {
        let mut agreed = None;
        self.within(AGREE, "all nodes to agree", || {
            agreed = self.agreed();
            agreed.is_some()
        });
        agreed.unwrap()
    }

    /// Waits for something, and tells what all say if it does not come.
    pub(super) fn within(&self, time: Duration, what: &str, mut ready: impl FnMut() -> bool) {
        let end = Instant::now() + time;
        while !ready() {
            assert!(Instant::now() < end, "not within {time:?}: {what}\n{:#?}", self.look());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts the hosts of these nodes off from the others.
    pub(super) fn cut_off(&self, some: &[&str]) {
        let (one, other): (Vec<&Host>, Vec<&Host>) = {
            let (one, other): (Vec<&Node>, Vec<&Node>) = self.nodes.iter().partition(|node| some.contains(&node.name));
            (one.iter().map(|node| &node.host).collect(), other.iter().map(|node| &node.host).collect())
        };
        self.net.partition(&[&one, &other]);
    }

    /// Ends all agents, of which nothing is left.
    pub(super) fn down(&self) {
        for node in &self.nodes {
            let down = node.run("down", &[]).end();
            assert_eq!((down.code, &*down.err), (Some(0), ""));
        }
        for node in &self.nodes {
            for keeper in &*lock(&node.keepers) {
                keeper.wait_gone();
            }
            // Whatever else it is, it has nothing to do here.
            wait_until(&format!("nothing to be left on {}", node.name), || node.host.processes().is_empty());
        }
    }

    /// What the agents had to say last.
    fn tell(&self) {
        for node in &self.nodes {
            let text = fs::read_to_string(node.log()).unwrap_or_default();
            // Those that gave up meanwhile are many, and tell nothing.
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("a connection was refused")).collect();
            eprintln!("--- {}\n{}", node.name, lines[lines.len().saturating_sub(100)..].join("\n"));
        }
    }
}

/// When a test fails, the agents' logs are told.
impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.tell();
        }
    }
}

/// Descriptors that a process has open.
pub(super) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Bytes of memory that a process uses.
pub(super) fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
