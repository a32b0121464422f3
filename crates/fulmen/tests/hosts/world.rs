//! Hosts, a coordinator on one of them, and ranks on the others.

use std::env;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen::parts::fabric::bootstrap::{Heartbeat, Options as CoordinatorOptions, Serving};
use fulmen::parts::fabric::{Coordinator, Secret};
use fulmen_testbed::{Bed, Host, Link, Net};

use crate::program;

/// Never reached when all is well, and long enough for the slowest of networks.
pub const LONG: Duration = Duration::from_secs(120);

/// Nobody is taken for lost because the machine is busy, or the network bad.
pub const PATIENT: Duration = Duration::from_secs(100);

/// What ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// They exchange blobs over the coordinator.
    Control,
    /// They form a group, and use it.
    Work,
    /// One of three receives late.
    SlowReader,
    /// Two send each other long messages, and say what they go over.
    Paths,
    /// Rank 0 sends long messages over two networks, one of which goes and comes back.
    Stripes,
    /// Rank 0 sends long messages over two networks, and rank 1 says how fast they are beside each network alone.
    Sum,
    /// They work on one another's memory, and under a lock of the first one's.
    OneSided,
    /// Each of two waits for a word of the other one.
    Receivers,
}

impl What {
    /// Whether messages are long ones.
    fn is_long(self) -> bool {
        matches!(self, What::Paths | What::Stripes | What::Sum)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            What::Control => "control",
            What::Work => "work",
            What::SlowReader => "slow reader",
            What::Paths => "paths",
            What::Stripes => "stripes",
            What::Sum => "sum",
            What::OneSided => "one-sided",
            What::Receivers => "receivers",
        })
    }
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<What, String> {
        let all = [
            What::Control,
            What::Work,
            What::SlowReader,
            What::Paths,
            What::Stripes,
            What::Sum,
            What::OneSided,
            What::Receivers,
        ];
        all.into_iter().find(|what| what.to_string() == text).ok_or_else(|| text.to_owned())
    }
}

/// How a world is made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub what: What,
    pub hosts: usize,
    pub ranks_a_host: usize,
    /// What joins the hosts with one another, and with the coordinator's unless that is apart.
    pub link: Link,
    /// Whether ranks reach the coordinator by a network of its own.
    pub is_apart: bool,
    /// A second network between the ranks' hosts.
    pub second: Option<Link>,
    /// When something fails: `shrink`, `rejoin` or nothing.
    pub then: &'static str,
    pub rounds: Option<u64>,
    pub scale: usize,
    pub silence: Duration,
    /// The deadline of what ranks do.
    pub timeout: Duration,
    /// More variables of the ranks.
    pub env: &'static [(&'static str, &'static str)],
    /// Whether hosts know one another by IPv6 addresses.
    pub is_v6: bool,
}

impl Plan {
    pub fn new(what: What, hosts: usize) -> Plan {
        Plan {
            what,
            hosts,
            ranks_a_host: 1,
            link: Link::new(),
            is_apart: false,
            second: None,
            then: "",
            rounds: None,
            scale: 1000,
            silence: PATIENT,
            timeout: LONG,
            env: &[],
            is_v6: false,
        }
    }
}

pub struct World {
    pub plan: Plan,
    pub hosts: Vec<Host>,
    /// Joins them; with the host of the coordinator, unless that is apart.
    pub net: Net,
    pub launcher: Host,
    coordinator: Serving,
    secret: Secret,
    apart: Option<Net>,
    /// A second network between the ranks' hosts, if the plan has one.
    pub second: Option<Net>,
    // Goes last.
    _bed: Bed,
}

impl World {
    /// Nothing if this machine can have no hosts.
    pub fn new(what: &str, plan: Plan) -> Option<World> {
        let bed = Bed::or_skip(what)?;
        let launcher = bed.host("launcher");
        let hosts = bed.hosts(plan.hosts);
        let all: Vec<Host> = hosts.iter().chain([&launcher]).cloned().collect();
        let (net, apart) = match plan.is_apart {
            true => (bed.switch(&hosts, plan.link), Some(bed.direct(&all))),
            false => (bed.switch(&all, plan.link), None),
        };
        let second = plan.second.map(|link| bed.switch(&hosts, link));
        let of_launcher = apart.as_ref().unwrap_or(&net);
        let address = if plan.is_v6 { of_launcher.address6(&launcher) } else { of_launcher.address(&launcher) };
        let secret = Secret::generate().unwrap();
        let every = (plan.silence / 5).min(Duration::from_secs(2));
        let heartbeat = Heartbeat { every, silence: plan.silence };
        let options = CoordinatorOptions { heartbeat, greeting: LONG, ..CoordinatorOptions::default() };
        let size = (plan.hosts * plan.ranks_a_host) as u32;
        let (at, of) = (SocketAddr::new(address, 0), secret.clone());
        let coordinator = launcher.run(|| Coordinator::bind(at, size, of, options).unwrap().serve().unwrap());
        Some(World { plan, hosts, net, launcher, coordinator, secret, apart, second, _bed: bed })
    }

    pub fn size(&self) -> u32 {
        (self.plan.hosts * self.plan.ranks_a_host) as u32
    }

    /// Starts a rank on its host: ranks of one host follow one another.
    pub fn start(&self, rank: u32) -> Rank {
        let host = &self.hosts[rank as usize / self.plan.ranks_a_host];
        let mut command = host.command(env::current_exe().unwrap());
        command.args(["--exact", "program::a_rank", "--nocapture", "--test-threads=1"]);
        if self.apart.is_some() {
            command.env("FULMEN_ADDRESS", self.net.address(host).to_string());
        }
        if let Some(rounds) = self.plan.rounds {
            command.env(program::ROUNDS, rounds.to_string());
        }
        let command = command
            .env(program::WHAT, self.plan.what.to_string())
            .env(program::THEN, self.plan.then)
            .env(program::SCALE, self.plan.scale.to_string())
            .env("FULMEN_RANK", rank.to_string())
            .env("FULMEN_SIZE", self.size().to_string())
            .env("FULMEN_COORDINATOR", self.coordinator.local_addr().to_string())
            .env("FULMEN_SECRET_FD", "0")
            .env("FULMEN_TIMEOUT", self.plan.timeout.as_secs().to_string())
            .env("FULMEN_SILENCE", self.plan.silence.as_secs_f32().to_string())
            .env("FULMEN_POOL", if self.plan.what.is_long() { "160M" } else { "16M" })
            .envs(self.plan.env.iter().copied());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        process.stdin.take().unwrap().write_all(self.secret.to_hex().as_bytes()).unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (said, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
        Rank { number: rank, process, lines, heard: Vec::new() }
    }

    pub fn start_all(&self) -> Vec<Rank> {
        (0..self.size()).map(|rank| self.start(rank)).collect()
    }

    /// Starts all, and waits until they have worked together.
    pub fn at_work(&self) -> Vec<Rank> {
        let mut ranks = self.start_all();
        ranks.iter_mut().for_each(|rank| drop(rank.hear("works")));
        ranks
    }
}

/// A process that does not outlive its test.
pub struct Rank {
    pub number: u32,
    process: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
}

impl Rank {
    /// Reads what it says until it says this, and gives what follows the word.
    ///
    /// # Panics
    /// If it ends before, or says it too late: with all that it has said.
    #[track_caller]
    pub fn hear(&mut self, word: &str) -> String {
        let end = Instant::now() + 2 * LONG;
        let why = loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix('@').and_then(|line| line.strip_prefix(word)) {
                        return rest.trim().to_owned();
                    }
                    self.heard.push(line);
                }
                Err(RecvTimeoutError::Timeout) => break "too late",
                Err(RecvTimeoutError::Disconnected) => break "and it ended",
            }
        };
        panic!("rank {} does not say \"{word}\", {why}; it said {:#?}", self.number, self.heard);
    }

    /// Waits until it has done many more rounds than it has said so far.
    #[track_caller]
    pub fn goes_on(&mut self) {
        let number = |line: &str| line.strip_prefix("@at ")?.parse::<u64>().ok();
        // What it has said and nobody has read yet is a few lines at most, since this thread's other end reads all the time.
        let known = self.lines.try_iter().filter_map(|line| number(&line)).last();
        let known = known.unwrap_or_else(|| self.hear("at").parse().unwrap());
        while self.hear("at").parse::<u64>().unwrap() < known + 6 * program::STRIDE {}
    }

    /// Waits until it has ended well.
    #[track_caller]
    pub fn ends(mut self) {
        let status = self.process.wait().unwrap();
        assert!(status.success(), "rank {} ended with {status}", self.number);
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
