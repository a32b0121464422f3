//! `fulmen links`: every pair has its row, which names what it runs over.

use serde_json::Value;

use crate::support::{Ended, FULMEN, fulmen};

fn links(args: &[&str]) -> Ended {
    fulmen(&[&["links"], args].concat()).end()
}

/// The rows of a run with `--json`, which must be whole ones, and of rails that are up.
#[track_caller]
pub fn rows(ended: &Ended) -> Vec<Value> {
    let rows = any_rows(ended);
    assert_eq!(ended.err, "", "{}", ended.out);
    for row in &rows {
        assert_eq!(row["state"], "up", "{row}");
        for name in ["latency_us", "out_GBps", "back_GBps"] {
            assert!(row[name].as_f64().expect("a number") > 0.0, "{name} of {row}");
        }
    }
    rows
}

/// The same, also of rails that are down.
#[track_caller]
pub fn any_rows(ended: &Ended) -> Vec<Value> {
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    let rows: Vec<Value> = ended.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for row in &rows {
        let mut names: Vec<&str> = row.as_object().expect("an object").keys().map(String::as_str).collect();
        names.sort_unstable();
        let wanted = [
            "back_GBps",
            "cable",
            "fallback",
            "from",
            "from_host",
            "kind",
            "latency_us",
            "out_GBps",
            "rail",
            "state",
            "to",
            "to_host",
        ];
        assert_eq!(names, wanted);
        assert!(row["from"].as_u64() < row["to"].as_u64(), "{row}");
        if let Some(cable) = row["cable"].as_object() {
            for end in ["from", "to"] {
                let mut names: Vec<&String> = cable[end].as_object().expect("an end").keys().collect();
                names.sort_unstable();
                assert_eq!(names, ["address", "device", "port"]);
            }
        }
    }
    rows
}

fn pairs(rows: &[Value]) -> Vec<(u64, u64)> {
    rows.iter().map(|row| (row["from"].as_u64().expect("a rank"), row["to"].as_u64().expect("a rank"))).collect()
}

#[test]
fn ranks_of_one_machine_share_memory() {
    let rows = rows(&links(&["-n", "3", "--json"]));
    assert_eq!(pairs(&rows), [(0, 1), (0, 2), (1, 2)]);
    for row in rows {
        assert_eq!(row["kind"], "shared-memory");
        assert!(row["cable"].is_null() && row["rail"].is_null() && row["fallback"].is_null(), "{row}");
        assert_eq!(row["from_host"], row["to_host"]);
    }
}

/// As far as they know, ranks 0 and 1 are on one host, and rank 2 is on another.
#[test]
fn ranks_of_one_host_share_memory_beside_others() {
    let script = format!("FULMEN_HOST_ID=host$((FULMEN_RANK / 2)) exec {FULMEN} __links");
    let ended = fulmen(&["run", "-n", "3", "--", "/bin/sh", "-c", &script]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let rows: Vec<Value> = ended
        .out
        .lines()
        .map(|line| serde_json::from_str(line.strip_prefix("[0] ").expect("rank 0 tells")).expect("a row"))
        .collect();
    assert_eq!(pairs(&rows), [(0, 1), (0, 2), (1, 2)]);
    let kinds: Vec<&str> = rows.iter().map(|row| row["kind"].as_str().expect("a kind")).collect();
    assert_eq!(kinds, ["shared-memory", "tcp-sealed", "tcp-sealed"]);
    assert!(rows[0]["cable"].is_null() && rows[0]["fallback"].is_null() && rows[0]["rail"].is_null(), "{}", rows[0]);
}

#[test]
fn devices_and_tcp_are_named() {
    for (args, kind) in [
        (&["--profile", "thunderbolt"][..], "shared-memory"),
        (&["--device", "tcp"], "tcp-sealed"),
        (&["--device", "tcp", "--trusted-rail"], "tcp-plain"),
    ] {
        let rows = rows(&links(&[&["--json"], args].concat()));
        assert_eq!(pairs(&rows), [(0, 1)]);
        assert_eq!((&rows[0]["kind"], &rows[0]["rail"]), (&kind.into(), &0.into()), "{args:?}");
        let ends = [&rows[0]["cable"]["from"], &rows[0]["cable"]["to"]];
        for end in ends {
            assert!(end["device"].as_str().is_some_and(|name| !name.is_empty()), "{args:?}: {end}");
            assert!(!kind.starts_with("tcp") || end["address"] == "127.0.0.1", "{args:?}: {end}");
        }
    }
}

#[test]
fn people_get_a_table() {
    let ended = links(&["--device", "tcp"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ended.out);
    assert!(lines[0].starts_with("from ") && lines[0].contains(" out GB/s "), "{}", ended.out);
    assert!(
        lines[1].starts_with("0 ") && lines[1].contains(" 127.0.0.1 - ") && lines[1].ends_with("  up"),
        "{}",
        ended.out
    );
}

#[test]
fn nobody_is_alone() {
    let ended = links(&["-n", "1"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{}", ended.err);
    assert!(ended.err.contains("-n 2"), "{}", ended.err);
    let ended = links(&["--device", "no-such-device", "--json"]);
    assert!(ended.code.is_some_and(|code| code != 0) && ended.out.is_empty(), "{}", ended.err);
    assert!(ended.err.contains("no-such-device"), "{}", ended.err);
}
