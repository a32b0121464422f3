//! `fulmen up`, `down`, `status`, `spawn`, `ps`, `attach` and `kill`: the agent of this host, and its processes.

mod keep;
mod processes;
mod spawn;
mod status;
mod up;

use std::path::PathBuf;

use anyhow::Context;
use fulmen_cluster::agent::{Client, ClientError};

pub use keep::{AGENT, AgentArgs, KEEP, KeepArgs, agent, keep};
pub use processes::{AttachArgs, KillArgs, PsArgs, attach, kill, ps};
pub use spawn::{Args as SpawnArgs, spawn};
pub use status::{Args as StatusArgs, status};
pub use up::{DownArgs, UpArgs, down, up};

/// Which agent is meant.
#[derive(clap::Args, Clone)]
pub struct Which {
    /// The directory of the agent's state; with others, several agents can be up on one machine [default:
    /// $XDG_STATE_HOME/fulmen or ~/.local/state/fulmen].
    #[arg(long, env = "FULMEN_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
}

impl Which {
    fn directory(&self) -> anyhow::Result<PathBuf> {
        if let Some(state) = &self.state {
            return std::path::absolute(state).context("--state");
        }
        let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let place = named.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
        let place = place.context("there is no home directory: name a directory for the agent's state (--state)")?;
        Ok(place.join("fulmen"))
    }

    fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&self.directory()?))
    }
}

/// Bad input to one of these commands.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AgentError(String);

/// Runs what talks to an agent.
fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// Whether no agent is there.
fn is_not_up(error: &ClientError) -> bool {
    matches!(error, ClientError::NotUp(_))
}
