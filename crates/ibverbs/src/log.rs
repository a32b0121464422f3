//! The log: to standard error, filtered as `FULMEN_LOG` says.

use tracing_subscriber::EnvFilter;

use crate::config::ConfigError;

/// Starts it. A program that logs through `tracing` itself has a log of its own, of which this one takes nothing.
///
/// # Errors
/// [`ConfigError`] if the filter cannot be understood.
pub(crate) fn start(filter: &str) -> Result<(), ConfigError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| ConfigError {
        variable: "FULMEN_LOG",
        value: filter.to_owned(),
        problem: format!("no filter ({error}); try FULMEN_LOG=debug"),
    })?;
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // They would be written to standard error directly, and panic where that cannot be done.
        .log_internal_errors(false)
        .try_init();
    // Inside a program of ours, which links this crate, there is a log already.
    drop(started);
    Ok(())
}
