//! Logs go to standard error, filtered by `-v` or `FULMEN_LOG`.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// Starts logging. `-v` wins over `FULMEN_LOG` (the syntax of tracing's filters, for example `fulmen=debug`); without
/// either, warnings are shown.
pub fn start(verbose: u8) -> anyhow::Result<()> {
    let filter = match (verbose, std::env::var("FULMEN_LOG")) {
        (0, Ok(directives)) if !directives.trim().is_empty() => EnvFilter::try_new(&directives)
            .with_context(|| format!("FULMEN_LOG={directives} is no filter; try FULMEN_LOG=debug"))?,
        (0, _) => EnvFilter::new("warn"),
        (1, _) => EnvFilter::new("info"),
        (2, _) => EnvFilter::new("debug"),
        _ => EnvFilter::new("trace"),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    Ok(())
}
