//! Agents on four hosts, which work while some are killed, stopped, cut off and started again: nothing is lost, done twice or left behind.
//!
//! `FULMEN_CHAOS_SEED` repeats a run's plan, and `FULMEN_CHAOS_SECONDS` says how long faults go on.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fulmen_cluster::agent::Client;
use fulmen_cluster::agent::api::{NodeState, Status};
use fulmen_testbed::{Bed, Host, Link, Net};
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::random::Random;
use crate::support::{Ended, FULMEN, Running, start, start_with, wait_until};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SLOTS: u32 = 4;
/// Loops that have something run.
const LOOPS: u64 = 8;
/// How long a node is taken for up after it was heard of last.
const LIFE: Duration = Duration::from_secs(5);
/// How much later than it should something may be seen, on machines that do much else.
const LATE: Duration = Duration::from_secs(1);
/// How often all agents are asked what they know, and how long an answer may take to count as one of that moment.
const LOOK: Duration = Duration::from_millis(150);
const AT_ONCE: Duration = Duration::from_millis(300);
/// How long nodes may take to agree again, once all is well.
const AGREE: Duration = Duration::from_secs(30);
/// How long it may take until a node notices that another one, or the way to it, is gone, with all that waits for that.
const NOTICE: Duration = Duration::from_secs(45);
/// Descriptors that an agent may have more than after its start: connections that it and three others keep for the next request.
const KEPT: usize = 2 * 3 * 4;
/// Bytes of memory that an agent may use: what it remembers of processes has a bound.
const MEMORY: u64 = 300 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node, whose agent is up, or not for a while.
struct Node {
    name: &'static str,
    host: Host,
    address: String,
    place: PathBuf,
    client: Client,
    /// All that were started; the last one's agent may be up.
    keepers: Mutex<Vec<Running>>,
    /// Agents that were killed, and could not tell how their processes ended.
    killed: Mutex<BTreeSet<u64>>,
}

impl Node {
    fn new(name: &'static str, host: &Host, net: &Net, place: &Path) -> Node {
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
    fn start(&self, token: Option<&str>) {
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
    fn status(&self) -> Option<Status> {
        runtime().block_on(self.ask())
    }

    fn run(&self, command: &str, args: &[&str]) -> Running {
        let mut process = self.host.command(FULMEN);
        process.arg(command).args(["--state", self.state()]).args(args);
        start(process)
    }

    /// The agent that is up.
    fn agent(&self) -> u32 {
        let mut pid = None;
        let last = Mutex::new(&mut pid);
        wait_until("the agent to answer", || {
            let status = self.status();
            **lock(&last) = status.map(|status| status.pid);
            lock(&last).is_some()
        });
        pid.unwrap()
    }

    fn signal_agent(&self, pid: u32, signal: Signal) {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    }

    /// Kills the agent, after which its keeper leaves nothing.
    fn kill_agent(&self) {
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
    fn kill_keeper(&self) {
        let mut keepers = lock(&self.keepers);
        let keeper = keepers.last_mut().unwrap();
        keeper.send(Signal::KILL);
        keeper.wait_exit();
        keeper.wait_gone();
    }

    fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.client.state().join("audit.log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Four nodes, each on a host of its own.
struct Cluster {
    nodes: Vec<Node>,
    net: Net,
    // In this order: what is in the bed ends before its files go.
    _bed: Bed,
    _place: TempDir,
}

impl Cluster {
    /// None, loudly, where that cannot be.
    fn or_skip(what: &str, link: Link) -> Option<Cluster> {
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

    fn named(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    /// What all say at a moment.
    fn look(&self) -> Vec<Option<Status>> {
        runtime().block_on(join_all(self.nodes.iter().map(Node::ask)))
    }

    /// Some node, more often than others the one that coordinates them: most depends on it.
    fn victim(&self, random: &mut Random) -> &Node {
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

    fn wait_agreed(&self) -> String {
        let mut agreed = None;
        self.within(AGREE, "all nodes to agree", || {
            agreed = self.agreed();
            agreed.is_some()
        });
        agreed.unwrap()
    }

    /// Waits for something, and tells what all say if it does not come.
    fn within(&self, time: Duration, what: &str, mut ready: impl FnMut() -> bool) {
        let end = Instant::now() + time;
        while !ready() {
            assert!(Instant::now() < end, "not within {time:?}: {what}\n{:#?}", self.look());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts the hosts of these nodes off from the others.
    fn cut_off(&self, some: &[&str]) {
        let (one, other): (Vec<&Host>, Vec<&Host>) = {
            let (one, other): (Vec<&Node>, Vec<&Node>) = self.nodes.iter().partition(|node| some.contains(&node.name));
            (one.iter().map(|node| &node.host).collect(), other.iter().map(|node| &node.host).collect())
        };
        self.net.partition(&[&one, &other]);
    }

    /// Ends all agents, of which nothing is left.
    fn down(&self) {
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
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Bytes of memory that a process uses.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// What is asked of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One process, which exits with this code unless something happens to it.
    One(i32),
    /// One on each node.
    All(i32),
    Detached,
    /// Whoever asks is killed.
    Left,
    Ranks,
}

/// What came of it.
#[derive(Debug)]
struct Done {
    number: u64,
    kind: Kind,
    code: Option<i32>,
    out: String,
    err: String,
    took: Duration,
}

/// Lines that a process writes.
const LINES: usize = 3000;

/// Asks for one thing after the other until it is over.
fn ask(cluster: &Cluster, mut random: Random, numbers: &AtomicU64, over: &AtomicBool) -> Vec<Done> {
    let mut all = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let (from, to) = (random.pick(&cluster.nodes), random.pick(&cluster.nodes).name);
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let one = ["--node", to];
        let (kind, args, script): (Kind, &[&str], &str) = match random.below(14) {
            0 | 1 => (Kind::One(7), &one, "exit 7"),
            2 => (Kind::One(0), &one, "true"),
            3 => (Kind::One(5), &one, &format!("seq {LINES}; exit 5")),
            4 | 5 => (Kind::One(6), &one, "sleep 3; exit 6"),
            // What it leaves behind does not go by itself.
            6 => (Kind::One(3), &["--node", to, "--grace", "0.4"], "(trap '' TERM; sleep 1000; sleep 1000) & exit 3"),
            // What has left its group goes with the agent.
            7 => (Kind::One(4), &one, "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &); exit 4"),
            8 => (Kind::One(143), &["--node", to, "--timeout", "0.5"], "exec sleep 1000"),
            9 => (Kind::Detached, &["--node", to, "--detach"], "sleep 2"),
            10 => (Kind::Left, &["--node", to], "echo on; sleep 1000"),
            11 | 12 => (Kind::All(9), &["--all"], "sleep 0.3; exit 9"),
            _ => (Kind::Ranks, &["--cluster", "-n", "3"], "sleep 0.3"),
        };
        let began = Instant::now();
        let verb = if kind == Kind::Ranks { "run" } else { "spawn" };
        let command = from.run(verb, &[args, &["--", "sh", "-c", script, &format!("job-{number}")]].concat());
        if kind == Kind::Left {
            thread::sleep(random.millis(0..500));
            // It may have ended by an error.
            let _ = kill_process(command.pid(), Signal::KILL);
        }
        let Ended { code, out, err, .. } = command.end();
        all.push(Done { number, kind, code, out, err, took: began.elapsed() });
        thread::sleep(random.millis(0..200));
    }
    all
}

/// Kills and stops agents, one at a time, and has each be up again.
fn fail(cluster: &Cluster, mut random: Random, until: Instant, tell: &dyn Fn(&str)) {
    loop {
        thread::sleep(random.millis(500..2500));
        if Instant::now() >= until {
            return;
        }
        let node = cluster.victim(&mut random);
        let kind = random.below(5);
        let (away, stopped) = (random.millis(100..8000), random.millis(1000..8000));
        match kind {
            0 | 1 => {
                tell(&format!("the agent of {} is killed, for {away:?}", node.name));
                node.kill_agent();
            }
            2 => {
                tell(&format!("the keeper of {} is killed, for {away:?}", node.name));
                node.kill_keeper();
            }
            _ => {
                tell(&format!("the agent of {} is stopped for {stopped:?}", node.name));
                let pid = node.agent();
                node.signal_agent(pid, Signal::STOP);
                thread::sleep(stopped);
                node.signal_agent(pid, Signal::CONT);
                continue;
            }
        }
        thread::sleep(away);
        node.start(None);
        tell(&format!("{} is up again", node.name));
    }
}

/// A time in which these nodes were cut off from a majority.
struct Cut {
    since: Instant,
    until: Instant,
    minority: Vec<&'static str>,
}

/// Cuts hosts off from one another, has frames be late and lost, and mends it.
fn cut(cluster: &Cluster, mut random: Random, until: Instant, tell: &dyn Fn(&str)) -> Vec<Cut> {
    let mut cuts = Vec::new();
    let net = &cluster.net;
    loop {
        thread::sleep(random.millis(500..3000));
        if Instant::now() >= until {
            return cuts;
        }
        let one = cluster.victim(&mut random);
        let mut others = random.shuffled(NAMES).to_vec();
        others.retain(|name| *name != one.name);
        let [two, three, four] = [0, 1, 2].map(|other| cluster.named(others[other]));
        let (kind, length) = (random.below(7), random.millis(2000..10_000));
        let minority = match kind {
            0 | 1 => {
                tell(&format!("{} is cut off for {length:?}", one.name));
                cluster.cut_off(&[one.name]);
                vec![one]
            }
            2 => {
                tell(&format!("{} and {} are cut off from the others for {length:?}", one.name, two.name));
                cluster.cut_off(&[one.name, two.name]);
                vec![one, two, three, four]
            }
            3 => {
                tell(&format!("nothing comes from {} for {length:?}", one.name));
                [two, three, four].iter().for_each(|other| net.block(&one.host, &other.host));
                vec![one]
            }
            4 => {
                tell(&format!("nothing comes to {} for {length:?}", one.name));
                [two, three, four].iter().for_each(|other| net.block(&other.host, &one.host));
                vec![one]
            }
            5 => {
                tell(&format!("{} and {} do not reach each other for {length:?}", one.name, two.name));
                net.block(&one.host, &two.host);
                net.block(&two.host, &one.host);
                vec![]
            }
            _ => {
                tell(&format!("the network is bad for {length:?}"));
                net.set(Link::new().delay(Duration::from_millis(15)).jitter(Duration::from_millis(15)).loss(0.05));
                vec![]
            }
        };
        let since = Instant::now();
        let end = since + length;
        let mut token = None;
        // When whatever was on its way has come.
        let settled = Duration::from_secs(1);
        if let Some(node) = minority.first() {
            thread::sleep(settled);
            token = Some((node.name, node.run("token", &[])));
        }
        thread::sleep(end.saturating_duration_since(Instant::now()));
        let ended = token.map(|(name, command)| (name, command.has_ended().then_some(()), command));
        cuts.push(Cut { since, until: Instant::now(), minority: minority.iter().map(|node| node.name).collect() });
        net.heal();
        net.set(Link::new());
        tell("the network is mended");
        if let Some((name, early, command)) = ended {
            let Ended { code, out, .. } = command.end();
            assert!(early.is_none() || code != Some(0), "{name} was cut off, and let somebody in: {out}");
        }
    }
}

/// What all agents said at a moment.
struct Moment {
    since: Instant,
    until: Instant,
    /// By name: whether it is in touch, and whom it names.
    said: BTreeMap<&'static str, (bool, Option<String>)>,
}

fn watch(cluster: &Cluster, over: &AtomicBool) -> Vec<Moment> {
    let mut moments = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let since = Instant::now();
        let said = cluster.look().into_iter().zip(NAMES).filter_map(|(status, name)| {
            let cluster = status?.cluster;
            Some((name, (cluster.in_touch, cluster.coordinator)))
        });
        let said = said.collect();
        moments.push(Moment { since, until: Instant::now(), said });
        thread::sleep(LOOK);
    }
    moments
}

/// Nobody who is cut off takes itself for one of a majority, and there are no two coordinators.
fn check_moments(moments: &[Moment], cuts: &[Cut]) {
    let mut checked = 0;
    for cut in cuts {
        // It was heard of last before the cut, and knows until when that lasts.
        let inside = |moment: &&Moment| moment.since >= cut.since + LIFE + LATE && moment.until <= cut.until;
        for moment in moments.iter().filter(inside) {
            checked += cut.minority.len();
            for name in &cut.minority {
                let said = moment.said.get(name);
                assert!(
                    said.is_none_or(|(in_touch, coordinator)| !in_touch && coordinator.is_none()),
                    "{name} was cut off {:?} ago, and says {said:?}",
                    moment.since - cut.since
                );
            }
        }
    }
    let longest = |two: &dyn Fn(&Moment) -> bool| {
        let mut longest = Duration::ZERO;
        let mut began = None;
        for moment in moments {
            began = two(moment).then(|| began.unwrap_or(moment.since));
            longest = longest.max(began.map_or(Duration::ZERO, |began| moment.until - began));
        }
        longest
    };
    // Who was in touch a moment ago may not have heard of another coordinator as long as its lease lasts.
    let named = |moment: &Moment| {
        moment.said.values().filter_map(|(_, name)| name.as_deref()).collect::<BTreeSet<_>>().len() > 1
    };
    // But a coordinator's own lease is over before there is another one.
    let coordinates =
        |moment: &Moment| moment.said.iter().filter(|(own, (_, named))| named.as_deref() == Some(**own)).count() > 1;
    eprintln!(
        "{} moments, {checked} of nodes that were long cut off: two coordinators were named for {:?}, and two took themselves for it for {:?}",
        moments.len(),
        longest(&named),
        longest(&coordinates)
    );
    assert!(longest(&named) < LIFE + LATE, "two coordinators were named for {:?}", longest(&named));
    assert!(longest(&coordinates) < LATE, "two took themselves for the coordinator for {:?}", longest(&coordinates));
}

/// What the audit logs say of a job's processes.
#[derive(Debug, Default)]
struct Told {
    /// How many were started, by node.
    started: BTreeMap<&'static str, usize>,
    codes: Vec<Option<i64>>,
}

/// Each process has one outcome, but for those of agents that were killed; no number is used twice. Gives what is said of each job.
fn check_audit(cluster: &Cluster) -> BTreeMap<String, Told> {
    let mut jobs = BTreeMap::<String, Told>::new();
    for node in &cluster.nodes {
        let killed = lock(&node.killed);
        let mut all = BTreeSet::new();
        let mut running = BTreeMap::<u64, String>::new();
        let mut agent = 0;
        let over = |agent: u64, running: &mut BTreeMap<u64, String>| {
            let told = running.is_empty() || killed.contains(&agent);
            assert!(told, "agent {agent} of {} has not said how these ended: {running:?}", node.name);
            running.clear();
        };
        for line in node.audit() {
            let id = || line["id"].as_u64().unwrap();
            match line["event"].as_str().unwrap() {
                "up" => {
                    over(agent, &mut running);
                    agent = line["pid"].as_u64().unwrap();
                }
                "spawned" => {
                    assert!(all.insert(id()), "{} has used number {} twice", node.name, id());
                    let job = line["command"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
                    *jobs.entry(job.clone()).or_default().started.entry(node.name).or_default() += 1;
                    running.insert(id(), job);
                }
                "ended" => {
                    let job = running.remove(&id());
                    let job = job.unwrap_or_else(|| panic!("{} ended, and did not run: {line}", node.name));
                    jobs.entry(job).or_default().codes.push(line["code"].as_i64());
                }
                _ => {}
            }
        }
        over(agent, &mut running);
    }
    jobs
}

/// Each command told the one thing that happened, which is what the logs say.
fn check_commands(done: &[Done], jobs: &BTreeMap<String, Told>) {
    let nothing = Told::default();
    for job in done {
        let told = jobs.get(&format!("job-{}", job.number)).unwrap_or(&nothing);
        assert!(job.took < NOTICE, "{job:?} {told:?}");
        let most = if matches!(job.kind, Kind::All(_)) { NAMES.len() } else { 1 };
        if job.kind != Kind::Ranks {
            let once = told.started.values().all(|count| *count == 1) && told.started.len() <= most;
            assert!(once, "it was started more than once: {job:?} {told:?}");
        }
        let refused = job.code == Some(1) && job.err.starts_with("fulmen: ");
        // The agent there was ended.
        let ended = matches!(job.code, Some(143 | 137)) && job.err.contains("the agent ended the program");
        match job.kind {
            Kind::One(code) | Kind::All(code) => {
                let as_told = job.code == Some(code);
                assert!(as_told || refused || ended, "{job:?} {told:?}");
                let code = if code == 143 { None } else { Some(i64::from(code)) };
                assert!(!as_told || told.codes.contains(&code), "{job:?} {told:?}");
                assert!(job.code != Some(5) || job.out.lines().count() == LINES, "not all came: {job:?}");
            }
            Kind::Detached => assert!(refused || (job.code == Some(0) && !told.started.is_empty()), "{job:?}"),
            Kind::Left => assert!(refused || ended || job.code.is_none(), "{job:?}"),
            Kind::Ranks => assert!(job.code.is_some(), "{job:?}"),
        }
    }
}

/// What threads end by.
struct End<'a>([&'a AtomicBool; 2]);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|end| end.store(true, Ordering::Relaxed));
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn nothing_is_lost_done_twice_or_left_behind() {
    let length = Duration::from_secs(number("FULMEN_CHAOS_SECONDS").unwrap_or(fulmen_testbed::by_tier(20, 40, 60)));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number("FULMEN_CHAOS_SEED").unwrap_or(now.as_micros() as u64 % 1_000_000);
    let Some(cluster) = Cluster::or_skip("agents under faults", Link::new().seed(seed)) else { return };
    eprintln!("FULMEN_CHAOS_SEED={seed}, for {length:?}");
    let mut random = Random(seed);
    let before = cluster.nodes.iter().map(|node| descriptors(node.agent())).max().unwrap();

    let (began, over, quiet) = (Instant::now(), AtomicBool::new(false), AtomicBool::new(false));
    let until = began + length;
    let tell = move |what: &str| eprintln!("{:6.2} s: {what}", began.elapsed().as_secs_f64());
    let numbers = AtomicU64::new(0);
    let (done, cuts, moments) = thread::scope(|scope| {
        let (cluster, over, quiet, numbers, tell) = (&cluster, &over, &quiet, &numbers, &tell);
        // Also if this fails: threads would go on for ever.
        let _end = End([over, quiet]);
        let [fails, cuts] = [random.next(), random.next()].map(Random);
        let loops: Vec<Random> = (0..LOOPS).map(|_| Random(random.next())).collect();
        let loops = loops.into_iter().map(|random| scope.spawn(move || ask(cluster, random, numbers, over)));
        let loops: Vec<_> = loops.collect();
        let watcher = scope.spawn(move || watch(cluster, quiet));
        let fails = scope.spawn(move || fail(cluster, fails, until, tell));
        let cuts = scope.spawn(move || cut(cluster, cuts, until, tell));
        let (fails, cuts) = (fails.join(), cuts.join());
        over.store(true, Ordering::Relaxed);
        let agreed = fails.is_ok().then(|| cluster.wait_agreed());
        let done: Vec<_> = loops.into_iter().map(thread::ScopedJoinHandle::join).collect();
        quiet.store(true, Ordering::Relaxed);
        let moments = watcher.join().unwrap();
        fails.unwrap();
        drop(agreed);
        let done: Vec<Done> = done.into_iter().flat_map(|done| done.unwrap()).collect();
        (done, cuts.unwrap(), moments)
    });
    tell(&format!("all is quiet after {} commands", done.len()));

    cluster.wait_agreed();
    cluster.within(NOTICE, "nothing to run any more", || {
        cluster.look().into_iter().all(|status| {
            status.is_some_and(|status| {
                status.running == 0 && status.cluster.nodes.iter().all(|node| node.slots_taken == 0)
            })
        })
    });
    cluster.within(NOTICE, "connections to be closed", || {
        let now = |node: &Node| descriptors(node.agent());
        cluster.nodes.iter().all(|node| now(node) <= before + KEPT)
    });
    for node in &cluster.nodes {
        let (agent, status) = (node.agent(), node.status());
        tell(&format!(
            "{}: {} descriptors (at most {before} at first), {} MiB, {:?} started",
            node.name,
            descriptors(agent),
            memory(agent) >> 20,
            status.map(|status| status.spawned)
        ));
        assert!(memory(agent) < MEMORY, "{} uses {} bytes", node.name, memory(agent));
    }
    cluster.down();
    check_moments(&moments, &cuts);
    check_commands(&done, &check_audit(&cluster));
    let slowest = done.iter().max_by_key(|job| job.took).unwrap();
    tell(&format!("the slowest command: {slowest:?}"));
    let well = done.iter().filter(|job| matches!(job.kind, Kind::One(code) if job.code == Some(code))).count();
    tell(&format!("{well} processes did what they were asked for"));
    assert!(well > 0, "nothing worked at all");
}

/// Most of the nodes go on without the one that all looked to, and it knows that it is alone.
#[test]
fn the_rest_goes_on_without_a_coordinator_that_is_cut_off() {
    let Some(cluster) = Cluster::or_skip("a coordinator that is cut off", Link::new()) else { return };
    for _ in 0..2 {
        let old = cluster.wait_agreed();
        let waits = cluster.named(if old == "a" { "b" } else { "a" });
        let mut work = waits.run("spawn", &["--node", &old, "--", "sh", "-c", "echo on; exec sleep 1000"]);
        work.wait_for("on", 1);
        cluster.cut_off(&[&old]);
        let cut = Instant::now();
        let named = || -> Vec<Option<String>> {
            let all = cluster.look().into_iter().zip(NAMES);
            all.map(|(status, _)| status.and_then(|status| status.cluster.coordinator)).collect()
        };
        // If it led the registry, too, another one is elected first, and gives it all its time once more.
        cluster.within(2 * LIFE + 3 * LATE, "the others to have another coordinator", || {
            let rest: BTreeSet<_> = named().into_iter().zip(NAMES).filter(|(_, name)| *name != old).collect();
            let rest: BTreeSet<_> = rest.into_iter().map(|(coordinator, _)| coordinator).collect();
            rest.len() == 1 && rest.first().unwrap().as_ref().is_some_and(|now| *now != old)
        });
        eprintln!("another coordinator after {:?}", cut.elapsed());
        // What is agreed on among the rest does not wait for it.
        let token = waits.run("token", &[]).end();
        assert_eq!(token.code, Some(0), "{}", token.err);
        let alone = cluster.named(&old).status().unwrap().cluster;
        assert!(!alone.in_touch && alone.coordinator.is_none(), "{alone:?}");
        // Nothing says that the connection is gone but that nothing comes.
        assert_eq!(work.wait_exit().code(), Some(1));
        eprintln!("its caller knows after {:?}", cut.elapsed());
        let ended = || cluster.named(&old).audit().iter().any(|line| line["because"] == "caller-gone");
        cluster.within(NOTICE, "the process there to end", ended);
        eprintln!("its process ended after {:?}", cut.elapsed());
        cluster.net.heal();
        let mended = Instant::now();
        cluster.wait_agreed();
        eprintln!("all agree {:?} after it was mended", mended.elapsed());
    }
    cluster.down();
}

/// Nodes far from one another, between which a new connection takes longer than the registry waits for an answer.
#[test]
fn nodes_that_are_far_from_each_other_agree() {
    let far = Link::new().delay(Duration::from_millis(60));
    let Some(cluster) = Cluster::or_skip("nodes far from one another", far) else { return };
    let coordinator = cluster.wait_agreed();
    let coordinator = cluster.named(&coordinator);
    coordinator.kill_agent();
    coordinator.start(None);
    cluster.wait_agreed();
    let ended = coordinator.run("spawn", &["--all", "--", "sh", "-c", "exit 7"]).end();
    assert_eq!((ended.code, &*ended.err), (Some(7), ""));
    cluster.down();
}
