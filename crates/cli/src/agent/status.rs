//! `fulmen status`.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fulmen_cluster::agent::api::{ClusterStatus, DeviceStatus, NodeStatus, Process, Status};

use super::{Which, run};
use crate::output;

/// How often `--watch` looks.
const LOOK: Duration = Duration::from_secs(1);
/// The most processes that are shown.
const SHOWN: usize = 20;

/// Show what this host's agent does.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Print JSON: what the agent says of itself
    #[arg(long)]
    json: bool,
    /// Go on, once a second
    #[arg(long)]
    watch: bool,
}

/// Shows an agent's status.
pub fn status(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.which.client()?;
    run(async {
        loop {
            let status = client.status().await?;
            let text = if args.json {
                format!("{}\n", serde_json::to_string(&status)?)
            } else {
                let processes = client.processes().await?;
                let clear = if args.watch { "\x1b[H\x1b[2J" } else { "" };
                format!("{clear}{}", text(&status, &processes, now_ms()))
            };
            if !output::show(&text)? || !args.watch {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

fn text(status: &Status, processes: &[Process], now_ms: u64) -> String {
    let Status { name, pid, version, started_ms, state, running, spawned, ended, cluster, devices } = status;
    let up = ago(now_ms.saturating_sub(*started_ms));
    let mut text = format!("node {name}: agent {version}, pid {pid}, up for {up}, state in {state}\n");
    let _ = writeln!(
        text,
        "{running} running; {spawned} started, of which {} ended well, {} with an error, {} by a signal",
        ended.well, ended.failed, ended.signaled
    );
    if cluster.nodes.len() > 1 || !cluster.in_touch {
        text += &nodes(cluster);
    }
    for DeviceStatus { device, pairs, trunks, sent_bytes, received_bytes, .. } in devices {
        let _ = writeln!(
            text,
            "owns {device}: {pairs} queue pairs of programs, leads to {trunks} other agents; {} MB sent, {} MB received",
            sent_bytes / 1_000_000,
            received_bytes / 1_000_000
        );
    }
    let running: Vec<&Process> = processes.iter().filter(|process| process.outcome.is_none()).collect();
    for process in running.iter().take(SHOWN) {
        text += &row(process, now_ms);
    }
    if running.len() > SHOWN {
        let _ = writeln!(text, "and {} more: fulmen ps", running.len() - SHOWN);
    }
    text
}

/// A cluster in lines.
fn nodes(cluster: &ClusterStatus) -> String {
    let known = cluster.nodes.len();
    let mut text = String::new();
    let _ = match &cluster.coordinator {
        _ if !cluster.in_touch => {
            let whom = match &cluster.registry {
                None => format!("a majority of the {known} known nodes"),
                Some(registry) => format!("the registry {registry}"),
            };
            writeln!(text, "not in touch with {whom}: whether others are down or cut off from here cannot be known")
        }
        Some(coordinator) => writeln!(text, "{known} nodes, coordinated by {coordinator}"),
        None => writeln!(text, "{known} nodes, coordinated by none yet"),
    };
    for NodeStatus { name, role, address, state, slots, slots_taken, .. } in &cluster.nodes {
        let address = address.as_deref().unwrap_or("-");
        let slots = if *slots > 0 { format!("{slots_taken} of {slots} slots taken") } else { String::new() };
        let line = format!("  {name:<20} {:<8} {address:<24} {role:<10} {slots}", state.word());
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// A process in a line.
pub(super) fn row(process: &Process, now_ms: u64) -> String {
    let state = match &process.outcome {
        None => format!("for {}", ago(now_ms.saturating_sub(process.started_ms))),
        Some(outcome) => {
            let how = match (outcome.code, outcome.signal) {
                (Some(code), _) => format!("code {code}"),
                (None, Some(signal)) => crate::run::signals::name(signal),
                (None, None) => "ended".into(),
            };
            let why = outcome.because.map_or(String::new(), |because| format!(" ({})", because.words()));
            format!("{how} after {}{why}", ago(outcome.ran_ms))
        }
    };
    let words: Vec<String> = process.command.iter().map(|word| quoted(word)).collect();
    format!("{:>6}  pid {:<8} {state:<24} {}\n", process.id, process.pid, words.join(" "))
}

/// As a shell would take it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.into();
    }
    let shown: String =
        word.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    format!("'{}'", shown.replace('\'', r"'\''"))
}

pub(super) fn ago(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use fulmen_cluster::agent::api::{Because, Outcome};

    use super::*;

    #[test]
    fn a_process_has_a_line() {
        let process = |outcome| Process {
            id: 7,
            pid: 4711,
            command: vec!["sh".into(), "-c".into(), "echo it's\x1b[2J".into()],
            detached: false,
            by: None,
            slots: 0,
            started_ms: 1000,
            outcome,
            kept: None,
        };
        assert_eq!(
            row(&process(None), 62_000),
            "     7  pid 4711     for 1 min 1 s            sh -c 'echo it'\\''s\\u{1b}[2J'\n"
        );
        let outcome =
            Outcome { code: None, signal: Some(15), because: Some(Because::Timeout), ran_ms: 250, said: None };
        let line = row(&process(Some(outcome)), 0);
        assert!(line.contains("SIGTERM after 250 ms (its time was over)"), "{line}");
    }
}
