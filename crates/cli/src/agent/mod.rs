//! `fulmen up`, `down`, `token`, `remove`, `role` and `status`: the agent of this host, and its cluster; `spawn`, `ps`, `attach` and
//! `kill`: processes.

mod devices;
mod keep;
mod limit;
mod nodes;
mod processes;
mod spawn;
mod stage;
mod status;
mod top;
mod tty;
mod up;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::Context;
use fulmen::parts::attach::default_state;
use fulmen_cluster::agent::{Client, ClientError, check_name, socket};

pub use keep::{AGENT, AgentArgs, KEEP, KeepArgs, agent, keep};
pub use nodes::{RemoveArgs, RoleArgs, TokenArgs, remove, role, token};
pub use processes::{AttachArgs, KillArgs, PsArgs, attach, kill, ps};
pub use spawn::{Args as SpawnArgs, spawn};
pub use stage::{BECOME, become_program};
pub use status::{Args as StatusArgs, status};
pub use top::{Args as TopArgs, top};
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
        default_state().context("there is no home directory: name a directory for the agent's state (--state)")
    }

    /// The agent there. Of nodes that were started together, the first that is up.
    pub fn client(&self) -> anyhow::Result<Client> {
        let directory = self.directory()?;
        let together = (1..).map(|number| up::node_state(&directory, number)).take_while(|state| state.exists());
        let is_up = |state: &PathBuf| UnixStream::connect(socket(state)).is_ok();
        Ok(Client::new(&together.into_iter().find(is_up).unwrap_or(directory)))
    }
}

/// On which node.
#[derive(clap::Args, Clone)]
pub struct Where {
    /// On this node of the cluster, instead of this host's
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

impl Where {
    fn of(&self, client: &Client) -> anyhow::Result<Client> {
        let Some(node) = &self.node else { return Ok(client.clone()) };
        check_name(node).map_err(|error| AgentError(error.to_string()))?;
        Ok(client.on(node))
    }
}

/// Bad input to one of these commands.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AgentError(String);

/// Runs what talks to an agent.
pub fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// Whether no agent is there.
fn is_not_up(error: &ClientError) -> bool {
    matches!(error, ClientError::NotUp(_))
}
