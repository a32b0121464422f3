//! What nodes are asked meanwhile, and what happens to them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_testbed::Link;
use rustix::process::{Signal, kill_process};

use super::NAMES;
use super::nodes::Cluster;
use crate::random::Random;
use crate::support::Ended;

/// What is asked of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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
pub(super) struct Done {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
    pub(super) took: Duration,
}

/// Lines that a process writes.
pub(super) const LINES: usize = 3000;

/// Asks for one thing after the other until it is over.
pub(super) fn ask(cluster: &Cluster, mut random: Random, numbers: &AtomicU64, over: &AtomicBool) -> Vec<Done> {
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
pub(super) fn fail(cluster: &Cluster, mut random: Random, until: Instant, tell: &dyn Fn(&str)) {
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
pub(super) struct Cut {
    pub(super) since: Instant,
    pub(super) until: Instant,
    pub(super) minority: Vec<&'static str>,
}

/// Cuts hosts off from one another, has frames be late and lost, and mends it.
pub(super) fn cut(cluster: &Cluster, mut random: Random, until: Instant, tell: &dyn Fn(&str)) -> Vec<Cut> {
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
