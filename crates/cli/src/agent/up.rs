//! `fulmen up` and `fulmen down`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmen_cluster::agent::{Client, StateError};

use super::{AgentError, KEEP, Which, is_not_up, run};
use crate::output;
use crate::run::processes;

/// How long an agent may take to answer first.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is asked meanwhile.
const LOOK: Duration = Duration::from_millis(2);

/// Start this host's agent, which starts processes for others and stays up.
///
/// Returns as soon as it answers. What it has to say is in agent.log in the directory of its state, and what it does in audit.log.
#[derive(clap::Args)]
pub struct UpArgs {
    /// The node's name [default: the host's]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Stay in the foreground and log to standard error, as under systemd or launchd; end with SIGTERM or Ctrl-C
    #[arg(long)]
    foreground: bool,
}

/// End this host's agent, and with it all its processes.
///
/// They get SIGTERM, and SIGKILL after their grace. Of the agent's state, its logs are left.
#[derive(clap::Args)]
pub struct DownArgs {
    #[command(flatten)]
    which: Which,
}

fn checked(name: &str) -> anyhow::Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > 63 || !name.bytes().all(allowed) {
        let problem = format!("{name:?} cannot be a node's name: up to 63 letters, digits, and any of - _ .");
        return Err(AgentError(problem).into());
    }
    Ok(())
}

/// Starts an agent.
pub fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = args.name.unwrap_or_else(host);
    checked(&name)?;
    let state = args.which.directory()?;
    DirBuilder::new().recursive(true).mode(0o700).create(&state).with_context(|| state.display().to_string())?;
    let mut command = Command::new(processes::own_program()?);
    command.arg0("fulmen").args([KEEP, "--name", &name, "--state"]).arg(&state);
    if args.foreground {
        return Err(anyhow::Error::from(command.exec()).context("the agent was not started"));
    }
    let client = Client::new(&state);
    if run(async { Ok(client.status().await) })?.is_ok() {
        return Err(StateError::Taken(state).into());
    }
    let path = state.join("agent.log");
    let open = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
    let log = open.with_context(|| path.display().to_string())?;
    let before = log.metadata()?.len();
    let said = || last_line(&path, before);
    let mut keeper = command.arg("--apart").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
    let status = run(until_up(&client, &mut keeper, said))?;
    let text = format!("agent {} is up (pid {}, state in {})\n", status.name, status.pid, status.state);
    output::show(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn until_up(
    client: &Client,
    keeper: &mut Child,
    said: impl Fn() -> String,
) -> anyhow::Result<fulmen_cluster::agent::api::Status> {
    let end = Instant::now() + PATIENCE;
    loop {
        match client.status().await {
            Ok(status) => return Ok(status),
            Err(error) if !is_not_up(&error) => return Err(error.into()),
            Err(_) => {}
        }
        if keeper.try_wait()?.is_some() {
            bail!("the agent ended at once: {}", said());
        }
        if Instant::now() >= end {
            bail!("the agent does not answer after {} s: {}", PATIENCE.as_secs(), said());
        }
        tokio::time::sleep(LOOK).await;
    }
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

/// Ends an agent.
pub fn down(args: DownArgs) -> anyhow::Result<ExitCode> {
    let client = args.which.client()?;
    let status = run(async {
        let status = client.status().await?;
        client.down().await?;
        Ok(status)
    })?;
    let running = match status.running {
        0 => String::new(),
        1 => ", and with it 1 process".into(),
        count => format!(", and with it {count} processes"),
    };
    output::show(&format!("agent {} has ended{running}\n", status.name))?;
    Ok(ExitCode::SUCCESS)
}
