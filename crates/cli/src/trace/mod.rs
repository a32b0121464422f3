//! `fulmen trace`: what the ranks of a run did last, who waits and for whom.

mod ask;
mod chrome;
mod findings;
mod records;
mod show;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::output::{print, say};
use records::World;

/// Show what the ranks of a run did last: who waits in which operation and who is missing.
///
/// Ranks record their operations all the time. The records are written when an operation fails, and when a rank gets SIGUSR1;
/// `fulmen run` says where they are (`--trace DIR` chooses it).
#[derive(clap::Args)]
pub struct Args {
    /// Ask the ranks of a run that is under way, by the process number of its `fulmen run`, and show what they answer.
    #[arg(long, value_name = "PID", value_parser = process, allow_negative_numbers = true)]
    pid: Option<i32>,
    /// How many of each rank's last operations to show.
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: usize,
    /// Print one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
    /// Write the operations as a timeline in Chrome's trace format, which ui.perfetto.dev shows.
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
    /// Directories of records, or records.
    #[arg(value_name = "DIR|FILE", required_unless_present = "pid")]
    paths: Vec<PathBuf>,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// No file is a record.
    #[error(
        "no record in {places}: a rank writes one when an operation fails or when it gets SIGUSR1 (`fulmen trace --pid PID` sends it)"
    )]
    Nothing {
        /// Where it was looked.
        places: String,
    },
    /// There is no such run.
    #[error(
        "process {pid} has no ranks that record: give the process number of a `fulmen run` that is under way{hint}"
    )]
    NoRun {
        /// The process.
        pid: i32,
        /// More about it.
        hint: &'static str,
    },
}

/// Shows the records.
pub fn trace(args: Args) -> anyhow::Result<ExitCode> {
    let Args { pid, last, json, chrome, mut paths } = args;
    let mut warnings = Vec::new();
    if let Some(pid) = pid {
        paths.extend(ask::ask(pid, &mut warnings)?);
    }
    let world = World::read(&paths, &mut warnings)?;
    for warning in &warnings {
        say(&format!("warning: {warning}"));
    }
    if let Some(file) = chrome {
        let text = serde_json::to_vec(&chrome::events(&world))?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let found = findings::find(&world);
    let text = if json {
        let report = show::report(&world, &found, &warnings, last);
        format!("{}\n", serde_json::to_string(&report)?)
    } else {
        show::text(&world, &found, last)
    };
    print(&text)
}

fn process(text: &str) -> Result<i32, String> {
    text.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| "give the number of a process".to_string())
}
