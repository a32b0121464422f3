//! `fulmen token`, `remove` and `role`: who belongs to a cluster, and what they may do.

use std::process::ExitCode;

use fulmen_cluster::agent::api::{Programs, Role, TokenRequest};
use fulmen_cluster::agent::check_name;

use super::spawn::seconds;
use super::{AgentError, Which, run};
use crate::output;

/// Print a token with which other hosts can join the cluster: `fulmen up --join TOKEN`.
///
/// Whoever has it can join, so hand it over where nobody else sees it: `fulmen token | ssh HOST fulmen up --join -`.
#[derive(clap::Args)]
pub struct TokenArgs {
    #[command(flatten)]
    which: Which,
    /// What they may do: `member` for everything, `guest` for nothing but to work for others, or a role of your own (fulmen role)
    #[arg(long, default_value = "member")]
    role: String,
    /// How many hosts can join with it
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,
    /// For how many seconds it is good
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    valid: u64,
}

/// Remove a node from the cluster: at once, nobody listens to it any more.
///
/// It can join again with a new token, once it has forgotten the cluster (fulmen down --leave, or by removing its state).
#[derive(clap::Args)]
pub struct RemoveArgs {
    /// The node's name
    node: String,
    #[command(flatten)]
    which: Which,
}

/// Say what nodes of a role may do on others.
#[derive(clap::Args)]
pub struct RoleArgs {
    /// The role's name
    name: String,
    #[command(flatten)]
    which: Which,
    /// They belong to the majority that agrees on everything, coordinate, and let others in
    #[arg(long)]
    votes: bool,
    /// They may start this program, with any arguments, as it is named here; `all` for any. Can be given several times
    #[arg(long, value_name = "PROGRAM")]
    spawn: Vec<String>,
}

/// Prints a token.
pub fn token(args: TokenArgs) -> anyhow::Result<ExitCode> {
    check_name(&args.role).map_err(|error| AgentError(error.to_string()))?;
    let client = args.which.client()?;
    let request = TokenRequest { role: args.role, uses: args.uses, valid_ms: args.valid };
    let token = run(async { Ok(client.token(&request).await?) })?;
    output::show(&format!("{token}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Removes a node.
pub fn remove(args: RemoveArgs) -> anyhow::Result<ExitCode> {
    check_name(&args.node).map_err(|error| AgentError(error.to_string()))?;
    let client = args.which.client()?;
    let over = run(async { Ok(client.remove(&args.node).await?) })?;
    let rest = if over { "" } else { "; the others will have forgotten it as soon as a majority has agreed" };
    output::show(&format!("node {} is removed{rest}\n", args.node))?;
    Ok(ExitCode::SUCCESS)
}

/// Says what a role may do.
pub fn role(args: RoleArgs) -> anyhow::Result<ExitCode> {
    check_name(&args.name).map_err(|error| AgentError(error.to_string()))?;
    let client = args.which.client()?;
    let all = args.spawn.iter().any(|program| program == "all");
    let spawn = if all { Programs::All } else { Programs::Only(args.spawn) };
    run(async { Ok(client.set_role(&Role { name: args.name, votes: args.votes, spawn }).await?) })?;
    Ok(ExitCode::SUCCESS)
}
