//! `fulmen up` and `fulmen down`.

use std::fmt::Write;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmen_cluster::agent::api::{Status, TokenRequest};
use fulmen_cluster::agent::{Client, ClientError, JoinError, StateError, check_name, join, recover};
use fulmen_cluster::registry::EtcdAddress;

use super::devices::Devices;
use super::keep::AgentArgs;
use super::{AgentError, KEEP, Which, is_not_up, run};
use crate::output;
use crate::run::processes;

/// How long an agent may take to answer first.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long it may take to be in touch with its cluster, if others are up.
const TOUCH: Duration = Duration::from_secs(10);
/// How often it is asked meanwhile.
const LOOK: Duration = Duration::from_millis(2);
/// More than the longest token.
const LONGEST_TOKEN: u64 = 64 << 10;

/// Start this host's agent, which starts processes for others and stays up.
///
/// The first agent makes a cluster, of which it is the only node; others join it with a token (`fulmen token`). A node that was up before
/// finds its cluster again. Returns as soon as it answers. What it has to say is in agent.log in the directory of its state, and what it
/// does in audit.log.
#[derive(clap::Args)]
pub struct UpArgs {
    /// The node's name, for good [default: the host's]
    #[arg(long)]
    name: Option<String>,
    /// Join a cluster: with this token, or with the one in @FILE, or with the one that comes by standard input (-), where nobody else sees it
    #[arg(long, value_name = "TOKEN|@FILE|-", conflicts_with = "registry")]
    join: Option<String>,
    /// Go on without the others, if a majority of the cluster's nodes is lost for good: only then, since there are two clusters else. Remove
    /// the lost ones afterwards (fulmen remove)
    #[arg(long, conflicts_with = "join")]
    recover: bool,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: PlaceArgs,
    /// Make a cluster that agrees on things in this etcd, which only its nodes should reach, instead of among its nodes: an address,
    /// with commas between those of several servers, and a prefix of all keys [default: fulmen]. Nodes that join are told of it
    #[arg(long, value_name = "etcd://HOST:PORT[,...][/PREFIX]")]
    registry: Option<EtcdAddress>,
    /// Own these devices, for programs of this host to use through the agent: names with commas between, or none. In place of a name:
    /// thunderbolt, or thunderbolt-strict, a device in software with the rules of that hardware, which leads to other agents of
    /// this machine [default: auto: those that have few queue pairs]
    #[arg(long, value_name = "NAME[,...]|auto|none", hide_default_value = true, default_value_t)]
    devices: Devices,
    /// Start a whole cluster of so many nodes on this host, to try things out; `fulmen down` leaves nothing of it
    #[arg(long, value_name = "N", conflicts_with_all = ["join", "recover", "foreground", "address", "registry"],
        value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: Option<u32>,
    /// Stay in the foreground and log to standard error, as under systemd or launchd; end with SIGTERM or Ctrl-C
    #[arg(long)]
    foreground: bool,
}

/// Where other nodes reach this one, and what it offers them.
#[derive(clap::Args, Clone, Default)]
pub struct PlaceArgs {
    /// Listen for other nodes there [default: everywhere at port 7387, or another if that is taken; later, where it was]
    #[arg(long, env = "FULMEN_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Tell other nodes this address, or name [default: the host's first that others reach]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub address: Option<String>,
    /// Ranks that run here at a time [default: as many as processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
}

/// End this host's agent, and with it all its processes.
///
/// They get SIGTERM, and SIGKILL after their grace. Of the agent's state, its logs are left.
#[derive(clap::Args)]
pub struct DownArgs {
    #[command(flatten)]
    which: Which,
    /// Have the node leave its cluster, and forget it: it can join again with a new token only
    #[arg(long)]
    leave: bool,
}

/// A node that is to be up.
struct Node {
    agent: AgentArgs,
    /// With which it joins a cluster.
    token: Option<String>,
}

/// Starts an agent, or several.
pub fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let state = args.which.directory()?;
    if let Some(name) = &args.name {
        check_name(name).map_err(|error| AgentError(error.to_string()))?;
    }
    if let Some(count) = args.nodes {
        return up_together(&state, args.name.as_deref(), count, args.place, &args.devices);
    }
    let token = args.join.as_deref().map(token).transpose()?;
    if args.recover {
        run(async { Ok(recover(&state).await?) })?;
    }
    let node = Node {
        agent: AgentArgs { name: args.name, state, place: args.place, registry: args.registry, devices: args.devices },
        token,
    };
    if args.foreground {
        run(node.prepare())?;
        let mut command = node.keeper()?;
        return Err(anyhow::Error::from(command.exec()).context("the agent was not started"));
    }
    let status = run(async { node.start().await?.until_up().await })?;
    let mut text = format!("agent {} is up (pid {}, state in {})\n", status.name, status.pid, status.state);
    let cluster = &status.cluster;
    if !cluster.in_touch {
        text += "it is not in touch with its cluster yet: start the other nodes (or the etcd that is its registry), or see agent.log\n";
    } else if cluster.nodes.len() > 1 {
        let _ = writeln!(text, "its cluster has {} nodes", cluster.nodes.len());
    }
    output::show(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The token that was given, or was said to be elsewhere.
fn token(given: &str) -> anyhow::Result<String> {
    let text = match given.strip_prefix('@') {
        _ if given == "-" => {
            std::io::read_to_string(std::io::stdin().lock().take(LONGEST_TOKEN)).context("standard input")?
        }
        Some(file) => fs::read_to_string(file).with_context(|| file.to_owned())?,
        None => given.to_owned(),
    };
    Ok(text.trim().to_owned())
}

/// The directory of a node of a cluster that was started together.
pub fn node_state(state: &Path, number: u32) -> PathBuf {
    state.join(format!("node-{number}"))
}

/// Starts a cluster on this host.
fn up_together(
    state: &Path,
    name: Option<&str>,
    count: u32,
    place: PlaceArgs,
    devices: &Devices,
) -> anyhow::Result<ExitCode> {
    if node_state(state, 1).exists() || state.join("node.json").exists() {
        let problem = format!(
            "{} has nodes already: end them (fulmen down), or give another directory (--state)",
            state.display()
        );
        return Err(AgentError(problem).into());
    }
    let ip = place.listen.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip());
    let (listen, slots) = (Some(SocketAddr::new(ip, 0)), place.slots);
    let node = |number: u32, token: Option<String>| {
        let name = format!("{}-{number}", name.unwrap_or("node"));
        let place = PlaceArgs { listen, address: None, slots };
        let (state, devices) = (node_state(state, number), devices.clone());
        Node { agent: AgentArgs { name: Some(name), state, place, registry: None, devices }, token }
    };
    let statuses = run(async {
        let first = node(1, None).start().await?.until_up().await?;
        let request = TokenRequest { role: "member".into(), uses: count, valid_ms: 600_000 };
        let token = Client::new(&node_state(state, 1)).token(&request).await?;
        let mut started = Vec::new();
        for number in 2..=count {
            started.push(node(number, Some(token.clone())).start().await?);
        }
        let mut statuses = vec![first];
        for mut node in started {
            statuses.push(node.until_up().await?);
        }
        anyhow::Ok(statuses)
    });
    let statuses = statuses.inspect_err(|_| {
        // What was started is not left behind.
        let _ = down_together(state);
    })?;
    let mut text = String::new();
    for status in statuses {
        let _ = writeln!(text, "agent {} is up (pid {}, state in {})", status.name, status.pid, status.state);
    }
    output::show(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends all nodes that were started together, and removes their state. Returns how many there were.
fn down_together(state: &Path) -> anyhow::Result<usize> {
    let states = || (1..).map(|number| node_state(state, number)).take_while(|directory| directory.exists());
    let down = |directory: PathBuf| async move { Client::new(&directory).down().await };
    let mut ended = 0;
    for outcome in run(async { Ok(futures_util::future::join_all(states().map(down)).await) })? {
        match outcome {
            Ok(()) => ended += 1,
            Err(error) if is_not_up(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for directory in states().collect::<Vec<_>>().into_iter().rev() {
        fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
    }
    // If it was made for them.
    let _ = fs::remove_dir(state);
    Ok(ended)
}

impl Node {
    /// Makes what it needs before it is started.
    async fn prepare(&self) -> anyhow::Result<()> {
        let state = &self.agent.state;
        DirBuilder::new().recursive(true).mode(0o700).create(state).with_context(|| state.display().to_string())?;
        let Some(token) = &self.token else { return Ok(()) };
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = self.agent.name.clone().unwrap_or_else(host);
        match join(state, token, &name).await {
            Ok(()) => Ok(()),
            Err(error @ (JoinError::Token(_) | JoinError::Name(_))) => Err(AgentError(error.to_string()).into()),
            Err(error) => Err(error.into()),
        }
    }

    fn keeper(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(processes::own_program()?);
        command.arg0("fulmen").arg(KEEP).args(self.agent.words());
        Ok(command)
    }

    async fn start(self) -> anyhow::Result<Starting> {
        let client = Client::new(&self.agent.state);
        if client.status().await.is_ok() {
            return Err(StateError::Taken(self.agent.state).into());
        }
        self.prepare().await?;
        let path = self.agent.state.join("agent.log");
        let open = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        let log = open.with_context(|| path.display().to_string())?;
        let before = log.metadata()?.len();
        let mut command = self.keeper()?;
        let keeper = command.arg("--apart").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        Ok(Starting { client, keeper, log: (path, before) })
    }
}

/// An agent that was started.
struct Starting {
    client: Client,
    keeper: Child,
    /// What it says, behind so many bytes.
    log: (PathBuf, u64),
}

impl Starting {
    /// Waits until it answers, and for a while until it is in touch with its cluster.
    async fn until_up(&mut self) -> anyhow::Result<Status> {
        let (end, touch) = (Instant::now() + PATIENCE, Instant::now() + TOUCH);
        let said = |log: &(PathBuf, u64)| last_line(&log.0, log.1);
        loop {
            match self.client.status().await {
                Ok(status) if is_settled(&status) || Instant::now() >= touch => return Ok(status),
                Ok(_) => {}
                // One that has to end at once may have answered nothing yet.
                Err(ClientError::NotUp(_) | ClientError::Gone(_)) => {}
                Err(error) => return Err(error.into()),
            }
            if self.keeper.try_wait()?.is_some() {
                bail!("the agent ended at once: {}", said(&self.log));
            }
            if Instant::now() >= end {
                bail!("the agent does not answer after {} s: {}", PATIENCE.as_secs(), said(&self.log));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn is_settled(status: &Status) -> bool {
    status.cluster.coordinator.is_some() && status.cluster.settled
}

/// What was said last, behind so many bytes.
fn last_line(log: &Path, before: u64) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes.get(before as usize..).unwrap_or_default()).into_owned();
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    line.map_or_else(
        || format!("{} says nothing", log.display()),
        |line| line.trim_start_matches("fulmen: ").to_owned(),
    )
}

/// Ends an agent, or those that were started together.
pub fn down(args: DownArgs) -> anyhow::Result<ExitCode> {
    let directory = args.which.directory()?;
    if node_state(&directory, 1).exists() {
        if args.leave {
            let problem = "these nodes were started together, and end together: leave --leave out";
            return Err(AgentError(problem.into()).into());
        }
        let ended = down_together(&directory)?;
        output::show(&format!("{ended} agents have ended, and nothing is left of them\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = Client::new(&directory);
    let status = run(async {
        let status = client.status().await?;
        if args.leave {
            client.leave().await?
        } else {
            client.down().await?
        }
        Ok(status)
    })?;
    let running = match status.running {
        0 => String::new(),
        1 => ", and with it 1 process".into(),
        count => format!(", and with it {count} processes"),
    };
    let left = if args.leave { "; it has left its cluster" } else { "" };
    output::show(&format!("agent {} has ended{running}{left}\n", status.name))?;
    Ok(ExitCode::SUCCESS)
}
