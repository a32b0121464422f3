//! What an agent counts, in the text format of Prometheus.

use std::fmt::Write;

use super::api::{DeviceStatus, NodeState, Status};

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
    let cluster = &status.cluster;
    let in_touch = u64::from(cluster.in_touch);
    metric(
        "fulmen_cluster_in_touch",
        "gauge",
        "1 if the node agrees with a majority of the known nodes.",
        &[("", in_touch)],
    );
    let states = [
        (r#"{state="up"}"#, NodeState::Up),
        (r#"{state="down"}"#, NodeState::Down),
        (r#"{state="unknown"}"#, NodeState::Unknown),
        (r#"{state="leaving"}"#, NodeState::Leaving),
    ];
    let count = |state| cluster.nodes.iter().filter(|node| node.state == state).count() as u64;
    let nodes = states.map(|(label, state)| (label, count(state)));
    metric("fulmen_cluster_nodes", "gauge", "Known nodes, by state as this one sees them.", &nodes);
    if let Some(own) = cluster.nodes.iter().find(|node| node.name == status.name) {
        metric("fulmen_slots", "gauge", "Ranks that the node runs at a time.", &[("", own.slots.into())]);
        metric("fulmen_slots_taken", "gauge", "Slots that are taken.", &[("", own.slots_taken.into())]);
    }
    if !status.devices.is_empty() {
        let label = |device: &DeviceStatus| format!("{{device={:?}}}", device.device);
        let labels: Vec<String> = status.devices.iter().map(label).collect();
        let mut each = |name, kind, help, value: fn(&DeviceStatus) -> u64| {
            let values: Vec<_> =
                labels.iter().zip(&status.devices).map(|(label, device)| (&**label, value(device))).collect();
            metric(name, kind, help, &values);
        };
        each("fulmen_device_queue_pairs", "gauge", "Queue pairs that programs have of an owned device.", |device| {
            device.pairs as u64
        });
        each("fulmen_device_trunks", "gauge", "Other owners to which a device leads now.", |device| {
            device.trunks as u64
        });
        each("fulmen_device_sent_bytes_total", "counter", "Bytes of programs' messages that went out.", |device| {
            device.sent_bytes
        });
        each("fulmen_device_received_bytes_total", "counter", "Bytes of programs' messages that came.", |device| {
            device.received_bytes
        });
    }
    text
}
