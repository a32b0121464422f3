//! Records as a timeline in Chrome's trace format: a process for each rank, a track for each of its threads.

use fulmen::parts::fabric::recorder::file::{Operation, Phase};
use serde_json::{Value, json};

use super::findings::describe;
use super::records::World;

/// The whole timeline. Times are microseconds from the origin.
pub fn events(world: &World) -> Value {
    let micros = |at: u64| at.saturating_sub(world.origin) as f64 / 1e3;
    let mut events = Vec::new();
    for (rank, read) in &world.ranks {
        let name = format!("rank {rank} (process {} on {})", read.header.pid, read.header.host);
        events.push(json!({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": name}}));
        events.push(
            json!({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}),
        );
        for operation in &read.operations {
            let mut event = json!({
                "name": operation.op,
                "cat": if operation.group == 0 { "message" } else { "collective" },
                "pid": rank,
                "tid": operation.thread,
                "ts": micros(operation.begin),
                "args": args(operation),
            });
            let end = operation.end.unwrap_or(read.header.written).max(operation.begin);
            if operation.started {
                // They overlap on their thread, so each is a track of its own.
                event["ph"] = "b".into();
                event["id"] = format!("{rank}.{}.{}", operation.thread, operation.n).into();
                let mut last = event.clone();
                last["ph"] = "e".into();
                last["ts"] = micros(end).into();
                events.extend([event, last]);
            } else {
                event["ph"] = "X".into();
                event["dur"] = ((end - operation.begin) as f64 / 1e3).into();
                events.push(event);
            }
        }
        for note in &read.notes {
            events.push(json!({
                "ph": "i",
                "s": "p",
                "name": note.event,
                "cat": "note",
                "pid": rank,
                "tid": 0,
                "ts": micros(note.at),
                "args": {"text": note.text, "group": note.group, "peer": note.peer},
            }));
        }
    }
    json!({"displayTimeUnit": "ns", "otherData": {"generation": world.generation, "ranks": world.size}, "traceEvents": events})
}

fn args(operation: &Operation) -> Value {
    let outcome = match operation.phase {
        Phase::Running => "running when the record was written",
        Phase::Done => "done",
        Phase::Failed => "failed",
        Phase::LetGo => "nobody waited for its end",
    };
    json!({
        "operation": describe(operation),
        "outcome": outcome,
        "group": operation.group,
        "sequence": operation.sequence.to_string(),
        "peer": operation.peer,
        "bytes": operation.bytes,
        "exact": operation.exact,
    })
}

#[cfg(test)]
mod tests {
    use super::super::records::tests::{call, record, world};
    use super::*;

    #[test]
    fn each_operation_is_an_event_with_its_place_and_its_span() {
        let mut read = record(1, 2);
        read.operations.push(call("all_reduce", 1, 3, 1, Some((2, Phase::Done))));
        read.operations.push(call("barrier", 1, 4, 3, None));
        read.operations.push(Operation { started: true, ..call("send", 0, 5, 4, Some((5, Phase::Done))) });
        let trace = events(&world(vec![read]).0);
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
        let all_reduce = of("all_reduce")[0];
        assert_eq!((&all_reduce["ph"], &all_reduce["pid"]), (&json!("X"), &json!(1)));
        assert_eq!((&all_reduce["ts"], &all_reduce["dur"]), (&json!(1e6), &json!(1e6)));
        // What has not ended lasts until the record was written.
        assert_eq!(of("barrier")[0]["dur"], json!(7e6));
        let kinds: Vec<&str> = of("send").iter().map(|event| event["ph"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["b", "e"]);
        assert_eq!(of("send")[0]["id"], of("send")[1]["id"]);
        // What cannot be said in JSON would be null.
        assert!(events.iter().all(|event| event["ph"] == "M" || event["ts"].is_f64()), "{trace}");
    }
}
