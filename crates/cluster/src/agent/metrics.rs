//! What an agent counts, in the text format of Prometheus.

use std::fmt::Write;

use super::api::Status;

/// The format's name.
pub(super) const TYPE: &str = "text/plain; version=0.0.4";

pub(super) fn text(status: &Status) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let started = status.started_ms / 1000;
    metric("fulmen_agent_start_time_seconds", "gauge", "When the agent was started, since 1970.", &[("", started)]);
    metric("fulmen_processes_running", "gauge", "Processes that run.", &[("", status.running)]);
    metric("fulmen_processes_spawned_total", "counter", "Processes that were started.", &[("", status.spawned)]);
    let ended = [
        (r#"{outcome="well"}"#, status.ended.well),
        (r#"{outcome="failed"}"#, status.ended.failed),
        (r#"{outcome="signaled"}"#, status.ended.signaled),
    ];
    metric("fulmen_processes_ended_total", "counter", "Processes that have ended, by outcome.", &ended);
    text
}
