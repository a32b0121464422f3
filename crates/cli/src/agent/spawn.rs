//! `fulmen spawn`.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context;
use fulmen_cluster::agent::api::{Event, GRACE_MS, Limit, NodeState, NodeStatus, Process, SpawnRequest, Stream};
use fulmen_cluster::agent::{Client, Events};
use futures_util::stream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::limit::limit;
use super::tty::{self, Raw};
use super::{AgentError, Where, Which, run};
use crate::output::{self, NOBODY_LISTENS};
use crate::run::lines::Lines;

/// Bytes of standard input that are sent at a time.
const CHUNK: usize = 64 << 10;
/// What stands for the end of what is typed at a terminal: Ctrl-D.
const END: u8 = 4;

/// Have this host's agent, or another node's, run a program.
///
/// Its output comes here as it is written, and signals that come here go to it. It has the agent's environment and what --env adds. When
/// this command ends, however that is, the program's process group gets SIGTERM, and SIGKILL after its grace; so does what the program
/// leaves behind in its group when it ends.
///
/// Exit code: the program's, or 128 and the number of the signal that ended it; 253 where it used too much memory; 1 where the agent is
/// not up or has refused, 2 for bad input.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: Where,
    /// On every node of the cluster, each line of output with the node's name before it; exits with the first code that is not 0
    #[arg(long, conflicts_with_all = ["node", "gateway", "stdin"])]
    all: bool,
    /// On the node that coordinates the cluster
    #[arg(long, conflicts_with = "node")]
    gateway: bool,
    /// A variable for the program: NAME=VALUE, or NAME for the value that it has here
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Where it runs [default: here; on other nodes, the home directory]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Send it the standard input of this command; else its own is empty
    #[arg(long)]
    stdin: bool,
    /// Give it a terminal, of the size of the one here, to which all that is typed here goes, Ctrl-C too. It writes to standard output
    /// alone then, and ends by SIGHUP rather than SIGTERM
    #[arg(long, conflicts_with_all = ["detach", "all"])]
    tty: bool,
    /// End it after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<u64>,
    /// Seconds between SIGTERM and SIGKILL when it is ended [default: 3]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    grace: Option<u64>,
    /// Print its number and return: it goes on by itself, under the agent
    #[arg(long, conflicts_with = "stdin")]
    detach: bool,
    /// Keep all that it writes in files, too, which `fulmen ps --json` names, until the agent ends
    #[arg(long)]
    keep_output: bool,
    /// What it may use, with all that descends from it: mem=SIZE (such as 512M or 2G), after which it is killed, cpu=NUMBER of
    /// processors (such as 0.5 or 2), or both: mem=2G,cpu=1.5. Linux only
    #[arg(long, value_name = "LIMITS", value_parser = limit)]
    limit: Option<Limit>,
    /// Take so many of the node's slots while it runs; refused if fewer are free
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    slots: u32,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Seconds, in milliseconds.
pub(super) fn seconds(text: &str) -> Result<u64, AgentError> {
    let number = text.parse().ok().filter(|seconds: &f64| (0.0..=1e9).contains(seconds));
    number.map(|seconds| (seconds * 1000.0) as u64).ok_or_else(|| AgentError("give seconds, such as 0.5 or 60".into()))
}

fn request(args: &Args) -> anyhow::Result<SpawnRequest> {
    let mut env = BTreeMap::new();
    for variable in &args.env {
        let (name, value) = match variable.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let value = std::env::var(variable);
                let problem =
                    || AgentError(format!("--env {variable}: there is no such variable here: give NAME=VALUE"));
                (&**variable, value.map_err(|_| problem())?)
            }
        };
        env.insert(name.to_owned(), value);
    }
    let elsewhere = args.all || args.gateway || args.place.node.is_some();
    let tty = args.tty.then(tty::size);
    if args.tty
        && let Ok(kind) = std::env::var("TERM")
    {
        // What the program writes goes to the terminal here.
        env.entry("TERM".to_owned()).or_insert(kind);
    }
    let cwd = match &args.cwd {
        Some(cwd) => Some(std::path::absolute(cwd).context("--cwd")?),
        None if elsewhere => None,
        None => Some(std::env::current_dir().context("the directory here")?),
    };
    let cwd = cwd.map(|cwd| cwd.into_os_string().into_string()).transpose();
    let cwd = cwd.map_err(|path| AgentError(format!("{} is not UTF-8, which JSON cannot say", path.display())))?;
    Ok(SpawnRequest {
        command: args.command.clone(),
        env,
        cwd,
        stdin: args.stdin || args.tty,
        timeout_ms: args.timeout,
        grace_ms: args.grace.unwrap_or(GRACE_MS),
        detach: args.detach,
        keep_output: args.keep_output,
        slots: args.slots,
        limit: args.limit,
        tty,
    })
}

/// Runs a program.
pub fn spawn(args: Args) -> anyhow::Result<ExitCode> {
    let (client, request) = (args.which.client()?, request(&args)?);
    if args.all {
        return run(on_all(client, request));
    }
    let client = if args.gateway { client.on("@gateway") } else { args.place.of(&client)? };
    run(async {
        if request.detach {
            let process = client.detach(request).await?;
            output::show(&format!("{}\n", process.id))?;
            return Ok(ExitCode::SUCCESS);
        }
        // Before it is started, so that no signal is missed.
        let signals = listen()?;
        let (tty, reads) = (request.tty, request.stdin);
        let (process, events) = start(&client, request).await?;
        tokio::spawn(pass_on(Arc::new(Mutex::new(vec![(client.clone(), process.id)])), signals));
        let mut raw = None;
        if let Some(size) = tty {
            raw = Raw::enter()?;
            tty::follow_size(client.clone(), process.id, size)?;
        }
        if reads {
            let (client, id, bytes) = (client.clone(), process.id, stdin(tty.is_some() && raw.is_none()));
            tokio::spawn(async move {
                if let Err(error) = client.stdin(id, bytes).await {
                    tracing::info!(%error, "standard input was not sent to its end");
                }
            });
        }
        show(events, None, raw).await
    })
}

async fn start(client: &Client, request: SpawnRequest) -> anyhow::Result<(Process, Events)> {
    let mut events = client.spawn(request).await?;
    let Some(Event::Started(process)) = events.next().await? else {
        anyhow::bail!("the agent did not say what it started")
    };
    Ok((process, events))
}

/// Runs a program on every node.
async fn on_all(client: Client, request: SpawnRequest) -> anyhow::Result<ExitCode> {
    let targets = Targets::default();
    tokio::spawn(pass_on(targets.clone(), listen()?));
    let work = |node: NodeStatus| {
        let (there, request, targets) = (client.on(&node.name), request.clone(), targets.clone());
        async move {
            let done = async {
                if node.state != NodeState::Up {
                    anyhow::bail!("it is {}: nothing was started there", node.state.word());
                }
                if request.detach {
                    let process = there.detach(request).await?;
                    output::show(&format!("{} {}\n", node.name, process.id))?;
                    return Ok(ExitCode::SUCCESS);
                }
                let (process, events) = start(&there, request).await?;
                targets.lock().unwrap_or_else(PoisonError::into_inner).push((there, process.id));
                show(events, Some(&node.name), None).await
            };
            done.await.unwrap_or_else(|error| {
                output::say(&format!("node {}: {error}", node.name));
                ExitCode::FAILURE
            })
        }
    };
    let nodes = client.status().await?.cluster.nodes;
    // At once: one that is not reached holds no other up.
    let codes = futures_util::future::join_all(nodes.into_iter().map(work)).await;
    Ok(codes.into_iter().find(|code| *code != ExitCode::SUCCESS).unwrap_or(ExitCode::SUCCESS))
}

/// Shows what a process writes, each line after the node's name if there is one, and gives its exit code. Nothing else is said as long as
/// the terminal is raw.
pub(super) async fn show(mut events: Events, node: Option<&str>, raw: Option<Raw>) -> anyhow::Result<ExitCode> {
    let lines = || node.map_or_else(Lines::plain, |node| Lines::with_label(format!("[{node}] ")));
    let mut streams = [(output::Stream::Out, lines()), (output::Stream::Err, lines())];
    let said = |text: String| output::say(&node.map_or(text.clone(), |node| format!("node {node}: {text}")));
    let mut whole = Vec::new();
    while let Some(event) = events.next().await? {
        match event {
            Event::Started(_) => {}
            Event::Output { stream, data } => {
                let bytes = data.bytes().context("the agent gave output that cannot be read")?;
                let (to, lines) = &mut streams[usize::from(stream == Stream::Stderr)];
                whole.clear();
                match node {
                    Some(_) => lines.push(&bytes, &mut whole),
                    // A line that is not whole yet may be a question.
                    None => whole.extend(bytes),
                }
                match to.write_all(&whole) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        return Ok(ExitCode::from(NOBODY_LISTENS));
                    }
                    written => written?,
                }
            }
            Event::Missed { bytes } => said(format!("{bytes} bytes of output are no longer kept")),
            Event::Ended(outcome) => {
                for (to, lines) in &mut streams {
                    whole.clear();
                    lines.finish(&mut whole);
                    to.write_all(&whole)?;
                }
                drop(raw);
                if let Some(because) = outcome.because {
                    said(format!("the agent ended the program: {}", because.words()));
                }
                return Ok(ExitCode::from(outcome.exit_code()));
            }
        }
    }
    anyhow::bail!("the agent did not say how the program ended")
}

/// The signals that go to the program.
fn listen() -> io::Result<mpsc::UnboundedReceiver<i32>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ];
    for kind in kinds {
        let (mut signals, sender) = (signal(kind)?, sender.clone());
        tokio::spawn(
            async move { while signals.recv().await.is_some() && sender.send(kind.as_raw_value()).is_ok() {} },
        );
    }
    Ok(receiver)
}

/// The processes to which signals go.
type Targets = Arc<Mutex<Vec<(Client, u64)>>>;

async fn pass_on(targets: Targets, mut signals: mpsc::UnboundedReceiver<i32>) {
    while let Some(signal) = signals.recv().await {
        let now = targets.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (client, id) in now {
            if let Err(error) = client.signal(id, signal).await {
                tracing::info!(%error, signal, "a signal was not passed on");
            }
        }
    }
}

/// What comes by standard input, and Ctrl-D at its end where that is for a terminal. A thread reads it, which may wait for ever.
fn stdin(typed_end: bool) -> impl futures_util::Stream<Item = io::Result<Vec<u8>>> + Send + 'static {
    let (sender, receiver) = mpsc::channel(1);
    thread::spawn(move || {
        let mut input = io::stdin().lock();
        let mut last = b'\n';
        loop {
            let mut bytes = vec![0; CHUNK];
            let read = input.read(&mut bytes).map(|count| {
                bytes.truncate(count);
                bytes
            });
            let read = match read {
                Ok(bytes) if bytes.is_empty() => {
                    // The first one only ends a line that was begun.
                    let ends = if last == b'\n' { 1 } else { 2 };
                    if typed_end {
                        let _ = sender.blocking_send(Ok(vec![END; ends]));
                    }
                    return;
                }
                read => read,
            };
            last = read.as_ref().ok().and_then(|bytes| bytes.last().copied()).unwrap_or(last);
            let failed = read.is_err();
            if sender.blocking_send(read).is_err() || failed {
                return;
            }
        }
    });
    stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}
