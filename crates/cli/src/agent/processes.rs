//! `fulmen ps`, `attach` and `kill`.

use std::process::ExitCode;

use rustix::process::Signal;

use super::status::{now_ms, row};
use super::{AgentError, Where, Which, run, spawn};
use crate::output;
use crate::run::signals;

/// List the processes of this host's agent: those that run, and the last that ended.
#[derive(clap::Args)]
pub struct PsArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: Where,
    /// Only those that run
    #[arg(long)]
    running: bool,
    /// Print a line of JSON for each
    #[arg(long)]
    json: bool,
}

/// Show what a process writes, from its start as far as that is kept (1 MiB), until its end.
///
/// Exits with the process's code, as `fulmen spawn` does. Nothing happens to the process when this ends.
#[derive(clap::Args)]
pub struct AttachArgs {
    /// The process's number
    id: u64,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: Where,
}

/// Send a signal to a process and its group.
#[derive(clap::Args)]
pub struct KillArgs {
    /// The process's number
    id: u64,
    /// The signal: a name or a number
    #[arg(long, short, default_value = "TERM", value_parser = signal)]
    signal: i32,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: Where,
}

/// A signal by its name, with SIG or without, or by its number.
fn signal(text: &str) -> Result<i32, AgentError> {
    let named = (1..32).find(|number| {
        let name = signals::name(*number);
        name.eq_ignore_ascii_case(text) || name.strip_prefix("SIG").is_some_and(|name| name.eq_ignore_ascii_case(text))
    });
    let number = named.or_else(|| text.parse().ok().filter(|number| Signal::from_named_raw(*number).is_some()));
    number.ok_or_else(|| AgentError("it is no signal: try TERM, INT, KILL or 15".into()))
}

/// Lists processes.
pub fn ps(args: PsArgs) -> anyhow::Result<ExitCode> {
    let client = args.place.of(&args.which.client()?)?;
    let processes = run(async { Ok(client.processes().await?) })?;
    let mut text = String::new();
    for process in processes.iter().filter(|process| !args.running || process.outcome.is_none()) {
        text += &if args.json { serde_json::to_string(process)? + "\n" } else { row(process, now_ms()) };
    }
    output::show(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows a process.
pub fn attach(args: AttachArgs) -> anyhow::Result<ExitCode> {
    let client = args.place.of(&args.which.client()?)?;
    run(async { spawn::show(client.attach(args.id).await?, None, None).await })
}

/// Sends a signal.
pub fn kill(args: KillArgs) -> anyhow::Result<ExitCode> {
    let client = args.place.of(&args.which.client()?)?;
    run(async { Ok(client.signal(args.id, args.signal).await?) })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "sigterm", "SIGTERM", "15"] {
            assert_eq!(signal(text).unwrap(), 15, "{text}");
        }
        for text in ["", "0", "-9", "NOPE", "1000"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }
}
