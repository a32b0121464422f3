//! The two processes of an agent: the agent itself, and its keeper.
//!
//! Whatever ends the agent, its processes end: they come to the keeper then, which kills them (Linux). If the keeper is ended, the agent
//! sees its standard input close, ends its processes and itself.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmen_cluster::agent::{Agent, Config, Place};
use fulmen_cluster::registry::EtcdAddress;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, setsid};

use super::devices::Devices;
use super::stage::BECOME;
use super::up::PlaceArgs;
use crate::run::processes;
use crate::run::signals::Signals;

/// The hidden subcommands.
pub const KEEP: &str = "keep-agent";
pub const AGENT: &str = "run-agent";

/// How long killed processes may take to vanish.
const VANISH: Duration = Duration::from_secs(30);
/// How often what is left is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// The keeper's arguments.
#[derive(clap::Args)]
pub struct KeepArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// In a session of its own, away from the terminal.
    #[arg(long)]
    apart: bool,
}

/// The agent's arguments.
#[derive(clap::Args)]
pub struct AgentArgs {
    #[arg(long)]
    pub name: Option<String>,
    #[arg(long)]
    pub state: PathBuf,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[arg(long)]
    pub registry: Option<EtcdAddress>,
    #[arg(long, default_value_t)]
    pub devices: Devices,
}

impl AgentArgs {
    /// The same again, for another process.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--state".into(), self.state.clone().into()];
        let mut add = |option: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([option.into(), value.into()]);
            }
        };
        add("--name", self.name.clone());
        add("--listen", self.place.listen.map(|address| address.to_string()));
        add("--address", self.place.address.clone());
        add("--slots", self.place.slots.map(|slots| slots.to_string()));
        add("--registry", self.registry.as_ref().map(EtcdAddress::to_string));
        add("--devices", Some(self.devices.to_string()));
        words
    }
}

/// The agent, under its keeper.
pub fn agent(args: AgentArgs) -> anyhow::Result<ExitCode> {
    let adopts = processes::adopt_orphans()?;
    if !adopts {
        tracing::info!("this system gives orphans to nobody: what leaves its process group is out of reach");
    }
    // It says nothing; its end is the keeper's.
    let (gone, keeper) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    super::run(async {
        let stop = async {
            let _ = keeper.await;
        };
        let AgentArgs { name, state, place: PlaceArgs { listen, address, slots }, registry, devices } = args;
        let processors = || thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let slots = slots.unwrap_or_else(processors);
        let stage = vec![processes::own_program()?.into(), BECOME.into()];
        // Tests and those who manage cgroups themselves say so.
        let cgroups = std::env::var_os("FULMEN_CGROUPS").is_none_or(|value| value != "off");
        let config = Config { name, state, place: Place { listen, address }, registry, slots, stage, cgroups };
        Ok(Agent::run(config, devices.open()?, stop).await?)
    })?;
    // What left its group. The keeper would do it, but may be gone.
    kill_orphans()?;
    Ok(ExitCode::SUCCESS)
}

fn kill_orphans() -> anyhow::Result<()> {
    let end = Instant::now() + VANISH;
    while processes::kill_orphans(&[])? > 0 {
        if Instant::now() >= end {
            tracing::error!("processes of the agent cannot be killed: they hang inside the system");
            break;
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Starts the agent, and cleans up after it.
pub fn keep(args: KeepArgs) -> anyhow::Result<ExitCode> {
    if args.apart {
        setsid()?;
    }
    processes::adopt_orphans()?;
    let signals = Signals::listen(0)?;
    let mut child = Command::new(processes::own_program()?)
        .arg0("fulmen")
        .arg(AGENT)
        .args(args.agent.words())
        // Its processes inherit it.
        .env("FULMEN_STATE", &args.agent.state)
        // A signal from the terminal reaches it once: through this process.
        .process_group(0)
        .stdin(Stdio::piped())
        .spawn()
        .context("the agent was not started")?;
    let status = watch(&mut child, signals)?;
    kill_orphans()?;
    if let Some(signal) = status.signal() {
        let signal = crate::run::signals::name(signal);
        anyhow::bail!("the agent was ended by {signal}; its processes were killed");
    }
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Waits for the agent's end, and passes signals on to it.
fn watch(child: &mut Child, mut signals: Signals) -> anyhow::Result<std::process::ExitStatus> {
    let pid = Pid::from_child(child);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match poll(&mut [PollFd::new(signals.socket(), PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for signal in signals.pending() {
            let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].contains(&signal);
            // It was not waited for, so its number is its own.
            if ends && child.try_wait()?.is_none() {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    }
}
